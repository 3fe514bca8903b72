r"""Two detectors, on DLA cores 0 and 1, and the node that makes one stream of theirs.

ros2 launch dla_perception redundant_detector.launch.py \
    model_path:=net.plan image:=/camera/image_raw

The detections are on NAMESPACE/detections; each side's own on NAMESPACE/primary/detections and
NAMESPACE/secondary/detections. Whichever process dies is started again.
"""

import os

from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    GroupAction,
    IncludeLaunchDescription,
    SetEnvironmentVariable,
)
from launch.conditions import IfCondition
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import (
    LaunchConfiguration,
    PathJoinSubstitution,
    PythonExpression,
    ThisLaunchFileDir,
)
from launch_ros.actions import LifecycleNode, PushRosNamespace
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from dla_perception.ros.fastdds import profile_variable

SHARE = FindPackageShare("dla_perception")


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments and start the three nodes."""
    arguments = [
        DeclareLaunchArgument("model_path", description="The network for the primary"),
        DeclareLaunchArgument(
            "secondary_model_path",
            default_value=LaunchConfiguration("model_path"),
            description="The network for the secondary: the same, or its build for the other core",
        ),
        DeclareLaunchArgument(
            "labels_path",
            default_value="",
            description="Class names, one a line, or 'coco'; empty: from the model",
        ),
        DeclareLaunchArgument(
            "image", default_value="image_raw", description="The camera's image topic"
        ),
        DeclareLaunchArgument(
            "primary_dla_core", default_value="0", description="-1: none, as for ONNX networks"
        ),
        DeclareLaunchArgument(
            "secondary_dla_core", default_value="1", description="-1: none, as for ONNX networks"
        ),
        DeclareLaunchArgument("namespace", default_value="", description="Of all three nodes"),
        DeclareLaunchArgument(
            "params_file",
            default_value=PathJoinSubstitution([SHARE, "config", "detector.yaml"]),
            description="All other parameters of both detectors",
        ),
        DeclareLaunchArgument(
            "redundancy_params_file",
            default_value=PathJoinSubstitution([SHARE, "config", "redundancy.yaml"]),
            description="All other parameters of the redundancy node",
        ),
        DeclareLaunchArgument(
            "use_sim_time", default_value="false", description="Take the time from /clock"
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
        DeclareLaunchArgument(
            "redundancy_fastdds_profiles",
            default_value=PathJoinSubstitution([SHARE, "config", "fastdds_udp.xml"]),
            description="Fast DDS settings of the redundancy node, which shares no memory with a "
            "detector that may be killed. Empty: leave the environment as it is",
        ),
    ]
    return LaunchDescription(
        [
            *arguments,
            GroupAction(
                [
                    PushRosNamespace(LaunchConfiguration("namespace")),
                    _detector("primary", "model_path", "primary_dla_core"),
                    _detector("secondary", "secondary_model_path", "secondary_dla_core"),
                    _redundancy_settings(),
                    _redundancy_node(),
                ]
            ),
        ]
    )


def _detector(side: str, model: str, core: str) -> IncludeLaunchDescription:
    shared = ("labels_path", "image", "params_file", "use_sim_time", "log_level")
    return IncludeLaunchDescription(
        PythonLaunchDescriptionSource([ThisLaunchFileDir(), "/detector.launch.py"]),
        launch_arguments=[
            ("namespace", side),
            ("model_path", LaunchConfiguration(model)),
            ("dla_core", LaunchConfiguration(core)),
            ("fastdds_profiles", LaunchConfiguration("fastdds_profiles")),
            *((name, LaunchConfiguration(name)) for name in shared),
        ],
    )


def _redundancy_settings() -> SetEnvironmentVariable:
    profiles = LaunchConfiguration("redundancy_fastdds_profiles")
    return SetEnvironmentVariable(
        profile_variable(os.environ.get("ROS_DISTRO", "")),
        profiles,
        condition=IfCondition(PythonExpression(["'", profiles, "' != ''"])),
    )


def _redundancy_node() -> LifecycleNode:
    return LifecycleNode(
        package="dla_perception",
        executable="redundancy_node",
        name="redundancy_node",
        namespace="",
        parameters=[
            LaunchConfiguration("redundancy_params_file"),
            {"use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)},
        ],
        arguments=["--ros-args", "--log-level", LaunchConfiguration("log_level")],
        respawn=True,
        respawn_delay=1.0,
        output="screen",
    )
