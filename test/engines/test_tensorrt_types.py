"""The calls of TensorRT, against the type stubs of TensorRT 10.

The package tensorrt-stubs is a development extra. It is not quite Python: the definitions that do
not parse (five, all of plugins but ``add_scale_nd``) are replaced by open ones, and the line that
hides the type ``bool`` is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKED = ("dla_perception/engines/tensorrt_engine.py", "dla_perception/compiler/builder.py")


def find_stubs() -> Path:
    for folder in sys.path:
        if (Path(folder) / "tensorrt_bindings" / "tensorrt.pyi").exists():
            return Path(folder)
    pytest.skip("tensorrt-stubs is not installed")


def mended(text: str) -> tuple[str, int]:
    """The text with definitions that do not parse replaced, and how many there were."""
    lines = [line for line in text.split("\n") if not line.startswith("bool: DataType")]
    count = 0
    while True:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            last = first = (error.lineno or 1) - 1
            while not (found := re.match(r"(\s*)def (\w+)", lines[first])):
                first -= 1
            lines[first] = f"{found[1]}def {found[2]}(self, *args: typing.Any) -> typing.Any:"
            lines[first + 1 : last + 1] = [""] * (last - first)
            count += 1
            assert count < 20
        else:
            return "\n".join(lines), count


def test_calls_of_tensorrt_have_the_right_names_and_types(tmp_path: Path) -> None:
    stubs = find_stubs()
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    for package in ("tensorrt", "tensorrt_bindings"):
        for stub in (stubs / package).glob("*.pyi"):
            text, count = mended(stub.read_text())
            assert count <= 5
            target = tmp_path / package / stub.name
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import tensorrt\ndef f(r: tensorrt.Runtime) -> None:\n    r.dla_core = 1\n")
    command = [
        sys.executable, "-m", "mypy", "--config-file", str(ROOT / "setup.cfg"),
        "--cache-dir", str(tmp_path / "cache"), *CHECKED, str(wrong),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MYPYPATH": str(tmp_path)}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    ours = [line for line in done.stdout.splitlines() if line.startswith("dla_perception")]
    assert ours == [], done.stdout
    # the stubs were read: a wrong name is found
    assert '"Runtime" has no attribute "dla_core"' in done.stdout
