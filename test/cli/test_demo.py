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
from dla_perception.demo.monitor import Switch
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
    command = (
        "-m",
        "dla_perception",
        "demo",
        "--duration",
        "12",
        "--output",
        str(tmp_path / "out"),
    )
    process = start_process(sys.executable, *command)
    assert process.wait(90) == 0, process.output
    sent, received, processed, dropped = map(
        int,
        re.search(
            r"(\d+) sent; the secondary received (\d+), processed (\d+), dropped: (\d*)",
            process.output.replace("dropped: none", "dropped: 0"),
        ).groups(),
    )
    published, lost, by_rule, unanswered = map(
        int,
        re.search(
            r"(\d+) published, (\d+) lost that a side had answered \((\d+) by the rule\), "
            r"(\d+) answered by neither side",
            process.output,
        ).groups(),
    )
    assert 0 < processed <= received <= sent <= 360
    assert received == processed + dropped
    assert lost == by_rule
    assert published + lost + unanswered == sent
    switches = re.findall(r"switch at ([\d.]+) s to the (\w+): (.*)", process.output)
    after_the_kill = [(side, why) for when, side, why in switches if float(when) >= 4]
    assert after_the_kill[0] == ("secondary", "primary missed 3 in a row")
    if "not back yet" not in process.output:  # as it may be on a busy machine
        assert after_the_kill[-1] == ("primary", "primary is back: 15 in time in a row")
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
    assert len(descendants_alive(ros_domain_id)) >= 3  # not yet or no more four, around the kill
    os.kill(process.popen.pid, number)
    assert process.wait() == 128 + number, process.output
    assert "Traceback" not in process.output
    assert descendants_alive(ros_domain_id) == []


def test_a_duration_that_cannot_be(capsys):
    assert main(["demo", "--duration", "0"]) == 2
    assert "--duration 0: expected 1 to 3600 seconds" in capsys.readouterr().err


SWITCHES = (Switch(5, "secondary", "primary missed 3 in a row"), Switch(12, "primary", "is back"))


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"lost": 2, "lost_by_rule": 2}, []),
        ({"published": 0}, ["no detection arrived"]),
        ({"precision": 0.89}, ["precision is below 0.9"]),
        ({"recall": 0.89}, ["recall is below 0.9"]),
        ({"lost": 2, "lost_by_rule": 1}, ["1 images were lost that a side had answered in time"]),
        ({"switches": SWITCHES[:1]}, []),  # a busy machine may not start a process in time
        ({"switches": SWITCHES[1:]}, ["the secondary did not stand in for the primary"]),
        ({"killed_at_s": 6.0}, ["the secondary did not stand in for the primary"]),
    ],
)
def test_what_counts_as_good_enough(changes, problems):
    outcome = {
        "sent": 450,
        "received": 450,
        "processed": 450,
        "dropped": {},
        "published": 450,
        "lost": 0,
        "lost_by_rule": 0,
        "unanswered": 0,
        "longest_gap_ms": 80.0,
        "switches": SWITCHES,
        "killed_at_s": 5.0,
        "precision": 0.9,
        "recall": 0.9,
        "pictures": (),
    }
    found = Outcome(**{**outcome, **changes}).problems()
    assert len(found) == len(problems)
    assert all(text.startswith(start) for text, start in zip(found, problems))
