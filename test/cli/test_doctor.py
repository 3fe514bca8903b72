"""The doctor on made-up machines: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import fcntl
import json
import os
import sys

import pytest
from jetson_trees import JETSONS, make_jetson, write

from dla_perception.cli import doctor
from dla_perception.cli.doctor import State, check_shared_memory, examine, segment_bytes
from dla_perception.cli.main import main
from dla_perception.monitoring.machine import read_machine
from dla_perception.package_share import share_path

TENSORRT = """
__version__ = "{version}"
class Logger:
    ERROR = 1
    def __init__(self, level): pass
class Builder:
    def __init__(self, logger): pass
    num_DLA_cores = {cores}
"""

PYCUDA = """
def init(): pass
class Device:
    def __init__(self, number): pass
    def name(self): return "Orin"
    def compute_capability(self): return (8, 7)
"""


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Examine a made-up machine; returns the checks by name."""

    def examine_machine(
        jetson=None,
        tensorrt=None,
        ros=True,
        environ=None,
        groups=("video", "render"),
        closed=(),
        absent=(),
    ):
        root, modules = tmp_path / "root", tmp_path / "modules"
        if jetson:
            make_jetson(root, jetson)
        (root / "dev/shm").mkdir(parents=True, exist_ok=True)
        if tensorrt:
            version, cores = tensorrt
            write(modules / "tensorrt.py", TENSORRT.format(version=version, cores=cores))
            write(modules / "pycuda/__init__.py", 'VERSION_TEXT = "2024.1"')
            write(modules / "pycuda/driver.py", PYCUDA)
        for name in ("cv2", "onnx", "onnxruntime", "pycocotools", "rosbags", "torch"):
            write(modules / f"{name}.py", '__version__ = "1.2"')  # the real ones take their time
        if ros:
            for name in doctor._ROS:
                write(modules / f"{name}.py", '__version__ = "9.9"')
        else:
            write(modules / "rclpy.py", "raise ImportError('libfastrtps.so: not found')")
        for name in absent:
            write(modules / f"{name}.py", "raise ImportError('not here')")
        return {
            check.name: check
            for check in examine(
                root,
                {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), **(environ or {})},
                groups=groups,
                access=lambda path, mode: path.name not in closed,
            )
        }

    return examine_machine


def missing(checks):
    return {name for name, check in checks.items() if check.state is State.MISSING}


@pytest.mark.parametrize(
    ("jetson", "tensorrt", "module", "linux", "cores"),
    [
        (
            "agx_orin",
            ("10.3.0", 2),
            "Jetson AGX Orin 64 GB (p3701-0005)",
            "36.4.3 (JetPack 6.2)",
            "2 found, 2 in this module",
        ),
        (
            "orin_nx_8gb",
            ("8.5.2.2", 1),
            "Jetson Orin NX 8 GB (p3767-0001)",
            "35.3.1 (JetPack 5.1.1)",
            "1 found, 1 in this module",
        ),
        (
            "agx_xavier",
            ("8.5.2.2", 2),
            "Jetson AGX Xavier (p2888-0001)",
            "35.4.1 (JetPack 5.1.2)",
            "2 found, 2 in this module",
        ),
    ],
)
def test_a_jetson_that_has_everything(look, jetson, tensorrt, module, linux, cores):
    checks = look(jetson, tensorrt)
    assert missing(checks) == set()
    assert checks["board"].found == JETSONS[jetson][0]
    assert (checks["module"].found, checks["Jetson Linux"].found) == (module, linux)
    assert (checks["DLA cores"].state, checks["DLA cores"].found) == (State.OK, cores)
    assert checks["TensorRT"].state is State.OK
    assert checks["TensorRT"].found == f"{tensorrt[0]}, {tensorrt[1]} DLA cores"
    assert checks["pycuda"].found == "2024.1, Orin 8.7"


@pytest.mark.parametrize(
    ("jetson", "module"),
    [
        ("orin_nano", "Jetson Orin Nano 8 GB (developer kit) (p3767-0005)"),
        ("thor", "Jetson Thor (tegra264)"),
    ],
)
def test_a_jetson_without_a_dla_is_told_so(look, jetson, module):
    checks = look(jetson, ("10.16.1", 0))
    assert missing(checks) == set()
    assert checks["module"].found == module
    assert checks["DLA cores"].state is State.NOTE
    assert checks["DLA cores"].found == "0 found, 0 in this module"
    assert "dla_core: -1" in checks["DLA cores"].remedy


@pytest.mark.parametrize(
    ("tensorrt", "state", "remedy"),
    [
        (("10.16.1", 0), State.MISSING, "TensorRT 10.8 to 11.4.0 have no DLA"),
        (("10.3.0", 0), State.MISSING, "'--runtime nvidia' and an image of this JetPack"),
        (("10.3.0", 1), State.NOTE, "nvpmodel"),
        (("11.4.1", 2), State.OK, ""),
    ],
)
def test_tensorrt_is_judged_by_the_cores_it_has(look, tensorrt, state, remedy):
    check = look("agx_orin", tensorrt)["TensorRT"]
    assert check.state is state
    assert check.found == f"{tensorrt[0]}, {tensorrt[1]} DLA cores"
    assert remedy in check.remedy


def test_a_jetson_without_tensorrt(look):
    checks = look("agx_orin")
    assert missing(checks) == {"TensorRT"}
    assert "python3-libnvinfer" in checks["TensorRT"].remedy
    assert "cuda-cudla" in checks["cuDLA"].remedy


def test_a_core_that_is_switched_off(look, tmp_path):
    make_jetson(tmp_path / "root", "orin_nx_8gb")
    compatible = tmp_path / "root/proc/device-tree/compatible"
    compatible.write_bytes(b"nvidia,p3767-0000\0nvidia,tegra234\0")
    checks = look(tensorrt=("8.5.2", 1))
    assert missing(checks) == {"DLA cores"}
    assert checks["DLA cores"].found == "1 found, 2 in this module"


def test_devices_that_are_closed(look, tmp_path):
    for name in ("nvhost-ctrl", "nvhost-nvdla0", "nvmap"):
        write(tmp_path / "root/dev" / name, "")
    checks = look("agx_orin", ("10.3.0", 2))
    assert checks["/dev/nvhost*"].found == "3 devices open"
    checks = look("agx_orin", ("10.3.0", 2), groups=["video"], closed=["nvhost-nvdla0", "nvmap"])
    assert missing(checks) == {"/dev/nvhost*"}
    assert checks["/dev/nvhost*"].found == "closed: /dev/nvhost-nvdla0, /dev/nvmap"
    assert checks["/dev/nvhost*"].remedy == "sudo usermod -aG render $USER, then log in again"


def test_clocks(tmp_path):
    machine = read_machine(make_jetson(tmp_path, "agx_orin"))
    cpu = tmp_path / "sys/devices/system/cpu"
    write(cpu / "cpu0/cpufreq/cpuinfo_max_freq", "2201600\n")
    write(cpu / "cpu0/cpufreq/scaling_min_freq", "729600\n")
    debug = tmp_path / "sys/kernel/debug/clk/dla0_core"
    write(debug / "clk_rate", "1369600000")
    write(debug / "clk_max_rate", "1600000000")
    processor, first, second = doctor.check_clocks(machine, tmp_path)
    assert processor.found == "follow the load"
    assert "sudo jetson_clocks" in processor.remedy
    assert (first.name, first.found) == ("DLA 0", "1369.6 MHz of 1600 MHz")
    assert (second.name, second.state, second.found) == ("DLA 1", State.NOTE, "n/a")
    write(cpu / "cpu0/cpufreq/scaling_min_freq", "2201600\n")
    assert doctor.check_clocks(machine, tmp_path)[0].found == "held at the highest"


def test_tegrastats(tmp_path):
    machine = read_machine(make_jetson(tmp_path, "agx_orin"))
    (absent,) = doctor.check_tegrastats(machine, {"PATH": "/nowhere"})
    assert (absent.state, absent.found) == (State.NOTE, "not on the PATH")
    tool = tmp_path / "bin/tegrastats"
    write(tool, "#!/bin/sh\n")
    tool.chmod(0o755)
    environ = {"PATH": f"{tmp_path}/bin"}
    (as_root,) = doctor.check_tegrastats(machine, environ, lambda path, mode: True)
    assert (as_root.state, as_root.found) == (State.OK, f"{tool}, as root")
    (as_user,) = doctor.check_tegrastats(machine, environ, lambda path, mode: False)
    assert (as_user.state, as_user.found) == (State.NOTE, f"{tool}, not root")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"cuda": {"name": "CUDA SDK", "version": "12.6.11"}}', "12.6.11"),
        ("[]", "none in /usr/local/cuda"),
    ],
)
def test_cuda(look, tmp_path, text, found):
    write(tmp_path / "root/usr/local/cuda/version.json", text)
    assert look("agx_orin", ("10.3.0", 2))["CUDA toolkit"].found == found


def test_another_machine(look):
    checks = look()
    assert missing(checks) == set()
    assert checks["board"].found == "no Jetson"
    assert (checks["ONNX Runtime"].state, checks["ONNX Runtime"].found) == (State.OK, "1.2")
    assert (checks["onnx"].state, checks["onnx"].found) == (State.OK, "1.2")
    assert not {"DLA cores", "/dev/nvhost*", "tegrastats", "CPU", "cuDLA"} & set(checks)


def test_what_is_essential_and_what_is_not(look):
    checks = look(environ={"ROS_DISTRO": "jazzy"}, absent=["onnx", "onnxruntime", "vision_msgs"])
    assert missing(checks) == {"ONNX Runtime", "vision_msgs"}
    assert checks["onnx"].state is State.NOTE
    assert checks["onnx"].found == "ImportError: not here"
    assert checks["onnx"].remedy.startswith("pip install onnx (for check")
    assert checks["ONNX Runtime"].remedy == "pip install onnxruntime"
    assert checks["vision_msgs"].remedy == "sudo apt install ros-jazzy-vision-msgs"


def test_without_ros(look):
    checks = look(ros=False, environ={"ROS_DISTRO": "humble"})
    assert missing(checks) == {"rclpy"}
    assert checks["rclpy"].found == "ImportError: libfastrtps.so: not found"
    assert "source /opt/ros/humble/setup.bash" in checks["rclpy"].remedy
    assert "middleware" not in checks


@pytest.mark.parametrize(
    ("distro", "variable"),
    [
        ("humble", "FASTRTPS_DEFAULT_PROFILES_FILE"),
        ("jazzy", "FASTRTPS_DEFAULT_PROFILES_FILE"),
        ("kilted", "FASTDDS_DEFAULT_PROFILES_FILE"),
        ("", "FASTDDS_DEFAULT_PROFILES_FILE"),
    ],
)
def test_the_trap_of_large_images(tmp_path, distro, variable):
    shipped = str(share_path("config/fastdds.xml"))

    def settings(**environ):
        environ = {"ROS_DISTRO": distro, **environ}
        checks = doctor.check_middleware({"rclpy": {"version": "9"}}, environ, tmp_path)
        return next(check for check in checks if check.name == variable)

    unset = settings()
    assert (unset.state, unset.found) == (State.NOTE, "not set")
    assert unset.remedy.endswith(f"export {variable}={shipped}")
    wrong = settings(**{variable: f"{tmp_path}/none.xml"})
    assert (wrong.state, wrong.found) == (State.NOTE, f"{tmp_path}/none.xml: no file")
    good = settings(**{variable: shipped})
    assert (good.state, good.found) == (State.OK, shipped)


def test_another_middleware_has_no_such_trap():
    environ = {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}
    (check,) = doctor.check_middleware({"rclpy": {"version": "9"}}, environ)
    assert check.found == "rmw_cyclonedds_cpp"


def test_shared_memory():
    segment = segment_bytes(share_path("config/fastdds.xml"))
    assert segment == 32 * 2**20
    docker = check_shared_memory(64 * 2**20, segment)
    assert docker.state is State.NOTE
    assert docker.found == "64 MB, 32 MB for each process: room for 2"
    assert "--shm-size=1g" in docker.remedy
    small = segment_bytes(share_path("config/fastdds_small.xml"))
    assert check_shared_memory(64 * 2**20, small).state is State.OK
    assert check_shared_memory(1024 * 2**20, segment).state is State.OK


def test_shared_memory_of_processes_that_were_killed(tmp_path):
    assert doctor.check_dead_segments(tmp_path) == []
    with open(tmp_path / "fastdds_0123456789abcdef_el", "w") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        (tmp_path / "fastdds_0123456789abcdef").write_bytes(bytes(1 << 20))
        assert doctor.check_dead_segments(tmp_path) == []
        write(tmp_path / "fastrtps_fedcba9876543210_el", "")
        (tmp_path / "fastrtps_fedcba9876543210").write_bytes(bytes(2 << 20))
        (check,) = doctor.check_dead_segments(tmp_path)
    assert check.state is State.NOTE
    assert check.found == f"2 MB in {tmp_path} of processes that were killed"
    assert "fastdds shm clean" in check.remedy


def test_a_package_that_ends_python_does_not_end_the_doctor(tmp_path):
    write(tmp_path / "first.py", "__version__ = '1'")
    write(tmp_path / "fatal.py", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    write(tmp_path / "noisy.py", "print('hello'); __version__ = '2'")
    environ = {"PYTHONPATH": str(tmp_path)}
    found = doctor.try_packages(["first", "fatal", "noisy", "absent"], environ)
    assert found == {
        "first": {"version": "1"},
        "fatal": {"error": "its import ends Python: signal 9"},
        "noisy": {"version": "2"},
        "absent": {"error": "ModuleNotFoundError: No module named 'absent'"},
    }


def test_the_verb_here(capsys):
    code = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert states["numpy"] == "ok"
    assert document["ok"] == ("missing" not in states.values())
    assert code == (0 if document["ok"] else 1)


def test_the_table_and_the_exit_code(capsys, monkeypatch):
    checks = [
        doctor.Check("runtime", "TensorRT", State.MISSING, "none [here]", "install it"),
        doctor.Check("Python", "Python", State.OK, sys.version.split()[0]),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "none [here]" in output
    assert output.endswith("Missing: TensorRT.\n")
