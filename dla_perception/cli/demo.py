"""Watch the whole system work, on any machine, in a quarter of a minute.

A player publishes a synthetic drive as ROS 2 images, 30 a second, from its own process; a
detector node finds cones, balls, boxes, barrels and signs in another; this program shows
what their topics say and compares the detections with the truth. It needs no camera, no
Jetson and no network.

Ends with 1 when no detection came, or precision or recall at IoU 0.5 is below 0.9.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--seed", type=int, default=0, help="another drive (default: %(default)s)")
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
    try:
        import rclpy  # noqa: F401
        from vision_msgs.msg import Detection2DArray  # noqa: F401
    except ImportError as error:
        raise DlaPerceptionError(
            f"the demo needs ROS 2 ({error.name} is missing): source it, or run 'make demo'"
        ) from None
    from dla_perception.demo.session import LEAST_PRECISION, LEAST_RECALL, DemoSession

    with DemoSession(arguments.duration, arguments.seed, arguments.output) as session:
        outcome = session.run()
    dropped = ", ".join(f"{count} {reason}" for reason, count in outcome.dropped.items())
    print(f"frames: {outcome.sent} sent, {outcome.received} received by the detector,")
    print(f"        {outcome.processed} processed, dropped: {dropped or 'none'}")
    print(f"at IoU 0.5: precision {outcome.precision:.3f}, recall {outcome.recall:.3f}")
    if outcome.pictures:
        print(f"annotated pictures: {outcome.pictures[0].parent.resolve()}")
        print(f"contact sheet: {outcome.pictures[-1].resolve()}")
    if not outcome.passed:
        print(
            "dla-perception demo: not good enough: expected detections with precision "
            f"{LEAST_PRECISION} and recall {LEAST_RECALL} at least",
            file=sys.stderr,
        )
    return 0 if outcome.passed else 1
