"""What this machine has and what it lacks, and what to do about it.

Looks at the board, the DLAs, the runtimes of networks, ROS 2, its middleware's settings for images,
permissions, clocks and optional packages. Changes nothing. Exit code 1 when something essential is
missing.

  dla-perception doctor
  dla-perception doctor --json > doctor.json
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

from dla_perception.errors import DlaPerceptionError
from dla_perception.monitoring.machine import ROOT, Machine, find_dlas, read_machine
from dla_perception.package_share import share_path
from dla_perception.ros.fastdds import profile_variable

NAME = "doctor"
HELP = "what this machine has: ROS, TensorRT, DLA cores, permissions, clocks"

PROBE_TIMEOUT_S = 120.0
"""A Jetson's first use of CUDA after its start can take most of a minute."""

PARTICIPANTS = 5
"""Processes that share images on a small robot: a camera, two detectors, the redundancy node and
whoever looks at it."""


class State(Enum):
    """How it is about one thing."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        group: what it belongs to.
        name: of the thing.
        state: MISSING is for what is essential.
        found: what is there.
        remedy: what to do; empty where nothing need be done.
    """

    group: str
    name: str
    state: State
    found: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Look at everything and print it."""
    checks = examine()
    well = all(check.state is not State.MISSING for check in checks)
    if arguments.json:
        entries = [{**asdict(check), "state": check.state.value} for check in checks]
        print(json.dumps({"ok": well, "checks": entries}, indent=1))
    else:
        _print(checks)
    return 0 if well else 1


def examine(
    root: Path = ROOT,
    environ: Mapping[str, str] = os.environ,
    python: str = sys.executable,
    groups: Iterable[str] | None = None,
    access: Callable[[Path, int], bool] = os.access,
) -> list[Check]:
    """Look at everything.

    Args:
        root: the folder that stands for ``/``.
        environ: environment variables, also of the processes that try packages.
        python: that tries packages.
        groups: of the user; ``None``: of who runs this.
        access: whether the user may use a file in a mode of :func:`os.access`.
    """
    machine = read_machine(root)
    packages = try_packages([*_REQUIRED, *_ROS, *_OPTIONAL, "onnxruntime"], environ, python)
    runtimes = {name: _try(script, environ, python) for name, script in _RUNTIME_SCRIPTS.items()}
    mine = _group_names() if groups is None else list(groups)
    return [
        *check_machine(machine, root),
        *check_runtimes(machine, packages["onnxruntime"], runtimes, root),
        *check_python(packages),
        *check_ros(packages, environ),
        *check_middleware(packages, environ, root),
        *check_permissions(machine, root, mine, access),
        *check_clocks(machine, root),
        *check_tegrastats(machine, environ, access),
        *check_optional(packages),
    ]


# The machine --------------------------------------------------------------------------------------


def check_machine(machine: Machine, root: Path = ROOT) -> list[Check]:
    """Board, JetPack, DLA cores."""
    group = "machine"
    if not machine.is_jetson:
        return [
            Check(
                group,
                "board",
                State.NOTE,
                machine.board or "no Jetson",
                "networks run here by ONNX Runtime; a DLA is in Jetson Xavier and Orin",
            )
        ]
    checks = [Check(group, "board", State.OK, machine.board or "without a name")]
    if machine.module is None:
        checks.append(
            Check(
                group,
                "module",
                State.NOTE,
                f"unknown module of {machine.chip}",
                "report it with /proc/device-tree/compatible",
            )
        )
    else:
        number = f" ({machine.module_id})" if machine.module_id else f" ({machine.chip})"
        checks.append(Check(group, "module", State.OK, f"{machine.module.name}{number}"))
    if machine.l4t:
        jetpack = f" (JetPack {machine.jetpack})" if machine.jetpack else ""
        checks.append(Check(group, "Jetson Linux", State.OK, f"{machine.l4t}{jetpack}"))
    else:
        checks.append(
            Check(
                group,
                "Jetson Linux",
                State.NOTE,
                "no /etc/nv_tegra_release",
                "in a container, mount /etc/nv_tegra_release from the host",
            )
        )
    return [*checks, _check_cores(machine, root)]


def _check_cores(machine: Machine, root: Path) -> Check:
    found = len(find_dlas(root))
    expected = machine.dla_cores
    text = f"{found} found, {'n/a' if expected is None else expected} in this module"
    if expected == 0:
        return Check(
            "machine", "DLA cores", State.NOTE, text, "use the GPU: --dla-core -1, or dla_core: -1"
        )
    if found == 0 or (expected is not None and found < expected):
        return Check(
            "machine",
            "DLA cores",
            State.MISSING,
            text,
            "see 'sudo nvpmodel -q': a power mode can switch DLAs off; in a container, /sys must "
            "be the host's",
        )
    return Check("machine", "DLA cores", State.OK, text)


# Runtimes -----------------------------------------------------------------------------------------


def check_runtimes(
    machine: Machine,
    onnxruntime: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Any]],
    root: Path = ROOT,
) -> list[Check]:
    """TensorRT, cuDLA, pycuda, CUDA and ONNX Runtime.

    Args:
        machine: that this is.
        onnxruntime: what trying it gave: ``version`` or ``error``.
        found: the same for ``tensorrt`` (with ``dla_cores``), ``pycuda`` and ``cudla``.
        root: the folder that stands for ``/``.
    """
    group = "runtime"
    wants_dla = machine.dla_cores != 0
    tensorrt, pycuda, cudla = (found[name] for name in ("tensorrt", "pycuda", "cudla"))
    cudla_cores = int(cudla.get("dla_cores", 0))
    checks = [_check_tensorrt(machine, tensorrt, cudla_cores)]
    if cudla_cores:
        checks.append(
            Check(group, "cuDLA", State.OK, f"{cudla['version']}, {cudla_cores} DLA cores")
        )
    elif wants_dla:
        checks.append(
            Check(
                group,
                "cuDLA",
                State.NOTE,
                cudla.get("error", "no DLA cores"),
                "needed for DLA loadables only; it comes with JetPack (cuda-cudla)",
            )
        )
    if "device" in pycuda:
        checks.append(Check(group, "pycuda", State.OK, f"{pycuda['version']}, {pycuda['device']}"))
    elif wants_dla:
        essential = bool(tensorrt.get("dla_cores"))
        checks.append(
            Check(
                group,
                "pycuda",
                State.MISSING if essential else State.NOTE,
                pycuda.get("error", "no device"),
                "pip install pycuda; it is built against /usr/local/cuda",
            )
        )
    cuda = _cuda_version(root)
    if cuda or wants_dla:
        checks.append(
            Check(
                group,
                "CUDA toolkit",
                State.OK if cuda else State.NOTE,
                cuda or "none in /usr/local/cuda",
                "" if cuda else "needed to install pycuda: sudo apt install nvidia-jetpack",
            )
        )
    if "version" in onnxruntime:
        checks.append(Check(group, "ONNX Runtime", State.OK, onnxruntime["version"]))
    else:
        has_dla = bool(tensorrt.get("dla_cores") or cudla_cores)
        checks.append(
            Check(
                group,
                "ONNX Runtime",
                State.NOTE if has_dla else State.MISSING,
                onnxruntime.get("error", ""),
                "pip install onnxruntime",
            )
        )
    return checks


def _check_tensorrt(machine: Machine, found: Mapping[str, Any], cudla_cores: int) -> Check:
    """TensorRT by the cores that it says it has: its version does not tell."""
    expected = machine.dla_cores
    version = found.get("version")
    cores = found.get("dla_cores")
    if version is None:
        text = found.get("error", "")
    elif cores is None:
        text = f"{version}: {found.get('error', '')}"
    else:
        text = f"{version}, {cores} DLA cores"
    if expected == 0:
        return Check("runtime", "TensorRT", State.OK if version else State.NOTE, text)
    if cores and (expected is None or cores >= expected):
        return Check("runtime", "TensorRT", State.OK, text)
    if version is None:
        remedy = (
            "sudo apt install python3-libnvinfer; a virtual environment needs "
            "--system-site-packages, a container '--runtime nvidia'"
        )
    elif cores is None:
        remedy = "in a container: '--runtime nvidia' and an image of this JetPack"
    elif cores == 0:
        remedy = (
            "TensorRT 10.8 to 11.4.0 have no DLA: use JetPack 6's 10.3, or 11.4.1 or later on an "
            "AGX Orin; in a container: '--runtime nvidia' and an image of this JetPack"
        )
    else:
        remedy = "see 'sudo nvpmodel -q': a power mode can switch DLAs off"
    # Loadables run without TensorRT.
    state = State.NOTE if cores or cudla_cores else State.MISSING
    return Check("runtime", "TensorRT", state, text, remedy)


def _cuda_version(root: Path) -> str:
    folder = root / "usr/local/cuda"
    try:
        return str(json.loads((folder / "version.json").read_text())["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


# Python and ROS -----------------------------------------------------------------------------------

_REQUIRED: Mapping[str, str] = {
    "numpy": "pip install numpy",
    "cv2": "sudo apt install python3-opencv",
    "yaml": "pip install PyYAML",
}
_ROS = (
    "rclpy",
    "sensor_msgs",
    "vision_msgs",
    "diagnostic_msgs",
    "lifecycle_msgs",
    "std_srvs",
    "cv_bridge",
)
_OPTIONAL: Mapping[str, tuple[str, str]] = {
    "onnx": ("check, prepare, build and import-darknet", "pip install onnx"),
    "pycocotools": ("evaluate", "pip install pycocotools"),
    "rosbags": ("recorded bags in the tests", "pip install rosbags"),
    "torch": ("training the demo's network anew", "pip install torch"),
}


def check_python(packages: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Python and what nothing works without."""
    version = ".".join(str(number) for number in sys.version_info[:3])
    return [
        Check("Python", "Python", State.OK, f"{version}, {sys.executable}"),
        *(
            _package("Python", name, packages[name], State.MISSING, install)
            for name, install in _REQUIRED.items()
        ),
    ]


def check_ros(packages: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str]) -> list[Check]:
    """ROS 2 and the packages that the nodes need."""
    distro = environ.get("ROS_DISTRO", "")
    if "error" in packages["rclpy"]:
        return [
            Check(
                "ROS",
                "rclpy",
                State.MISSING,
                packages["rclpy"]["error"],
                f"source /opt/ros/{distro or 'DISTRO'}/setup.bash with that ROS's own Python, or "
                "run 'tools/run CMD' from a checkout",
            )
        ]
    where = distro or ("not sourced, installed with pip" if packages["rclpy"] else "")
    checks = [Check("ROS", "ROS 2", State.OK, where)]
    for name in _ROS:
        package = f"ros-{distro or 'DISTRO'}-{name.replace('_', '-')}"
        checks.append(
            _package("ROS", name, packages[name], State.MISSING, f"sudo apt install {package}")
        )
    return checks


def check_optional(packages: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Packages that single verbs need."""
    return [
        _package("optional", name, packages[name], State.NOTE, f"{install} (for {purpose})")
        for name, (purpose, install) in _OPTIONAL.items()
    ]


def _package(
    group: str, name: str, found: Mapping[str, Any], otherwise: State, remedy: str
) -> Check:
    if "error" in found:
        return Check(group, name, otherwise, found["error"], remedy)
    return Check(group, name, State.OK, found["version"])


# The middleware -----------------------------------------------------------------------------------


def check_middleware(
    packages: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str], root: Path = ROOT
) -> list[Check]:
    """Whether large images get through: Fast DDS's settings, and shared memory for them."""
    if "error" in packages["rclpy"]:
        return []
    group = "images"
    middleware = environ.get("RMW_IMPLEMENTATION") or "rmw_fastrtps_cpp"
    checks = [Check(group, "middleware", State.OK, middleware)]
    if not middleware.startswith("rmw_fastrtps"):
        return checks
    shipped = share_path("config/fastdds.xml")
    variable = profile_variable(environ.get("ROS_DISTRO", ""))
    profile = environ.get(variable, "")
    lost = "with Fast DDS's own settings images over 512 KB are lost silently: export "
    if not profile:
        checks.append(Check(group, variable, State.NOTE, "not set", f"{lost}{variable}={shipped}"))
    elif not Path(profile).is_file():
        checks.append(
            Check(group, variable, State.NOTE, f"{profile}: no file", f"{lost}{variable}={shipped}")
        )
    else:
        checks.append(Check(group, variable, State.OK, profile))
    in_force = Path(profile) if profile and Path(profile).is_file() else shipped
    memory = root / "dev/shm"
    try:
        status = os.statvfs(memory)
    except OSError:
        checks.append(Check(group, "/dev/shm", State.NOTE, "none", "mount a tmpfs there"))
    else:
        total = status.f_frsize * status.f_blocks
        checks.append(check_shared_memory(total, segment_bytes(in_force)))
        checks += check_dead_segments(memory)
    return checks


def check_dead_segments(memory: Path) -> list[Check]:
    """Whether processes that were killed have left shared memory behind.

    Fast DDS locks a file for each of its segments for as long as the process lives.
    """
    dead = 0
    for lock in [*memory.glob("fastdds_*_el"), *memory.glob("fastrtps_*_el")]:
        with suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with suppress(OSError):
                dead += lock.with_name(lock.name[: -len("_el")]).stat().st_size
    if not dead:
        return []
    return [
        Check(
            "images",
            "left behind",
            State.NOTE,
            f"{dead / 2**20:.0f} MB in {memory} of processes that were killed",
            "when no ROS process runs: fastdds shm clean, or rm /dev/shm/*fast*",
        )
    ]


def segment_bytes(profile: Path) -> int | None:
    """What each process takes from /dev/shm under these settings; ``None``: not told."""
    try:
        text = re.sub("<!--.*?-->", "", profile.read_text(errors="replace"), flags=re.DOTALL)
    except OSError:
        return None
    sizes = re.findall(r"<segment_size>\s*(\d{1,12})\s*</segment_size>", text)
    return max(map(int, sizes)) if sizes else None


def check_shared_memory(total: int, segment: int | None) -> Check:
    """Whether the images of a robot's processes fit into ``total`` bytes of shared memory."""
    found = f"{total / 2**20:.0f} MB"
    if segment is None:
        return Check("images", "/dev/shm", State.OK, found)
    found += f", {segment / 2**20:.0f} MB for each process: room for {total // segment}"
    if total >= PARTICIPANTS * segment:
        return Check("images", "/dev/shm", State.OK, found)
    return Check(
        "images",
        "/dev/shm",
        State.NOTE,
        found,
        "give the container more (docker run --shm-size=1g, or --ipc=host), or use "
        f"{share_path('config/fastdds_small.xml')}",
    )


# Permissions, clocks, tegrastats ------------------------------------------------------------------


def check_permissions(
    machine: Machine,
    root: Path,
    groups: Sequence[str],
    access: Callable[[Path, int], bool] = os.access,
) -> list[Check]:
    """Whether the user may use the accelerator's devices."""
    if not machine.is_jetson:
        return []
    devices = sorted([*(root / "dev").glob("nvhost*"), *(root / "dev").glob("nvmap")])
    if not devices:
        return [
            Check(
                "permissions",
                "/dev/nvhost*",
                State.NOTE,
                "none",
                "in a container: docker run --runtime nvidia",
            )
        ]
    closed = [device.name for device in devices if not access(device, os.R_OK | os.W_OK)]
    lacking = [name for name in ("video", "render") if name not in groups]
    if not closed:
        return [Check("permissions", "/dev/nvhost*", State.OK, f"{len(devices)} devices open")]
    shown = ", ".join(f"/dev/{name}" for name in closed[:3]) + (", ..." if closed[3:] else "")
    remedy = (
        f"sudo usermod -aG {','.join(lacking)} $USER, then log in again"
        if lacking
        else f"ls -l {root / 'dev' / closed[0]}: which group may use it?"
    )
    return [Check("permissions", "/dev/nvhost*", State.MISSING, f"closed: {shown}", remedy)]


def check_clocks(machine: Machine, root: Path = ROOT) -> list[Check]:
    """Whether clocks are held at their highest, as jetson_clocks does, or follow the load."""
    if not machine.is_jetson:
        return []
    checks = []
    folders = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq"))
    limits = [
        tuple(_integer(folder / name) for name in ("scaling_min_freq", "cpuinfo_max_freq"))
        for folder in folders
    ]
    known = [limit for limit in limits if None not in limit]
    if known:
        held = all(lowest == highest for lowest, highest in known)
        checks.append(
            Check(
                "clocks",
                "CPU",
                State.OK if held else State.NOTE,
                "held at the highest" if held else "follow the load",
                "" if held else "before you measure: sudo jetson_clocks",
            )
        )
    for dla in find_dlas(root):
        now, highest = dla.clock_mhz(), dla.highest_clock_mhz()
        if now is not None:
            text = f"{now:g} MHz" + (f" of {highest:g} MHz" if highest is not None else "")
            checks.append(Check("clocks", f"DLA {dla.core}", State.OK, text))
        else:
            checks.append(
                Check("clocks", f"DLA {dla.core}", State.NOTE, "n/a", "root alone may see it")
            )
    return checks


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def check_tegrastats(
    machine: Machine,
    environ: Mapping[str, str],
    access: Callable[[Path, int], bool] = os.access,
) -> list[Check]:
    """Whether the node's diagnostics can have power, temperatures and clocks."""
    if not machine.is_jetson:
        return []
    path = shutil.which("tegrastats", path=environ.get("PATH", ""))
    if path is None:
        return [
            Check(
                "monitoring",
                "tegrastats",
                State.NOTE,
                "not on the PATH",
                "it comes with JetPack; in a container, mount it from the host",
            )
        ]
    if not access(Path("/root"), os.R_OK):
        remedy = "shows the DLA's clock to root only; the rest needs no root"
        return [Check("monitoring", "tegrastats", State.NOTE, f"{path}, not root", remedy)]
    return [Check("monitoring", "tegrastats", State.OK, f"{path}, as root")]


def _group_names() -> list[str]:
    import grp

    names = []
    for number in {os.getegid(), *os.getgroups()}:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:  # a container may not know the host's groups
            continue
    return names


# Trying packages ----------------------------------------------------------------------------------
# In processes of their own: a library that does not fit this machine can end the one that loads it.

_PACKAGES_SCRIPT = """
import importlib, json, sys
try:
    from importlib import metadata
except ImportError:
    metadata = None
for name in sys.argv[1:]:
    print(json.dumps({"trying": name}), flush=True)
    try:
        module = importlib.import_module(name)
        version = getattr(module, "__version__", None)
        if version is None:
            try:
                version = metadata.version({"yaml": "PyYAML"}.get(name, name))
            except Exception:
                version = "installed"
        answer = {"version": str(version)}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps({name: answer}), flush=True)
"""

_RUNTIME_SCRIPTS: Mapping[str, str] = {
    "tensorrt": """
import json, tensorrt
if getattr(tensorrt, "__file__", None) is None:
    raise SystemExit("an empty folder named tensorrt, and no package")
print(json.dumps({"version": tensorrt.__version__}), flush=True)
builder = tensorrt.Builder(tensorrt.Logger(tensorrt.Logger.ERROR))
print(json.dumps({"dla_cores": builder.num_DLA_cores}), flush=True)
""",
    "pycuda": """
import json, pycuda, pycuda.driver as driver
print(json.dumps({"version": pycuda.VERSION_TEXT}), flush=True)
driver.init()
device = driver.Device(0)
text = "{} {}.{}".format(device.name(), *device.compute_capability())
print(json.dumps({"device": text}), flush=True)
""",
    "cudla": """
import json
from dla_perception.engines.cudla_library import CudlaLibrary
library = CudlaLibrary()
print(json.dumps({"version": library.version()}), flush=True)
print(json.dumps({"dla_cores": library.device_count()}), flush=True)
""",
}


def try_packages(
    names: Sequence[str], environ: Mapping[str, str], python: str = sys.executable
) -> dict[str, dict[str, Any]]:
    """Import each package: ``{"version": ...}`` or ``{"error": ...}`` for each."""
    found: dict[str, dict[str, Any]] = {}
    left = list(dict.fromkeys(names))
    while left:
        answers, end = _answers(_PACKAGES_SCRIPT, left, environ, python)
        for answer in answers:
            for name, result in answer.items():
                if name != "trying":
                    found[name] = result
        culprit = next((name for name in left if name not in found), None)
        if culprit is not None:
            found[culprit] = {"error": f"its import ends Python: {end}"}
        left = [name for name in left if name not in found]
    return found


def _try(script: str, environ: Mapping[str, str], python: str) -> dict[str, Any]:
    """What a script has found out, and ``error`` if it did not come to its end."""
    answers, end = _answers(script, [], environ, python)
    found: dict[str, Any] = {}
    for answer in answers:
        found.update(answer)
    if end:
        found["error"] = end
    return found


def _answers(
    script: str, arguments: Sequence[str], environ: Mapping[str, str], python: str
) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines that a Python script prints, and what ended it early, in a line."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [environ.get("PYTHONPATH", ""), package]))
    try:
        done = subprocess.run(
            [python, "-c", script, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            env={**environ, "PYTHONPATH": path},
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, errors, code = expired.stdout or b"", b"", 0
        end = f"no answer within {PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        raise DlaPerceptionError(f"{python}: cannot be started: {error.strerror}") from None
    else:
        said = errors.decode(errors="replace").strip().splitlines()
        end = ""
        if code < 0:
            end = f"signal {-code}"
        elif code:
            # our own errors are lines for users as they are
            end = re.sub(r"^dla_perception[\w.]+: ", "", said[-1]) if said else f"exit code {code}"
    answers = []
    for line in output.decode(errors="replace").splitlines():
        try:
            answer = json.loads(line)
        except ValueError:  # libraries print too
            continue
        if isinstance(answer, dict):
            answers.append(answer)
    return answers, end


# Printing -----------------------------------------------------------------------------------------


def _print(checks: Sequence[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    table = Table()
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    colours = {State.OK: "green", State.NOTE: "yellow", State.MISSING: "red"}
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            table.add_section()
            table.add_row("", Text(group, style="bold"), "", "")
        state = Text(check.state.value, style=colours[check.state])
        table.add_row(state, Text(check.name), Text(check.found), Text(check.remedy))
    console.print(table)
    missing = [check.name for check in checks if check.state is State.MISSING]
    if missing:
        console.print(f"Missing: {', '.join(missing)}.", markup=False)
    else:
        console.print("Nothing essential is missing.", markup=False)
