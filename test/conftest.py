"""What tests of all parts of the package share."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
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
    folder = Path(tempfile.gettempdir()) / "dla_perception_domains"
    folder.mkdir(mode=0o777, exist_ok=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        domain_id = next(_domain_ids) % HIGHEST_DOMAIN_ID + 1
        try:
            with open(folder / str(domain_id), "ab") as claim:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                monkeypatch.setenv("ROS_DOMAIN_ID", str(domain_id))
                yield domain_id
                return
        except (BlockingIOError, PermissionError):
            time.sleep(0.01)  # claimed by another test, or by another user
    pytest.fail(f"no domain is free; see {folder}")


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
