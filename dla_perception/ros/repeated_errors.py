"""Errors that may come with every frame, logged without flooding the log."""

from __future__ import annotations

import threading
from typing import Any, Dict, Hashable, Tuple

PERIOD_S = 10.0
"""Between two lines about one thing."""


class RepeatedErrors:
    """Logs the first error about a thing at once, and the next ones now and then, with a count.

    Safe for use from several threads.
    """

    def __init__(self, logger: Any, period_s: float = PERIOD_S) -> None:
        """Log to ``logger`` at most once in ``period_s`` seconds about each thing."""
        self._logger = logger
        self._period_s = period_s
        self._lock = threading.Lock()
        self._state: Dict[Hashable, Tuple[float, int]] = {}

    def log(self, thing: Hashable, message: str, now_s: float) -> None:
        """Something is wrong with ``thing``, of which there are few; ``now_s`` is steady time."""
        with self._lock:
            logged_s, held_back = self._state.get(thing, (0.0, 0))
            is_due = thing not in self._state or now_s - logged_s >= self._period_s
            self._state[thing] = (now_s, 0) if is_due else (logged_s, held_back + 1)
        if not is_due:
            return
        if held_back:
            message += f" ({held_back} more of these in the {now_s - logged_s:.0f} s before)"
        self._logger.error(message)
