"""The accelerator's finding, with made-up Jetsons and stand-ins for tegrastats that misbehave."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from jetson_trees import make_jetson, set_power, write
from tegrastats_lines import LINES

from dla_perception.monitoring.accelerator import Accelerator
from dla_perception.monitoring.detector_health import STAGES, DetectorHealth
from dla_perception.monitoring.health import Level
from dla_perception.monitoring.tegrastats_process import TegrastatsProcess

PLACE = "sys/devices/platform/bus@0/13e00000.host1x"


@pytest.fixture
def tool(tmp_path):
    """Make a stand-in for tegrastats; it notes the number of its process and its arguments."""

    def make(script):
        path = tmp_path / "tool/tegrastats"
        write(path, f'#!/bin/sh\necho $$ "$@" >> {tmp_path}/started\n{script}\n')
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def starts(tmp_path):
    """What the stand-in has noted, one entry per start."""

    def read():
        path = tmp_path / "started"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def closing():
    """Close at the end of the test, whatever happens."""
    things = []
    yield lambda thing: things.append(thing) or thing
    for thing in things:
        thing.close()


def printing(line, ending="sleep 60"):
    return f"cat <<'LINE'\n{line}\nLINE\n{ending}"


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# The child process --------------------------------------------------------------------------------


def test_lines_are_read_and_the_child_is_gone_after_close(tool, starts, closing):
    process = closing(TegrastatsProcess([tool(printing(LINES["agx_orin_r36"])), "--interval", "7"]))
    assert (process.sample, process.problem) == (None, "")
    process.start()
    wait_for(lambda: process.sample)
    assert process.sample.engines["NVENC"].percent == 79
    assert process.problem == ""
    ((pid, *arguments),) = starts()
    assert arguments == ["--interval", "7"]
    assert is_running(pid)
    process.close()
    assert not is_running(pid)
    assert "tegrastats" not in [thread.name for thread in threading.enumerate()]
    process.close()  # once more does no harm


def test_a_child_that_heeds_no_signal_is_gone_too_with_what_it_started(tool, starts, closing):
    script = "trap '' TERM INT HUP\nsleep 61 &\necho $! >> $0.child\nwhile :; do sleep 62; done"
    path = tool(script)
    process = closing(TegrastatsProcess([path]))
    process.start()
    wait_for(lambda: Path(f"{path}.child").exists() and Path(f"{path}.child").read_text().strip())
    process.close()
    ((pid,),) = starts()
    wait_for(lambda: not is_running(pid))
    wait_for(lambda: not is_running(Path(f"{path}.child").read_text().strip()))


def test_a_child_that_dies_is_started_again_but_not_at_once(tool, starts, closing):
    line = LINES["xavier_nx_r32"]
    process = closing(TegrastatsProcess([tool(printing(line, "echo no more; exit 3"))]))
    process.start()
    wait_for(lambda: process.problem)
    assert process.problem == "ended with code 3 ('no more')"
    assert process.sample is None
    time.sleep(0.3)
    assert len(starts()) == 1  # the next start is a minute after the first

    again = closing(TegrastatsProcess([tool(printing(line, "exit 3"))], restart_s=0.1))
    again.start()
    wait_for(lambda: len(starts()) >= 4)


def test_the_problem_is_over_when_lines_come_again(tool, starts, closing, tmp_path):
    script = f"[ -e {tmp_path}/works ] || {{ touch {tmp_path}/works; kill -9 $$; }}"
    path = tool(f"{script}\n{printing(LINES['xavier_nx_r32'])}")
    process = closing(TegrastatsProcess([path], restart_s=0.2))
    problems = []
    process.start()
    wait_for(lambda: problems.append(process.problem) or process.sample)
    assert "ended by signal 9" in problems
    assert process.problem == ""
    assert len(starts()) == 2


@pytest.mark.parametrize("script", ["sleep 60", "while :; do echo busy; sleep 0.02; done"])
def test_a_child_without_statistics_is_ended(tool, starts, closing, script):
    process = closing(TegrastatsProcess([tool(script)], silence_s=0.5))
    process.start()
    wait_for(lambda: process.problem)
    assert process.problem.startswith("has printed no statistics for 0.5 s")
    assert ("busy" in process.problem) == ("busy" in script)
    ((pid,),) = starts()
    wait_for(lambda: not is_running(pid))


def test_an_endless_line_takes_no_memory(tool, closing):
    process = closing(TegrastatsProcess([tool("tr '\\0' x < /dev/zero")], silence_s=0.5))
    process.start()
    wait_for(lambda: process.problem)
    assert process.problem == "has printed no statistics for 0.5 s"


def test_a_tool_that_cannot_be_started(tmp_path, closing):
    process = closing(TegrastatsProcess([str(tmp_path)]))
    process.start()
    wait_for(lambda: process.problem)
    assert process.problem == "cannot be started: Permission denied"


def test_no_descriptor_is_left_behind(tool, starts, closing):
    before = len(os.listdir("/proc/self/fd"))
    process = closing(TegrastatsProcess([tool("exit 1")], restart_s=0.01))
    process.start()
    wait_for(lambda: len(starts()) >= 10)
    process.close()
    assert len(os.listdir("/proc/self/fd")) == before


# The finding --------------------------------------------------------------------------------------


@pytest.fixture
def watching(tmp_path, tool, closing):
    """A started accelerator of a made-up Jetson whose tegrastats prints one line."""

    def make(jetson, line):
        root = make_jetson(tmp_path / "root", jetson)
        accelerator = closing(Accelerator(root, tool(printing(line))))
        accelerator.start()
        wait_for(lambda: "ram_used_mb" in accelerator.finding(0.0, 0.0, 0).values)
        return accelerator

    return make


def test_a_dla_at_work(watching, tmp_path):
    accelerator = watching("agx_orin", LINES["agx_orin_r35_dla_running"])
    device = tmp_path / "root" / PLACE / "15880000.nvdla0"
    set_power(device, "active", 10_000)
    accelerator.finding(100.0, 20.0, 0)
    set_power(device, "active", 13_500)
    found = accelerator.finding(105.0, 23.0, 0)
    assert (found.name, found.level) == ("accelerator", Level.OK)
    assert found.message == "DLA 0 on, DLA 1 off"
    values = found.values
    assert values["module"] == "Jetson AGX Orin 64 GB"
    assert values["dla_cores"] == "2"
    assert values["engine_busy_estimate_percent"] == "60.0"
    assert values["dla0_state"] == "on"
    assert values["dla0_clock_mhz"] == "1600"
    assert values["dla0_power_state"] == "active"
    assert values["dla0_powered_percent"] == "70.0"
    assert values["dla1_state"] == "off"
    assert values["dla1_clock_mhz"] == "n/a"
    assert values["dla1_powered_percent"] == "0.0"
    assert values["ram_used_mb"] == "13983"
    assert values["ram_total_mb"] == "62780"
    assert values["memory_bandwidth_percent"] == "1"
    assert values["gpu_percent"] == "14"
    assert values["vdd_cpu_cv_mw"] == "14312"
    assert values["temperature_cv0_c"] == "73.625"
    assert "dla0_tegrastats_percent" not in values


def test_the_window_forgets_what_is_long_ago(watching):
    accelerator = watching("agx_orin", LINES["agx_orin_r36"])
    busy_s = 0.0
    for second in range(1, 12):
        busy_s += 0.9 if second <= 5 else 0.2
        found = accelerator.finding(float(second), busy_s, -1)
    assert found.values["engine_busy_estimate_percent"] == "20.0"
    # A count that begins again says nothing about the time before.
    assert accelerator.finding(12.0, 0.0, -1).values["engine_busy_estimate_percent"] == "n/a"
    assert accelerator.finding(13.0, 0.5, -1).values["engine_busy_estimate_percent"] == "50.0"


def test_off_offline_and_not_connected(watching):
    accelerator = watching("agx_orin", LINES["agx_orin_r35_idle"])
    found = accelerator.finding(1.0, 0.0, 0)
    assert found.message == "DLA 0 off, DLA 1 off"
    assert found.values["temperature_cv0_c"] == "offline"
    assert found.values["vddq_vdd2_1v8ao_mw"] == "301"
    assert "nc_mw" not in found.values


def test_not_root_is_no_fault(watching, tmp_path):
    accelerator = watching("agx_orin", LINES["agx_orin_r36_not_root"])
    set_power(tmp_path / "root" / PLACE / "158c0000.nvdla1", "active", 5)
    found = accelerator.finding(1.0, 0.0, 1)
    assert found.level is Level.OK
    assert found.message == "DLA 0 off, DLA 1 on; its clock is shown to root only"
    assert found.values["dla1_clock_mhz"] == "n/a"
    write(tmp_path / "root/sys/kernel/debug/clk/dla1_core/clk_rate", "1369600000\n")
    assert accelerator.finding(1.0, 0.0, 1).values["dla1_clock_mhz"] == "1369.6"


def test_one_core(watching):
    accelerator = watching("orin_nx_8gb", LINES["orin_nx_8gb_r36"])
    found = accelerator.finding(1.0, 0.0, 0)
    assert found.message == "DLA 0 off"
    assert found.values["dla_cores"] == "1"
    assert not any(key.startswith("dla1") for key in found.values)


@pytest.mark.parametrize(
    ("powered", "message"),
    [
        ((), "inferences ran, and DLA 0 had no power in the last 5 s, nor had another one"),
        ((1,), "inferences ran, and DLA 0 had no power in the last 5 s, but DLA 1 had"),
        ((0,), None),
        ((0, 1), None),
    ],
)
def test_an_engine_that_is_not_where_it_should_be(watching, tmp_path, powered, message):
    accelerator = watching("agx_orin", LINES["agx_orin_r36"])
    folder = tmp_path / "root" / PLACE
    accelerator.finding(10.0, 0.0, 0)
    for core in powered:
        set_power(folder / ("15880000.nvdla0", "158c0000.nvdla1")[core], "active", 4000)
    found = accelerator.finding(15.0, 3.0, 0)
    if message:
        assert found.level is Level.WARN
        assert found.message.startswith(message)
    else:
        assert found.level is Level.OK


def test_an_idle_engine_or_one_of_no_dla_is_not_suspected(watching):
    accelerator = watching("agx_orin", LINES["agx_orin_r36"])
    accelerator.finding(10.0, 0.0, 0)
    assert accelerator.finding(15.0, 0.2, 0).level is Level.OK
    assert accelerator.finding(20.0, 4.0, -1).level is Level.OK


def test_a_missing_tool_leaves_the_power_state(tmp_path, closing):
    accelerator = closing(Accelerator(make_jetson(tmp_path, "agx_orin"), "no_such_tool"))
    accelerator.start()
    found = accelerator.finding(1.0, 0.0, 0)
    assert found.level is Level.WARN
    assert found.message.startswith("no_such_tool is not on this machine's PATH")
    assert found.values["dla0_power_state"] == "suspended"
    assert found.values["dla0_state"] == "off"


def test_a_dying_tool_is_one_warning(tmp_path, tool, closing):
    path = tool("echo cannot open /dev/nvmap >&2; exit 1")
    accelerator = closing(Accelerator(make_jetson(tmp_path, "agx_orin"), path))
    accelerator.start()
    assert accelerator.finding(0.5, 0.0, 0).message.startswith(("waiting", "tegrastats ended"))
    wait_for(lambda: accelerator.finding(1.0, 0.0, 0).level is Level.WARN)
    found = accelerator.finding(1.0, 0.0, 0)
    assert found.message.startswith("tegrastats ended with code 1 ('cannot open /dev/nvmap'): run")
    assert "ram_used_mb" not in found.values


@pytest.mark.parametrize(
    ("jetson", "line", "message"),
    [
        ("thor", "thor_r38_elided", "there is no DLA here: Jetson Thor has none"),
        (
            "orin_nano",
            "agx_orin_r36_not_root",
            "there is no DLA here: Jetson Orin Nano 8 GB (developer kit) has none",
        ),
    ],
)
def test_a_jetson_without_a_dla(watching, jetson, line, message):
    found = watching(jetson, LINES[line]).finding(1.0, 0.0, -1)
    assert (found.level, found.message) == (Level.OK, message)
    assert found.values["dla_cores"] == "0"
    assert "temperature_tj_c" in found.values


def test_another_machine(tmp_path, tool, starts, closing):
    accelerator = closing(Accelerator(tmp_path / "empty", tool("sleep 60")))
    accelerator.start()
    accelerator.finding(0.0, 0.0, -1)
    found = accelerator.finding(2.0, 0.5, -1)
    assert found.level is Level.OK
    assert found.message == "there is no DLA here: this is no Jetson"
    assert found.values == {"engine_busy_estimate_percent": "25.0"}
    assert starts() == []


def test_started_and_closed_again_and_again(tmp_path, tool, starts, closing):
    path = tool(printing(LINES["agx_orin_r36"]))
    accelerator = closing(Accelerator(make_jetson(tmp_path, "agx_orin"), path))
    for _ in range(3):
        assert accelerator.finding(1.0, 0.0, 0).message == "not watched: the node is not active"
        accelerator.start()
        wait_for(lambda: "ram_used_mb" in accelerator.finding(1.0, 0.0, 0).values)
        accelerator.close()
    assert len(starts()) == 3
    assert not any(is_running(pid) for pid, *_ in starts())


def test_the_node_counts_its_inferences():
    health = DetectorHealth(["front"])
    times = {**dict.fromkeys(STAGES, 1.0), "inference": 250.0}
    health.published("front", 1, 0, times, 0.0, 1.0)
    health.published("front", 1, 0, times, 0.0, 2.0)
    health.reset(3.0)
    assert health.busy_s == 0.5
