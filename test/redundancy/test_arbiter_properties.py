"""The arbiter under any interleaving of results, losses, delays, restarts and jumps of stamps.

Four independent judges: the promises themselves, checked on what goes in and comes out
(`Promises`); the rule for one epoch written down once more, plainly and forgetting nothing
(`Reference`); a world of images, detectors that die and bags that loop, of which it is known what
should come out; and the number of objects kept alive.
"""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dla_perception.redundancy import arbiter as arbiter_module
from dla_perception.redundancy.arbiter import Arbiter, ArbiterSettings, Side

MS = 1_000_000
DEADLINE = 50 * MS
PRIMARY, SECONDARY = Side.PRIMARY, Side.SECONDARY
SIDES = st.sampled_from(Side)


@dataclass(eq=False)
class Result:
    """A payload: equal to itself only."""

    side: Side
    stamp_ns: int
    loop: int = 0


class Promises:
    """An arbiter, and what must hold of every step it takes."""

    def __init__(self, arbiter: Arbiter) -> None:
        self.arbiter = arbiter
        self.given = set()
        self.outputs = []
        self.floor = None
        self.epoch = 0

    def result(self, side, stamp_ns, now, loop=0):
        result = Result(side, stamp_ns, loop)
        self.given.add(result)
        return result, self.check(self.arbiter.on_result(side, stamp_ns, result, now), now)

    def time(self, now):
        return self.check(self.arbiter.on_time(now), now)

    def check(self, step, now):
        for output in step.outputs:
            # each result is one that was given, unchanged, with its stamp, and goes out once
            assert output.result in self.given
            self.given.remove(output.result)
            assert output.result.stamp_ns == output.stamp_ns
            assert output.result.side is output.side
            # strictly increasing within an epoch, and so each stamp at most once
            assert output.epoch >= self.epoch
            if output.epoch > self.epoch:
                self.epoch, self.floor = output.epoch, None
            assert self.floor is None or output.stamp_ns > self.floor
            self.floor = output.stamp_ns
            self.outputs.append(output)
        for pair in step.pairs:
            assert (pair.primary.side, pair.secondary.side) == (PRIMARY, SECONDARY)
            assert pair.primary.stamp_ns == pair.secondary.stamp_ns == pair.stamp_ns
        deadline = self.arbiter.next_deadline_ns()
        assert deadline is None or deadline > now
        return step


class Reference:
    """The rule within one epoch, stamp by stamp, with all of the past at hand."""

    def __init__(self, rule: ArbiterSettings, max_open: int) -> None:
        self.rule, self.max_open = rule, max_open
        self.active, self.preferred = PRIMARY, PRIMARY
        self.answers = {}  # stamp -> {side: (arrival, result)}, of those that count
        self.verdicts = {}  # (stamp, side) -> whether that side was in time
        self.last = {PRIMARY: None, SECONDARY: None}
        self.misses = {PRIMARY: 0, SECONDARY: 0}
        self.goods = {PRIMARY: 0, SECONDARY: 0}
        self.out = []
        self.switches = 0

    @property
    def floor(self):
        return self.out[-1].stamp_ns if self.out else -1

    def owed(self):
        """(stamp, the side that answered, when) where the other has had no verdict yet."""
        return [
            (stamp, side, arrival)
            for stamp in sorted(self.answers)
            for side, (arrival, _) in self.answers[stamp].items()
            if (stamp, side.other) not in self.verdicts
        ]

    def publish(self, result):
        self.out.append(result)

    def miss(self, stamp, side):
        self.verdicts[stamp, side] = False
        self.misses[side] += 1
        self.goods[side] = 0
        if stamp > self.floor:
            self.publish(self.answers[stamp][side.other][1])

    def good(self, stamp, side):
        self.verdicts[stamp, side] = True
        self.misses[side] = 0
        self.goods[side] += 1
        back = self.rule.switch_back == "auto" and self.goods[side] >= self.rule.switch_back_after
        if side is self.preferred and side is not self.active and back:
            self.switch()

    def lost_its_place(self):
        return self.misses[self.active] >= self.rule.switch_after_misses

    def switch(self):
        self.active = self.active.other
        self.misses[self.active] = 0
        self.switches += 1
        for stamp, side, _ in self.owed():
            if stamp > self.floor:
                assert side is self.active
                self.publish(self.answers[stamp][side][1])

    def time(self, now):
        for stamp, side, arrival in self.owed():
            if arrival + DEADLINE <= now:
                self.miss(stamp, side.other)
                if self.lost_its_place():
                    self.switch()

    def result(self, side, stamp, result, now):
        self.time(now)
        if self.last[side] is not None and stamp <= self.last[side]:
            return
        self.last[side] = stamp
        is_active = side is self.active
        for earlier, answered_by, _ in self.owed():
            if earlier < stamp and answered_by is side.other:
                self.miss(earlier, side)
        must_switch = self.lost_its_place()
        open_stamps = [owed_stamp for owed_stamp, _, _ in self.owed()]
        if stamp > self.floor or stamp in open_stamps:
            self.answers.setdefault(stamp, {})[side] = (now, result)
            if is_active and stamp > self.floor:
                self.publish(result)
            first = len(self.answers[stamp]) == 1
            if first and (self.last[side.other] or -1) > stamp:
                self.miss(stamp, side.other)
            if first and len(self.owed()) > self.max_open:
                oldest, answered_by, _ = self.owed()[0]
                self.miss(oldest, answered_by.other)
                if self.lost_its_place():
                    self.switch()
            self.good(stamp, side)
        if must_switch and side is self.active:
            self.switch()


class OneEpoch(RuleBasedStateMachine):
    """Stamps that only go on, seen by two sides that answer, skip, hang, die and repeat."""

    max_open = 6

    @initialize(
        misses=st.integers(1, 4),
        back=st.integers(1, 5),
        auto=st.booleans(),
        punctual=st.booleans(),
    )
    def begin(self, misses, back, auto, punctual):
        self.old_max_open = arbiter_module.MAX_OPEN
        arbiter_module.MAX_OPEN = self.max_open
        self.rule = ArbiterSettings(
            50, misses, "auto" if auto else "manual", back, epoch_jump_ms=1e9, silent_after_ms=1e9
        )
        self.promises = Promises(Arbiter(self.rule))
        self.reference = Reference(self.rule, self.max_open)
        self.punctual = punctual  # whether the timer runs at each deadline, or never
        self.now = 0
        self.images = 0
        self.position = {PRIMARY: 0, SECONDARY: 0}  # images each side has dealt with
        self.ledger = []  # (by when, stamp) of each answer that came in time

    def teardown(self):
        if hasattr(self, "old_max_open"):
            arbiter_module.MAX_OPEN = self.old_max_open

    @rule(milliseconds=st.sampled_from([1, 5, 17, 33, 49, 50, 51, 120, 700]))
    def time_passes(self, milliseconds):
        end = self.now + milliseconds * MS
        while self.punctual:
            deadline = self.promises.arbiter.next_deadline_ns()
            if deadline is None or deadline > end:
                break
            self.now = deadline
            self.promises.time(self.now)
            self.reference.time(self.now)
        self.now = end

    @rule()
    def image_comes(self):
        self.images += 1

    @rule(side=SIDES, skip=st.sampled_from([0, 0, 0, 1, 3]))
    def side_answers(self, side, skip):
        self.position[side] = min(self.position[side] + 1 + skip, self.images + 1)
        self.images = max(self.images, self.position[side])
        self.deliver(side, self.position[side])

    @rule(side=SIDES)
    def side_catches_up(self, side):
        while self.position[side] < self.images:
            self.position[side] += 1
            self.deliver(side, self.position[side])

    @rule(side=SIDES)
    def side_restarts(self, side):
        self.position[side] = self.images

    @rule(side=SIDES, back=st.integers(0, 3))
    def side_repeats(self, side, back):
        if self.position[side] - back > 0:
            self.deliver(side, self.position[side] - back)

    @rule(side=SIDES, count=st.integers(1, 12))
    def flood(self, side, count):
        for _ in range(count):
            self.images += 1
            self.position[side] = self.images
            self.deliver(side, self.position[side])

    @rule()
    def command(self):
        self.promises.time(self.now)
        self.reference.time(self.now)
        step = self.promises.check(self.promises.arbiter.switch_over(self.now), self.now)
        if not step.refusal:
            self.reference.preferred = self.reference.active.other
            self.reference.switch()

    def deliver(self, side, number):
        stamp = number * 33 * MS
        if self.punctual:
            self.promises.time(self.now)
        was_active = self.promises.arbiter.active
        floor = self.promises.floor
        own_last = self.reference.last[side]
        result, step = self.promises.result(side, stamp, self.now)
        self.reference.result(side, stamp, result, self.now)
        timely = (floor is None or stamp > floor) and (own_last is None or stamp > own_last)
        if self.punctual and timely:
            # never lost: by its deadline the stamp is out, from whichever side
            self.ledger.append((self.now + DEADLINE, stamp))
            # never delayed: the active side's goes out in this very step
            if side is was_active:
                assert result in [output.result for output in step.outputs]

    @invariant()
    def agrees_with_the_reference(self):
        if not hasattr(self, "promises"):
            return
        if self.punctual:
            self.promises.time(self.now)
            self.reference.time(self.now)
        # Without a timer all is settled at the next result, in the same way.
        self.compare()

    def compare(self):
        outputs = [output.result for output in self.promises.outputs]
        assert outputs == self.reference.out
        status = self.promises.arbiter.status(self.now)
        assert status.active is self.reference.active
        assert status.switch_count == self.reference.switches
        for side, state in status.sides.items():
            verdicts = [good for (_, who), good in self.reference.verdicts.items() if who is side]
            assert (state.good, state.missed) == (verdicts.count(True), verdicts.count(False))
            assert state.missed_in_row == self.reference.misses[side]

    @invariant()
    def nothing_timely_is_lost(self):
        if hasattr(self, "promises"):
            out = {output.stamp_ns for output in self.promises.outputs}
            due = {stamp for deadline, stamp in self.ledger if deadline <= self.now}
            assert due <= out

    @precondition(lambda self: hasattr(self, "promises") and self.images == 0)
    @invariant()
    def silence_publishes_nothing(self):
        assert not self.promises.outputs


OneEpoch.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestOneEpoch = OneEpoch.TestCase


class AnyStamps(RuleBasedStateMachine):
    """Stamps that do anything. Whatever came before, a side that answers is heard again."""

    @initialize(misses=st.integers(1, 4), auto=st.booleans())
    def begin(self, misses, auto):
        self.rule = ArbiterSettings(50, misses, "auto" if auto else "manual", 5, 500, 1000)
        self.promises = Promises(Arbiter(self.rule))
        self.now = 0
        self.stamps = {PRIMARY: 1000 * MS, SECONDARY: 1000 * MS}

    @rule(milliseconds=st.sampled_from([1, 10, 33, 50, 400, 1000, 5000]))
    def time_passes(self, milliseconds):
        self.now += milliseconds * MS
        self.promises.time(self.now)

    @rule(side=SIDES, count=st.integers(1, 10), period=st.sampled_from([0, 5, 33]))
    def side_goes_on(self, side, count, period):
        for _ in range(count):
            self.stamps[side] += 33 * MS
            self.deliver(side, period)

    @rule(count=st.integers(1, 10))
    def both_go_on(self, count):
        for _ in range(count):
            stamp = max(self.stamps.values()) + 33 * MS
            for side in Side:
                self.stamps[side] = stamp
                self.deliver(side, 5)

    @rule(
        side=SIDES,
        to=st.sampled_from([-(10**18), -1, 0, 1, 33, 900, 1100, 10_000, 10_033, 10**10]),
    )
    def side_jumps(self, side, to):
        self.stamps[side] = to * MS
        self.deliver(side, 1)

    @rule(side=SIDES, by=st.sampled_from([-20_000, -600, -499, -33, 0, 400, 20_000]))
    def side_steps(self, side, by):
        self.stamps[side] += by * MS
        self.deliver(side, 1)

    @rule(by=st.sampled_from([-20_000, -700, -100, 600, 20_000]))
    def both_step(self, by):
        stamp = max(self.stamps.values()) + by * MS
        for side in Side:
            self.stamps[side] = stamp
            self.deliver(side, 1)

    @rule()
    def command(self):
        self.promises.check(self.promises.arbiter.switch_over(self.now), self.now)

    def deliver(self, side, period):
        self.now += period * MS
        self.promises.time(self.now)
        self.promises.result(side, self.stamps[side], self.now)

    def teardown(self):
        if not hasattr(self, "promises"):
            return
        # The images go on, and one side answers them, from wherever its stamps are.
        for number in range(100):
            self.stamps[SECONDARY] += 33 * MS
            self.now += 33 * MS
            self.promises.time(self.now)
            result, step = self.promises.result(SECONDARY, self.stamps[SECONDARY], self.now)
            if number >= 66:
                assert [output.result for output in step.outputs] == [result]
        assert self.promises.arbiter.active is SECONDARY


AnyStamps.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAnyStamps = AnyStamps.TestCase


# A world of which it is known what should come out ------------------------------------------------

PERIOD = 33 * MS


@st.composite
def worlds(draw):
    """Loops of a bag, and when which side is down: at most one at a time, at any moment.

    A side that is down was killed, or stopped: then it answers two old images when it goes on
    (which must not be where the bag is then in a later loop: stamps cannot tell the two apart).
    """
    loss = draw(st.sampled_from([0.0, 0.0, 0.1, 0.4]))
    # what a side shows of a jump is shorter by what it lost around it
    lengths = st.integers(20, 60) if loss == 0 else st.integers(40, 80)
    loops = draw(st.lists(lengths, min_size=1, max_size=4))
    downs, frame = [], 0
    for _ in range(draw(st.integers(0, 3))):
        # long enough after the last one for a side that is back to have answered something
        start = frame + draw(st.integers(1 if loss == 0 else 10, 40))
        end = start + draw(st.integers(1, 80))
        downs.append((draw(SIDES), start, end, draw(st.booleans())))
        frame = end
    absent = draw(st.sampled_from([None, None, None, PRIMARY, SECONDARY]))
    if absent:
        downs = [(absent, 0, sum(loops), False)]
    return loops, downs, draw(st.integers(0, 10**6)), loss


def frames_of(loops):
    """(loop, index in the loop) of each frame."""
    return [(loop, index) for loop, length in enumerate(loops) for index in range(length)]


def answers(loops, downs, seed, loss):
    """(when, side, frame, whether it is an old one) of each answer, in the order of time."""
    chance = random.Random(seed)
    frames = frames_of(loops)
    found = []
    for number, (_, index) in enumerate(frames):
        for side in Side:
            down = any(who is side and start <= number < end for who, start, end, _ in downs)
            # A side whose first answer since it was down is to the first image of a loop cannot
            # know that it is: then the other side has that one.
            alone = index < 3 and any(
                who is side.other and start <= number and end >= number - index - 10
                for who, start, end, _ in downs
            )
            if not down and (alone or chance.random() >= loss):
                latency = chance.randint(5, 30) * MS
                found.append((number * PERIOD + latency, side.value, number, False))
    for side, start, end, stopped in downs:
        if stopped and end - start > 4 and end < len(frames):
            old_loop, old_index = frames[start]
            for loop, index in (frames[end - 1], frames[end]):
                assume(loop == old_loop or abs(index - old_index) > 500 // 33 + 3)
            found += [(end * PERIOD + n, side.value, start + n, True) for n in range(2)]
    return sorted(found)


@settings(max_examples=400, deadline=None)
@given(worlds(), st.integers(1, 5), st.booleans())
def test_no_image_that_was_answered_is_lost_through_failures_and_loops(world, misses, auto):
    frames = frames_of(world[0])
    rule_ = ArbiterSettings(50, misses, "auto" if auto else "manual", 10, 500, 1000)
    promises = Promises(Arbiter(rule_))
    answered = set()
    for now, side, number, is_old in answers(*world):
        run_timers(promises, now)
        loop, index = frames[number]
        promises.result(Side(side), index * PERIOD, now, loop)
        if not is_old:
            answered.add(frames[number])
    run_timers(promises, (len(frames) + 100) * PERIOD)
    outputs = [(output.result.loop, output.stamp_ns // PERIOD) for output in promises.outputs]
    assert outputs == sorted(set(outputs))
    # an old answer may still go out where nobody else had one
    assert [frame for frame in outputs if frame in answered] == sorted(answered)
    assert promises.arbiter.status(0).epoch == len(world[0]) - 1


def run_timers(promises, until):
    while True:
        deadline = promises.arbiter.next_deadline_ns()
        if deadline is None or deadline > until:
            return
        promises.time(deadline)


# Memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "clock"),
    [
        ("healthy", "running"),
        ("anything", "running"),
        ("anything", "standing"),
        ("one side", "standing"),
        ("two streams", "standing"),
        ("after a jump", "standing"),
    ],
)
def test_memory_is_bounded_over_100_000_events(kind, clock):
    chance = random.Random(1)
    arbiter = Arbiter()
    alive = weakref.WeakSet()
    now, stamps = 0, {PRIMARY: 0, SECONDARY: 10**15}
    for event in range(100_000):
        side = PRIMARY if kind == "one side" else (PRIMARY, SECONDARY)[event % 2]
        now += 16 * MS if clock == "running" else 0
        if kind == "anything":
            stamps[side] += chance.choice([-(10**12), -600 * MS, -33 * MS, 0, 33 * MS, 10**12])
        elif kind == "healthy" or event < 100:
            stamps[side] = (10**9 + event // 2 * 33) * MS
        elif kind == "after a jump":
            side = PRIMARY  # the secondary is well, and says nothing to it
            stamps[side] = event * 33 * MS
        else:
            stamps[side] += 33 * MS
        result = Result(side, stamps[side])
        alive.add(result)
        step = arbiter.on_result(side, stamps[side], result, now)
        del result, step
        if event % 5000 == 4999:
            gc.collect()
            assert len(alive) <= 2 * arbiter_module.MAX_OPEN
            for name, value in vars(arbiter).items():
                assert not hasattr(value, "__len__") or len(value) <= arbiter_module.MAX_OPEN, name
