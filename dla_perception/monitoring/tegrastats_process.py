"""``tegrastats`` as a child process, read in a thread of its own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import Sequence

from dla_perception.monitoring.tegrastats import TegrastatsSample, parse_tegrastats

SILENCE_S = 10.0
"""A child that has printed no statistics for so long is ended."""

RESTART_S = 60.0
"""Least time between two starts: a tool that does not work shall not become a load itself."""

LONGEST_LINE = 65536
"""Bytes without a line break that are kept; lines are of some 700."""


class TegrastatsProcess:
    """Keeps the last line of a running ``tegrastats``, and the tool running.

    Nothing is logged: what is wrong is one text, :attr:`problem`.
    """

    def __init__(
        self,
        command: Sequence[str],
        silence_s: float = SILENCE_S,
        restart_s: float = RESTART_S,
    ) -> None:
        """Nothing runs before :meth:`start`.

        Args:
            command: the tool and its arguments.
            silence_s: after so long without statistics the child counts as hung.
            restart_s: least time between two starts.
        """
        self._command = list(command)
        self._silence_s = silence_s
        self._restart_s = restart_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._sample: TegrastatsSample | None = None
        self._problem = ""

    @property
    def sample(self) -> TegrastatsSample | None:
        """The last line; ``None`` before the first one and while the tool does not work."""
        return self._sample

    @property
    def problem(self) -> str:
        """Why there are no lines, in words; empty while there are, and before the first."""
        return self._problem

    def start(self) -> None:
        """Start the tool and its thread."""
        self._thread = threading.Thread(target=self._run, name="tegrastats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the tool, also when it hangs; may be called more than once."""
        self._closing.set()
        with self._lock:
            if self._child is not None:
                _kill(self._child)
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    # In the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            started_s = time.monotonic()
            problem = self._watch_child()
            self._sample = None
            self._problem = problem
            self._closing.wait(max(started_s + self._restart_s - time.monotonic(), 0.0))

    def _watch_child(self) -> str:
        """Run the child until it ends or hangs; returns which, in words."""
        with self._lock:
            if self._closing.is_set():
                return ""
            try:
                # A group of its own: Ctrl-C at the terminal is for the node, which then ends it,
                # and whatever the child starts ends with it.
                child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return f"cannot be started: {error.strerror}"
            self._child = child
        try:
            return self._read(child)
        finally:
            with self._lock:
                self._child = None
                _kill(child)
            assert child.stdout is not None
            child.stdout.close()
            with suppress(subprocess.TimeoutExpired):  # the kernel may hold it for ever
                child.wait(timeout=2.0)

    def _read(self, child: subprocess.Popen[bytes]) -> str:
        assert child.stdout is not None
        pipe = child.stdout.fileno()
        rest = b""
        said = ""  # the last words that were no statistics
        deadline_s = time.monotonic() + self._silence_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                return f"has printed no statistics for {self._silence_s:g} s{_quoted(said)}"
            data = os.read(pipe, LONGEST_LINE)
            if not data:
                return f"ended{_code(child)}{_quoted(said)}"
            *lines, rest = (rest + data)[-LONGEST_LINE:].split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").strip()
                sample = parse_tegrastats(text)
                if sample.is_statistics:
                    self._sample = sample
                    self._problem = ""
                    deadline_s = time.monotonic() + self._silence_s
                else:
                    said = text or said


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child that has not been waited for, and whatever it has started.

    At once: it holds nothing that must be put in order, and what hangs heeds nothing else.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _code(child: subprocess.Popen[bytes]) -> str:
    """How the child ended; empty if it has only closed its output."""
    deadline_s = time.monotonic() + 1.0
    with suppress(ChildProcessError):
        while time.monotonic() < deadline_s:  # its output ends a little before it does
            # waitid leaves it to be waited for, so that its number cannot be another's yet
            state = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if state is not None and state.si_code == os.CLD_EXITED:
                return f" with code {state.si_status}"
            if state is not None:
                return f" by signal {state.si_status}"
            time.sleep(0.01)
    return ""


def _quoted(said: str) -> str:
    return f" ('{said[:200]}')" if said else ""
