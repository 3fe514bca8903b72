"""Which of two detectors' results goes out, for each image stamp.

Two sides answer the same images; each answer carries its image's stamp. :class:`Arbiter` is told
of each answer and of the time, and says what to publish. It has no clock, no thread and no
knowledge of what a result is. ``docs/redundancy.md`` has the rule as a state table, with the
reasons; in short:

- The active side's answer goes out at once. Answers of the standby side to earlier stamps that
  still wait go out just before it: a side answers in the order of the images, so its answer to
  one image says that there will be none to an earlier one.
- The standby side's answer waits for the active side's answer to the same stamp, for
  ``result_deadline_ms`` from its own arrival, and then goes out in its place: a miss of the
  active side. That arrival is the earliest proof, on this process's steady clock, that the image
  could be answered; the stamp itself belongs to another clock (the camera's, a bag's, a
  simulation's) and a time cannot be measured from it.
- Misses are counted on both sides, since the rule is the same the other way round: whoever
  answers a stamp first starts the other's time. A side that answers in time for
  ``switch_back_after`` stamps in a row is well; one that misses ``switch_after_misses`` in a row
  is not, and if it is the active one, the other takes over and what waits goes out at once.
- Nothing goes out whose stamp is not above the last one's. A side whose own answers jump back by
  more than ``epoch_jump_ms`` has begun to see its images anew (a bag started again): a new epoch,
  in which stamps count from the beginning, if the other side does the same or is silent. If the
  other one goes on where it was, the jump was not one of the images and its results are dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Deque, Mapping

from dla_perception.errors import DlaPerceptionError

MAX_OPEN = 256
"""Stamps that may wait for a side's answer; above it the oldest is settled before its time.

More than 60 images a second for four seconds, far above any sensible deadline.
"""


class ArbiterSettingsError(DlaPerceptionError):
    """Times or counts that contradict each other or make no sense."""


class Side(str, Enum):
    """One of the two detectors."""

    PRIMARY = "primary"
    SECONDARY = "secondary"

    @property
    def other(self) -> Side:
        """The other one."""
        return Side.SECONDARY if self is Side.PRIMARY else Side.PRIMARY


class Cause(str, Enum):
    """Why a result went out when it did."""

    ACTIVE = "active"
    """It is the active side's."""
    DEADLINE = "deadline"
    """The active side did not answer in time."""
    SKIPPED = "skipped"
    """The active side went on to later images."""
    SWITCH = "switch"
    """Its side became the active one."""
    OVERFLOW = "overflow"
    """More than ``MAX_OPEN`` stamps were open."""


@dataclass(frozen=True)
class ArbiterSettings:
    """The times and counts of the rule.

    Attributes:
        result_deadline_ms: how much later than the other side a side may answer a stamp.
        switch_after_misses: stamps that the active side must miss in a row to lose its place.
        switch_back: ``auto``: the preferred side becomes active again after
            ``switch_back_after`` results in time in a row; ``manual``: on command only.
        switch_back_after: see ``switch_back``.
        epoch_jump_ms: a side's stamps that go back by more than this began anew; by less, they
            are out of order and dropped. Must be well below the length of a bag that loops.
        silent_after_ms: a side without any result for this long is silent. Must be several
            times the time between images.
    """

    result_deadline_ms: float = 50.0
    switch_after_misses: int = 3
    switch_back: str = "auto"
    switch_back_after: int = 30
    epoch_jump_ms: float = 500.0
    silent_after_ms: float = 1000.0

    def __post_init__(self) -> None:
        for name in ("result_deadline_ms", "epoch_jump_ms", "silent_after_ms"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ArbiterSettingsError(f"{name}: {value}; expected more than 0 milliseconds")
        for name in ("switch_after_misses", "switch_back_after"):
            value = getattr(self, name)
            if value < 1:
                raise ArbiterSettingsError(f"{name}: {value}; expected 1 or more")
        if self.switch_back not in ("auto", "manual"):
            raise ArbiterSettingsError(
                f"switch_back: '{self.switch_back}'; expected 'auto' or 'manual'"
            )
        for name in ("epoch_jump_ms", "silent_after_ms"):
            if getattr(self, name) <= self.result_deadline_ms:
                raise ArbiterSettingsError(
                    f"{name}: {getattr(self, name):g} is not above result_deadline_ms "
                    f"({self.result_deadline_ms:g}): raise the one or lower the other"
                )

    @property
    def deadline_ns(self) -> int:
        """``result_deadline_ms`` in nanoseconds."""
        return round(self.result_deadline_ms * 1e6)

    @property
    def jump_ns(self) -> int:
        """``epoch_jump_ms`` in nanoseconds."""
        return round(self.epoch_jump_ms * 1e6)

    @property
    def silent_ns(self) -> int:
        """``silent_after_ms`` in nanoseconds."""
        return round(self.silent_after_ms * 1e6)


@dataclass(frozen=True)
class Output:
    """One result to publish, unchanged.

    Attributes:
        side: whose it is.
        stamp_ns: its image's stamp.
        result: the object that :meth:`Arbiter.on_result` was given.
        epoch: stamps rise strictly from output to output of one epoch; epochs rise.
        cause: why it goes out now.
        waited_ns: how long it was held.
    """

    side: Side
    stamp_ns: int
    result: Any
    epoch: int
    cause: Cause
    waited_ns: int


@dataclass(frozen=True)
class Pair:
    """Both sides' results for one stamp, answered within the deadline of each other."""

    stamp_ns: int
    primary: Any
    secondary: Any


@dataclass(frozen=True)
class Switch:
    """A change of the active side.

    Attributes:
        to: the side that is active now.
        reason: one line for people.
        now_ns: when, on the steady clock.
    """

    to: Side
    reason: str
    now_ns: int


@dataclass
class Step:
    """What follows from one event, each list in order.

    Attributes:
        outputs: to publish.
        switches: changes of the active side.
        pairs: results that can be compared; to be looked at after the outputs are published.
        refusal: why a commanded switch was not made; empty otherwise.
    """

    outputs: list[Output] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    refusal: str = ""


@dataclass
class SideStatus:
    """What one side has done so far.

    Attributes:
        results: that arrived, whatever became of them.
        published: of these, went out.
        good: answers in time, and how many of them in a row up to now.
        missed: stamps that the other side answered and this one did not in time; and in a row.
        late: dropped since the stamp had gone out already, or a later one long ago.
        lost: dropped since a later stamp had gone out; nobody else answered this one.
        duplicates: a stamp twice in a row.
        out_of_order: a stamp below the side's last by no more than ``epoch_jump_ms``.
        outdated: of a former epoch, or after a jump back that the other side did not make.
        last_stamp_ns: of the last answer that counted; ``None`` before the first.
        epoch: the epoch of that answer.
        last_arrival_ns, last_missed_ns, last_dropped_ns: when, on the steady clock.
        last_drop: the name of the last drop's counter.
    """

    results: int = 0
    published: int = 0
    good: int = 0
    good_in_row: int = 0
    missed: int = 0
    missed_in_row: int = 0
    late: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    outdated: int = 0
    last_stamp_ns: int | None = None
    epoch: int = 0
    last_arrival_ns: int | None = None
    last_missed_ns: int | None = None
    last_dropped_ns: int | None = None
    last_drop: str = ""


@dataclass(frozen=True)
class ArbiterStatus:
    """The state of an arbiter at one moment.

    Attributes:
        now_ns: the moment, on the steady clock.
        active: the side whose results go out at once.
        preferred: the side that is active when both are well: the primary, until a commanded
            switch makes it the other.
        epoch: how many jumps back there were.
        published: results that went out.
        waiting: results that wait for the active side's.
        held: results after a jump back that waits to be believed.
        switch_count: changes of the active side.
        last_switch: the last one.
        last_output_ns: when the last result went out.
        sides: one status per side.
    """

    now_ns: int
    active: Side
    preferred: Side
    epoch: int
    published: int
    waiting: int
    held: int
    switch_count: int
    last_switch: Switch | None
    last_output_ns: int | None
    sides: Mapping[Side, SideStatus]


@dataclass(frozen=True, eq=False)
class _Answer:
    """A result as it arrived."""

    side: Side
    stamp_ns: int
    result: Any
    arrival_ns: int


@dataclass(eq=False)
class _Open:
    """A stamp that one side has answered and the other still may, within the deadline."""

    answer: _Answer
    published: bool


@dataclass
class _Jump:
    """Answers of a side after its stamps jumped back, until it is clear what they are."""

    side: Side
    started_ns: int
    held: list[_Answer]
    contradicted_ns: int | None = None


class Arbiter:
    """Two result streams in, one out. Not thread-safe: one caller at a time.

    Every time given to a method is of one steady clock, in nanoseconds; a time before the last
    one counts as the last one. Every method that returns a :class:`Step` may have outputs.

    Attributes:
        settings: may be replaced at any time; new ones count from the next event.
    """

    # What holds between two calls:
    # - `_open` is in the order of stamps and of arrivals at once: a stamp is only opened when it
    #   is above every stamp published, and not when the other side has answered a later one.
    # - An unpublished open stamp is above every published one, and was answered by the standby.

    def __init__(self, settings: ArbiterSettings | None = None) -> None:
        self.settings = settings or ArbiterSettings()
        self._sides = {side: SideStatus() for side in Side}
        self._active = Side.PRIMARY
        self._preferred = Side.PRIMARY
        self._now_ns = 0
        self._step = Step()
        self._epoch = 0
        self._floor_ns: int | None = None  # the last stamp published in this epoch
        self._open: Deque[_Open] = deque()
        self._recent: Deque[int] = deque(maxlen=MAX_OPEN)
        self._jump: _Jump | None = None
        self._starved_since_ns: int | None = None
        self._starved_last_ns = 0
        self._published = 0
        self._last_output_ns: int | None = None
        self._switch_count = 0
        self._last_switch: Switch | None = None

    @property
    def active(self) -> Side:
        """The side whose results go out at once."""
        return self._active

    def on_result(self, side: Side, stamp_ns: int, result: Any, now_ns: int) -> Step:
        """A side answered the image of ``stamp_ns``."""
        self._begin(now_ns)
        state = self._sides[side]
        state.results += 1
        state.last_arrival_ns = self._now_ns
        self._place(_Answer(side, stamp_ns, result, self._now_ns))
        return self._step

    def on_time(self, now_ns: int) -> Step:
        """Time has passed; to be called at :meth:`next_deadline_ns`, and allowed at any time."""
        self._begin(now_ns)
        return self._step

    def switch_over(self, now_ns: int) -> Step:
        """Make the other side active and, from now on, the preferred one.

        Refused when that would replace a side that answers by one that does not.
        """
        self._begin(now_ns)
        to = self._active.other
        if self._is_well(self._active) and not self._is_well(to):
            self._step.refusal = (
                f"{to.value} {self._trouble(to)}; {self._active.value} stays active"
            )
            return self._step
        self._preferred = to
        self._switch(to, "commanded")
        return self._step

    def next_deadline_ns(self) -> int | None:
        """When :meth:`on_time` has something to do; ``None``: not before the next result."""
        deadlines = []
        first = next((entry for entry in self._open if not entry.published), None)
        if first is not None:
            deadlines.append(first.answer.arrival_ns + self.settings.deadline_ns)
        if self._jump is not None:
            deadlines.append(self._jump_end_ns(self._jump))
        return min(deadlines, default=None)

    def status(self, now_ns: int) -> ArbiterStatus:
        """The state and all counters, as of the last event; changes nothing."""
        return ArbiterStatus(
            now_ns=max(now_ns, self._now_ns),
            active=self._active,
            preferred=self._preferred,
            epoch=self._epoch,
            published=self._published,
            waiting=sum(not entry.published for entry in self._open),
            held=len(self._jump.held) if self._jump else 0,
            switch_count=self._switch_count,
            last_switch=self._last_switch,
            last_output_ns=self._last_output_ns,
            sides={side: replace(state) for side, state in self._sides.items()},
        )

    # time

    def _begin(self, now_ns: int) -> None:
        """Start an event: what fell due before it comes first."""
        self._step = Step()
        self._now_ns = max(now_ns, self._now_ns)
        self._expire()
        if self._jump is not None and self._is_believed(self._jump):
            self._start_epoch(self._jump.held)

    def _expire(self) -> None:
        """Settle the stamps whose deadline is over."""
        while self._open and self._is_overdue(self._open[0].answer):
            self._settle_oldest(Cause.DEADLINE)

    def _is_overdue(self, answer: _Answer) -> bool:
        return self._now_ns >= answer.arrival_ns + self.settings.deadline_ns

    def _settle_oldest(self, cause: Cause) -> None:
        """The side that owes the oldest open stamp has missed it."""
        self._settle(self._open.popleft(), cause)
        if self._must_switch():
            self._switch_away()

    def _settle(self, entry: _Open, cause: Cause) -> None:
        if not entry.published:
            self._publish(entry.answer, cause)
        self._miss(entry.answer.side.other)

    # what an answer is

    def _place(self, answer: _Answer) -> None:
        """Sort an answer into the running epoch, a jump back, or nothing."""
        if self._jump is not None and self._concerns_jump(self._jump, answer):
            return
        if self._jumps_back(answer):
            self._jump = _Jump(answer.side, self._now_ns, [answer])
            if self._is_believed(self._jump):
                self._start_epoch(self._jump.held)
        elif self._is_of_former_epoch(answer):
            self._drop(answer, "outdated")
        else:
            self._take(answer)

    def _jumps_back(self, answer: _Answer) -> bool:
        # Only a side's own answers of this epoch count. What is far below the other side's may be
        # the backlog of a process that was stopped, or the first answer of one that starts slowly.
        state = self._sides[answer.side]
        return (
            state.last_stamp_ns is not None
            and state.epoch == self._epoch
            and answer.stamp_ns < state.last_stamp_ns - self.settings.jump_ns
        )

    def _is_of_former_epoch(self, answer: _Answer) -> bool:
        """Whether a side goes on with an epoch that the other has left and goes on without."""
        state = self._sides[answer.side]
        top_ns = self._top_ns()
        return (
            state.last_stamp_ns is not None
            and top_ns is not None
            and state.epoch < self._epoch
            and answer.stamp_ns >= state.last_stamp_ns - self.settings.jump_ns
            and answer.stamp_ns > top_ns + self.settings.jump_ns
            and not self._is_silent(answer.side.other)
        )

    def _top_ns(self) -> int | None:
        """The highest stamp of this epoch that went out or waits."""
        tops = [] if self._floor_ns is None else [self._floor_ns]
        if self._open:
            tops.append(self._open[-1].answer.stamp_ns)
        return max(tops, default=None)

    # a jump back

    def _is_believed(self, jump: _Jump) -> bool:
        """Whether to stop waiting for what the other side says."""
        return (
            not self._is_well(jump.side.other)
            or len(jump.held) >= MAX_OPEN
            or self._now_ns >= self._jump_end_ns(jump)
        )

    def _jump_end_ns(self, jump: _Jump) -> int:
        other_arrival_ns = self._sides[jump.side.other].last_arrival_ns
        since_ns = jump.started_ns if other_arrival_ns is None else other_arrival_ns
        return min(jump.started_ns, since_ns) + self.settings.silent_ns

    def _concerns_jump(self, jump: _Jump, answer: _Answer) -> bool:
        """Hold ``answer`` back with the jump's (true), or judge the jump by it (false)."""
        last_ns, top_ns = jump.held[-1].stamp_ns, self._top_ns()
        is_own = answer.side is jump.side
        goes_on_there = abs(answer.stamp_ns - last_ns) <= self.settings.jump_ns
        if top_ns is not None and not goes_on_there:
            returns = is_own and answer.stamp_ns >= top_ns - self.settings.jump_ns
            if returns or (answer.stamp_ns > top_ns and self._is_contradicted(jump)):
                self._disbelieve(jump)
            if returns or answer.stamp_ns > top_ns:
                return False
        if not is_own:
            if goes_on_there or self._jumps_back(answer):
                self._start_epoch(jump.held)
            return False
        if answer.stamp_ns < last_ns - self.settings.jump_ns:
            self._start_epoch(jump.held)  # and it jumped back once more
            return False
        if answer.stamp_ns > last_ns:
            jump.held.append(answer)
            if self._is_believed(jump):
                self._start_epoch(jump.held)
        else:
            self._drop(answer, "duplicates" if answer.stamp_ns == last_ns else "out_of_order")
        return True

    def _is_contradicted(self, jump: _Jump) -> bool:
        """Whether the running epoch goes on; to be called when it does so for a moment.

        It may be the end of it: a side in time answers the last images before the jump less than
        the deadline after it, and one that hung for a moment answers one or two of them at once.
        """
        deadline_ns = self.settings.deadline_ns
        if jump.contradicted_ns is None and self._now_ns >= jump.started_ns + deadline_ns:
            jump.contradicted_ns = self._now_ns
        first_ns = jump.contradicted_ns
        return first_ns is not None and self._now_ns >= first_ns + deadline_ns

    def _disbelieve(self, jump: _Jump) -> None:
        self._jump = None
        for answer in jump.held:
            self._count_drop(answer.side, "outdated")

    def _start_epoch(self, answers: list[_Answer]) -> None:
        """Stamps count anew, beginning with ``answers``."""
        self._jump = None
        while self._open:
            self._settle_oldest(Cause.SKIPPED)
        self._epoch += 1
        self._floor_ns = None
        self._recent.clear()
        self._starved_since_ns = None
        for answer in answers:
            self._take(answer)
        self._expire()

    # the running epoch

    def _take(self, answer: _Answer) -> None:
        """An answer to an image of the running epoch."""
        side, stamp_ns = answer.side, answer.stamp_ns
        state = self._sides[side]
        last_ns = state.last_stamp_ns if state.epoch == self._epoch else None
        if last_ns is not None and stamp_ns <= last_ns:
            self._drop(answer, "duplicates" if stamp_ns == last_ns else "out_of_order")
            return
        state.epoch, state.last_stamp_ns = self._epoch, stamp_ns
        was_active = side is self._active
        self._settle_skipped(side, stamp_ns)
        must_switch = was_active and self._must_switch()
        partner = self._take_open(stamp_ns)
        if partner is not None:
            if not partner.published:
                self._publish(answer, Cause.ACTIVE)
            self._pair(partner.answer, answer)
            self._good(side)
        elif self._floor_ns is not None and stamp_ns <= self._floor_ns:
            self._drop(answer, "late" if self._was_answered(stamp_ns) else "lost")
        else:
            self._answer_first(answer, was_active)
            self._good(side)
        # Only now: what made the side miss its place does not hold back the answer it gave while
        # it had it, and what waits above that answer must not overtake it.
        if must_switch:
            self._switch_away()

    def _settle_skipped(self, side: Side, stamp_ns: int) -> None:
        """``side`` has answered ``stamp_ns`` and will answer nothing below it any more."""
        skipped = [
            entry
            for entry in self._open
            if entry.answer.stamp_ns < stamp_ns and entry.answer.side is not side
        ]
        for entry in skipped:
            self._open.remove(entry)
            self._settle(entry, Cause.SKIPPED)

    def _take_open(self, stamp_ns: int) -> _Open | None:
        for entry in self._open:
            if entry.answer.stamp_ns == stamp_ns:
                self._open.remove(entry)
                return entry
        return None

    def _answer_first(self, answer: _Answer, was_active: bool) -> None:
        """Nobody has answered this stamp yet, and nothing above it has gone out."""
        if was_active:
            self._publish(answer, Cause.ACTIVE)
        other = self._sides[answer.side.other]
        other_is_past = (
            other.last_stamp_ns is not None
            and other.epoch == self._epoch
            and other.last_stamp_ns > answer.stamp_ns
        )
        if other_is_past:
            self._miss(answer.side.other)
            return
        self._open.append(_Open(answer, published=was_active))
        if len(self._open) > MAX_OPEN:
            self._settle_oldest(Cause.OVERFLOW)

    def _pair(self, first: _Answer, second: _Answer) -> None:
        results = {first.side: first.result, second.side: second.result}
        self._step.pairs.append(
            Pair(first.stamp_ns, results[Side.PRIMARY], results[Side.SECONDARY])
        )

    def _was_answered(self, stamp_ns: int) -> bool:
        """Whether this stamp went out; yes also where that is too long ago to be known."""
        forgotten = len(self._recent) == MAX_OPEN and stamp_ns < self._recent[0]
        return forgotten or stamp_ns in self._recent

    def _publish(self, answer: _Answer, cause: Cause) -> None:
        self._floor_ns = answer.stamp_ns
        self._recent.append(answer.stamp_ns)
        self._published += 1
        self._sides[answer.side].published += 1
        self._last_output_ns = self._now_ns
        self._starved_since_ns = None
        waited_ns = self._now_ns - answer.arrival_ns
        self._step.outputs.append(
            Output(answer.side, answer.stamp_ns, answer.result, self._epoch, cause, waited_ns)
        )

    def _drop(self, answer: _Answer, counter: str) -> None:
        """Count an answer that does not go out; begin anew if nothing else comes.

        Whatever went wrong with the stamps (one far in the future, a bag shorter than
        ``epoch_jump_ms``, one started again together with the detectors): a side that keeps
        answering is not ignored for longer than ``silent_after_ms``.
        """
        self._count_drop(answer.side, counter)
        if counter == "duplicates":
            return
        steady = self._now_ns - self._starved_last_ns < self.settings.silent_ns
        self._starved_last_ns = self._now_ns
        if self._starved_since_ns is None or not steady:
            self._starved_since_ns = self._now_ns
        elif self._now_ns - self._starved_since_ns >= self.settings.silent_ns:
            self._start_epoch(self._jump.held if self._jump else [answer])

    def _count_drop(self, side: Side, counter: str) -> None:
        state = self._sides[side]
        setattr(state, counter, getattr(state, counter) + 1)
        state.last_dropped_ns = self._now_ns
        state.last_drop = counter

    # who is active

    def _good(self, side: Side) -> None:
        state = self._sides[side]
        state.good += 1
        state.good_in_row += 1
        state.missed_in_row = 0
        if (
            self.settings.switch_back == "auto"
            and side is self._preferred
            and side is not self._active
            and state.good_in_row >= self.settings.switch_back_after
        ):
            self._switch(side, f"{side.value} is back: {state.good_in_row} in time in a row")

    def _miss(self, side: Side) -> None:
        state = self._sides[side]
        state.missed += 1
        state.missed_in_row += 1
        state.good_in_row = 0
        state.last_missed_ns = self._now_ns

    def _must_switch(self) -> bool:
        return self._sides[self._active].missed_in_row >= self.settings.switch_after_misses

    def _switch_away(self) -> None:
        side = self._active
        missed = max(self._sides[side].missed_in_row, self.settings.switch_after_misses)
        self._switch(side.other, f"{side.value} missed {missed} in a row")

    def _switch(self, to: Side, reason: str) -> None:
        self._active = to
        self._sides[to].missed_in_row = 0  # what it missed as standby does not count against it
        self._switch_count += 1
        self._last_switch = Switch(to, reason, self._now_ns)
        self._step.switches.append(self._last_switch)
        for entry in self._open:
            if not entry.published:
                entry.published = True
                self._publish(entry.answer, Cause.SWITCH)

    def _is_well(self, side: Side) -> bool:
        """Whether a side answers, and in time."""
        missed = self._sides[side].missed_in_row
        return not self._is_silent(side) and missed < self.settings.switch_after_misses

    def _is_silent(self, side: Side) -> bool:
        last_ns = self._sides[side].last_arrival_ns
        return last_ns is None or self._now_ns - last_ns >= self.settings.silent_ns

    def _trouble(self, side: Side) -> str:
        """What is wrong with a side that is not well."""
        state = self._sides[side]
        if state.last_arrival_ns is None:
            return "has never answered"
        silent_ns = self._now_ns - state.last_arrival_ns
        if silent_ns >= self.settings.silent_ns:
            return f"has not answered for {silent_ns / 1e9:.1f} s"
        return f"has missed {state.missed_in_row} in a row"
