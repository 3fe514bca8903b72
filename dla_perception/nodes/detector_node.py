"""``detector_node``: images in, ``vision_msgs/Detection2DArray`` out."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2DArray

from dla_perception.detection.detector import Detector, Frame
from dla_perception.detection.drawing import draw_detections
from dla_perception.detection.pipeline import Answer, Pipeline
from dla_perception.detection.recognition import describe_model
from dla_perception.detection.self_test import check_self_test, recorded_self_test
from dla_perception.engines.loading import open_engine
from dla_perception.errors import DlaPerceptionError
from dla_perception.monitoring.accelerator import Accelerator
from dla_perception.monitoring.detector_health import DetectorHealth, InputHealth
from dla_perception.monitoring.health import Finding
from dla_perception.nodes.managed_node import ManagedNode
from dla_perception.nodes.spinning import spin_node
from dla_perception.ros.compressed_images import frame_from_compressed
from dla_perception.ros.detections import (
    class_id_texts,
    detections_to_message,
    label_info,
    vision_info,
)
from dla_perception.ros.detector_parameters import PARAMETERS, DetectorParameters
from dla_perception.ros.events import subscription_events
from dla_perception.ros.images import frame_from_image, image_from_pixels, stamp_to_ns
from dla_perception.ros.paths import expand_path
from dla_perception.ros.qos import ANNOTATED_QOS, DETECTIONS_QOS, image_qos
from dla_perception.ros.repeated_errors import RepeatedErrors

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


class DetectorNode(ManagedNode[DetectorParameters]):
    """A lifecycle node around one :class:`~dla_perception.detection.detector.Detector`.

    configure loads the engine, activate subscribes, deactivate finishes what was begun, cleanup
    frees the engine. The executor's thread only takes messages in; the pipeline's threads do the
    work and publish.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            "detector_node",
            PARAMETERS,
            "config/detector.yaml",
            DetectorParameters.from_values,
            **options,
        )
        self._cameras = camera_topics(self.current)
        self._health = DetectorHealth(list(self._cameras))
        self._accelerator = Accelerator()
        self._errors = RepeatedErrors(self.get_logger())
        self._detector: Detector | None = None
        self._pipeline: Pipeline | None = None
        self._images: list[Any] = []
        self._detections: dict[str, Any] = {}
        self._annotated: dict[str, Any] = {}
        self._latched: list[Any] = []
        self._class_ids: tuple[str, ...] = ()
        self.create_service(Trigger, "~/reset_statistics", self._on_reset_statistics)

    # Lifecycle -----------------------------------------------------------------------------------

    def refused(self, error: str) -> None:
        """Show it in diagnostics until the engine is loaded."""
        self._health.engine_failed(error)

    def activate(self) -> None:
        """Take images in."""
        assert self._detector is not None  # the state machine does not come here without
        self._health.activated(time.monotonic())
        self._accelerator.start()
        self._pipeline = Pipeline(
            self._detector,
            self._open_frame,
            self._on_answer,
            self._on_dropped,
            self.current.inference_timeout_s,
            self._on_timeout,
        )
        qos = image_qos(self.current.image_reliability)
        kind = Image if self.current.image_transport == "raw" else CompressedImage
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

    def configure(self) -> None:
        """Load the engine and offer the outputs."""
        parameters = self.current
        if not parameters.model_path:
            raise DlaPerceptionError("model_path: it is empty; set it to an ONNX file")
        engine = open_engine(
            expand_path(parameters.model_path),
            parameters.backend,
            parameters.dla_core,
            parameters.gpu_fallback,
        )
        try:
            description = describe_model(
                engine,
                expand_path(parameters.model_description_path) or None,
                expand_path(parameters.labels_path) or None,
            )
            detector = Detector(engine, description, parameters.settings)
            self_test = self._test_engine(detector)
        except BaseException:
            engine.close()
            raise
        self._detector = detector
        self._cameras = camera_topics(parameters)
        self._health.set_inputs(list(self._cameras))
        self._health.engine_loaded(
            engine.info, parameters.dla_core, parameters.gpu_fallback, self_test
        )
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
            self.publish_once("label_info", label_info(description, header, threshold)),
            self.publish_once("vision_info", vision_info(description, header, database)),
            self.publish_once("engine_info", self.status(self._health.engine_placement())),
        ]
        self.get_logger().info(
            f"{engine.info.path}: {description.family}, {description.num_classes} classes, "
            f"{description.input_size[0]} x {description.input_size[1]}, "
            f"on {engine.info.device} by {engine.info.runtime} {engine.info.runtime_version}"
        )

    def _test_engine(self, detector: Detector) -> str:
        """What the self-test gave, in words; a failure raises."""
        if not self.current.self_test:
            return "switched off"
        record = recorded_self_test(detector.engine)
        if record is None:
            return "nothing recorded"
        return str(check_self_test(detector, record))

    def deactivate(self) -> None:
        """Finish the frames that the engine has begun."""
        self._accelerator.close()
        if self._pipeline is None:
            return
        for subscription in self._images:
            self.destroy_subscription(subscription)
        self._images = []
        if not self._pipeline.stop():
            self.get_logger().error("an inference hangs; its threads are left behind")
        self._pipeline = None
        self._health.deactivated()

    def release(self) -> None:
        """Stop and free everything; may be called more than once."""
        self.deactivate()
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
            self.current.max_latency_ms,
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
        if self.current.exit_on_timeout:
            self.get_logger().fatal(f"{message}: ending with code {HANG_EXIT_CODE}")
            # the engine cannot be freed: a thread is stuck in the accelerator's driver
            self.end_process(HANG_EXIT_CODE)
            return
        self._errors.log((source, "hangs"), message, time.monotonic())

    def _on_dropped(self, source: str, reason: str, error: Exception | None) -> None:
        """In any of the pipeline's threads."""
        now_s = time.monotonic()
        self._health.inputs[source].dropped(reason, str(error or ""), now_s)
        if error is not None:
            self._errors.log((source, reason), f"{source}: dropped an image: {error}", now_s)

    # Parameters, services, diagnostics -----------------------------------------------------------

    def is_fixed(self) -> bool:
        """Whether an engine is loaded."""
        return self._detector is not None

    def use_parameters(self, parameters: DetectorParameters) -> None:
        """Detect with new settings from the next frame on."""
        if self._detector is not None:
            self._detector.settings = parameters.settings

    def hardware_id(self) -> str:
        """The device of the engine."""
        return self._health.hardware_id()

    def _on_reset_statistics(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        self._health.reset(time.monotonic())
        response.success = True
        response.message = "statistics start again from zero"
        return response

    def findings(self) -> Sequence[Finding]:
        """One per camera, then latency, placement, output and accelerator."""
        now_s = time.monotonic()
        parameters = self.current
        return [
            *(
                self._health.input(
                    camera,
                    now_s,
                    parameters.input_timeout_s,
                    self.count_publishers(topics.images),
                    self.resolve_topic_name(topics.images),
                )
                for camera, topics in self._cameras.items()
            ),
            self._health.latency(
                now_s, parameters.max_latency_ms, parameters.max_consecutive_delay_ms
            ),
            self._health.engine_placement(),
            self._health.output(
                now_s,
                sum(publisher.get_subscription_count() for publisher in self._detections.values()),
            ),
            self._accelerator.finding(now_s, self._health.busy_s, parameters.dla_core),
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the executable ``detector_node``."""
    return spin_node(DetectorNode, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
