"""What an arbiter's state means: findings for diagnostics."""

from __future__ import annotations

from dla_perception.monitoring.health import Finding, Level, worst
from dla_perception.redundancy.arbiter import (
    ArbiterSettings,
    ArbiterStatus,
    Side,
    SideStatus,
)

RECENT_NS = 5_000_000_000
"""How long a miss or a dropped result stays a problem: five diagnostics at 1 Hz."""

DROPS = {
    "lost": "a result came after a later one had gone out: raise result_deadline_ms",
    "duplicates": "a stamp came twice in a row: does the camera set stamps, is a detector "
    "running twice?",
    "out_of_order": "stamps went back by no more than epoch_jump_ms: is a detector running "
    "twice, is a looping bag shorter than that?",
    "outdated": "results of a former epoch, or after a jump back of one side alone: is a "
    "detector running twice, do both see the same images?",
}
"""What to make of dropped results; those that are late show as misses already."""


def arbiter_findings(status: ArbiterStatus, settings: ArbiterSettings) -> list[Finding]:
    """One finding each for ``active side``, ``primary``, ``secondary`` and ``output``."""
    return [
        _active_finding(status, settings),
        *(_side_finding(side, status, settings) for side in Side),
        _output_finding(status, settings),
    ]


def _active_finding(status: ArbiterStatus, settings: ArbiterSettings) -> Finding:
    active, last = status.active, status.last_switch
    problems = []
    if _all_silent(status, settings):
        problems.append((Level.STALE, f"both sides are silent: {active.value} stays active"))
    elif active is not status.preferred:
        reason = f" ({last.reason})" if last else ""
        problems.append(
            (Level.WARN, f"{active.value} stands in for {status.preferred.value}{reason}")
        )
    level, message = worst(problems, f"{active.value} is active")
    values = {
        "active_side": active.value,
        "preferred_side": status.preferred.value,
        "switch_count": str(status.switch_count),
        "last_switch_reason": last.reason if last else "n/a",
        "time_since_last_switch_s": _age(status, last.now_ns if last else None, 1e9),
    }
    return Finding("active side", level, message, values)


def _side_finding(side: Side, status: ArbiterStatus, settings: ArbiterSettings) -> Finding:
    state = status.sides[side]
    problems = []
    if _is_silent(state, status, settings):
        level = Level.STALE if _all_silent(status, settings) else Level.ERROR
        silent_ns = status.now_ns - (state.last_arrival_ns or 0)
        since = "yet" if state.last_arrival_ns is None else f"for {silent_ns / 1e9:.1f} s"
        problems.append((level, f"no result {since}: is the detector running, are there images?"))
    elif state.missed_in_row >= settings.switch_after_misses:
        problems.append((Level.ERROR, f"missed {state.missed_in_row} in a row"))
    if _is_recent(state.last_missed_ns, status):
        problems.append((Level.WARN, "missed results that the other side had in time"))
    if state.last_drop in DROPS and _is_recent(state.last_dropped_ns, status):
        problems.append((Level.WARN, DROPS[state.last_drop]))
    level, message = worst(problems, "answers in time")
    values = {
        "age_ms": _age(status, state.last_arrival_ns, 1e6),
        "results": str(state.results),
        "published": str(state.published),
        "in_time": str(state.good),
        "in_time_in_a_row": str(state.good_in_row),
        "missed": str(state.missed),
        "missed_in_a_row": str(state.missed_in_row),
        "dropped_late": str(state.late),
        "dropped_lost": str(state.lost),
        "dropped_duplicates": str(state.duplicates),
        "dropped_out_of_order": str(state.out_of_order),
        "dropped_outdated": str(state.outdated),
    }
    return Finding(side.value, level, message, values)


def _output_finding(status: ArbiterStatus, settings: ArbiterSettings) -> Finding:
    problems = []
    if _all_silent(status, settings):
        problems.append((Level.STALE, "nothing to publish: both sides are silent"))
    elif _only_drops(status, settings):
        problems.append((Level.ERROR, f"results come, but none can go out: {_last_drop(status)}"))
    level, message = worst(problems, "results go out")
    values = {
        "published": str(status.published),
        "age_ms": _age(status, status.last_output_ns, 1e6),
        "waiting": str(status.waiting + status.held),
        "lost": str(sum(state.lost for state in status.sides.values())),
        "epoch": str(status.epoch),
    }
    return Finding("output", level, message, values)


def _only_drops(status: ArbiterStatus, settings: ArbiterSettings) -> bool:
    """Whether results still came when none had gone out for the time that means silence."""
    arrivals = [state.last_arrival_ns or 0 for state in status.sides.values()]
    last_ns = status.last_output_ns
    return last_ns is not None and max(arrivals) - last_ns >= settings.silent_ns


def _last_drop(status: ArbiterStatus) -> str:
    latest = max(status.sides.values(), key=lambda state: state.last_dropped_ns or 0)
    return DROPS.get(latest.last_drop, "their stamps are not above what went out before")


def _is_over(since_ns: int | None, status: ArbiterStatus, settings: ArbiterSettings) -> bool:
    """Whether something that should keep happening last happened too long ago, or never did."""
    return since_ns is None or status.now_ns - since_ns >= settings.silent_ns


def _is_silent(state: SideStatus, status: ArbiterStatus, settings: ArbiterSettings) -> bool:
    return _is_over(state.last_arrival_ns, status, settings)


def _all_silent(status: ArbiterStatus, settings: ArbiterSettings) -> bool:
    return all(_is_silent(state, status, settings) for state in status.sides.values())


def _is_recent(when_ns: int | None, status: ArbiterStatus) -> bool:
    return when_ns is not None and status.now_ns - when_ns <= RECENT_NS


def _age(status: ArbiterStatus, when_ns: int | None, unit_ns: float) -> str:
    return "n/a" if when_ns is None else f"{(status.now_ns - when_ns) / unit_ns:.1f}"
