"""What the findings say in each situation, on a clock that the test moves."""

from __future__ import annotations

import pytest

from dla_perception.engines.engine import EngineInfo
from dla_perception.monitoring.detector_health import STAGES, DetectorHealth
from dla_perception.monitoring.health import Level, worst

INFO = EngineInfo("net.onnx", "onnxruntime", "1.2", "cpu", "ab" * 32)
TIMES = dict.fromkeys(STAGES, 2.0)


@pytest.fixture
def health():
    made = DetectorHealth(["front", "rear"])
    made.engine_loaded(INFO)
    made.activated(100.0)
    return made


def look(health, now_s, publishers=1):
    return health.input("front", now_s, 1.0, publishers, "/front/image_raw")


def test_silence_is_explained(health):
    assert look(health, 100.5).level is Level.OK  # still within the time-out
    nobody = look(health, 102.0, publishers=0)
    assert nobody.level is Level.STALE
    assert "nobody publishes /front/image_raw" in nobody.message
    lost = look(health, 102.0, publishers=1)
    assert lost.level is Level.STALE
    assert "FASTDDS_DEFAULT_PROFILES_FILE" in lost.message
    health.inputs["front"].incompatible("reliability")
    assert "its reliability does not fit" in look(health, 102.0).message
    health.inputs["front"].matched(1)
    health.inputs["front"].received(5, 0, 103.0)
    assert look(health, 103.5).level is Level.OK
    gone = look(health, 106.0)
    assert gone.level is Level.STALE
    assert "no image for 3.0 s" in gone.message
    assert health.input("rear", 106.0, 1.0, 0, "/rear/image_raw").level is Level.STALE


def test_dropped_images_are_a_warning_for_a_while_and_counted_for_ever(health):
    camera = health.inputs["front"]
    camera.received(5, 0, 101.0)
    camera.dropped("encoding", "image encoding 'x' is not one of: bgr8", 101.0)
    finding = look(health, 101.5)
    assert finding.level is Level.WARN
    assert "image encoding 'x'" in finding.message
    camera.received(6, 0, 110.0)
    camera.dropped("replaced", "", 110.0)
    finding = look(health, 110.1)
    assert finding.level is Level.OK
    assert finding.values["dropped_encoding"] == "1"
    assert finding.values["dropped_replaced"] == "1"
    assert finding.values["total_dropped_frames"] == "2"


def test_a_zero_stamp_is_a_warning(health):
    health.inputs["front"].received(0, 0, 101.0)
    finding = look(health, 101.1)
    assert finding.level is Level.WARN
    assert "stamp" in finding.message
    assert finding.values["last_frame_timestamp"] == "0.000000000"


def test_rates_by_clock_and_by_stamp(health):
    camera = health.inputs["front"]
    for index in range(40):  # a bag of 10 Hz played at 20 Hz
        camera.received(7_000_000_000 + index * 100_000_000, 0, 101 + index * 0.05)
    values = look(health, 101 + 39 * 0.05).values
    assert float(values["frame_rate_node"]) == pytest.approx(20, rel=0.05)
    assert float(values["frame_rate_msg"]) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("clock_s", "age"),
    [
        (1000.25, "250.0"),
        (999.95, "0.0"),  # ahead by less than clocks of one machine differ
        (999.8, "n/a"),
        (1059.0, "59000.0"),
        (1061.0, "n/a"),  # an old bag
        (0.0, "n/a"),  # a simulated clock that has not begun
    ],
)
def test_the_age_of_an_image_is_told_where_the_clocks_agree(health, clock_s, age):
    health.inputs["front"].received(1_000_000_000_000, round(clock_s * 1e9), 101.0)
    assert look(health, 101.0).values["image_age_ms"] == age


def test_before_the_first_frame_figures_are_not_available(health):
    values = health.latency(101.0, 0, 0).values
    assert {values[f"{stage}_{figure}_ms"] for stage in STAGES for figure in ("p50", "max")} == {
        "n/a"
    }
    assert health.output(101.0, 0).values["frame_rate_node"] == "n/a"


def publish(health, total_ms, now_s, limit_ms=10.0, invalid=0):
    health.published("front", 3, invalid, {**TIMES, "total": total_ms}, limit_ms, now_s)


def test_late_frames_warn_then_are_an_error(health):
    publish(health, 5, 101.0)
    assert health.latency(101.0, 10, 1000).level is Level.OK
    publish(health, 15, 102.0)
    warned = health.latency(102.0, 10, 1000)
    assert (warned.level, warned.values["deadline_misses"]) == (Level.WARN, "1")
    publish(health, 15, 103.0)
    failed = health.latency(103.0, 10, 1000)
    assert (failed.level, failed.values["deadline_misses"]) == (Level.ERROR, "2")
    assert failed.values["consecutive_processing_delay_ms"] == "1000"
    publish(health, 5, 104.0)
    assert health.latency(104.0, 10, 1000).level is Level.OK


def test_a_hanging_inference_is_an_error_until_it_comes_back(health):
    health.inference_hangs(1.5)
    finding = health.latency(102.0, 0, 1000)
    assert finding.level is Level.ERROR
    assert "has not come back for 1.5 s on cpu" in finding.message
    publish(health, 5, 103.0)
    assert health.latency(103.0, 0, 1000).level is Level.OK


def test_values_that_are_not_finite_are_a_warning(health):
    publish(health, 5, 101.0, invalid=4)
    finding = health.output(101.0, 1)
    assert finding.level is Level.WARN
    assert finding.values["invalid_values_dropped"] == "4"
    assert finding.values["detections_published"] == "3"


def test_engine_placement(health):
    finding = health.engine_placement()
    assert (finding.level, finding.values["device"]) == (Level.OK, "cpu")
    assert finding.values["layers_on_dla"] == "n/a"
    health.engine_failed("net.onnx: broken")
    assert health.engine_placement().level is Level.ERROR
    assert health.engine_placement().message == "net.onnx: broken"
    assert health.hardware_id() == "none"


@pytest.mark.parametrize(
    ("device", "layers", "policy", "level", "words"),
    [
        ("dla0", (), "warn", Level.OK, "runs on dla0"),
        ("dla0", ("a", "b"), "warn", Level.WARN, "2 layers run on the GPU: a, b"),
        ("dla0", ("a", "b"), "allow", Level.OK, "runs on dla0"),
        ("dla0", tuple("abcdefghijkl"), "warn", Level.WARN, "j and 2 more"),
        ("dla0", None, "warn", Level.WARN, "not known which layers"),
        ("cpu", None, "warn", Level.WARN, "asked for, but the network runs on cpu"),
    ],
)
def test_layers_that_are_not_on_the_dla(health, device, layers, policy, level, words):
    info = EngineInfo("net.plan", "tensorrt", "10.3", device, "", ("x",), layers)
    health.engine_loaded(info, 0, policy, "self-test: 3 of 3")
    finding = health.engine_placement()
    assert finding.level is level
    assert words in finding.message
    assert finding.values["self_test"] == "self-test: 3 of 3"


def test_reset_starts_the_figures_again(health):
    health.inputs["front"].received(5, 0, 101.0)
    publish(health, 15, 101.0, invalid=1)
    health.reset(102.0)
    assert look(health, 101.5).values["frames_received"] == "0"
    assert health.output(102.0, 0).level is Level.OK
    assert health.latency(102.0, 10, 0).values["deadline_misses"] == "0"


def test_worst_of_several_problems():
    assert worst([], "well") == (Level.OK, "well")
    problems = [(Level.WARN, "a"), (Level.ERROR, "b"), (Level.ERROR, "c")]
    assert worst(problems, "well") == (Level.ERROR, "b; c")
