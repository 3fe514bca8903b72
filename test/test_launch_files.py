"""Launch files: run by ROS 2's launch where it is installed, otherwise read."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "launch").glob("*.launch.py"))

each_file = pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)


def calls(file: Path, name: str) -> list[ast.Call]:
    """All calls of a function or class in a file."""
    return [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    ]


def keyword(call: ast.Call, name: str) -> str:
    (value,) = [item.value for item in call.keywords if item.arg == name]
    return ast.literal_eval(value)


def declared(file: Path) -> dict[str, ast.Call]:
    return {ast.literal_eval(call.args[0]): call for call in calls(file, "DeclareLaunchArgument")}


def test_there_are_launch_files():
    names = [file.name for file in FILES]
    assert names == ["detector.launch.py", "redundant_detector.launch.py", "replay.launch.py"]


@each_file
def test_every_argument_is_described_and_used(file):
    arguments = declared(file)
    for name, call in arguments.items():
        assert keyword(call, "description"), name
    text = file.read_text()
    configurations = {
        call.args[0].value
        for call in calls(file, "LaunchConfiguration")
        if isinstance(call.args[0], ast.Constant)
    }
    # names that reach a LaunchConfiguration through a variable stand in the text a second time
    for name in arguments:
        assert name in configurations or text.count(f'"{name}"') > 1, f"{name} is not used"
    assert configurations <= set(arguments)


@each_file
def test_every_file_and_executable_exists(file):
    text = file.read_text()
    for name in re.findall(r'"(\w+\.(?:yaml|xml))"', text):
        assert (ROOT / "config" / name).exists(), name
    entry_points = (ROOT / "setup.py").read_text()
    for name in re.findall(r'executable="(\w+)"', text):
        assert f'"{name} = ' in entry_points, name


@each_file
def test_included_files_get_arguments_that_they_declare(file):
    for name in re.findall(r'"/?([\w.]+\.launch\.py)"', file.read_text()):
        known = declared(ROOT / "launch" / name)
        given = set(re.findall(r'\("(\w+)", (?:side|LaunchConfiguration)', file.read_text()))
        assert given <= set(known), name


@each_file
def test_it_can_be_read_by_launch(file):
    for package in ("launch", "launch_ros"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"ROS 2's package {package} is not installed")
    from launch import LaunchContext
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    description = PythonLaunchDescriptionSource(str(file)).get_launch_description(LaunchContext())
    names = {argument.name for argument in description.get_launch_arguments()}
    assert names >= set(declared(file))
