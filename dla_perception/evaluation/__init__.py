"""Offline judgement of networks and recordings, without ROS."""
