"""The rule of docs/redundancy.md, row by row: exact outputs at exact times."""

from __future__ import annotations

import pytest

from dla_perception.redundancy import arbiter as arbiter_module
from dla_perception.redundancy.arbiter import (
    Arbiter,
    ArbiterSettings,
    ArbiterSettingsError,
    Cause,
    Side,
)

MS = 1_000_000
PRIMARY, SECONDARY = Side.PRIMARY, Side.SECONDARY


class Bench:
    """An arbiter with times and stamps in milliseconds and results that name themselves.

    ``p`` and ``s`` are answers of the primary and the secondary: they return what goes out as
    ``p100`` (the primary's result for stamp 100) with the cause.
    """

    def __init__(self, **changes):
        rule = {
            "result_deadline_ms": 50,
            "switch_after_misses": 3,
            "switch_back_after": 4,
            "epoch_jump_ms": 500,
            "silent_after_ms": 1000,
        }
        self.arbiter = Arbiter(ArbiterSettings(**{**rule, **changes}))
        self.step = None

    def p(self, stamp, at):
        return self._answer(PRIMARY, stamp, at)

    def s(self, stamp, at):
        return self._answer(SECONDARY, stamp, at)

    def time(self, at):
        self.step = self.arbiter.on_time(int(at * MS))
        return self._outputs()

    def command(self, at):
        self.step = self.arbiter.switch_over(int(at * MS))
        return self._outputs()

    def both(self, stamps, start, period=33):
        """Both answer each stamp, the primary first; returns the time of the next image."""
        for number, stamp in enumerate(stamps):
            at = start + number * period
            assert self.p(stamp, at) == [(f"p{stamp}", "active")]
            assert self.s(stamp, at + 3) == []
        return start + len(stamps) * period

    def _answer(self, side, stamp, at):
        result = f"{side.value[0]}{stamp}"
        self.step = self.arbiter.on_result(side, stamp * MS, result, int(at * MS))
        return self._outputs()

    def _outputs(self):
        return [(output.result, output.cause.value) for output in self.step.outputs]

    def side(self, side):
        return self.arbiter.status(0).sides[side]

    @property
    def active(self):
        return self.arbiter.active

    @property
    def epoch(self):
        return self.arbiter.status(0).epoch

    @property
    def deadline(self):
        deadline = self.arbiter.next_deadline_ns()
        return None if deadline is None else deadline / MS


# A: the active side answers -----------------------------------------------------------------------


def test_a1_the_active_sides_answer_goes_out_at_once():
    bench = Bench()
    assert bench.p(100, at=7) == [("p100", "active")]
    (output,) = bench.step.outputs
    assert (output.side, output.stamp_ns, output.epoch) == (PRIMARY, 100 * MS, 0)
    assert (output.cause, output.waited_ns) == (Cause.ACTIVE, 0)
    assert bench.side(PRIMARY).good == 1
    assert bench.deadline is None, "what the standby owes needs no timer"


def test_a1_the_result_is_passed_through_as_the_very_same_object():
    result = {"opaque": object()}
    (output,) = Arbiter().on_result(PRIMARY, 5, result, 0).outputs
    assert output.result is result


def test_a2_what_waits_below_goes_out_just_before():
    bench = Bench()
    assert bench.s(100, at=0) == bench.s(133, at=33) == []
    assert bench.p(166, at=40) == [("s100", "skipped"), ("s133", "skipped"), ("p166", "active")]
    assert [output.waited_ns for output in bench.step.outputs] == [40 * MS, 7 * MS, 0]
    primary = bench.side(PRIMARY)
    assert (primary.missed, primary.missed_in_row, primary.good) == (2, 0, 1)
    assert bench.active is PRIMARY


def test_a2_three_skipped_stamps_cost_the_place_but_do_not_hold_the_answer_back():
    bench = Bench()
    for stamp in (100, 110, 120, 140):
        bench.s(stamp, at=stamp - 100)
    assert bench.p(130, at=41) == [
        ("s100", "skipped"),
        ("s110", "skipped"),
        ("s120", "skipped"),
        ("p130", "active"),
        ("s140", "switch"),
    ]
    assert bench.active is SECONDARY
    assert bench.step.switches[0].reason == "primary missed 3 in a row"
    assert bench.side(PRIMARY).missed == 3
    assert bench.side(SECONDARY).missed == 1, "it went on to 140 without 130"


def test_a3_the_active_sides_own_answer_replaces_the_one_that_waits():
    bench = Bench()
    bench.s(100, at=0)
    assert bench.p(100, at=49.999) == [("p100", "active")]
    assert [(pair.primary, pair.secondary) for pair in bench.step.pairs] == [("p100", "s100")]
    assert bench.time(1000) == []
    for side in Side:
        assert (bench.side(side).good, bench.side(side).missed) == (1, 0)


def test_a4_an_answer_whose_deadline_is_over_is_dropped():
    bench = Bench()
    bench.s(100, at=0)
    assert bench.p(100, at=50) == [("s100", "deadline")], "the deadline comes first"
    primary = bench.side(PRIMARY)
    assert (primary.late, primary.missed, primary.good) == (1, 1, 0)


def test_a5_an_answer_below_what_waits_goes_out_first():
    bench = Bench()
    bench.s(133, at=0)
    assert bench.p(100, at=10) == [("p100", "active")]
    assert bench.p(133, at=20) == [("p133", "active")]
    assert bench.side(SECONDARY).missed == 1


# B: the standby side answers ----------------------------------------------------------------------


def test_b1_c1_the_standbys_answer_waits_for_exactly_the_deadline_from_its_arrival():
    bench = Bench()
    assert bench.s(100, at=10) == []
    assert bench.deadline == 60
    assert bench.time(59.999999) == []
    assert bench.time(60) == [("s100", "deadline")]
    assert bench.deadline is None
    assert bench.side(PRIMARY).missed == 1
    assert bench.active is PRIMARY


def test_b2_the_standbys_answer_to_what_went_out_is_good_and_makes_a_pair():
    bench = Bench()
    bench.p(100, at=0)
    assert bench.s(100, at=49) == []
    (pair,) = bench.step.pairs
    assert (pair.stamp_ns, pair.primary, pair.secondary) == (100 * MS, "p100", "s100")
    assert bench.side(SECONDARY).good_in_row == 1


def test_b3_the_standbys_answer_after_the_deadline_is_late():
    bench = Bench()
    bench.p(100, at=0)
    assert bench.s(100, at=50) == []
    assert bench.step.pairs == []
    secondary = bench.side(SECONDARY)
    assert (secondary.late, secondary.missed, secondary.good) == (1, 1, 0)


def test_b4_an_answer_that_only_the_standby_had_but_after_a_later_output_is_lost():
    bench = Bench()
    bench.p(100, at=0)
    bench.p(166, at=66)
    assert bench.s(133, at=70) == []
    assert (bench.side(SECONDARY).lost, bench.side(SECONDARY).late) == (1, 0)


def test_b5_stamps_that_the_standby_skips_are_its_misses():
    bench = Bench()
    for stamp in (100, 110, 120):
        bench.p(stamp, at=stamp)
    bench.s(120, at=125)
    secondary = bench.side(SECONDARY)
    assert (secondary.missed, secondary.missed_in_row, secondary.good) == (2, 0, 1)


# C: time ------------------------------------------------------------------------------------------


def test_c2_after_three_misses_the_other_side_takes_over_and_what_waits_goes_out():
    bench = Bench()
    for stamp in (100, 110, 120, 130, 140):
        bench.s(stamp, at=stamp)
    assert bench.time(150) == [("s100", "deadline")]
    assert bench.time(160) == [("s110", "deadline")]
    assert bench.active is PRIMARY
    assert bench.time(170) == [("s120", "deadline"), ("s130", "switch"), ("s140", "switch")]
    assert bench.active is SECONDARY
    (switch,) = bench.step.switches
    assert (switch.to, switch.now_ns) == (SECONDARY, 170 * MS)
    assert switch.reason == "primary missed 3 in a row"
    assert bench.s(200, at=200) == [("s200", "active")]


def test_c2_misses_that_are_not_in_a_row_do_not_count_together():
    bench = Bench()
    for start in (0, 1000, 2000, 3000):
        bench.s(start, at=start)
        bench.s(start + 33, at=start + 33)
        bench.time(start + 100)
        bench.s(start + 200, at=start + 200)
        bench.p(start + 200, at=start + 205)
    assert bench.side(PRIMARY).missed == 8
    assert bench.active is PRIMARY


def test_c2_without_a_timer_the_next_answer_brings_the_same_outputs():
    bench = Bench()
    for stamp in (100, 110, 120, 130):
        bench.s(stamp, at=stamp - 100)
    assert bench.p(400, at=300) == [
        ("s100", "deadline"),
        ("s110", "deadline"),
        ("s120", "deadline"),
        ("s130", "switch"),
    ]
    assert bench.active is SECONDARY
    assert bench.time(350) == [("p400", "deadline")]


def test_c2_a_side_five_times_too_slow_loses_its_place():
    bench = Bench(result_deadline_ms=200)
    out = []
    for number in range(10):
        stamp = number * 33
        out += bench.s(stamp, at=stamp)
        if number % 5 == 4:
            out += bench.p(stamp, at=stamp + 1)
    assert bench.active is SECONDARY
    assert [name for name, _ in out] == [
        *("s0", "s33", "s66", "s99", "p132"),
        *("s165", "s198", "s231", "s264", "s297"),
    ]


def test_c2_sides_that_answer_every_other_image_make_one_full_stream():
    bench = Bench()
    out = []
    for number in range(100):
        answer = bench.p if number % 2 else bench.s
        out += answer(number * 33, at=number * 33)
    out += bench.time(5000)
    assert [name for name, _ in out] == [f"{'sp'[n % 2]}{n * 33}" for n in range(100)]
    assert bench.active is PRIMARY


@pytest.mark.parametrize("rate", [30, 60])
def test_c2_the_times_in_the_documentation(rate):
    """Both sides need 20 ms; the primary is dead from the image of 1 s on."""
    period = 1000 / rate
    bench = Bench()
    events, out, switched = [], [], None
    for number in range(2 * rate):
        at = number * period + 20
        events += [(at, "s", number)] + ([(at, "p", number)] if number < rate else [])
    for at, side, number in sorted(events):
        while bench.deadline is not None and bench.deadline <= at:
            due = bench.deadline
            out += [(due, name) for name, _ in bench.time(due)]
            switched = due if bench.step.switches else switched
        out += [(at, name) for name, _ in getattr(bench, side)(number, at)]
    assert [name for _, name in out] == [
        *(f"p{number}" for number in range(rate)),
        *(f"s{number}" for number in range(rate, 2 * rate)),
    ]
    gaps = [second - first for (first, _), (second, _) in zip(out, out[1:])]
    assert max(gaps) == pytest.approx(period + 50)
    first_missed = 1000 + 20
    assert switched == pytest.approx(first_missed + 50 + 2 * period)
    assert round(switched - first_missed) == {30: 117, 60: 83}[rate]
    held = [at - (int(name[1:]) * period + 20) for at, name in out]
    assert max(held) == pytest.approx(50)
    assert [h for (at, _), h in zip(out, held) if at > switched] == [0] * sum(
        at > switched for at, _ in out
    )


def test_c3_the_standbys_misses_publish_nothing_and_change_nothing():
    bench = Bench()
    for number in range(20):
        assert bench.p(number * 33, at=number * 33) == [(f"p{number * 33}", "active")]
    assert bench.time(5000) == []
    assert bench.side(SECONDARY).missed == 20
    assert bench.active is PRIMARY


def test_c4_with_both_sides_silent_nothing_happens():
    bench = Bench()
    end = bench.both(range(0, 330, 33), start=0)
    for second in range(1, 100):
        assert bench.time(end + second * 1000) == []
        assert not bench.step.switches
    assert bench.active is PRIMARY
    assert bench.deadline is None


def test_c5_more_open_stamps_than_fit_are_settled_early_and_none_is_lost(monkeypatch):
    monkeypatch.setattr(arbiter_module, "MAX_OPEN", 4)
    bench = Bench(switch_after_misses=2)
    for stamp in range(4):
        assert bench.s(stamp, at=0) == []
    assert bench.s(4, at=0) == [("s0", "overflow")]
    assert bench.s(5, at=0) == [
        ("s1", "overflow"),
        *((f"s{stamp}", "switch") for stamp in (2, 3, 4, 5)),
    ]
    assert bench.active is SECONDARY


# D: who is active ---------------------------------------------------------------------------------


def fail_over(bench):
    """The primary dies at 0 and the secondary takes over; returns the time after."""
    for stamp in range(0, 400, 100):
        bench.s(stamp, at=stamp)
    bench.time(450)
    assert bench.active is SECONDARY
    return 500


def test_d1_the_preferred_side_comes_back_after_four_results_in_time():
    bench = Bench()
    start = fail_over(bench)
    for number in range(4):
        stamp = start + number * 33
        assert bench.s(stamp, at=stamp) == [(f"s{stamp}", "active")]
        assert bench.active is SECONDARY
        assert bench.p(stamp, at=stamp + 3) == []
    assert bench.active is PRIMARY
    assert bench.step.switches[0].reason == "primary is back: 4 in time in a row"
    assert bench.p(700, at=700) == [("p700", "active")]


def test_d1_when_it_answers_first_the_answer_that_brings_it_back_goes_out_at_once():
    bench = Bench()
    start = fail_over(bench)
    for number in range(3):
        stamp = start + number * 33
        assert bench.p(stamp, at=stamp) == []
        assert bench.s(stamp, at=stamp + 3) == [(f"s{stamp}", "active")]
    assert bench.p(599, at=599) == [("p599", "switch")]
    assert bench.s(599, at=602) == []
    assert bench.active is PRIMARY


def test_d1_one_miss_starts_the_count_again():
    bench = Bench()
    start = fail_over(bench)
    for number in range(12):
        stamp = start + number * 33
        bench.s(stamp, at=stamp)
        if number % 4 != 3:
            bench.p(stamp, at=stamp + 3)
    assert bench.active is SECONDARY
    assert bench.side(PRIMARY).good == 9


def test_d1_late_results_do_not_bring_a_side_back():
    bench = Bench()
    start = fail_over(bench)
    for number in range(50):
        stamp = start + number * 33
        bench.s(stamp, at=stamp)
        bench.p(stamp - 66, at=stamp + 1)
    assert bench.active is SECONDARY
    assert bench.side(PRIMARY).good == 0


def test_d2_manual_waits_for_the_command():
    bench = Bench(switch_back="manual")
    start = fail_over(bench)
    for number in range(100):
        stamp = start + number * 33
        bench.s(stamp, at=stamp)
        bench.p(stamp, at=stamp + 3)
    assert bench.active is SECONDARY
    assert bench.command(at=start + 3400) == []
    assert bench.active is PRIMARY
    assert bench.step.switches[0].reason == "commanded"


def test_d2_a_second_failure_switches_back_without_any_count():
    bench = Bench(switch_back="manual")
    start = fail_over(bench)
    for number in range(4):
        stamp = start + number * 33
        bench.p(stamp, at=stamp)
        if number == 0:
            bench.s(stamp, at=stamp + 3)
    bench.time(start + 200)
    assert bench.active is PRIMARY
    assert bench.step.switches[0].reason == "secondary missed 3 in a row"


def test_d3_a_command_lets_out_what_waits_and_moves_the_preference():
    bench = Bench()
    bench.both(range(0, 99, 33), start=0)
    bench.s(99, at=99)
    assert bench.command(at=100) == [("s99", "switch")]
    assert bench.p(99, at=103) == []
    for number in range(4, 40):
        stamp = number * 33
        bench.p(stamp, at=stamp)
        assert bench.s(stamp, at=stamp + 3) == [(f"s{stamp}", "active")]
    assert bench.active is SECONDARY, "the commanded side is the preferred one now"
    status = bench.arbiter.status(0)
    assert (status.preferred, status.switch_count) == (SECONDARY, 1)


def test_d4_a_command_to_a_dead_side_is_refused():
    bench = Bench()
    bench.p(0, at=0)
    assert bench.command(at=1) == []
    assert bench.step.refusal == "secondary has never answered; primary stays active"
    bench.s(0, at=2)
    for number in range(1, 60):
        bench.p(number * 33, at=number * 33)
        if number == 20:
            bench.command(at=number * 33)
            assert bench.step.refusal == "secondary has missed 18 in a row; primary stays active"
    bench.command(at=59 * 33)
    assert bench.step.refusal == "secondary has not answered for 1.9 s; primary stays active"
    assert bench.active is PRIMARY
    assert bench.arbiter.status(0).switch_count == 0


def test_d4_a_refused_command_still_brings_what_fell_due():
    bench = Bench(switch_after_misses=1)
    bench.p(0, at=0)
    bench.s(33, at=33)
    assert bench.command(at=90) == [("s33", "deadline")]
    assert [switch.reason for switch in bench.step.switches] == ["primary missed 1 in a row"]
    assert bench.step.refusal == "primary has missed 1 in a row; secondary stays active"


def test_d5_with_both_silent_a_command_is_obeyed_and_the_new_side_gets_its_turn():
    bench = Bench()
    fail_over(bench)
    bench.time(5000)
    bench.command(at=6000)
    assert (bench.step.refusal, bench.active) == ("", PRIMARY)
    assert bench.s(5500, at=7000) == []
    assert bench.active is PRIMARY, "what it missed as standby does not count"
    assert bench.p(5500, at=7010) == [("p5500", "active")]


def test_d6_one_side_absent_from_the_start():
    bench = Bench()
    assert bench.s(0, at=0) == bench.s(33, at=33) == []
    assert bench.time(50) == [("s0", "deadline")]
    assert bench.s(66, at=66) == []
    assert bench.time(83) == [("s33", "deadline")]
    assert bench.s(99, at=99) == []
    assert bench.time(116) == [("s66", "deadline"), ("s99", "switch")]
    assert bench.s(132, at=132) == [("s132", "active")]


def test_d6_the_primary_that_starts_late_takes_its_place():
    bench = Bench()
    start = fail_over(bench)
    assert bench.p(0, at=start) == [], "its first answer, to an image long gone"
    for number in range(1, 5):
        stamp = start + number * 33
        bench.s(stamp, at=stamp)
        bench.p(stamp, at=stamp + 3)
    assert bench.active is PRIMARY
    assert bench.epoch == 0


# E: stamps that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["p", "s"])
def test_e1_duplicates_are_dropped(side):
    bench = Bench()
    end = bench.both((0, 33), start=0)
    answer = getattr(bench, side)
    for number in range(100):
        assert answer(33, at=end + number * 33) == []
    assert bench.side(PRIMARY).duplicates + bench.side(SECONDARY).duplicates == 100
    assert (bench.epoch, bench.active) == (0, PRIMARY)


def test_e1_a_duplicate_of_what_waits_does_not_start_its_time_again():
    bench = Bench()
    bench.s(100, at=0)
    bench.s(100, at=40)
    assert bench.deadline == 50


@pytest.mark.parametrize("back", [1, 33, 500])
def test_e2_stamps_out_of_order_are_dropped(back):
    bench = Bench()
    end = bench.both((1000, 1033), start=0)
    assert bench.p(1033 - back, at=end) == []
    assert bench.side(PRIMARY).out_of_order == 1
    assert bench.p(1066, at=end + 1) == [("p1066", "active")]
    assert bench.epoch == 0


def test_e3_a_clock_that_runs_backwards_stands_still():
    bench = Bench()
    bench.s(100, at=100)
    bench.p(50, at=20)
    assert bench.time(149) == []
    assert bench.time(150) == [("s100", "deadline")]


# F: a jump back of the stamps ---------------------------------------------------------------------


def test_f1_the_other_side_silent_a_jump_is_a_new_epoch_at_once():
    bench = Bench()
    for number in range(60):
        bench.p(1000 + number * 33, at=number * 33)
    assert bench.p(0, at=2000) == [("p0", "active")]
    assert bench.step.outputs[0].epoch == 1
    assert bench.p(33, at=2033) == [("p33", "active")]
    # and once more, as every time the bag begins again
    for number in range(2, 60):
        bench.p(number * 33, at=2000 + number * 33)
    assert bench.p(0, at=5000) == [("p0", "active")]
    assert bench.epoch == 2


def test_f2_the_other_side_well_the_jump_waits_for_it_to_follow():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    assert bench.p(0, at=end) == []
    assert bench.deadline == end - 30 + 1000, "a second after the secondary's last answer"
    assert bench.s(0, at=end + 4) == [("p0", "active")]
    assert [(pair.primary, pair.secondary) for pair in bench.step.pairs] == [("p0", "s0")]
    assert bench.step.outputs[0].waited_ns == 4 * MS
    assert bench.p(33, at=end + 33) == [("p33", "active")]
    assert (bench.epoch, bench.active) == (1, PRIMARY)


def test_f2_the_standby_jumps_first():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    assert bench.s(0, at=end) == bench.s(33, at=end + 33) == []
    assert bench.p(33, at=end + 36) == [("s0", "skipped"), ("p33", "active")]
    assert bench.epoch == 1


def test_f2_the_other_side_may_follow_to_another_place():
    bench = Bench()
    end = bench.both(range(3000, 4000, 33), start=0)
    assert bench.p(0, at=end) == []
    assert bench.s(1500, at=end + 5) == [("p0", "active")]
    assert bench.time(end + 55) == [("s1500", "deadline")]
    assert bench.epoch == 1


def test_f2_the_end_of_the_old_epoch_goes_out_before_the_new_one():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    assert bench.s(2023, at=end) == []
    assert bench.s(0, at=end + 33) == []
    # the primary is a little behind: this is its answer to an image before the jump
    assert bench.p(2023, at=end + 40) == [("p2023", "active")]
    assert bench.p(0, at=end + 45) == [("p0", "active")]
    assert bench.epoch == 1


def test_f2_what_waits_in_the_old_epoch_goes_out_when_both_have_left_it():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    bench.s(2023, at=end)
    bench.s(0, at=end + 33)
    assert bench.p(0, at=end + 36) == [("s2023", "skipped"), ("p0", "active")]
    assert [output.epoch for output in bench.step.outputs] == [0, 1]
    assert bench.side(PRIMARY).missed == 1


def test_f3_a_jump_of_one_side_alone_is_dropped_when_that_side_goes_on():
    bench = Bench()
    end = bench.both(range(1000, 3000, 33), start=0)
    # an old process of the primary, stopped long ago, wakes beside the new one
    assert bench.p(1500, at=end) == []
    assert bench.p(1533, at=end + 1) == []
    assert bench.p(3013, at=end + 33) == [("p3013", "active")]
    assert bench.s(3013, at=end + 36) == []
    assert bench.p(3046, at=end + 66) == [("p3046", "active")]
    assert (bench.side(PRIMARY).outdated, bench.epoch) == (2, 0)
    assert bench.deadline is None


def test_f3_a_jump_of_one_side_alone_is_dropped_when_the_other_goes_on():
    bench = Bench()
    end = bench.both(range(1000, 3000, 33), start=0)
    assert bench.p(1500, at=end) == []
    out = []
    for number in range(5):
        stamp = 3013 + number * 33
        out += bench.s(stamp, at=end + 3 + number * 33)
        # D after the jump it counts for the first time, D after that it is enough
        assert bench.side(PRIMARY).outdated == (1 if number >= 4 else 0)
    out += bench.time(end + 500)
    assert [name for name, _ in out] == [f"s{3013 + number * 33}" for number in range(5)]
    assert bench.epoch == 0


def test_f3_a_side_that_hung_at_the_end_of_the_epoch_does_not_contradict_the_jump():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    # the image 2023 is lost by the primary, and the bag begins again
    for number in range(4):
        assert bench.p(number * 33, at=end + 33 + number * 33) == []
    assert bench.s(2023, at=end + 140) == []
    assert bench.s(0, at=end + 141) == [
        ("s2023", "skipped"),
        *((f"p{number * 33}", "active") for number in range(4)),
    ]
    assert bench.epoch == 1


def test_f3_the_standby_alone_cannot_take_the_stream_back():
    bench = Bench()
    end = bench.both(range(1000, 3000, 33), start=0)
    for number in range(30):
        assert bench.s(number * 33, at=end + number * 33) == []
        stamp = 3013 + number * 33
        assert bench.p(stamp, at=end + number * 33 + 3) == [(f"p{stamp}", "active")]
    assert bench.epoch == 0
    assert bench.side(SECONDARY).outdated > 0


def test_f4_the_other_side_falls_silent_at_the_jump_nothing_held_is_lost():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)  # the secondary's last answer: end - 30
    for number in range(29):
        assert bench.p(number * 33, at=end + number * 33) == []
    assert bench.deadline == end - 30 + 1000
    held = [(f"p{number * 33}", "active") for number in range(29)]
    assert bench.time(end + 970) == held
    assert bench.p(29 * 33, at=end + 971) == [(f"p{29 * 33}", "active")]
    assert bench.epoch == 1


def test_f4_likewise_when_it_was_the_active_one():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    start = end - 33  # the primary's last answer
    for number in range(10):
        assert bench.s(number * 33, at=end + number * 33) == []
    outputs = bench.time(start + 1000)
    assert outputs[:3] == [("s0", "deadline"), ("s33", "deadline"), ("s66", "deadline")]
    assert outputs[3:] == [(f"s{number * 33}", "switch") for number in range(3, 10)]
    assert (bench.epoch, bench.active) == (1, SECONDARY)


def test_f4_nothing_is_held_longer_than_silence_lasts():
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    for number in range(30):  # the other side is there, but says nothing new
        assert bench.p(number * 33, at=end + number * 33) == []
        assert bench.s(1990, at=end + number * 33 + 3) == []
    assert bench.deadline == end + 1000
    outputs = bench.time(end + 1000)
    assert outputs == [(f"p{number * 33}", "active") for number in range(30)]


def test_f4_no_more_is_held_than_fits(monkeypatch):
    bench = Bench()
    end = bench.both(range(1000, 2000, 33), start=0)
    monkeypatch.setattr(arbiter_module, "MAX_OPEN", 3)
    assert bench.p(0, at=end) == bench.p(1, at=end) == []
    assert bench.p(2, at=end) == [("p0", "active"), ("p1", "active"), ("p2", "active")]
    assert bench.epoch == 1


def test_f5_a_second_jump_while_the_first_is_held():
    bench = Bench()
    end = bench.both(range(5000, 6000, 33), start=0)
    assert bench.p(2000, at=end) == []
    assert bench.p(2033, at=end + 1) == []
    assert bench.p(2033, at=end + 1) == bench.p(2000, at=end + 1) == []
    assert bench.p(0, at=end + 2) == [("p2000", "active"), ("p2033", "active")]
    assert bench.s(0, at=end + 3) == [("p0", "active")]
    assert bench.epoch == 2
    primary = bench.side(PRIMARY)
    assert (primary.duplicates, primary.out_of_order) == (1, 1)


@pytest.mark.parametrize("other_is_well", [True, False])
def test_f6_the_backlog_of_a_side_that_was_stopped_is_late_and_no_jump(other_is_well):
    bench = Bench()
    bench.both(range(0, 330, 33), start=0)
    for number in range(10, 200):  # the primary is stopped
        bench.s(number * 33, at=number * 33)
    now = 200 * 33 if other_is_well else 60_000
    for stamp in (330, 363, 396):
        assert bench.p(stamp, at=now) == []
    assert (bench.side(PRIMARY).late, bench.epoch) == (3, 0)
    assert bench.active is SECONDARY
    # it goes on with images of now, by the rule
    assert bench.p(7000, at=now + 20) == []
    assert bench.time(now + 70) == [("p7000", "deadline")]


def test_f7_a_side_that_was_stopped_in_a_former_epoch_does_not_bring_it_back():
    bench = Bench()
    bench.both(range(0, 990, 33), start=0)
    for number in range(30, 90):  # the primary is stopped; the bag goes on ...
        bench.s(number * 33, at=number * 33)
    for number in range(30):  # ... and begins again
        assert bench.s(number * 33, at=3000 + number * 33) == [(f"s{number * 33}", "active")]
    assert bench.epoch == 1
    # The first answer of the primary: an image of the former epoch, far ahead of this one.
    bench.s(990, at=4000)
    assert bench.p(2400, at=4001) == []
    assert bench.side(PRIMARY).outdated == 1
    assert bench.s(1023, at=4033) == [("s1023", "active")]
    # Then one of now: it takes part in this epoch, which is not another jump.
    assert bench.p(1023, at=4036) == []
    assert (bench.side(PRIMARY).good_in_row, bench.epoch) == (1, 1)
    assert bench.time(9000) == []


@pytest.mark.parametrize(
    ("silent_for", "outdated"), [(33, True), (999, True), (1000, False), (5000, False)]
)
def test_f7_only_a_side_that_is_not_silent_keeps_the_former_epoch_out(silent_for, outdated):
    bench = Bench()
    bench.both(range(0, 990, 33), start=0)
    for number in range(30, 90):
        bench.s(number * 33, at=number * 33)
    for number in range(30):
        bench.s(number * 33, at=3000 + number * 33)
    last = 3000 + 29 * 33
    assert bench.p(2400, at=last + silent_for) == []
    assert bench.side(PRIMARY).outdated == outdated
    assert bench.time(last + 9000) == ([] if outdated else [("p2400", "deadline")])


def test_f8_a_side_that_died_in_a_former_epoch_takes_part_in_this_one():
    bench = Bench()
    end = bench.both(range(0, 3300, 33), start=0)
    for number in range(100):  # the secondary has died, the bag begins again
        bench.p(number * 33, at=end + 2000 + number * 33)
    assert bench.epoch == 1
    now = end + 2000 + 3300
    assert bench.p(3300, at=now) == [("p3300", "active")]
    assert bench.s(3300, at=now + 3) == []
    assert (bench.side(SECONDARY).good_in_row, bench.epoch) == (1, 1)


def test_f8_a_side_ahead_that_does_not_go_on_with_a_former_epoch_is_of_this_one():
    bench = Bench()
    bench.both(range(0, 9900, 99), start=0, period=10)
    for number in range(200):  # the secondary has died; the bag begins again, ten times as fast
        bench.p(number * 33, at=2000 + number * 3)
    assert bench.epoch == 1
    # it has seen an image that the primary, a little slower, has not answered yet
    assert bench.s(8000, at=2601) == []
    assert bench.p(8000, at=2640) == [("p8000", "active")]
    assert (bench.side(SECONDARY).outdated, bench.side(SECONDARY).good_in_row) == (0, 1)


@pytest.mark.parametrize("is_new", [True, False])
def test_f8_a_slow_first_answer_is_no_jump(is_new):
    bench = Bench()
    end = 0 if is_new else bench.both(range(0, 4950, 33), start=0)
    for number in range(60):
        bench.p(number * 33, at=end + number * 33)
    before = bench.epoch
    now = end + 60 * 33
    assert bench.s(1000, at=now) == []
    for number in range(60, 70):
        stamp = number * 33
        assert bench.p(stamp, at=end + stamp + 5) == [(f"p{stamp}", "active")]
        assert bench.s(stamp, at=end + stamp + 8) == []
    secondary = bench.side(SECONDARY)
    assert (secondary.good_in_row, bench.epoch) == (10, before)
    assert secondary.late + secondary.lost == 1


def test_f9_a_stamp_far_in_the_future_blocks_the_output_for_one_second_only():
    bench = Bench()
    end = bench.both(range(0, 990, 33), start=0)
    bench.s(10**9, at=end)  # from the standby, and the active side is silent just now
    assert bench.time(end + 50) == [("s1000000000", "deadline")]
    out = []
    for number in range(60):
        out += bench.p(990 + number * 33, at=end + 60 + number * 33)
    first = 31  # the first answer that comes a second after the first that was dropped
    assert out == [(f"p{990 + number * 33}", "active") for number in range(first, 60)]
    assert bench.epoch == 1


def test_f9_a_jump_that_no_side_can_show_is_found_when_nothing_else_comes():
    bench = Bench()
    for number in range(10):
        bench.p(5000 + number * 33, at=number * 33)
    # The primary has died, the bag began again, and the secondary is new.
    out = []
    for number in range(40):
        out += bench.s(number * 33, at=2000 + number * 33)
    out += bench.time(4000)
    assert [name for name, _ in out] == [f"s{number * 33}" for number in range(31, 40)]
    assert bench.epoch == 1


def test_f9_what_is_held_goes_first():
    bench = Bench(switch_after_misses=1000)
    end = bench.both(range(3000, 4000, 33), start=0)
    bench.p(5000, at=end)
    for number in range(31):  # the secondary is behind, and too late with all it says
        assert bench.s(4000 + number, at=end + 60 + number * 33) == []
    assert bench.p(0, at=end + 1055) == []
    assert bench.s(4031, at=end + 1083) == [("p0", "active")]
    assert bench.epoch == 1


def test_f9_a_single_late_result_long_after_the_last_begins_nothing():
    bench = Bench()
    bench.both(range(1000, 2000, 33), start=0)
    for second in range(2, 30):
        assert bench.p(1990 - 400 + second, at=second * 1000) == []
    assert bench.epoch == 0


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"result_deadline_ms": 0}, "result_deadline_ms: 0; expected more than 0 milliseconds"),
        ({"epoch_jump_ms": float("nan")}, "epoch_jump_ms: nan; expected more than 0 milliseconds"),
        (
            {"silent_after_ms": float("inf")},
            "silent_after_ms: inf; expected more than 0 milliseconds",
        ),
        ({"switch_after_misses": 0}, "switch_after_misses: 0; expected 1 or more"),
        ({"switch_back_after": -1}, "switch_back_after: -1; expected 1 or more"),
        ({"switch_back": "never"}, "switch_back: 'never'; expected 'auto' or 'manual'"),
        (
            {"epoch_jump_ms": 50},
            "epoch_jump_ms: 50 is not above result_deadline_ms (50): "
            "raise the one or lower the other",
        ),
        (
            {"result_deadline_ms": 1000, "epoch_jump_ms": 2000},
            "silent_after_ms: 1000 is not above result_deadline_ms (1000): "
            "raise the one or lower the other",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ArbiterSettingsError) as error:
        ArbiterSettings(**changes)
    assert str(error.value) == message


def test_new_settings_count_from_the_next_event():
    bench = Bench()
    bench.s(100, at=0)
    bench.arbiter.settings = ArbiterSettings(result_deadline_ms=10)
    assert bench.deadline == 10
    assert bench.time(10) == [("s100", "deadline")]


def test_a_stricter_count_does_not_undo_a_switch_back():
    bench = Bench(switch_back_after=3)
    start = fail_over(bench)
    for number in range(2):  # the secondary misses two
        bench.p(start + number * 100, at=start + number * 100)
        bench.time(start + number * 100 + 50)
    bench.arbiter.settings = ArbiterSettings(switch_after_misses=2, switch_back_after=3)
    assert bench.p(start + 200, at=start + 200) == [(f"p{start + 200}", "switch")]
    assert bench.active is PRIMARY
    assert [switch.to for switch in bench.step.switches] == [PRIMARY]


def test_the_status_is_a_copy():
    bench = Bench()
    before = bench.arbiter.status(0)
    bench.p(100, at=0)
    assert before.sides[PRIMARY].results == 0
    assert (before.published, bench.arbiter.status(0).published) == (0, 1)
