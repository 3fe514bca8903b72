"""A process under test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Mapping

import pytest


class StartedProcess:
    """A process under test, in a process group of its own, with its output in a file.

    Attributes:
        popen: the process itself.
        log: the file with what it wrote, standard output and standard error together.
    """

    def __init__(self, command: tuple[str, ...], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with open(log, "wb") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it wrote until now."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 30.0) -> None:
        """Wait until it has written a text."""
        end = time.monotonic() + timeout
        while text not in self.output:
            ended = self.popen.poll() is not None
            # Looked at once more: it may have written the text just before it ended.
            if (ended and text not in self.output) or time.monotonic() > end:
                pytest.fail(f"'{text}' was not written by {self.popen.args}:\n{self.output}")
            time.sleep(0.02)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait until it ends: its exit status."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running: {self.popen.args}:\n{self.output}")

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, as a terminal does."""
        with suppress(ProcessLookupError):  # when all of it is gone
            os.killpg(self.popen.pid, number)

    def end(self, patience: float = 5.0) -> None:
        """See to it that the whole group is gone: first politely, then not.

        Args:
            patience: seconds that it gets to obey each of the signals.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if not self.alive:
                return
            self.signal(number)
            deadline = time.monotonic() + patience
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.02)

    @property
    def alive(self) -> bool:
        """Whether any process of the group is there."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # when it has just gone
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                # A zombie has ended, and in a container there may be nobody who takes note of it.
                if group == str(self.popen.pid) and state not in "ZX":
                    return True
        return False
