"""Watch the whole system work, on any machine, in a quarter of a minute.

A player publishes a synthetic drive as ROS 2 images, 30 a second, from its own process. Two
detector nodes find cones, balls, boxes, barrels and signs in it, and a redundancy node passes
one stream of detections on. After one third of the time the primary detector is killed, after
two thirds it is started again. This program shows what the topics say and compares the
detections with the truth. It needs no camera, no Jetson and no network.

Ends with 1 when no detection came, when precision or recall at IoU 0.5 is below 0.9, when
images were lost that one of the detectors had answered in time, or when the secondary did not
stand in for the primary.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from dla_perception.errors import DlaPerceptionError

NAME = "demo"
HELP = "the whole system at work on a synthetic drive"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "--duration", type=float, default=15.0, metavar="S", help="seconds (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=11, help="another drive (default: %(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="folder for the annotated pictures (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print its summary."""
    if not 1 <= arguments.duration <= 3600:
        raise DlaPerceptionError(f"--duration {arguments.duration:g}: expected 1 to 3600 seconds")
    for package in ("rclpy", "vision_msgs"):
        if importlib.util.find_spec(package) is None:
            raise DlaPerceptionError(
                f"the demo needs ROS 2 ({package} is missing): source it, or run 'make demo'"
            )
    from dla_perception.demo.session import RATE_HZ, DemoSession

    with DemoSession(arguments.duration, arguments.seed, arguments.output) as session:
        outcome = session.run()
    dropped = ", ".join(f"{count} {reason}" for reason, count in outcome.dropped.items())
    print(
        f"frames: {outcome.sent} sent; the secondary received {outcome.received}, "
        f"processed {outcome.processed}, dropped: {dropped or 'none'}"
    )
    print(
        f"        {outcome.published} published, {outcome.lost} lost that a side had answered "
        f"({outcome.lost_by_rule} by the rule), {outcome.unanswered} answered by neither side"
    )
    print(
        f"longest gap between outputs: {outcome.longest_gap_ms:.0f} ms "
        f"(image period {1e3 / RATE_HZ:.0f} ms)"
    )
    for switch in outcome.switches:
        print(f"switch at {switch.time_s:.1f} s to the {switch.to}: {switch.reason}")
    if outcome.switches and outcome.switches[-1].to != "primary":
        print("the primary was not back yet when the drive ended: a busy machine?")
    print(f"at IoU 0.5: precision {outcome.precision:.3f}, recall {outcome.recall:.3f}")
    if outcome.pictures:
        print(f"annotated pictures: {outcome.pictures[0].parent.resolve()}")
        print(f"contact sheet: {outcome.pictures[-1].resolve()}")
    problems = outcome.problems()
    if problems:
        print(f"dla-perception demo: not good enough: {'; '.join(problems)}", file=sys.stderr)
    return 1 if problems else 0
