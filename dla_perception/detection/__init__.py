"""Image array in, detections out: numpy and OpenCV only, no ROS, no CUDA."""
