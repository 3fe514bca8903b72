"""Keeps a process that starts out of the places of processes that were killed (Fast DDS).

Fast DDS numbers the participants of a domain: each takes the lowest number whose UDP port is free,
and names its queues in shared memory by it. The number of a process that was killed is free at
once, but who sent to it still holds its queue. That sender is to notice that nobody takes anything
out of it any more; it does so by flags in the queue, and after one in some fifty kills they show
nothing (the process died between two messages). Then it never hears of the new queue of the same
name, and whoever starts under that number, as a detector that is started again does, is deaf to
that sender for ever. Source: ``SharedMemGlobal.hpp`` of eProsima/Fast-DDS 3.2, ``WatchTask``.

So a node starts under a number that has left nothing behind.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Iterator, List

SHARED_MEMORY = Path("/dev/shm")
PARTICIPANTS = 30
"""The numbers looked at. With more participants, or more dead ones, nothing is avoided: discovery
on one machine does not reach far beyond (``max_initial_peers_range`` of Fast DDS)."""


def discovery_port(domain_id: int, participant: int) -> int:
    """The UDP port of a participant's discovery (DDS-RTPS 2.3, section 9.6.1.1)."""
    return 7400 + 250 * domain_id + 10 + 2 * participant


def dead_participants(domain_id: int, folder: Path = SHARED_MEMORY) -> List[int]:
    """Numbers that have left queues behind and that no process has now, ascending."""
    return [
        participant
        for participant in range(PARTICIPANTS)
        if any(
            (folder / f"{name}_port{discovery_port(domain_id, participant) + offset}").exists()
            for name in ("fastdds", "fastrtps")  # Fast DDS 3, and 2
            for offset in (0, 1)  # discovery, and all else
        )
        and _reserve(discovery_port(domain_id, participant), None)
    ]


@contextmanager
def avoid_dead_participants(folder: Path = SHARED_MEMORY) -> Iterator[None]:
    """While this lasts, a participant that is made gets none of their numbers."""
    middleware = os.environ.get("RMW_IMPLEMENTATION") or "rmw_fastrtps_cpp"
    with ExitStack() as held:
        with suppress(ValueError, OSError):
            domain_id = int(os.environ.get("ROS_DOMAIN_ID") or 0)
            dead = dead_participants(domain_id, folder)
            if "fastrtps" in middleware and len(dead) < PARTICIPANTS // 2:
                for participant in dead:
                    _reserve(discovery_port(domain_id, participant), held)
        yield


def _reserve(port: int, held: ExitStack | None) -> bool:
    """Whether a UDP port is free; it is kept until ``held`` ends."""
    with ExitStack() as stack:
        try:
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("", port))
        except OSError:
            return False
        if held is not None:
            held.push(stack.pop_all())
    return True
