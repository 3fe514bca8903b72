"""The accelerator's own state: power, clock, temperature, memory, and what it is busy with.

Three sources, none of which is needed: ``tegrastats`` as a child process; the DLAs' power state in
sysfs; the time that the node's own inferences took. The DLA has no counter of its load, so that
figure is an estimate and is named so.

jetson-stats (``jtop``) is not among them: its licence, AGPL-3.0, would reach the node that imports
it, and what it shows of a DLA comes from the same places.
"""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path
from typing import Deque, NamedTuple

from dla_perception.monitoring.health import Finding, Level, worst
from dla_perception.monitoring.machine import (
    ROOT,
    DlaDevice,
    Machine,
    find_dlas,
    read_machine,
)
from dla_perception.monitoring.tegrastats import TegrastatsSample
from dla_perception.monitoring.tegrastats_process import TegrastatsProcess

NAME = "accelerator"

WINDOW_S = 5.0
"""Shares of time are of the last so many seconds."""

CLEARLY_BUSY = 0.1
"""Share of the time that inferences must have taken before a DLA without power is suspicious."""

INTERVAL_MS = 1000
"""Between two lines of tegrastats."""

_NOT_CONNECTED = "NC"
"""The name of a power monitor's channel that measures nothing."""


class _Moment(NamedTuple):
    """What has added up until ``now_s``: busy seconds, and the active ms of each DLA."""

    now_s: float
    busy_s: float
    active_ms: dict[int, int | None]


class Accelerator:
    """Watches a Jetson's accelerator while it is started; on other machines it says so."""

    def __init__(self, root: Path = ROOT, tool: str = "tegrastats") -> None:
        """Nothing runs before :meth:`start`.

        Args:
            root: the folder that stands for ``/``.
            tool: name or path of tegrastats.
        """
        self._root = root
        self._tool = tool
        self._machine: Machine = read_machine(root)
        self._dlas: list[DlaDevice] | None = None
        self._process: TegrastatsProcess | None = None
        self._started = False
        self._moments: Deque[_Moment] = deque()

    def start(self) -> None:
        """Begin to watch; on a machine that is no Jetson there is nothing to do."""
        self.close()
        self._started = True
        if not self._machine.is_jetson:
            return
        if self._dlas is None:
            self._dlas = find_dlas(self._root)
        path = shutil.which(self._tool)
        if path:
            self._process = TegrastatsProcess([path, "--interval", str(INTERVAL_MS)])
            self._process.start()

    def close(self) -> None:
        """Stop watching: the child process is gone. May be called more than once."""
        if self._process is not None:
            self._process.close()
            self._process = None
        self._started = False
        self._moments.clear()

    def finding(self, now_s: float, busy_s: float, dla_core: int) -> Finding:
        """What there is to say; call it once per diagnostics message.

        Args:
            now_s: seconds of a steady clock.
            busy_s: seconds that all of the node's inferences have taken, none counted twice.
            dla_core: the core that they are meant to run on; -1: none.
        """
        if not self._started:
            return Finding(NAME, Level.OK, "not watched: the node is not active")
        dlas = self._dlas or []
        first = self._remember(_Moment(now_s, busy_s, {dla.core: dla.active_ms() for dla in dlas}))
        last = self._moments[-1]
        span_s = last.now_s - first.now_s
        busy_share = (last.busy_s - first.busy_s) / span_s if span_s > 0 else None
        values = {"engine_busy_estimate_percent": _percent(busy_share)}
        if not self._machine.is_jetson:
            return Finding(NAME, Level.OK, "there is no DLA here: this is no Jetson", values)
        process = self._process
        sample = process.sample if process else None
        values["module"] = self._machine.name
        values["dla_cores"] = "n/a" if self._machine.dla_cores is None else str(self._dla_count())
        for core in self._cores(sample):
            values.update(self._dla_values(core, sample, first, last))
        values.update(_sample_values(sample))
        problems = [(Level.WARN, text) for text in self._problems(process)]
        if busy_share is not None and busy_share > CLEARLY_BUSY:
            problems += [(Level.WARN, text) for text in _unpowered(dla_core, first, last)]
        level, message = worst(problems, self._well(sample, values))
        return Finding(NAME, level, message, values)

    # What it means -------------------------------------------------------------------------------

    def _dla_count(self) -> int:
        return self._machine.dla_cores or 0

    def _remember(self, moment: _Moment) -> _Moment:
        """Keep ``moment``; returns the oldest one of the window."""
        if self._moments and moment.busy_s < self._moments[-1].busy_s:
            self._moments.clear()  # it was counted anew
        self._moments.append(moment)
        while len(self._moments) > 2 and self._moments[1].now_s <= moment.now_s - WINDOW_S:
            self._moments.popleft()
        return self._moments[0]

    def _cores(self, sample: TegrastatsSample | None) -> list[int]:
        """The DLA cores that anything tells of."""
        cores = {dla.core for dla in self._dlas or []} | set(range(self._dla_count()))
        cores.update(core for core in (0, 1) if sample and f"NVDLA{core}" in sample.engines)
        return sorted(cores)

    def _dla_values(
        self, core: int, sample: TegrastatsSample | None, first: _Moment, last: _Moment
    ) -> dict[str, str]:
        dla = next((dla for dla in self._dlas or [] if dla.core == core), None)
        power = dla.power_state() if dla else ""
        engine = sample.engines.get(f"NVDLA{core}") if sample else None
        clock_mhz = engine.clock_mhz if engine else None
        if engine is not None:
            state = "on" if engine.on else "off"
        elif sample is not None and sample.shows_engines:
            state = "off"  # Jetson Linux 35 shows a DLA only while it has a clock
        else:
            state = {"active": "on", "suspended": "off"}.get(power, "n/a")
        clock = dla.clock_mhz() if dla and clock_mhz is None and state == "on" else clock_mhz
        values = {
            f"dla{core}_state": state,
            f"dla{core}_clock_mhz": "n/a" if clock is None else f"{clock:g}",
            f"dla{core}_power_state": power or "n/a",
            f"dla{core}_powered_percent": _percent(_powered_share(core, first, last)),
        }
        if engine is not None and engine.percent is not None:
            values[f"dla{core}_tegrastats_percent"] = str(engine.percent)
        return values

    def _problems(self, process: TegrastatsProcess | None) -> list[str]:
        if process is None:
            return [
                f"{self._tool} is not on this machine's PATH, so power, temperatures and clocks "
                "are not known: it comes with JetPack; in a container, mount it from the host"
            ]
        problem = process.problem
        if problem:
            return [
                f"tegrastats {problem}: run it in a terminal to see why; it is "
                "started again once a minute"
            ]
        return []

    def _well(self, sample: TegrastatsSample | None, values: dict[str, str]) -> str:
        if sample is None:
            return "waiting for the first line of tegrastats"
        if self._machine.dla_cores == 0:
            return f"there is no DLA here: {self._machine.name} has none"
        states = ", ".join(
            f"DLA {core} {values[f'dla{core}_state']}" for core in self._cores(sample)
        )
        if not sample.shows_engines:
            # What most robots do, and no fault: ROS nodes seldom run as root.
            return f"{states or 'no DLA'}; its clock is shown to root only"
        return states or "no DLA"


def _powered_share(core: int, first: _Moment, last: _Moment) -> float | None:
    before, now = first.active_ms.get(core), last.active_ms.get(core)
    span_s = last.now_s - first.now_s
    if before is None or now is None or span_s <= 0:
        return None
    return (now - before) / 1e3 / span_s


def _unpowered(dla_core: int, first: _Moment, last: _Moment) -> list[str]:
    """What is odd about a busy engine whose DLA had no power all the while."""
    span_s = last.now_s - first.now_s
    if span_s < WINDOW_S or _powered_share(dla_core, first, last) != 0:
        return []
    others = [
        core for core in last.active_ms if (_powered_share(core, first, last) or 0) > CLEARLY_BUSY
    ]
    instead = f"but DLA {others[0]} had" if others else "nor had another one"
    return [
        f"inferences ran, and DLA {dla_core} had no power in the last {span_s:.0f} s, {instead}: "
        "the engine seems to run elsewhere; compare with engine placement"
    ]


def _sample_values(sample: TegrastatsSample | None) -> dict[str, str]:
    """What tegrastats says beyond the DLAs."""
    if sample is None:
        return {}
    values = {
        "ram_used_mb": str(sample.ram_used_mb),
        "ram_total_mb": str(sample.ram_total_mb),
    }
    if sample.emc_percent is not None:
        values["memory_bandwidth_percent"] = str(sample.emc_percent)
    gpu = sample.gpus.get("GR3D")
    if gpu and gpu.percent is not None:
        values["gpu_percent"] = str(gpu.percent)
    for name, rail in sample.rails.items():
        if name != _NOT_CONNECTED:
            values[f"{name.lower()}_mw"] = str(rail.current_mw)
    for name, temperature in sample.temperatures.items():
        degrees = temperature.celsius
        values[f"temperature_{name.lower()}_c"] = "offline" if degrees is None else f"{degrees:g}"
    return values


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{min(share, 1.0) * 100:.1f}"
