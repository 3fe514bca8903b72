"""Lines of ``tegrastats``, the program of NVIDIA's Jetson Linux that prints the machine's state.

The format is a line of fields that differs from release to release: fields come and go, clocks are
shown to root only, and the white space varies. Sources: the page on tegrastats in NVIDIA's Jetson
Linux Developer Guide for the fields, and recorded lines of Jetson Linux 32, 35, 36, 38 and 39 for
what is printed.

There is no figure for how busy a DLA is. Jetson Linux 35 shows its clock while it runs and leaves
the field out while it does not; 36 and later show ``off``. No line of a running DLA of 36 or later
has been seen, so every form that other engines have there is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Mapping, Sequence

OFFLINE_C = -256.0
"""What a sensor shows whose part of the chip has no power."""


@dataclass(frozen=True)
class Core:
    """A CPU core that is online: its load in percent of its clock in MHz now."""

    percent: int
    clock_mhz: int | None


@dataclass(frozen=True)
class Gpu:
    """The GPU, ``GR3D``: its load, a sample that may be far off, and the clock of each cluster.

    Attributes:
        percent: ``None`` where it is not shown, as on Thor.
        clocks_mhz: empty where they are not shown, as to who is not root.
    """

    percent: int | None
    clocks_mhz: tuple[int, ...] = ()


@dataclass(frozen=True)
class EngineState:
    """An engine beside CPU and GPU, such as ``NVDLA0``, ``NVENC`` or ``VIC``.

    Attributes:
        on: it has a clock.
        clock_mhz: ``None`` where it is off or not shown.
        percent: load; ``None`` where it is not shown.
    """

    on: bool
    clock_mhz: int | None = None
    percent: int | None = None


@dataclass(frozen=True)
class Temperature:
    """Degrees Celsius; ``None``: the sensor is offline, or no maximum is shown."""

    celsius: float | None
    maximum: float | None = None


@dataclass(frozen=True)
class Rail:
    """Power of one supply in mW; a DLA shares its rail with other parts."""

    current_mw: int
    average_mw: int
    maximum_mw: int | None = None


@dataclass(frozen=True)
class TegrastatsSample:
    """One line. What a line does not show is ``None`` or missing in its mapping.

    Attributes:
        stamp: local time of the machine.
        ram_used_mb, ram_total_mb: memory of CPU, GPU and DLA together.
        largest_free_blocks: how many blocks of the largest free size there are, and that size in
            kB.
        swap_used_mb, swap_total_mb, swap_cached_mb: swap.
        cores: one per CPU core, ``None`` for one that is offline.
        emc_percent, emc_clock_mhz: used memory bandwidth in percent of what its clock allows.
        gpus: by name, ``GR3D`` and on some releases ``GR3D2``.
        engines: by name without ``_FREQ``.
        temperatures: by sensor, spelt as in the line.
        rails: by name; of names that repeat, as ``NC`` for "not connected", the last.
        mts_percent: foreground and background load of the CPU's code translation (Xavier).
        unknown: words that belong to no field known here, in their order.
    """

    stamp: datetime | None = None
    ram_used_mb: int | None = None
    ram_total_mb: int | None = None
    largest_free_blocks: tuple[int, int] | None = None
    swap_used_mb: int | None = None
    swap_total_mb: int | None = None
    swap_cached_mb: int | None = None
    cores: tuple[Core | None, ...] = ()
    emc_percent: int | None = None
    emc_clock_mhz: int | None = None
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    engines: Mapping[str, EngineState] = field(default_factory=dict)
    temperatures: Mapping[str, Temperature] = field(default_factory=dict)
    rails: Mapping[str, Rail] = field(default_factory=dict)
    mts_percent: tuple[int, int] | None = None
    unknown: tuple[str, ...] = ()

    @property
    def is_statistics(self) -> bool:
        """Whether the text was a line of statistics: all that are known begin with the memory."""
        return self.ram_total_mb is not None

    @property
    def shows_engines(self) -> bool:
        """Whether engines are shown at all, which they are to root only."""
        return bool(self.engines)


def parse_tegrastats(line: str) -> TegrastatsSample:
    """Read one line; any text is accepted, and words that mean nothing here are kept.

    Of a field that repeats the last counts.
    """
    fields: dict[str, Any] = {}
    unknown = []
    position = _skip_space(line, 0)
    while position < len(line):
        for pattern, read in _FIELDS:
            match = pattern.match(line, position)
            if match and read(match, fields):
                break
        else:
            match = _WORD.match(line, position)
            assert match is not None  # the position is not on white space
            unknown.append(match.group())
        position = _skip_space(line, match.end())
    return TegrastatsSample(**fields, unknown=tuple(unknown))


def _skip_space(line: str, position: int) -> int:
    while position < len(line) and line[position].isspace():
        position += 1
    return position


# Fields: a pattern, and what takes its groups into the sample. False: it only looks like the field.


def _read_stamp(match: re.Match[str], fields: dict[str, Any]) -> bool:
    try:
        fields["stamp"] = datetime.strptime(" ".join(match.groups()), "%m-%d-%Y %H:%M:%S")
    except ValueError:
        return False
    return True


def _read_memory(match: re.Match[str], fields: dict[str, Any]) -> bool:
    used, total, blocks, size, unit = match.groups()
    fields["ram_used_mb"] = int(used)
    fields["ram_total_mb"] = int(total)
    if blocks:
        fields["largest_free_blocks"] = (int(blocks), int(size) * (1024 if unit == "MB" else 1))
    return True


def _read_swap(match: re.Match[str], fields: dict[str, Any]) -> bool:
    used, total, cached = match.groups()
    fields["swap_used_mb"] = int(used)
    fields["swap_total_mb"] = int(total)
    if cached:
        fields["swap_cached_mb"] = int(cached)
    return True


def _read_cores(match: re.Match[str], fields: dict[str, Any]) -> bool:
    cores: list[Core | None] = []
    for text in match.group(1).split(","):
        core = _CORE.fullmatch(text.strip())
        if core is None:
            return False
        percent, clock = core.groups()
        cores.append(Core(int(percent), _number(clock)) if percent else None)
    fields["cores"] = tuple(cores)
    return True


def _read_emc(match: re.Match[str], fields: dict[str, Any]) -> bool:
    percent, clock = match.groups()
    fields["emc_percent"] = int(percent)
    fields["emc_clock_mhz"] = _number(clock)
    return True


def _read_gpu(match: re.Match[str], fields: dict[str, Any]) -> bool:
    name, percent, clocks = match.groups()
    if percent is None and clocks is None:
        return False
    numbers = tuple(int(clock) for clock in re.findall(_N, clocks or ""))
    fields.setdefault("gpus", {})[name] = Gpu(_number(percent), numbers)
    return True


def _read_mts(match: re.Match[str], fields: dict[str, Any]) -> bool:
    foreground, background = match.groups()
    fields["mts_percent"] = (int(foreground), int(background))
    return True


def _read_engine(match: re.Match[str], fields: dict[str, Any]) -> bool:
    name, off, percent, percent_clock, clock = match.groups()
    mhz = _number(percent_clock or clock)
    if off or mhz == 0:  # Thor shows a clock of 0 for an engine that is off
        state = EngineState(on=False)
    else:
        state = EngineState(True, mhz, _number(percent))
    fields.setdefault("engines", {})[name] = state
    return True


def _read_temperature(match: re.Match[str], fields: dict[str, Any]) -> bool:
    name, now, highest = match.groups()
    fields.setdefault("temperatures", {})[name] = Temperature(_celsius(now), _celsius(highest))
    return True


def _read_rail(match: re.Match[str], fields: dict[str, Any]) -> bool:
    name, current, average, maximum = match.groups()
    rail = Rail(int(current), int(average), _number(maximum))
    fields.setdefault("rails", {})[name] = rail
    return True


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _celsius(text: str | None) -> float | None:
    if text is None or float(text) <= OFFLINE_C:
        return None
    return float(text)


_N = r"[0-9]{1,9}"  # all figures are small, and no text shall make a number that takes long to read
_T = rf"-?{_N}(?:\.[0-9]{{1,9}})?"
_ENGINES = "NVENC|NVDEC|NVJPG|NVDLA|VIC|OFA|PVA|APE|MSENC|SE"
_WORD = re.compile(r"\S+")
_CORE = re.compile(rf"off|({_N})%(?:@({_N}))?")


def _field(pattern: str) -> re.Pattern[str]:
    """A pattern with its blanks standing for any white space, and ending where a word ends."""
    return re.compile(pattern.replace(" ", r"\s+") + r"(?!\S)")


_Reader = Callable[["re.Match[str]", "dict[str, Any]"], bool]

_FIELDS: Sequence[tuple[re.Pattern[str], _Reader]] = (
    (_field(r"([0-9]{2}-[0-9]{2}-[0-9]{4}) ([0-9]{2}:[0-9]{2}:[0-9]{2})"), _read_stamp),
    (_field(rf"RAM ({_N})/({_N})MB(?:\s*\(lfb ({_N})x({_N})(kB|MB)\))?"), _read_memory),
    (_field(rf"SWAP ({_N})/({_N})MB(?:\s*\(cached ({_N})MB\))?"), _read_swap),
    (_field(r"CPU \[([^\]]*)\]"), _read_cores),
    (_field(rf"EMC_FREQ ({_N})%(?:@({_N}))?"), _read_emc),
    (_field(rf"(GR3D2?)_FREQ (?:({_N})%)?(?:@({_N}|\[{_N}(?:,{_N})*\]))?"), _read_gpu),
    (_field(rf"MTS fg ({_N})% bg ({_N})%"), _read_mts),
    (
        _field(rf"((?:{_ENGINES})[0-9]*)(?:_FREQ)? (?:(off)|({_N})%(?:@({_N}))?|@?({_N}))"),
        _read_engine,
    ),
    (_field(rf"([A-Za-z]\w*)@({_T})C(?:/({_T})C)?"), _read_temperature),
    (_field(rf"([A-Za-z]\w*) ({_N})(?:mW)?/({_N})(?:mW)?(?:/({_N})(?:mW)?)?"), _read_rail),
)
