"""What is well and what is not, in words that say what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Iterable, Mapping


class Level(IntEnum):
    """Severity; the numbers are those of ``diagnostic_msgs/DiagnosticStatus``."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True)
class Finding:
    """The state of one thing that can fail.

    Attributes:
        name: the thing, as ``inference latency``; the same at all times.
        level: how bad it is.
        message: one line for people: what is wrong and what to do, or that all is well.
        values: figures, formatted, with the unit in the key; ``n/a`` where there is none yet.
    """

    name: str
    level: Level
    message: str
    values: Mapping[str, str] = field(default_factory=dict)


def worst(problems: Iterable[tuple[Level, str]], well: str) -> tuple[Level, str]:
    """The highest level among ``problems`` and the messages that have it; OK and ``well`` if none.

    STALE counts as worse than ERROR, as in ``diagnostic_msgs``: nothing is known any more.
    """
    found = list(problems)
    if not found:
        return Level.OK, well
    level = max(level for level, _ in found)
    return level, "; ".join(message for found_level, message in found if found_level == level)
