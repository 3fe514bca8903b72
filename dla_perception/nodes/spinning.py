"""Run a lifecycle node as a process that ends cleanly."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Callable, Sequence

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor

from dla_perception.errors import DlaPerceptionError
from dla_perception.nodes.managed_node import ManagedNode
from dla_perception.ros.dead_participants import avoid_dead_participants

UNUSABLE = 2
"""Exit code when the node cannot even be made from its parameters."""


def spin_node(make_node: Callable[[], ManagedNode[Any]], arguments: Sequence[str] | None) -> int:
    """Make a node and spin it until it is told to end; returns the process's exit code.

    SIGINT and SIGTERM, also repeated, end it with 0 and without a traceback. Parameters that it
    cannot be made from end it with :data:`UNUSABLE` and one line. The node's
    ``release`` is called before its context goes, in the thread that made it. Where the node has
    asked for an exit code, something hangs that ``release`` would wait for: then it only takes
    leave of DDS, and the process ends.
    """
    rclpy.init(args=arguments)
    node = None
    try:
        with avoid_dead_participants():
            node = make_node()
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except DlaPerceptionError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    finally:
        # a second Ctrl-C must not interrupt the freeing of the accelerator
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if node is not None:
            if node.exit_code is None:
                node.release()
            node.destroy_node()
        rclpy.try_shutdown()
        if node is not None and node.exit_code is not None:
            sys.stderr.flush()
            os._exit(node.exit_code)  # Python's own way out would wait for the thread that hangs
    return 0
