"""Numbers about the running system, without ROS."""
