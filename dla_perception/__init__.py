"""YOLO detection on the Deep Learning Accelerator (DLA) of NVIDIA Jetsons, for ROS 2."""

__version__ = "0.1.0"
