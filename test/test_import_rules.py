"""Which part of the package may import what.

Parts depend on each other in one direction, ROS is known to few of them, and a machine that lacks
TensorRT, ONNX or the like can still import everything that does not run it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

import pytest

PACKAGE = "dla_perception"
ROOT = Path(__file__).resolve().parent.parent

# From the top down: a part imports from its own layer and those below.
LAYERS = (
    {"nodes", "cli", "demo", "__main__"},
    {"ros", "evaluation", "compiler"},
    {"detection", "redundancy", "monitoring"},
    {"engines"},
    {"errors", "package_share", ""},
)
LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}

# What the detection code may know of the engines.
ENGINE_PROTOCOL = {"engine", "layouts"}

PARTS_WITH_ROS = {"nodes", "ros", "demo"}

# Not on every machine, or slow to import: only where it is used, when it is used.
LATE = {
    "cuda",
    "onnx",
    "onnxruntime",
    "pycocotools",
    "pycuda",
    "rich",
    "rosbags",
    "scipy",
    "tensorrt",
    "torch",
}

# The demo network's training, which is made of torch and which nothing else imports at its top.
TRAINING = {"demo/loss.py", "demo/network.py", "demo/train.py"}

NEVER = {"ultralytics": "its licence is not ours"}


class Import(NamedTuple):
    """One imported name.

    Attributes:
        line: where.
        name: dotted, as far as the statement tells: of ``from a import b`` it is ``a.b``.
        at_top: it happens when the module is imported.
    """

    line: int
    name: str
    at_top: bool


def is_ros(name: str) -> bool:
    """Whether a top-level module is ROS's client library or one of its interface packages."""
    return name in {"rclpy", "cv_bridge", "std_srvs"} or name.endswith(("_msgs", "_interfaces"))


def imports_of(module: ast.AST, path: str) -> Iterator[Import]:
    """All imports of a module whose path in the package is given."""

    def visit(node: ast.AST, at_top: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                folders = [PACKAGE, *Path(path).parent.parts]
                origin = ".".join([*folders[: len(folders) - node.level + 1], origin]).rstrip(".")
            yield from (Import(node.lineno, f"{origin}.{a.name}", at_top) for a in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for statement in node.body:
                yield from visit(statement, False)
            for statement in node.orelse:
                yield from visit(statement, at_top)
        else:
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, at_top and not inside)

    return visit(module, True)


def part_of(path: str) -> str:
    """The part that a file belongs to: a folder, or a module beside the folders."""
    part = Path(path).parts[0]
    return "" if part == "__init__.py" else Path(part).stem


def violations(source: str, path: str) -> list[str]:
    """What is against the rules in a file, given its path in the package."""
    part = part_of(path)
    found = []
    for line, name, at_top in imports_of(ast.parse(source), path):
        top, *rest = name.split(".")
        problem = ""
        if top == PACKAGE:
            other = rest[0] if rest and rest[0] in LAYER_OF else ""
            if LAYER_OF[other] < LAYER_OF[part]:
                problem = f"{part} is below {other}"
            elif part == "detection" and other == "engines" and not ENGINE_PROTOCOL & {*rest[1:2]}:
                problem = "detection may know the Engine protocol only"
        elif is_ros(top) and part not in PARTS_WITH_ROS:
            problem = f"{part} knows nothing of ROS"
        elif top in NEVER:
            problem = NEVER[top]
        elif top in LATE and at_top and not (top == "torch" and path in TRAINING):
            problem = f"{top} is imported where it is used, not at the top"
        if problem:
            found.append(f"{path}:{line}: imports {name}: {problem}")
    return found


def package_files() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def test_every_part_has_a_layer() -> None:
    folder = ROOT / PACKAGE
    parts = {part_of(str(path.relative_to(folder))) for path in package_files()}
    assert parts <= set(LAYER_OF)
    assert {"nodes", "ros", "detection", "engines"} <= parts


def test_the_package_keeps_the_rules() -> None:
    folder = ROOT / PACKAGE
    found = [
        violation
        for path in package_files()
        for violation in violations(path.read_text(), path.relative_to(folder).as_posix())
    ]
    assert not found, "\n".join(found)


def test_parts_do_not_import_each_other_in_a_circle() -> None:
    folder = ROOT / PACKAGE
    above: dict[str, set[str]] = {part: set() for part in LAYER_OF}
    for path in package_files():
        name = path.relative_to(folder).as_posix()
        for found in imports_of(ast.parse(path.read_text()), name):
            top, *rest = found.name.split(".")
            if top == PACKAGE and rest and rest[0] in LAYER_OF and rest[0] != part_of(name):
                above[rest[0]].add(part_of(name))
    # Take away whatever no remaining part imports, until nothing is left.
    while True:
        free = [part for part, importers in above.items() if not importers]
        if not free:
            break
        for part in free:
            del above[part]
        for importers in above.values():
            importers.difference_update(free)
    assert not above


IMPORT_ALL = """
import importlib, sys

forbidden, modules = (argument.split() for argument in sys.argv[1:])
for name in forbidden:
    sys.modules[name] = None  # makes an import of it fail
for name in modules:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}")
"""

ROS = {
    "builtin_interfaces",
    "cv_bridge",
    "diagnostic_msgs",
    "geometry_msgs",
    "lifecycle_msgs",
    "rcl_interfaces",
    "rclpy",
    "sensor_msgs",
    "std_msgs",
    "std_srvs",
    "vision_msgs",
}


@pytest.mark.parametrize("with_ros", [True, False])
def test_modules_can_be_imported_without_what_a_machine_may_lack(with_ros: bool) -> None:
    # The same rule by another way, which also sees what comes in through other modules.
    modules = []
    for path in package_files():
        name = path.relative_to(ROOT / PACKAGE).as_posix()
        if name not in TRAINING and (with_ros or part_of(name) not in PARTS_WITH_ROS):
            dotted = f"{PACKAGE}.{name[: -len('.py')]}".replace("/", ".")
            modules.append(dotted[: -len(".__init__")] if path.stem == "__init__" else dotted)
    forbidden = LATE | set(NEVER) | (set() if with_ros else ROS)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, " ".join(forbidden), " ".join(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("engines/x.py", "from dla_perception.detection import nms", "engines is below detection"),
        ("engines/x.py", "import dla_perception.cli.main", "engines is below cli"),
        ("engines/x.py", "from ..ros import images", "engines is below ros"),
        ("errors.py", "def f():\n    from dla_perception import nodes", "errors is below nodes"),
        (
            "detection/x.py",
            "from dla_perception.engines.loading import open_engine",
            "detection may know the Engine protocol only",
        ),
        ("detection/x.py", "import rclpy", "detection knows nothing of ROS"),
        ("cli/x.py", "def f():\n    from vision_msgs.msg import Detection2D", "nothing of ROS"),
        ("engines/x.py", "import tensorrt as trt", "tensorrt is imported where it is used"),
        ("compiler/x.py", "try:\n    import onnx.helper\nexcept ImportError: pass", "not at the"),
        ("nodes/x.py", "class A:\n    from torch import nn", "torch is imported where it is used"),
        ("demo/x.py", "import torch", "torch is imported where it is used"),
        ("demo/train.py", "def f():\n    from ultralytics import YOLO", "licence"),
    ],
)
def test_a_violation_is_found(path: str, source: str, expected: str) -> None:
    (found,) = violations("import numpy\n" + source, path)
    assert expected in found
    assert found.startswith(f"{path}:{source.count(chr(10), 0, source.index('import')) + 2}")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("nodes/x.py", "import rclpy\nfrom dla_perception.engines.loading import open_engine"),
        ("detection/x.py", "from dla_perception.engines.engine import Engine"),
        ("detection/heads/x.py", "from ..nms import nms\nfrom . import head"),
        ("redundancy/x.py", "from dla_perception.monitoring.health import Finding"),
        ("engines/x.py", "def f():\n    import tensorrt, pycuda.driver"),
        ("compiler/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import onnx"),
        ("demo/network.py", "import torch"),
        ("__main__.py", "from dla_perception.cli.main import main"),
    ],
)
def test_what_is_allowed_is_not_found(path: str, source: str) -> None:
    assert violations(source, path) == []
