"""Which settings of Fast DDS suit which process."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from dla_perception.package_share import share_path
from dla_perception.ros.fastdds import PROFILE_VARIABLES, profile_variable, settings_without_images


@pytest.mark.parametrize("distro", ["humble", "jazzy"])
def test_older_releases_read_another_variable(distro):
    assert profile_variable(distro) == "FASTRTPS_DEFAULT_PROFILES_FILE"
    assert profile_variable("kilted") == "FASTDDS_DEFAULT_PROFILES_FILE"


@pytest.mark.parametrize("profile", ["fastdds.xml", "fastdds_small.xml"])
def test_beside_images_it_is_kept_out_of_shared_memory(profile):
    for name in PROFILE_VARIABLES:
        settings = settings_without_images({name: f"/somewhere/{profile}"})
        assert settings == {name: str(share_path("config/fastdds_udp.xml"))}


def test_what_somebody_has_chosen_stays():
    assert settings_without_images({}) == {}
    assert settings_without_images({PROFILE_VARIABLES[0]: "/etc/our_robot.xml"}) == {}
    tcp = str(share_path("config/fastdds_tcp.xml"))
    assert settings_without_images({PROFILE_VARIABLES[0]: tcp}) == {}


def test_the_settings_for_messages_share_no_memory():
    root = ET.parse(share_path("config/fastdds_udp.xml"))
    space = {"dds": "http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles"}
    assert [kind.text for kind in root.iterfind(".//dds:type", space)] == ["UDPv4"]
    assert [flag.text for flag in root.iterfind(".//dds:useBuiltinTransports", space)] == ["false"]
