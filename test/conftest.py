"""What tests of all parts of the package share."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional

import pytest
from started_process import StartedProcess

# Tests live in folders that mirror the package's, and each folder's helpers are imported by their
# own names from the tests in it.
for _helper in sorted(Path(__file__).parent.rglob("*.py")):
    if not _helper.name.startswith("test_") and str(_helper.parent) not in sys.path:
        sys.path.append(str(_helper.parent))

# A job that a shell starts in the background ignores SIGINT, and so does everything it starts.
# Tests of how a program is interrupted would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HIGHEST_DOMAIN_ID = 101
"""Above it, DDS ports meet those that Linux gives to outgoing connections."""

_domain_ids = count(os.getpid())


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of models, photos and recordings that are too large for this repository."""
    folder = Path(
        os.environ.get("DLA_PERCEPTION_ASSETS")
        or Path(__file__).parents[1] / ".." / "shared" / "assets"
    ).resolve()
    if not folder.is_dir():
        pytest.skip(f"no folder {folder} (DLA_PERCEPTION_ASSETS names another one)")
    return folder


@pytest.fixture
def ros_domain_id(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A ROS_DOMAIN_ID that no other test on this machine uses now; set in the environment too."""
    for _ in range(HIGHEST_DOMAIN_ID):
        domain_id = next(_domain_ids) % HIGHEST_DOMAIN_ID + 1
        # A name for a socket that is nowhere in the file system: one process can have it, of
        # whichever user, and it is free again when that process ends.
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0dla_perception_domain_{domain_id}")
            except OSError:
                continue
            monkeypatch.setenv("ROS_DOMAIN_ID", str(domain_id))
            yield domain_id
            return
    pytest.fail("tests that run on this machine have taken all domains")


@pytest.fixture(scope="session", autouse=True)
def _no_shared_memory_left_behind() -> Iterator[None]:
    """Removes the shared memory of killed processes, which Fast DDS leaves: 34 MB for each.

    It locks a file for each of its segments for as long as the process lives.
    """
    yield
    for lock in Path("/dev/shm").glob(f"fastdds_{'[0-9a-f]' * 16}_el"):
        with suppress(OSError), open(lock, "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > 10:  # or it may not be locked yet
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.with_name(lock.name[: -len("_el")]).unlink()
                lock.unlink()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., StartedProcess]]:
    """Start a command as a process of its own; gone at the end of the test, whatever happens."""
    started: list[StartedProcess] = []

    def start(*command: str, env: Optional[Mapping[str, str]] = None) -> StartedProcess:
        log = tmp_path / f"process_{len(started)}.log"
        process = StartedProcess(command, log, env or {})
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
