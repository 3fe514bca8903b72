"""A progress bar for long work."""

from __future__ import annotations

import sys
from typing import Iterable, Iterator, Sequence, TypeVar

Item = TypeVar("Item")


def track(items: Sequence[Item], text: str) -> Iterator[Item]:
    """Go through ``items`` with a bar on stderr, if that is a terminal."""
    return track_iterable(items, text, len(items))


def track_iterable(items: Iterable[Item], text: str, total: int) -> Iterator[Item]:
    """As :func:`track`, for ``total`` items that come one by one."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, total=total)
