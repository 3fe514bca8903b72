"""The entry point of ``dla-perception`` and ``python -m dla_perception``."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

import dla_perception
from dla_perception.cli import (
    build,
    calibrate,
    check,
    demo,
    detect,
    doctor,
    evaluate,
    import_darknet,
    inspect,
    prepare,
    translate_qat,
)
from dla_perception.errors import DlaPerceptionError

VERBS = (
    demo,
    detect,
    evaluate,
    import_darknet,
    check,
    prepare,
    build,
    inspect,
    calibrate,
    translate_qat,
    doctor,
)
"""Each verb's module has ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``."""

DONE, NO, UNUSABLE = 0, 1, 2
"""Exit codes: done; the answer is no; wrong use or unusable input."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="dla-perception",
        description="YOLO detection on NVIDIA Jetson DLA cores, for ROS 2.",
        epilog="'dla-perception VERB --help' tells more about a verb.",
    )
    parser.add_argument(
        "--version", action="version", version=f"dla_perception {dla_perception.__version__}"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in VERBS:
        verb = verbs.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    parsed = make_parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except DlaPerceptionError as error:
        print(f"dla-perception {parsed.verb}: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # whoever read our output has gone, as 'head' does: nothing is left to say
        sys.stderr.close()
        return 141
    return code
