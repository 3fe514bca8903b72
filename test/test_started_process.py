"""What the other tests rely on: nothing that they start outlives them."""

from __future__ import annotations

import signal
import sys
from typing import Callable

from started_process import StartedProcess

STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print("started")
time.sleep(600)
"""


def test_output_and_exit_status(start_process: Callable[..., StartedProcess]) -> None:
    process = start_process("sh", "-c", "echo one; echo two >&2; exit 3", env={"A": "b"})
    assert process.wait() == 3
    assert process.output == "one\ntwo\n"


def test_a_polite_process_is_interrupted(start_process: Callable[..., StartedProcess]) -> None:
    process = start_process(sys.executable, "-c", "print('started'); import time; time.sleep(600)")
    process.wait_for("started")
    process.end()
    assert process.wait() == -signal.SIGINT


def test_a_stubborn_group_is_killed(start_process: Callable[..., StartedProcess]) -> None:
    process = start_process(sys.executable, "-c", STUBBORN, STUBBORN)
    process.wait_for("started\nstarted")
    process.end(patience=0.2)
    assert process.wait() == -signal.SIGKILL
    assert not process.alive
