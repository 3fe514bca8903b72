"""Paths as people write them in parameters."""

from __future__ import annotations

from pathlib import Path

from dla_perception.errors import DlaPerceptionError

_PACKAGE = "package://"


def expand_path(text: str) -> str:
    """A path with ``~`` and ``package://PACKAGE/`` replaced; other text is left as it is.

    Raises:
        DlaPerceptionError: the package is not installed or not sourced.
    """
    if not text.startswith(_PACKAGE):
        return str(Path(text).expanduser()) if text.startswith("~") else text
    from ament_index_python.packages import PackageNotFoundError, get_package_share_directory

    package, _, rest = text[len(_PACKAGE) :].partition("/")
    try:
        return str(Path(get_package_share_directory(package)) / rest)
    except (PackageNotFoundError, ValueError):
        raise DlaPerceptionError(
            f"{text}: there is no ROS package '{package}'; source the workspace that holds it"
        ) from None
