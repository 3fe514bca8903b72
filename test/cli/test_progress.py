"""The progress bar: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from dla_perception.cli.progress import track


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_bar_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shown: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(track([1, 2, 3], "working")) == [1, 2, 3]
    assert ("working" in stream.getvalue()) is shown
    assert ("3/3" in stream.getvalue()) is shown
