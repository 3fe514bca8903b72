"""The benchmark of failures: its sums, its output, and that it leaves no process behind."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Callable

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "failover.py"
KEYS = [
    "fault",
    "rate_hz",
    "runs",
    "frames_lost_worst",
    "longest_gap_ms_worst",
    "switch_ms_median",
    "duplicates",
    "order_violations",
]


@pytest.fixture(scope="module")
def failover() -> ModuleType:
    spec = importlib.util.spec_from_file_location("failover_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record(failover):
    """Images 1 to 9, a tenth of a second apart; the primary fails at 0.45 s, after image 4."""
    made = failover.Record()
    made.sent += range(1, 10)
    made.answered["primary"] += [1, 2, 3, 4]
    made.answered["secondary"] += range(1, 10)
    made.outputs += [(0.1 * stamp, stamp) for stamp in (1, 2, 3, 4)]
    made.outputs += [(0.75, 5), (0.75, 6), (0.75, 7), (0.8, 8), (0.9, 9)]
    made.active += [(0.0, "primary"), (0.75, "secondary")]
    return made


def test_a_failure_that_the_rule_covers(failover, record):
    run = failover.judge(record, 0.45)
    assert run.gap_ms == pytest.approx(350)
    assert run.switch_ms == pytest.approx(300)
    assert run.told_ms is None
    assert (run.lost, run.lost_by_rule, run.unanswered) == (0, 0, 0)
    assert (run.duplicates, run.order_violations) == (0, 0)


def test_what_was_answered_and_did_not_go_out_is_lost(failover, record):
    del record.outputs[5]
    run = failover.judge(record, 0.45)
    assert (run.lost, run.lost_by_rule, run.unanswered) == (1, 0, 0)


def test_what_came_too_late_by_the_rule_is_told_apart(failover, record):
    del record.outputs[5:7]
    record.lost_by_rule = 3
    run = failover.judge(record, 0.45, lost_by_rule_before=2)
    assert (run.lost, run.lost_by_rule, run.unanswered) == (1, 1, 0)


def test_what_nobody_answered_is_told_apart(failover, record):
    del record.outputs[5]
    record.answered["secondary"].remove(6)
    run = failover.judge(record, 0.45)
    assert (run.lost, run.unanswered) == (0, 1)


def test_what_is_above_the_last_output_is_not_lost_yet(failover, record):
    record.sent.append(10)
    record.answered["secondary"].append(10)
    run = failover.judge(record, 0.45)
    assert (run.lost, run.unanswered) == (0, 0)


def test_before_the_failure_nothing_counts(failover, record):
    record.outputs[1] = (0.2, 1)
    run = failover.judge(record, 0.45)
    assert (run.lost, run.duplicates) == (0, 0)


def test_twice_and_out_of_order(failover, record):
    record.outputs[6:6] = [(0.75, 5), (0.75, 6)]
    run = failover.judge(record, 0.45)
    assert (run.duplicates, run.order_violations) == (2, 1)


def test_told(failover, record):
    record.disagreements += [0.2, 0.55, 0.65]
    record.active = record.active[:1]
    run = failover.judge(record, 0.45)
    assert run.told_ms == pytest.approx(100)
    assert run.switch_ms is None


def test_summary(failover):
    def run(lost, gap_ms, switch_ms):
        return failover.Run(lost, 0, 0, gap_ms, switch_ms, None, lost, 1)

    case = failover.Case("stop", 30.0, (run(0, 80.04, 100.0), run(2, 90.06, None), run(1, 1, 110)))
    assert list(case.summary()) == KEYS
    assert case.summary() == {
        "fault": "stop",
        "rate_hz": 30.0,
        "runs": 3,
        "frames_lost_worst": 2,
        "longest_gap_ms_worst": 90.1,
        "switch_ms_median": 105.0,
        "duplicates": 3,
        "order_violations": 3,
    }
    assert len(case.row()) == len(failover.COLUMNS)
    assert case.row()[6:10] == ["80 / 90", "105 / 110", "2 of 3", "none"]
    assert failover.Case("stop", 30.0, (run(0, 1, None),)).summary()["switch_ms_median"] is None


def test_every_fault_has_its_setting(failover):
    chosen = [fault for setting in failover.SETTINGS for fault in setting.faults]
    assert sorted(chosen) == sorted(failover.FAULTS)


def test_other_boxes_disagree(failover):
    """Otherwise there would be nothing to find when results are corrupted."""
    from dla_perception.detection.description import ModelDescription
    from dla_perception.detection.detector import Detector
    from dla_perception.redundancy.agreement import AgreementSettings, compare

    faults = failover.Faults()
    engine = failover.TimedEngine(faults, 0.0)
    description = ModelDescription(
        "yolox", 3, failover.INPUT_SIZE, failover.CLASS_NAMES, strides=failover.STRIDES
    )
    detector = Detector(engine, description)
    pixels = failover.np.zeros((480, 640, 3), failover.np.uint8)
    right = detector.detect(pixels).detections
    assert sorted(right.class_ids) == [0, 1, 2]
    again = detector.detect(pixels).detections
    assert not compare(right, again, AgreementSettings()).disagrees
    faults.corrupted = True
    wrong = detector.detect(pixels).detections
    assert len(wrong) == 3
    assert compare(right, wrong, AgreementSettings()).disagrees
    engine.close()


@pytest.mark.parametrize("flags", [("--runs", "0"), ("--rate", "1"), ("--inference-ms", "90")])
def test_refuses_what_cannot_be_measured(failover, capsys, flags):
    with pytest.raises(SystemExit) as stop:
        failover.main(list(flags))
    assert stop.value.code == 2
    assert "expected" in capsys.readouterr().err


def own_processes(ros_domain_id: int) -> list[str]:
    """Command lines of all processes of this test: the domain is its alone."""
    mark = f"ROS_DOMAIN_ID={ros_domain_id}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # gone, or somebody else's
            continue
        if mark in environment and ("failover" in command or "redundancy_node" in command):
            found.append(command)
    return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_json_of_two_faults_with_real_processes(ros_domain_id, start_process, failover):
    """What is seen from outside; times are the machine's, nothing may be lost on any."""
    flags = ("--json", "--runs", "1", "--rate", "30", "--fault", "kill9", "--fault", "corrupted")
    process = start_process(sys.executable, str(PROGRAM), *flags)
    assert process.wait(100) == 0, process.output
    document = json.loads(process.output[process.output.index("{\n") :])
    assert list(document) == ["faults"]
    kill, corrupted = document["faults"]
    for result, fault in ((kill, "kill9"), (corrupted, "corrupted")):
        assert list(result) == KEYS
        assert (result["fault"], result["rate_hz"], result["runs"]) == (fault, 30.0, 1)
        assert result["frames_lost_worst"] == 0
        assert (result["duplicates"], result["order_violations"]) == (0, 0)
        assert result["longest_gap_ms_worst"] > 0
    assert kill["switch_ms_median"] > 0
    assert own_processes(ros_domain_id) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_leaves_no_process_behind(ros_domain_id, start_process, number):
    process = start_process(sys.executable, str(PROGRAM), "--runs", "9", "--fault", "stop")
    until(lambda: len(own_processes(ros_domain_id)) == 5)
    process.popen.send_signal(number)
    code = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert process.wait() == code
    until(lambda: own_processes(ros_domain_id) == [])
    assert "Traceback" not in process.output
