"""The demo as a stranger runs it: its processes, its summary, its pictures and its end."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import cv2
import pytest

from dla_perception.cli.main import main
from dla_perception.demo.session import Outcome


def descendants_alive(domain_id: int) -> list[str]:
    """Processes of the package that run in a ROS domain."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"ROS_DOMAIN_ID={domain_id}".encode() in environment and "dla_perception." in command:
            found.append(command)
    return found


def test_a_run_from_images_to_summary(start_process, ros_domain_id, tmp_path):
    command = ("-m", "dla_perception", "demo", "--duration", "6", "--output", str(tmp_path / "out"))
    process = start_process(sys.executable, *command)
    assert process.wait(90) == 0, process.output
    counts = re.search(
        r"frames: (\d+) sent, (\d+) received by the detector,\s+(\d+) processed, dropped: (.*)",
        process.output,
    )
    sent, received, processed = (int(counts[group]) for group in (1, 2, 3))
    dropped = sum(int(count) for count in re.findall(r"\d+", counts[4]))
    assert 0 < processed <= received <= sent <= 180
    assert received == processed + dropped
    scores = re.search(r"precision ([\d.]+), recall ([\d.]+)", process.output)
    assert float(scores[1]) >= 0.9
    assert float(scores[2]) >= 0.9
    pictures = sorted((tmp_path / "out").glob("frame_*.png"))
    assert len(pictures) == 12
    assert cv2.imread(str(pictures[0])).shape == (480, 640, 3)
    assert cv2.imread(str(tmp_path / "out/contact_sheet.png")).shape == (720, 1280, 3)
    assert descendants_alive(ros_domain_id) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_ended_at_any_time_and_leaves_no_process(
    start_process, ros_domain_id, tmp_path, number
):
    command = ("-m", "dla_perception", "demo", "--output", str(tmp_path / "out"))
    process = start_process(sys.executable, *command)
    process.wait_for(" images/s", timeout=60)
    assert len(descendants_alive(ros_domain_id)) == 2
    os.kill(process.popen.pid, number)
    assert process.wait() == 128 + number
    assert "Traceback" not in process.output
    assert descendants_alive(ros_domain_id) == []


def test_a_duration_that_cannot_be(capsys):
    assert main(["demo", "--duration", "0"]) == 2
    assert "--duration 0: expected 1 to 3600 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"precision": 0.89}, False),
        ({"recall": 0.89}, False),
        ({"processed": 0}, False),
    ],
)
def test_what_counts_as_passed(changes, passed):
    outcome = {
        "sent": 30,
        "received": 30,
        "processed": 30,
        "dropped": {},
        "precision": 0.9,
        "recall": 0.9,
        "pictures": (),
    }
    assert Outcome(**{**outcome, **changes}).passed is passed
