"""Installs dla_perception, with pip or as an ament_python package with colcon."""

from __future__ import annotations

import os
from glob import glob

from setuptools import find_packages, setup

PACKAGE = "dla_perception"

# colcon runs this file from other folders too.
os.chdir(os.path.dirname(os.path.abspath(__file__)))


def shared(folder: str) -> tuple[str, list[str]]:
    """The files of a folder, to be found at run time in the package's share folder."""
    return (f"share/{PACKAGE}/{folder}", sorted(filter(os.path.isfile, glob(f"{folder}/*"))))


setup(
    name=PACKAGE,
    version="0.1.0",
    description="Object detection on NVIDIA Jetson's Deep Learning Accelerator, for ROS 2",
    license="Apache-2.0",
    maintainer="dla_perception maintainers",
    maintainer_email="maintainers@dla-perception.invalid",
    packages=find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
    package_data={PACKAGE: ["py.typed"], f"{PACKAGE}.demo": ["model/*"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        (f"share/{PACKAGE}", ["package.xml"]),
        shared("config"),
        shared("launch"),
    ],
    python_requires=">=3.8",
    install_requires=["setuptools", "numpy", "PyYAML", "rich"],
    extras_require={
        # To run networks where there is no TensorRT, and to take them apart on any machine.
        "onnx": ["onnx", "onnxruntime"],
        # To read and write bags, and to judge detections against annotations.
        "evaluation": ["pycocotools", "rosbags"],
        # Buffers and streams of TensorRT engines on a Jetson.
        "dla": ["pycuda"],
        # To train the demo's network anew; the trained one is part of the package.
        "train": ["torch"],
    },
    zip_safe=False,
    entry_points={
        "console_scripts": [
            "detector_node = dla_perception.nodes.detector_node:main",
            "redundancy_node = dla_perception.nodes.redundancy_node:main",
            "dla-perception = dla_perception.cli.main:main",
        ],
    },
)
