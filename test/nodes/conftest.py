"""Fixtures of the node tests."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Iterator

import pytest
from ros_client import Client
from started_process import StartedProcess

from dla_perception.ros.fastdds import settings_without_images


@pytest.fixture
def client(ros_domain_id: int) -> Iterator[Client]:
    """A node that talks to the one under test."""
    made = Client(ros_domain_id)
    yield made
    made.close()


@pytest.fixture
def start_node(
    ros_domain_id: int, start_process: Callable[..., StartedProcess]
) -> Callable[..., StartedProcess]:
    """Start a node of this package in a process of its own, with the parameters given.

    The redundancy node is kept out of shared memory, as the launch files keep it.
    """

    def start(module: str, *arguments: str, **parameters: Any) -> StartedProcess:
        flags = [flag for item in parameters.items() for flag in ("-p", "{}:={}".format(*item))]
        command = (sys.executable, "-m", f"dla_perception.nodes.{module}")
        is_apart = module == "redundancy_node"
        settings = settings_without_images(os.environ) if is_apart else {}
        return start_process(*command, "--ros-args", *flags, *arguments, env=settings)

    return start
