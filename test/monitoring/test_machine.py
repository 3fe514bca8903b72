"""Which Jetson it is, and where its DLAs are."""

from __future__ import annotations

import pytest
from jetson_trees import make_jetson, set_power, write

from dla_perception.monitoring.machine import Machine, Module, find_dlas, read_machine


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "agx_orin",
            ("tegra234", "p3701-0005", "Jetson AGX Orin 64 GB", 2, "36.4.3", "6.2"),
        ),
        (
            "orin_nx_8gb",
            ("tegra234", "p3767-0001", "Jetson Orin NX 8 GB", 1, "35.3.1", "5.1.1"),
        ),
        ("agx_xavier", ("tegra194", "p2888-0001", "Jetson AGX Xavier", 2, "35.4.1", "5.1.2")),
        (
            "orin_nano",
            (
                "tegra234",
                "p3767-0005",
                "Jetson Orin Nano 8 GB (developer kit)",
                0,
                "36.5.0",
                "6.2.2",
            ),
        ),
        ("thor", ("tegra264", "", "Jetson Thor", 0, "38.2.0", "7.0")),
    ],
)
def test_jetsons(tmp_path, name, expected):
    machine = read_machine(make_jetson(tmp_path, name))
    assert machine.is_jetson
    assert (
        machine.chip,
        machine.module_id,
        machine.name,
        machine.dla_cores,
        machine.l4t,
        machine.jetpack,
    ) == expected
    assert [dla.core for dla in find_dlas(tmp_path)] == list(range(expected[3]))


def test_xavier_without_a_part_number(tmp_path):
    write(tmp_path / "proc/device-tree/compatible", b"nvidia,tegra194\0")
    assert read_machine(tmp_path) == Machine(chip="tegra194", module=Module("Jetson Xavier", 2))


def test_an_orin_that_is_not_known_does_not_get_a_number_of_cores(tmp_path):
    write(tmp_path / "proc/device-tree/compatible", b"nvidia,p9999-0000\0nvidia,tegra234\0")
    write(tmp_path / "proc/device-tree/model", "A new board\0")
    machine = read_machine(tmp_path)
    assert machine.is_jetson
    assert machine.dla_cores is None
    assert machine.name == "A new board"


def test_machines_that_are_no_jetson(tmp_path):
    assert read_machine(tmp_path) == Machine()
    write(tmp_path / "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    write(tmp_path / "proc/device-tree/compatible", b"raspberrypi,5-model-b\0brcm,bcm2712\0")
    machine = read_machine(tmp_path)
    assert not machine.is_jetson
    assert (machine.name, machine.dla_cores) == ("Raspberry Pi 5 Model B Rev 1.0", 0)


def test_a_release_of_jetson_linux_that_is_not_known(tmp_path):
    make_jetson(tmp_path, "agx_orin")
    write(tmp_path / "etc/nv_tegra_release", "# R40 (release), REVISION: 1.2, GCID: 1\n")
    machine = read_machine(tmp_path)
    assert (machine.l4t, machine.jetpack) == ("40.1.2", "")


@pytest.mark.parametrize(
    "place",
    [
        "sys/devices/platform/host1x",
        "sys/devices/platform/13e40000.host1x",
        "sys/devices/platform/bus@0/13e00000.host1x",
        "sys/devices/platform/somewhere/quite/else",
    ],
)
def test_dlas_are_found_wherever_they_are(tmp_path, place):
    make_jetson(tmp_path, "agx_orin", place)
    first, second = find_dlas(tmp_path)
    assert (first.core, first.folder) == (0, tmp_path / place / "15880000.nvdla0")
    assert (second.core, second.folder) == (1, tmp_path / place / "158c0000.nvdla1")
    set_power(second.folder, "active", 4321)
    assert (first.power_state(), first.active_ms()) == ("suspended", 0)
    assert (second.power_state(), second.active_ms()) == ("active", 4321)


def test_the_list_of_devices_goes_first(tmp_path):
    make_jetson(tmp_path, "orin_nx_8gb")
    device = tmp_path / "sys/devices/platform/bus@0/13e00000.host1x/15880000.nvdla0"
    link = tmp_path / "sys/bus/platform/devices/15880000.nvdla0"
    link.parent.mkdir(parents=True)
    link.symlink_to(device)
    (dla,) = find_dlas(tmp_path)
    assert dla.folder == link
    assert dla.power_state() == "suspended"


def test_clocks_of_both_places_and_none(tmp_path):
    make_jetson(tmp_path, "agx_orin")
    first, second = find_dlas(tmp_path)
    assert (first.clock_mhz(), first.highest_clock_mhz()) == (None, None)
    debug = tmp_path / "sys/kernel/debug"
    write(debug / "clk/dla0_core/clk_rate", "1369600000\n")
    write(debug / "clk/dla0_core/clk_max_rate", "1600000000\n")
    write(debug / "bpmp/debug/clk/dla1_core/rate", "614400000\n")
    assert (first.clock_mhz(), first.highest_clock_mhz()) == (1369.6, 1600.0)
    assert (second.clock_mhz(), second.highest_clock_mhz()) == (614.4, None)


def test_what_cannot_be_read_is_not_known(tmp_path):
    make_jetson(tmp_path, "orin_nx_8gb")
    (dla,) = find_dlas(tmp_path)
    write(dla.folder / "power/runtime_active_time", "unsupported\n")
    assert dla.active_ms() is None
    (dla.folder / "power/runtime_status").unlink()
    assert dla.power_state() == ""
