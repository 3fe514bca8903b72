"""``detector_node``: images in, ``vision_msgs/Detection2DArray`` out."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2DArray, LabelInfo, VisionInfo

from dla_perception.detection.detector import Detector, Frame
from dla_perception.detection.drawing import draw_detections
from dla_perception.detection.pipeline import Answer, Pipeline
from dla_perception.detection.recognition import describe_model
from dla_perception.engines.loading import open_engine
from dla_perception.errors import DlaPerceptionError
from dla_perception.monitoring.detector_health import DetectorHealth, InputHealth
from dla_perception.monitoring.health import Finding
from dla_perception.nodes.spinning import spin_node
from dla_perception.package_share import share_path
from dla_perception.ros.compressed_images import frame_from_compressed
from dla_perception.ros.detections import (
    class_id_texts,
    detections_to_message,
    label_info,
    vision_info,
)
from dla_perception.ros.detector_parameters import PARAMETERS, DetectorParameters
from dla_perception.ros.diagnostics import diagnostics_message, status_message
from dla_perception.ros.events import subscription_events
from dla_perception.ros.images import frame_from_image, image_from_pixels, stamp_to_ns
from dla_perception.ros.parameters import declare_parameters, parameter_values, read_defaults
from dla_perception.ros.paths import expand_path
from dla_perception.ros.qos import ANNOTATED_QOS, DETECTIONS_QOS, LATCHED_QOS, image_qos

HANG_EXIT_CODE = 70
"""Of the process when an inference hangs and ``on_inference_timeout`` is ``exit``."""


@dataclass(frozen=True)
class CameraTopics:
    """The relative topic names of one camera."""

    images: str
    detections: str
    annotated: str


def camera_topics(parameters: DetectorParameters) -> Mapping[str, CameraTopics]:
    """The topics of each camera, by the name it is reported under in diagnostics."""
    suffix = "/compressed" if parameters.image_transport == "compressed" else ""
    if not parameters.cameras:
        topics = CameraTopics(f"image_raw{suffix}", "detections", "annotated_image")
        return {"image_raw": topics}
    return {
        name: CameraTopics(
            f"{name}/image_raw{suffix}", f"{name}/detections", f"{name}/annotated_image"
        )
        for name in parameters.cameras
    }


class DetectorNode(LifecycleNode):
    """A lifecycle node around one :class:`~dla_perception.detection.detector.Detector`.

    configure loads the engine, activate subscribes, deactivate finishes what was begun, cleanup
    frees the engine. The executor's thread only takes messages in; the pipeline's threads do the
    work and publish.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("detector_node", **options)
        declare_parameters(self, PARAMETERS, read_defaults(share_path("config/detector.yaml")))
        self._current = self._read_parameters()
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._cameras = camera_topics(self._current)
        self._health = DetectorHealth(list(self._cameras))
        self._detector: Detector | None = None
        self._pipeline: Pipeline | None = None
        self._images: list[Any] = []
        self._detections: dict[str, Any] = {}
        self._annotated: dict[str, Any] = {}
        self._latched: list[Any] = []
        self._class_ids: tuple[str, ...] = ()
        # diagnostics and the start must not wait for a simulated clock
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._diagnostics_timer = self.create_timer(
            self._current.diagnostics_period_s, self._publish_diagnostics, clock=steady
        )
        self.create_service(Trigger, "~/reset_statistics", self._on_reset_statistics)
        if self._current.autostart:
            self._autostart_timer = self.create_timer(0.0, self._autostart, clock=steady)

    # Lifecycle -----------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the engine and offer the outputs."""
        try:
            self._configure()
        except DlaPerceptionError as error:
            self.get_logger().error(str(error))
            self._health.engine_failed(str(error))
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Take images in."""
        super().on_activate(state)  # opens the detections' publishers
        assert self._detector is not None  # the state machine does not come here without
        self._health.activated(time.monotonic())
        self._pipeline = Pipeline(
            self._detector,
            self._open_frame,
            self._on_answer,
            self._on_dropped,
            self._current.inference_timeout_s,
            self._on_timeout,
        )
        qos = image_qos(self._current.image_reliability)
        kind = Image if self._current.image_transport == "raw" else CompressedImage
        self._images = [
            self.create_subscription(
                kind,
                topics.images,
                functools.partial(self._on_image, camera, self._pipeline),
                qos,
                event_callbacks=self._events(self._health.inputs[camera]),
            )
            for camera, topics in self._cameras.items()
        ]
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Finish the frames that the engine has begun."""
        self._stop_pipeline()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the engine."""
        self._release()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything, from whichever state."""
        self.shut_down()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an exception in a transition: free everything, so that it can be tried again."""
        self.shut_down()
        return TransitionCallbackReturn.SUCCESS

    def shut_down(self) -> None:
        """Stop and free everything; may be called more than once."""
        self._stop_pipeline()
        self._release()

    def _autostart(self) -> None:
        self.destroy_timer(self._autostart_timer)
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    def _configure(self) -> None:
        parameters = self._current
        if not parameters.model_path:
            raise DlaPerceptionError("model_path: it is empty; set it to an ONNX file")
        engine = open_engine(expand_path(parameters.model_path))
        try:
            description = describe_model(
                engine,
                expand_path(parameters.model_description_path) or None,
                expand_path(parameters.labels_path) or None,
            )
            self._detector = Detector(engine, description, parameters.settings)
        except BaseException:
            engine.close()
            raise
        self._cameras = camera_topics(parameters)
        self._health.set_inputs(list(self._cameras))
        self._health.engine_loaded(engine.info)
        self._class_ids = class_id_texts(description, parameters.class_id_format)
        self._detections = {
            camera: self.create_lifecycle_publisher(
                Detection2DArray, topics.detections, DETECTIONS_QOS
            )
            for camera, topics in self._cameras.items()
        }
        self._annotated = {
            camera: self.create_lifecycle_publisher(Image, topics.annotated, ANNOTATED_QOS)
            for camera, topics in self._cameras.items()
        }
        header = Header(stamp=self.get_clock().now().to_msg())
        database = self.resolve_topic_name("label_info")
        threshold = parameters.settings.score_threshold
        self._latched = [
            self._publish_once("label_info", label_info(description, header, threshold)),
            self._publish_once("vision_info", vision_info(description, header, database)),
            self._publish_once("engine_info", self._status(self._health.engine_placement())),
        ]
        self.get_logger().info(
            f"{engine.info.path}: {description.family}, {description.num_classes} classes, "
            f"{description.input_size[0]} x {description.input_size[1]}, "
            f"on {engine.info.device} by {engine.info.runtime} {engine.info.runtime_version}"
        )

    def _publish_once(self, topic: str, message: LabelInfo | VisionInfo | DiagnosticStatus) -> Any:
        publisher = self.create_publisher(type(message), topic, LATCHED_QOS)
        publisher.publish(message)
        return publisher

    def _stop_pipeline(self) -> None:
        if self._pipeline is None:
            return
        for subscription in self._images:
            self.destroy_subscription(subscription)
        self._images = []
        if not self._pipeline.stop():
            self.get_logger().error("an inference hangs; its threads are left behind")
        self._pipeline = None
        self._health.deactivated()

    def _release(self) -> None:
        if self._detector is None:
            return
        self._detector.engine.close()
        self._detector = None
        self._health.engine_released()
        for publisher in [*self._detections.values(), *self._annotated.values()]:
            self.destroy_lifecycle_publisher(publisher)
        self._detections, self._annotated = {}, {}
        for publisher in self._latched:
            self.destroy_publisher(publisher)

    # Frames --------------------------------------------------------------------------------------

    def _on_image(self, camera: str, pipeline: Pipeline, message: Image | CompressedImage) -> None:
        """In the executor's thread: nothing is done with the pixels here."""
        self._health.inputs[camera].received(
            stamp_to_ns(message.header), self.get_clock().now().nanoseconds, time.monotonic()
        )
        pipeline.offer(camera, message)

    def _open_frame(self, camera: str, message: Image | CompressedImage) -> Frame:
        """In the pipeline's preparing thread."""
        if isinstance(message, CompressedImage):
            self._health.inputs[camera].encoding = message.format
            frame = frame_from_compressed(message, camera)
        else:
            self._health.inputs[camera].encoding = message.encoding
            frame = frame_from_image(message, camera)
        height, width = frame.pixels.shape[:2]
        self._health.inputs[camera].size = (width, height)
        return frame

    def _events(self, camera: InputHealth) -> Any:
        return subscription_events(camera.matched, lambda _, policy: camera.incompatible(policy))

    def _on_answer(self, answer: Answer) -> None:
        """In the pipeline's finishing thread."""
        start_ns = time.perf_counter_ns()
        result = answer.result
        self._detections[answer.source].publish(
            detections_to_message(result.detections, answer.item.header, self._class_ids)
        )
        end_ns = time.perf_counter_ns()
        times_ms = {
            "wait": (answer.taken_ns - answer.arrived_ns) / 1e6 + result.queue_ms,
            "preprocess": result.preprocess_ms,
            "inference": result.inference_ms,
            "postprocess": result.postprocess_ms,
            "publish": (end_ns - start_ns) / 1e6,
            "total": (end_ns - answer.arrived_ns) / 1e6,
        }
        self._health.published(
            answer.source,
            len(result.detections),
            result.invalid,
            times_ms,
            self._current.max_latency_ms,
            time.monotonic(),
        )
        if self._annotated[answer.source].get_subscription_count() > 0:
            self._publish_annotated(answer, times_ms["total"])

    def _publish_annotated(self, answer: Answer, total_ms: float) -> None:
        assert self._detector is not None  # freed only after the pipeline has stopped
        frame = answer.frame
        pixels = frame.pixels if frame.channel_order == "bgr" else frame.pixels[:, :, ::-1]
        note = f"{self._health.hardware_id()} {total_ms:.1f} ms"
        picture = draw_detections(
            pixels, answer.result.detections, self._detector.description, note
        )
        self._annotated[answer.source].publish(image_from_pixels(picture, answer.item.header))

    def _on_timeout(self, source: str, waited_s: float) -> None:
        """In the pipeline's finishing thread, while an inference hangs."""
        self._health.inference_hangs(waited_s)
        message = f"{source}: an inference has not come back for {waited_s:.1f} s"
        if self._current.exit_on_timeout:
            self.get_logger().fatal(f"{message}: ending with code {HANG_EXIT_CODE}")
            # nothing can be freed in order: a thread is stuck in the accelerator's driver
            os._exit(HANG_EXIT_CODE)
        self.get_logger().error(message, throttle_duration_sec=10.0)

    def _on_dropped(self, source: str, reason: str, error: Exception | None) -> None:
        """In any of the pipeline's threads."""
        self._health.inputs[source].dropped(reason, str(error or ""), time.monotonic())
        if error is not None:
            self.get_logger().error(
                f"{source}: dropped an image: {error}", throttle_duration_sec=10.0
            )

    # Parameters, services, diagnostics -----------------------------------------------------------

    def _read_parameters(self) -> DetectorParameters:
        return DetectorParameters.from_values(parameter_values(self, list(PARAMETERS)))

    def _on_set_parameters(self, changes: Sequence[Parameter]) -> SetParametersResult:
        """Check the changes together; those allowed while running are used from the next frame."""
        values = parameter_values(self, list(PARAMETERS))
        values.update({change.name: change.value for change in changes if change.name in values})
        try:
            for change in changes:
                info = PARAMETERS.get(change.name)
                if self._detector is not None and info is not None and not info.dynamic:
                    raise DlaPerceptionError(
                        f"{change.name}: cannot change while an engine is loaded: clean the node "
                        "up, set it, and configure again"
                    )
            parameters = DetectorParameters.from_values(values)
            if self._detector is not None:
                self._detector.settings = parameters.settings
        except DlaPerceptionError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._current = parameters
        return SetParametersResult(successful=True)

    def _on_reset_statistics(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        self._health.reset(time.monotonic())
        response.success = True
        response.message = "statistics start again from zero"
        return response

    def _status(self, finding: Finding) -> DiagnosticStatus:
        return status_message(finding, self.get_fully_qualified_name(), self._health.hardware_id())

    def _publish_diagnostics(self) -> None:
        now_s = time.monotonic()
        parameters = self._current
        findings = [
            self._health.input(
                camera,
                now_s,
                parameters.input_timeout_s,
                self.count_publishers(topics.images),
                self.resolve_topic_name(topics.images),
            )
            for camera, topics in self._cameras.items()
        ]
        findings += [
            self._health.latency(
                now_s, parameters.max_latency_ms, parameters.max_consecutive_delay_ms
            ),
            self._health.engine_placement(),
            self._health.output(
                now_s,
                sum(publisher.get_subscription_count() for publisher in self._detections.values()),
            ),
        ]
        self._diagnostics.publish(
            diagnostics_message(
                [self._status(finding) for finding in findings], self.get_clock().now().to_msg()
            )
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the executable ``detector_node``."""
    return spin_node(DetectorNode, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
