"""Files of made-up Jetsons, as Linux shows them on real ones."""

from __future__ import annotations

from pathlib import Path

JETSONS = {
    "agx_orin": (
        "NVIDIA Jetson AGX Orin Developer Kit",
        b"nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
        "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
        2,
    ),
    "orin_nx_8gb": (
        "NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
        b"nvidia,p3768-0000+p3767-0001\0nvidia,p3767-0001\0nvidia,tegra234\0",
        "# R35 (release), REVISION: 3.1, GCID: 32827747, BOARD: t186ref, EABI: aarch64\n",
        1,
    ),
    "agx_xavier": (
        "Jetson-AGX",
        b"nvidia,p2972-0000\0nvidia,tegra194\0",
        "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64\n",
        2,
    ),
    "orin_nano": (
        "NVIDIA Jetson Orin Nano Developer Kit",
        b"nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0",
        "# R36 (release), REVISION: 5.0, GCID: 41057391, BOARD: generic, EABI: aarch64\n",
        0,
    ),
    "thor": (
        "NVIDIA Jetson AGX Thor Developer Kit",
        b"nvidia,p4071-0000+p3834-0008\0nvidia,p3834-0008\0nvidia,tegra264\0",
        "# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic, EABI: aarch64\n",
        0,
    ),
}
"""Board, what the device tree says it is compatible with, release, DLA cores."""

ADDRESSES = ("15880000", "158c0000")
"""Of the two DLAs."""


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_jetson(
    root: Path, name: str, place: str = "sys/devices/platform/bus@0/13e00000.host1x"
) -> Path:
    """Write the files of a Jetson below ``root``; its DLAs are suspended. Returns ``root``."""
    board, compatible, release, cores = JETSONS[name]
    write(root / "proc/device-tree/model", f"{board}\0")
    write(root / "proc/device-tree/compatible", compatible)
    write(root / "etc/nv_tegra_release", release)
    if name == "agx_xavier":
        write(root / "proc/device-tree/nvidia,boardids", "2888:0001:\0")
    for core in range(cores):
        set_power(root / place / f"{ADDRESSES[core]}.nvdla{core}", "suspended", 0)
    return root


def set_power(device: Path, state: str, active_ms: int) -> None:
    write(device / "power/runtime_status", f"{state}\n")
    write(device / "power/runtime_active_time", f"{active_ms}\n")
