"""What the package declares, and that it installs as an ament package."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import distribution
from pathlib import Path

import pytest
from ament_index_python.packages import get_package_share_directory

import dla_perception

ROOT = Path(__file__).resolve().parent.parent
EXECUTABLES = {"detector_node", "dla-perception"}

# What package.xml calls a module that the code imports under another name.
ROSDEP_KEYS = {
    "cv2": "python3-opencv",
    "numpy": "python3-numpy",
    "onnxruntime": "python3-onnxruntime-pip",
    "rich": "python3-rich",
    "rosbags": "python3-rosbags-pip",
    "scipy": "python3-scipy",
    "setuptools": "python3-setuptools",
    "yaml": "python3-yaml",
}

# Comes with JetPack, which is not installed by names of packages.
JETPACK = {"tensorrt"}

# Modules that other distributions bring.
PART_OF = {"google": "onnx"}


@pytest.fixture(scope="module")
def manifest() -> ET.Element:
    return ET.parse(ROOT / "package.xml").getroot()


def imported_modules(folder: Path) -> set[str]:
    """The top-level modules that the Python files of a folder import, except Python's own."""
    modules = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules.add((node.module or "").split(".")[0])
    return modules - set(sys.stdlib_module_names) - {"dla_perception"}


def test_manifest(manifest: ET.Element) -> None:
    assert manifest.get("format") == "3"
    assert manifest.findtext("name") == "dla_perception"
    assert manifest.findtext("license") == "Apache-2.0"
    assert manifest.findtext("export/build_type") == "ament_python"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_every_import_is_declared(manifest: ET.Element) -> None:
    declared = {element.text for element in manifest.iterfind("exec_depend")}
    requirements = distribution("dla_perception").requires or []
    in_setup = {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}
    imported = imported_modules(ROOT / "dla_perception") | imported_modules(ROOT / "launch")
    assert {"rclpy", "vision_msgs", "numpy"} <= imported
    undeclared = {
        module
        for module in imported - JETPACK
        if ROSDEP_KEYS.get(module, module) not in declared
        and PART_OF.get(module, module) not in in_setup
    }
    assert not undeclared


def test_one_version_everywhere(manifest: ET.Element) -> None:
    assert manifest.findtext("version") == dla_perception.__version__
    assert distribution("dla_perception").version == dla_perception.__version__


def test_executables_point_at_functions() -> None:
    scripts = {
        entry.name: entry
        for entry in distribution("dla_perception").entry_points
        if entry.group == "console_scripts"
    }
    assert set(scripts) >= EXECUTABLES
    for entry in scripts.values():
        assert callable(getattr(importlib.import_module(entry.module), entry.attr))


def test_shared_files_are_where_ament_looks() -> None:
    share = Path(get_package_share_directory("dla_perception"))
    assert (share / "package.xml").is_file()
    assert (share / "config" / "fastdds.xml").is_file()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which colcon has built a copy of the package."""
    if shutil.which("colcon") is None:
        pytest.skip("no colcon here")
    folder = tmp_path_factory.mktemp("workspace")
    unwanted = shutil.ignore_patterns(".*", "build", "install", "log", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder / "src" / "dla_perception", ignore=unwanted)
    done = subprocess.run(
        ["colcon", "--log-base", "log", "build"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_colcon_finds_one_package(workspace: Path) -> None:
    # Not, say, the interface package below tools/.
    assert [path.name for path in (workspace / "build").iterdir() if path.is_dir()] == [
        "dla_perception"
    ]


def test_colcon_installs_everything(workspace: Path) -> None:
    prefix = workspace / "install" / "dla_perception"
    share = prefix / "share" / "dla_perception"
    for folder in ("config", "launch"):
        expected = {path.name for path in (ROOT / folder).iterdir() if path.is_file()}
        assert {path.name for path in (share / folder).iterdir()} == expected
    assert (prefix / "share/ament_index/resource_index/packages/dla_perception").is_file()
    (code,) = prefix.glob("**/dla_perception/__init__.py")
    assert (code.parent / "py.typed").is_file()
    for path in (ROOT / "dla_perception").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert (code.parent / path.relative_to(ROOT / "dla_perception")).is_file()


def test_installed_commands_start(workspace: Path) -> None:
    # As a user does it, and from a place where the checkout is not on Python's path.
    check = """
        set -e
        . install/setup.bash
        cd install
        python -c 'import dla_perception; print(dla_perception.__file__)'
        dla_perception/lib/dla_perception/dla-perception --help
        test -x dla_perception/lib/dla_perception/detector_node
    """
    done = subprocess.run(["bash", "-c", check], cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert Path(first).is_relative_to(workspace)
    assert "usage: dla-perception" in "\n".join(rest)
