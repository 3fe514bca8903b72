"""The board's name from the device tree."""

from __future__ import annotations

from dla_perception.monitoring.board import board_name


def test_the_name_without_its_nul(tmp_path):
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson AGX Orin Developer Kit\0")
    assert board_name(tmp_path / "model") == "NVIDIA Jetson AGX Orin Developer Kit"


def test_a_machine_without_a_device_tree(tmp_path):
    assert board_name(tmp_path / "model") == ""
