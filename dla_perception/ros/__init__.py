"""The only place besides the nodes that knows ROS messages."""
