"""Cells of outputs in every type and layout an engine may have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.detection.anchors import PUBLISHED_ANCHORS
from dla_perception.detection.description import DescriptionError, ModelDescription
from dla_perception.detection.heads import make_head
from dla_perception.detection.heads.outputs import CellReader
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.layouts import Layout, buffer_shape, pack

STORED = [
    ("float32", Layout.LINEAR),
    ("float16", Layout.LINEAR),
    ("float16", Layout.DLA_LINEAR),
    ("float16", Layout.CHW16),
    ("int8", Layout.LINEAR),
    ("int8", Layout.DLA_LINEAR),
    ("int8", Layout.CHW32),
]
EXTREMES = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 65504.0, -65504.0, 6e-8, -6e-8]


def garbage_buffer(array, spec):
    """The tensor in its layout, with what would pass every threshold where nothing belongs."""
    junk = 127 if spec.dtype == np.int8 else 1000
    is_padding = pack(np.ones(array.shape, spec.dtype), spec) == 0
    buffer = pack(array, spec)
    assert buffer.shape == buffer_shape(spec)
    buffer[is_padding] = junk
    return buffer


@st.composite
def stored_tensors(draw):
    dtype, layout = draw(st.sampled_from(STORED))
    channels = draw(st.integers(1, 70))
    height, width = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    scale = draw(st.sampled_from([0.01, 0.1, 0.37])) if dtype == "int8" else None
    spec = TensorSpec("head", (1, channels, height, width), np.dtype(dtype), layout, scale)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype == "int8":
        array = random.integers(-128, 128, spec.shape).astype(np.int8)
    else:
        array = random.normal(0, 4, spec.shape).astype(dtype)
        extreme = random.random(spec.shape) < draw(st.sampled_from([0, 0.01, 0.5]))
        array[extreme] = random.choice(np.array(EXTREMES, dtype), extreme.sum())
    start = draw(st.integers(0, channels - 1))
    stop = draw(st.integers(start + 1, channels))
    floor = draw(
        st.one_of(
            st.floats(-15, 15, width=32),
            st.sampled_from([0.0, -0.0, np.float32(1e-9), np.float32(-1e-9), 7e4, -7e4, -np.inf]),
        )
    )
    return spec, array, start, stop, float(np.float32(floor))


@settings(max_examples=400, deadline=None)
@given(stored_tensors(), st.booleans())
def test_cells_are_found_and_read(tensor, channels_last):
    spec, array, start, stop, floor = tensor
    real = array[0].reshape(len(array[0]), -1).astype(np.float32)
    real *= np.float32(spec.scale or 1)
    if channels_last and spec.layout is Layout.LINEAR:
        array = np.ascontiguousarray(array.transpose(0, 2, 3, 1))
        spec = TensorSpec(spec.name, array.shape, spec.dtype, scale=spec.scale)
        reader = CellReader(spec, channels_last=True)
    else:
        reader = CellReader(spec)
    buffer = garbage_buffer(array, spec)
    with np.errstate(invalid="ignore"):
        cells = reader.find(buffer, start, stop, floor)
        wanted = real[start:stop]
        # an int8 value that equals the bound but for rounding may be found as well
        slack = 2e-6 * abs(floor) if spec.dtype == np.int8 and np.isfinite(floor) else 0
        least = np.flatnonzero((~(wanted < floor)).any(axis=0))
        most = np.flatnonzero((~(wanted < floor - slack)).any(axis=0))
    assert set(least) <= set(cells) <= set(most)
    assert (np.diff(cells) > 0).all()
    read = reader.read(buffer, start, stop, cells)
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, wanted[:, cells])


# ---- whole heads


def heads_in_float(num_classes):
    """Description and shapes of each raw form, for an input of 160 x 96."""
    grids = [(12, 20), (6, 10), (3, 5)]

    def shapes(*channels):
        return [(1, count, *grid) for grid in grids for count in channels]

    anchors = PUBLISHED_ANCHORS["yolov5"]
    size = 5 + num_classes
    common = {"num_classes": num_classes, "input_size": (160, 96)}
    return {
        "darknet": (
            ModelDescription("darknet", anchors=anchors, scale_x_y=(1.2, 1.1, 1.05), **common),
            shapes(3 * size),
        ),
        "darknet new_coords": (
            ModelDescription(
                "darknet",
                anchors=anchors,
                scale_x_y=(2.0,),
                new_coords=True,
                scores_activated=False,
                **common,
            ),
            shapes(3 * size),
        ),
        "yolov5": (ModelDescription("yolov5", anchors=anchors, **common), shapes(3 * size)),
        "yolox one map": (ModelDescription("yolox", **common), shapes(size)),
        "yolox three maps": (ModelDescription("yolox", **common), shapes(num_classes, 4, 1)),
        "yolov8 one map": (ModelDescription("yolov8", **common), shapes(64 + num_classes)),
        "yolov8 two maps": (ModelDescription("yolov8", **common), shapes(64, num_classes)),
        "yolov10": (ModelDescription("yolov10", **common), shapes(64 + num_classes)),
        "yolo26": (ModelDescription("yolov10", reg_max=1, **common), shapes(4, num_classes)),
    }


def float_specs(shapes):
    return [
        TensorSpec(f"head_{index}", shape, np.dtype(np.float32))
        for index, shape in enumerate(shapes)
    ]


HEADS = list(heads_in_float(3))


@pytest.mark.parametrize("stored", STORED[1:], ids=lambda stored: f"{stored[0]} {stored[1].value}")
@pytest.mark.parametrize("num_classes", [1, 3, 80])
@pytest.mark.parametrize("name", HEADS)
def test_stored_outputs_decode_like_their_real_values(name, num_classes, stored):
    description, shapes = heads_in_float(num_classes)[name]
    dtype, layout = stored
    random = np.random.default_rng(7)
    real, buffers, specs = [], [], []
    for index, shape in enumerate(shapes):
        values = random.normal(3 if shape[1] == 4 else -1, 2, shape)
        # each map with a scale of its own, as calibration gives it
        scale = 0.05 + 0.01 * index if dtype == "int8" else None
        spec = TensorSpec(f"head_{index}", shape, np.dtype(dtype), layout, scale)
        if scale:
            array = np.clip(np.round(values / scale), -128, 127).astype(np.int8)
            real.append(array.astype(np.float32) * np.float32(scale))
        else:
            array = values.astype(dtype)
            array[random.random(shape) < 2e-4] = np.inf
            array[random.random(shape) < 2e-4] = np.nan
            array[random.random(shape) < 2e-4] = -np.nan
            real.append(array.astype(np.float32))
        specs.append(spec)
        buffers.append(garbage_buffer(array, spec))
    reference = make_head(description, float_specs(shapes))
    head = make_head(description, specs)
    mixed = np.linspace(0.2, 0.8, num_classes, dtype=np.float32)
    for thresholds in (np.full(num_classes, 0.3), np.full(num_classes, 0.6), mixed):
        thresholds = thresholds.astype(np.float32)
        expected = reference.decode(real, thresholds)
        found = head.decode(buffers, thresholds)
        assert len(expected.detections) >= 5
        np.testing.assert_array_equal(found.detections.boxes, expected.detections.boxes)
        np.testing.assert_array_equal(found.detections.scores, expected.detections.scores)
        np.testing.assert_array_equal(found.detections.class_ids, expected.detections.class_ids)
        assert found.invalid == expected.invalid


def test_outputs_of_one_network_may_differ_in_type_and_layout():
    description, shapes = heads_in_float(80)["yolov8 two maps"]
    random = np.random.default_rng(5)
    specs, buffers, real = [], [], []
    for index, shape in enumerate(shapes):
        if index % 2:
            spec = TensorSpec(f"cls_{index}", shape, np.dtype(np.int8), Layout.CHW32, 0.06)
            array = random.integers(-128, 30, shape).astype(np.int8)
            real.append(array * np.float32(0.06))
        else:
            spec = TensorSpec(f"box_{index}", shape, np.dtype(np.float16), Layout.DLA_LINEAR)
            array = random.normal(0, 2, shape).astype(np.float16)
            real.append(array.astype(np.float32))
        specs.append(spec)
        buffers.append(garbage_buffer(array, spec))
    thresholds = np.full(80, 0.85, np.float32)
    expected = make_head(description, float_specs(shapes)).decode(real, thresholds).detections
    found = make_head(description, specs).decode(buffers, thresholds).detections
    assert len(expected) >= 10
    np.testing.assert_array_equal(found.boxes, expected.boxes)
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_joined_int8_output_uses_its_scale():
    """YOLOX as exported, in INT8: boxes and probabilities share a scale."""
    spec = TensorSpec("output", (1, 315, 8), np.dtype(np.int8), scale=0.01)
    description = ModelDescription("yolox", 3, (160, 96), channels_last=True)
    buffer = np.zeros(spec.shape, np.int8)
    buffer[0, 22] = [50, 100, 69, 0, 90, 10, 80, 0]  # cell (2, 1) of the finest level
    decoded = make_head(description, [spec]).decode([buffer], np.full(3, 0.3, np.float32))
    (box, score, class_id) = next(iter(decoded.detections))
    assert (len(decoded.detections), class_id) == (1, 1)
    assert score == pytest.approx(0.9 * 0.8)
    width, height = 8 * np.exp(0.69), 8.0
    centre = np.array([(2 + 0.5) * 8, (1 + 1.0) * 8])
    np.testing.assert_allclose(box[:2], centre - [width / 2, height / 2], rtol=1e-5)
    np.testing.assert_allclose(box[2:], centre + [width / 2, height / 2], rtol=1e-5)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            TensorSpec("head", (1, 9, 4, 4), np.dtype(np.int8)),
            "output head: it is int8 and has no scale",
        ),
        (
            TensorSpec("head", (1, 9, 4, 4), np.dtype(np.int8), scale=0.0),
            "output head: it is int8 and has the scale 0.0",
        ),
        (
            TensorSpec("head", (1, 9, 4, 4), np.dtype(np.int8), scale=float("nan")),
            "output head: it is int8 and has the scale nan",
        ),
        (
            TensorSpec("head", (1, 9, 4, 4), np.dtype(np.int64)),
            "output head: it is of type int64",
        ),
        (
            TensorSpec("head", (1, 4, 4, 4), np.dtype(np.float16), Layout.HWC4),
            "output head: dla_hwc4 is a layout of inputs",
        ),
    ],
)
def test_unreadable_outputs_are_refused_by_name(spec, words):
    with pytest.raises(DescriptionError, match=words) as error:
        CellReader(spec)
    assert "\n" not in str(error.value)


def test_blocks_of_channels_cannot_be_channels_last():
    spec = TensorSpec("head", (1, 4, 4, 9), np.dtype(np.float16), Layout.CHW16)
    with pytest.raises(DescriptionError, match="output head .* chw16 cannot hold"):
        CellReader(spec, channels_last=True)
