"""Find the files that are installed beside the package: config, launch."""

from __future__ import annotations

from pathlib import Path

from dla_perception.errors import DlaPerceptionError


def share_path(relative: str) -> Path:
    """The path of a shared file such as ``config/detector.yaml``.

    Looks in the source tree that this module runs from, then where ament installed the package.

    Raises:
        DlaPerceptionError: it is in neither place.
    """
    source = Path(__file__).resolve().parent.parent
    if (source / "package.xml").exists() and (source / relative).exists():
        return source / relative
    try:
        from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
    except ImportError:
        raise _missing(relative) from None
    try:
        installed = Path(get_package_share_directory("dla_perception")) / relative
    except PackageNotFoundError:
        raise _missing(relative) from None
    if not installed.exists():
        raise _missing(relative)
    return installed


def _missing(relative: str) -> DlaPerceptionError:
    return DlaPerceptionError(
        f"{relative}: not found beside the package; source the workspace's setup file, "
        "or run from a checkout"
    )
