"""What an arbiter's state becomes in diagnostics."""

from __future__ import annotations

import pytest

from dla_perception.monitoring.health import Level
from dla_perception.redundancy.arbiter import Arbiter, ArbiterSettings, Side
from dla_perception.redundancy.findings import arbiter_findings

MS = 1_000_000
PRIMARY, SECONDARY = Side.PRIMARY, Side.SECONDARY


def judge(arbiter, at):
    findings = arbiter_findings(arbiter.status(at * MS), arbiter.settings)
    assert [finding.name for finding in findings] == [
        "active side",
        "primary",
        "secondary",
        "output",
    ]
    for finding in findings:
        for key, value in finding.values.items():
            assert isinstance(key, str)
            assert isinstance(value, str)
    return {finding.name: finding for finding in findings}


def levels(findings):
    return {name: finding.level for name, finding in findings.items()}


def run(arbiter, sides, start, count, period=33):
    """Sides answer ``count`` images; returns the time of the next one."""
    for number in range(count):
        at = (start + number * period) * MS
        arbiter.on_time(at)
        for delay, side in enumerate(sides):
            arbiter.on_result(side, at, object(), at + delay * MS)
    return start + count * period


def test_before_the_first_result_all_is_stale():
    found = judge(Arbiter(), at=0)
    assert set(levels(found).values()) == {Level.STALE}
    assert found["active side"].message == "both sides are silent: primary stays active"
    assert found["active side"].values["last_switch_reason"] == "n/a"
    assert found["primary"].values["age_ms"] == "n/a"
    assert found["output"].values["age_ms"] == "n/a"


def test_two_sides_that_answer_are_ok():
    arbiter = Arbiter()
    end = run(arbiter, Side, start=0, count=100)
    found = judge(arbiter, end)
    assert set(levels(found).values()) == {Level.OK}
    assert found["active side"].values["active_side"] == "primary"
    assert found["active side"].values["switch_count"] == "0"
    assert found["primary"].values["published"] == "100"
    assert found["primary"].values["age_ms"] == "33.0"
    assert found["secondary"].values["in_time_in_a_row"] == "100"
    assert found["output"].values["published"] == "100"


def test_silence_is_told_when_it_has_lasted_long_enough_and_not_before():
    arbiter = Arbiter()
    end = run(arbiter, Side, start=0, count=100)
    last_result = end - 33 + 1
    for silent in (0, 500, 999):
        assert judge(arbiter, last_result + silent)["output"].level is Level.OK
    assert judge(arbiter, last_result + 1000)["output"].level is Level.STALE


def test_both_silent_is_stale_and_the_active_side_stays():
    arbiter = Arbiter()
    end = run(arbiter, [SECONDARY], start=0, count=10)
    arbiter.on_time((end + 5000) * MS)
    found = judge(arbiter, end + 5000)
    assert set(levels(found).values()) == {Level.STALE}
    assert found["active side"].message == "both sides are silent: secondary stays active"
    assert found["output"].message == "nothing to publish: both sides are silent"
    assert found["primary"].message == ("no result yet: is the detector running, are there images?")
    assert "no result for 5.0 s" in found["secondary"].message


def test_a_failover_shows_who_stands_in_and_what_is_broken():
    arbiter = Arbiter()
    end = run(arbiter, Side, start=0, count=100)
    end = run(arbiter, [SECONDARY], start=end, count=20)
    found = judge(arbiter, end)
    assert levels(found) == {
        "active side": Level.WARN,
        "primary": Level.ERROR,
        "secondary": Level.OK,
        "output": Level.OK,
    }
    assert found["active side"].message == (
        "secondary stands in for primary (primary missed 3 in a row)"
    )
    assert found["primary"].message == "missed 18 in a row"
    end = run(arbiter, [SECONDARY], start=end, count=40)
    assert judge(arbiter, end)["primary"].message.startswith("no result for 2.0 s")
    assert found["active side"].values["last_switch_reason"] == "primary missed 3 in a row"


def test_after_the_return_the_misses_stay_visible_for_five_seconds():
    arbiter = Arbiter(ArbiterSettings(switch_back_after=5))
    end = run(arbiter, Side, start=0, count=10)
    end = run(arbiter, [SECONDARY], start=end, count=10)
    end = run(arbiter, Side, start=end, count=10)
    found = judge(arbiter, end)
    assert found["active side"].level is Level.OK
    assert found["active side"].values["last_switch_reason"] == (
        "primary is back: 5 in time in a row"
    )
    assert found["primary"].level is Level.WARN
    end = run(arbiter, Side, start=end, count=180)
    assert judge(arbiter, end)["primary"].level is Level.OK


def test_a_commanded_side_is_no_stand_in():
    arbiter = Arbiter()
    end = run(arbiter, Side, start=0, count=10)
    arbiter.switch_over(end * MS)
    end = run(arbiter, [SECONDARY, PRIMARY], start=end, count=10)
    found = judge(arbiter, end)
    assert set(levels(found).values()) == {Level.OK}
    assert found["active side"].message == "secondary is active"
    assert found["active side"].values["preferred_side"] == "secondary"


@pytest.mark.parametrize(
    ("stamps", "told"),
    [
        ((9900, 9900), "a stamp came twice in a row"),
        ((9900, 9800), "stamps went back by no more than epoch_jump_ms"),
    ],
)
def test_dropped_results_are_told(stamps, told):
    arbiter = Arbiter()
    for stamp in stamps:
        arbiter.on_result(PRIMARY, stamp * MS, object(), 0)
    found = judge(arbiter, 10)["primary"]
    assert found.level is Level.WARN
    assert told in found.message


def test_images_without_stamps_are_an_error_and_not_silence():
    arbiter = Arbiter()
    for number in range(60):
        for side in Side:
            arbiter.on_result(side, 0, object(), number * 33 * MS)
    output = judge(arbiter, 60 * 33)["output"]
    assert output.level is Level.ERROR
    assert output.message == (
        "results come, but none can go out: a stamp came twice in a row: does the camera set "
        "stamps, is a detector running twice?"
    )
    assert output.values["published"] == "1"


def test_a_lost_result_is_counted_and_told():
    arbiter = Arbiter()
    arbiter.on_result(PRIMARY, 0, object(), 0)
    arbiter.on_result(PRIMARY, 66 * MS, object(), 66 * MS)
    arbiter.on_result(SECONDARY, 33 * MS, object(), 70 * MS)
    found = judge(arbiter, 80)
    assert found["output"].values["lost"] == "1"
    assert "raise result_deadline_ms" in found["secondary"].message
