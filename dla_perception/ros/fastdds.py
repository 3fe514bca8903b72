"""Where Fast DDS finds its settings, and which of this package's suit which process."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping

from dla_perception.package_share import share_path

PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
"""What Fast DDS 3 and 2 read. ROS 2 since Kilted still takes the older one, with a warning; to set
both there is an error, since the file is then read twice."""

_IMAGE_PROFILES = ("fastdds.xml", "fastdds_small.xml")
_OLDER = ("foxy", "galactic", "humble", "iron", "jazzy")
"""The releases of ROS 2 that have Fast DDS 2; it is 3 since Kilted (rmw_fastrtps 9.3.0)."""


def profile_variable(distro: str) -> str:
    """The variable that names Fast DDS's settings in a release of ROS 2."""
    return PROFILE_VARIABLES[1 if distro in _OLDER else 0]


def settings_without_images(environ: Mapping[str, str]) -> Dict[str, str]:
    """Variables for a process that has nothing to do with images, beside others that have.

    It is kept out of shared memory where this package's settings are in force; other settings,
    which whoever starts it has chosen, stay.
    """
    return {
        name: str(share_path("config/fastdds_udp.xml"))
        for name in PROFILE_VARIABLES
        if Path(environ.get(name, "")).name in _IMAGE_PROFILES
    }
