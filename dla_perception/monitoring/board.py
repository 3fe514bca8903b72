"""The name of the machine that this runs on."""

from __future__ import annotations

from pathlib import Path

MODEL = Path("/proc/device-tree/model")
"""Where Linux has what the device tree calls the board; ends with a NUL."""


def board_name(model: Path = MODEL) -> str:
    """The board's name, as ``NVIDIA Jetson AGX Orin Developer Kit``; empty where it has none."""
    try:
        return model.read_bytes().rstrip(b"\0").decode(errors="replace").strip()
    except OSError:
        return ""
