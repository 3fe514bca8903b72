"""Which Jetson this is, by what Linux tells of it, and where it shows the state of its DLAs.

Every function takes ``root``, the folder that stands for ``/``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping

from dla_perception.monitoring.board import MODEL, board_name

ROOT = Path("/")


@dataclass(frozen=True)
class Module:
    """A Jetson module: its name, and how many DLA cores it has."""

    name: str
    dla_cores: int


MODULES: Mapping[str, Module] = {
    "p3701-0000": Module("Jetson AGX Orin", 2),
    "p3701-0004": Module("Jetson AGX Orin 32 GB", 2),
    "p3701-0005": Module("Jetson AGX Orin 64 GB", 2),
    "p3701-0008": Module("Jetson AGX Orin Industrial", 2),
    "p3767-0000": Module("Jetson Orin NX 16 GB", 2),
    "p3767-0001": Module("Jetson Orin NX 8 GB", 1),
    "p3767-0003": Module("Jetson Orin Nano 8 GB", 0),
    "p3767-0004": Module("Jetson Orin Nano 4 GB", 0),
    "p3767-0005": Module("Jetson Orin Nano 8 GB (developer kit)", 0),
}
"""By the part number in the device tree (NVIDIA Jetson Linux Developer Guide)."""

FAMILIES: Mapping[str, Module] = {
    "p2888": Module("Jetson AGX Xavier", 2),
    "p3668": Module("Jetson Xavier NX", 2),
    "tegra194": Module("Jetson Xavier", 2),
    "tegra264": Module("Jetson Thor", 0),
    "tegra210": Module("Jetson Nano or TX1", 0),
    "tegra186": Module("Jetson TX2", 0),
}
"""Where the first half of the part number, or the chip, says enough."""

JETPACKS: Mapping[str, str] = {
    "32.4": "4.4",
    "32.5": "4.5",
    "32.6": "4.6",
    "32.7": "4.6",
    "34.1": "5.0",
    "35.1": "5.0.2",
    "35.2": "5.1",
    "35.3": "5.1.1",
    "35.4": "5.1.2",
    "35.5": "5.1.3",
    "35.6": "5.1.4",
    "36.2": "6.0 DP",
    "36.3": "6.0",
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.4.7": "6.2.1",
    "36.5": "6.2.2",
    "38.2": "7.0",
    "38.4": "7.1",
    "39.2": "7.2",
}
"""JetPack by Jetson Linux release (NVIDIA's JetPack archive); the longest match counts."""


@dataclass(frozen=True)
class Machine:
    """What is known of this machine; texts are empty where nothing is.

    Attributes:
        board: what the device tree calls it.
        chip: as ``tegra234``; empty on a machine that is no Jetson.
        module_id: part number, as ``p3767-0001``.
        module: ``None`` for a Jetson that is not in the tables above.
        l4t: release of Jetson Linux, as ``36.4.3``.
        jetpack: that it belongs to.
    """

    board: str = ""
    chip: str = ""
    module_id: str = ""
    module: Module | None = None
    l4t: str = ""
    jetpack: str = ""

    @property
    def is_jetson(self) -> bool:
        """Whether the device tree names a chip of the Tegra family."""
        return bool(self.chip)

    @property
    def name(self) -> str:
        """The module, else the board, else the chip."""
        return (self.module.name if self.module else "") or self.board or self.chip

    @property
    def dla_cores(self) -> int | None:
        """How many DLA cores the module has; ``None`` for an unknown Jetson."""
        if not self.is_jetson:
            return 0
        return self.module.dla_cores if self.module else None


def read_machine(root: Path = ROOT) -> Machine:
    """Find out what this machine is."""
    tree = root / "proc/device-tree"
    compatible = _text(tree / "compatible")
    chip = re.search(r"nvidia,(tegra\d{3})\b", compatible)
    board = board_name(root / MODEL.relative_to("/"))
    l4t = _l4t(_text(root / "etc/nv_tegra_release"))
    if chip is None:
        return Machine(board=board, l4t=l4t, jetpack=_jetpack(l4t))
    ids = " ".join(
        [compatible, _text(tree / "nvidia,boardids"), _text(tree / "nvidia,dtsfilename")]
    )
    module_id, module = _module(ids, chip.group(1))
    return Machine(board, chip.group(1), module_id, module, l4t, _jetpack(l4t))


def _module(text: str, chip: str) -> tuple[str, Module | None]:
    """The module among all the part numbers, which may be carrier boards' too."""
    ids = [f"p{board}-{sku}" for board, sku in re.findall(r"\bp?(\d{4})[-:](\d{4})\b", text)]
    for number in ids:
        if number in MODULES:
            return number, MODULES[number]
    for number in ids:
        if number[:5] in FAMILIES:
            return number, FAMILIES[number[:5]]
    return "", FAMILIES.get(chip)


def _l4t(text: str) -> str:
    """``# R36 (release), REVISION: 4.3, GCID: ...`` -> ``36.4.3``."""
    match = re.search(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)", text)
    return ".".join(match.groups()) if match else ""


def _jetpack(l4t: str) -> str:
    parts = l4t.split(".")
    for count in (3, 2):
        found = JETPACKS.get(".".join(parts[:count]))
        if found:
            return found
    return ""


def _text(path: Path) -> str:
    """The file's text, its NULs as blanks; empty where it cannot be read."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


# The DLAs -----------------------------------------------------------------------------------------

_KNOWN_PLACES = (
    "sys/bus/platform/devices",
    "sys/devices/platform/host1x",
    "sys/devices/platform/13e40000.host1x",
    "sys/devices/platform/bus@0/13e00000.host1x",
)
_DLA_DEVICE = re.compile(r"[0-9a-f]+\.nvdla([0-9])")
"""Such as ``15880000.nvdla0``: its address and its number."""


@dataclass(frozen=True)
class DlaDevice:
    """A DLA as Linux shows it; the state of its power is not a load.

    Attributes:
        core: its number.
        folder: of its device.
        root: that stands for ``/``.
    """

    core: int
    folder: Path
    root: Path = ROOT

    def power_state(self) -> str:
        """``active``, ``suspended`` or the like; empty where it is not shown."""
        return _text(self.folder / "power/runtime_status")

    def active_ms(self) -> int | None:
        """For how long it has been active since the machine started.

        Source: ``power/runtime_active_time`` of Linux (Documentation/ABI/testing/
        sysfs-devices-power). Power stays on for a while after the last task.
        """
        return _number(self.folder / "power/runtime_active_time")

    def clock_mhz(self) -> float | None:
        """Its clock, which root alone may see."""
        return _clock_mhz(self.root, self.core, ("clk_rate", "rate"))

    def highest_clock_mhz(self) -> float | None:
        """The clock that it can have, which root alone may see."""
        return _clock_mhz(self.root, self.core, ("clk_max_rate", "max_rate"))


def find_dlas(root: Path = ROOT) -> list[DlaDevice]:
    """The DLAs of this machine in their order.

    Where they are differs from release to release. The places that are known are looked at first;
    a search of all devices takes a second or so, therefore call it once.
    """
    for place in _KNOWN_PLACES:
        found = _dlas_among(_folders(root / place), root)
        if found:
            return found
    return _dlas_among(_all_folders(root / "sys/devices"), root)


def _dlas_among(folders: Iterator[Path], root: Path) -> list[DlaDevice]:
    found = {}
    for folder in folders:
        match = _DLA_DEVICE.fullmatch(folder.name)
        if match:
            found[int(match.group(1))] = DlaDevice(int(match.group(1)), folder, root)
    return [found[core] for core in sorted(found)]


def _folders(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return


def _all_folders(folder: Path) -> Iterator[Path]:
    """All folders below; links, of which sysfs is full, are not followed."""
    for path, names, _ in os.walk(folder):
        yield from (Path(path) / name for name in names)


def _clock_mhz(root: Path, core: int, names: tuple[str, str]) -> float | None:
    debug = root / "sys/kernel/debug"
    for place, name in zip(("clk", "bpmp/debug/clk"), names):
        hertz = _number(debug / place / f"dla{core}_core" / name)
        if hertz is not None:
            return hertz / 1e6
    return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else None
