"""ROS 2 nodes: thin shells over the rest of the package."""
