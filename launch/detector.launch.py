"""One detector for one camera.

ros2 launch dla_perception detector.launch.py model_path:=net.onnx image:=/camera/image_raw
"""

import os

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution, PythonExpression
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from dla_perception.ros.fastdds import profile_variable

SHARE = FindPackageShare("dla_perception")


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments and start the node."""
    arguments = [
        DeclareLaunchArgument("model_path", description="The network: an ONNX file"),
        DeclareLaunchArgument(
            "labels_path",
            default_value="",
            description="Class names, one a line, or 'coco'; empty: from the model",
        ),
        DeclareLaunchArgument(
            "image", default_value="image_raw", description="The camera's image topic"
        ),
        DeclareLaunchArgument(
            "dla_core", default_value="-1", description="The DLA core to run on; -1: none"
        ),
        DeclareLaunchArgument("namespace", default_value="", description="Of the node"),
        DeclareLaunchArgument("name", default_value="detector_node", description="Of the node"),
        DeclareLaunchArgument(
            "params_file",
            default_value=PathJoinSubstitution([SHARE, "config", "detector.yaml"]),
            description="All other parameters; config/detector.yaml lists them",
        ),
        DeclareLaunchArgument(
            "use_sim_time", default_value="false", description="Take the time from /clock"
        ),
        DeclareLaunchArgument(
            "autostart", default_value="true", description="Configure and activate at start"
        ),
        DeclareLaunchArgument(
            "respawn", default_value="true", description="Start the node again when it dies"
        ),
        DeclareLaunchArgument(
            "log_level", default_value="info", description="debug, info, warn, error or fatal"
        ),
        DeclareLaunchArgument(
            "fastdds_profiles",
            default_value=PathJoinSubstitution([SHARE, "config", "fastdds.xml"]),
            description="Fast DDS settings that let images pass; the camera needs the same. "
            "Empty: leave the environment as it is",
        ),
    ]
    profiles = LaunchConfiguration("fastdds_profiles")
    node = LifecycleNode(
        package="dla_perception",
        executable="detector_node",
        name=LaunchConfiguration("name"),
        namespace=LaunchConfiguration("namespace"),
        parameters=[
            LaunchConfiguration("params_file"),
            {
                "model_path": ParameterValue(LaunchConfiguration("model_path"), value_type=str),
                "labels_path": ParameterValue(LaunchConfiguration("labels_path"), value_type=str),
                "dla_core": ParameterValue(LaunchConfiguration("dla_core"), value_type=int),
                "use_sim_time": ParameterValue(
                    LaunchConfiguration("use_sim_time"), value_type=bool
                ),
                "autostart": ParameterValue(LaunchConfiguration("autostart"), value_type=bool),
            },
        ],
        remappings=[("image_raw", LaunchConfiguration("image"))],
        arguments=["--ros-args", "--log-level", LaunchConfiguration("log_level")],
        respawn=LaunchConfiguration("respawn"),
        respawn_delay=1.0,
        output="screen",
    )
    return LaunchDescription(
        [
            *arguments,
            SetEnvironmentVariable(
                profile_variable(os.environ.get("ROS_DISTRO", "")),
                profiles,
                condition=IfCondition(PythonExpression(["'", profiles, "' != ''"])),
            ),
            node,
        ]
    )
