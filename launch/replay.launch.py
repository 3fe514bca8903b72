r"""A recorded bag through one detector, on the bag's own time.

ros2 launch dla_perception replay.launch.py \
    bag:=drive model_path:=net.onnx image:=/camera/image_raw

Plays the bag with rosbag2 and, where an output is named, records the detections and diagnostics.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, IncludeLaunchDescription
from launch.conditions import IfCondition
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PythonExpression, ThisLaunchFileDir


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments, start the node, the player and, if asked for, the recorder."""
    output = LaunchConfiguration("output")
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", description="The bag to play: a folder"),
            DeclareLaunchArgument("model_path", description="The network"),
            DeclareLaunchArgument(
                "labels_path",
                default_value="",
                description="Class names, one a line, or 'coco'; empty: from the model",
            ),
            DeclareLaunchArgument(
                "image", default_value="image_raw", description="The bag's image topic"
            ),
            DeclareLaunchArgument(
                "dla_core", default_value="-1", description="The DLA core to run on; -1: none"
            ),
            DeclareLaunchArgument("namespace", default_value="", description="Of the node"),
            DeclareLaunchArgument(
                "rate", default_value="1.0", description="Of playing; 1 is the recorded speed"
            ),
            DeclareLaunchArgument(
                "output", default_value="", description="A bag to record to; empty: none"
            ),
            DeclareLaunchArgument(
                "log_level", default_value="info", description="debug, info, warn, error or fatal"
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource([ThisLaunchFileDir(), "/detector.launch.py"]),
                launch_arguments=[
                    ("model_path", LaunchConfiguration("model_path")),
                    ("labels_path", LaunchConfiguration("labels_path")),
                    ("image", LaunchConfiguration("image")),
                    ("dla_core", LaunchConfiguration("dla_core")),
                    ("namespace", LaunchConfiguration("namespace")),
                    ("log_level", LaunchConfiguration("log_level")),
                    ("use_sim_time", "true"),
                ],
            ),
            ExecuteProcess(
                cmd=[
                    *("ros2", "bag", "play", LaunchConfiguration("bag")),
                    *("--clock", "--rate", LaunchConfiguration("rate"), "--delay", "3"),
                ],
                output="screen",
            ),
            ExecuteProcess(
                cmd=[
                    *("ros2", "bag", "record", "-o", output, "--regex"),
                    "(.*/detections|/diagnostics)",
                ],
                condition=IfCondition(PythonExpression(["'", output, "' != ''"])),
                output="screen",
            ),
        ]
    )
