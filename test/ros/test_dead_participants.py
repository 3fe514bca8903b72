"""A process that starts is kept out of the places of processes that were killed."""

from __future__ import annotations

import socket
import sys

import pytest

from dla_perception.ros import dead_participants as module
from dla_perception.ros.dead_participants import (
    PARTICIPANTS,
    avoid_dead_participants,
    dead_participants,
    discovery_port,
)

NODE = """
import signal, rclpy
from dla_perception.ros.dead_participants import avoid_dead_participants
rclpy.init()
with avoid_dead_participants():
    node = rclpy.create_node("one")
print("ready", flush=True)
signal.pause()
"""


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def leave_behind(folder, domain_id, participant, name="fastdds", offset=1):
    (folder / f"{name}_port{discovery_port(domain_id, participant) + offset}").touch()


def test_the_port_of_discovery():
    # the example of the DDS-RTPS specification's defaults
    assert discovery_port(0, 0) == 7410
    assert discovery_port(7, 3) == 7400 + 7 * 250 + 10 + 6


def test_numbers_that_left_queues_and_are_free(tmp_path, ros_domain_id):
    leave_behind(tmp_path, ros_domain_id, 1)
    leave_behind(tmp_path, ros_domain_id, 3, "fastrtps", 0)
    leave_behind(tmp_path, ros_domain_id, 4)
    leave_behind(tmp_path, ros_domain_id, PARTICIPANTS)
    leave_behind(tmp_path, ros_domain_id + 1, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as alive:
        alive.bind(("", discovery_port(ros_domain_id, 4)))
        assert dead_participants(ros_domain_id, tmp_path) == [1, 3]


def test_they_are_taken_while_it_lasts_and_free_again(tmp_path, ros_domain_id):
    leave_behind(tmp_path, ros_domain_id, 0)
    leave_behind(tmp_path, ros_domain_id, 2)
    ports = [discovery_port(ros_domain_id, number) for number in range(4)]
    with avoid_dead_participants(tmp_path):
        assert [is_free(port) for port in ports] == [False, True, False, True]
    assert all(is_free(port) for port in ports)


@pytest.mark.parametrize(
    "setting", [{"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}, {"ROS_DOMAIN_ID": "seven"}]
)
def test_elsewhere_nothing_is_taken(tmp_path, ros_domain_id, monkeypatch, setting):
    leave_behind(tmp_path, ros_domain_id, 0)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    with avoid_dead_participants(tmp_path):
        assert is_free(discovery_port(ros_domain_id, 0))


def test_where_most_are_dead_a_place_is_better_than_none(tmp_path, ros_domain_id):
    for number in range(PARTICIPANTS // 2):
        leave_behind(tmp_path, ros_domain_id, number)
    with avoid_dead_participants(tmp_path):
        assert is_free(discovery_port(ros_domain_id, 0))


def test_a_node_that_starts_after_a_kill_takes_another_place(ros_domain_id, start_process):
    def taken():
        return [n for n in range(PARTICIPANTS) if not is_free(discovery_port(ros_domain_id, n))]

    first = start_process(sys.executable, "-c", NODE)
    first.wait_for("ready")
    (place,) = taken()
    assert place not in dead_participants(ros_domain_id)
    first.popen.kill()
    first.popen.wait()
    assert taken() == []
    if place not in dead_participants(ros_domain_id):
        pytest.skip(f"Fast DDS has left nothing in {module.SHARED_MEMORY}: no shared memory here?")
    second = start_process(sys.executable, "-c", NODE)
    second.wait_for("ready")
    assert len(taken()) == 1
    assert taken() > [place]
