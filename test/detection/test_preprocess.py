"""Every way into an engine's buffer against plain float preprocessing, bit for bit."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.letterbox import Letterbox, Placement
from dla_perception.detection.preprocess import PreprocessError, Preprocessor, pixel_tables
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.layouts import Layout, LayoutError, buffer_shape, empty_buffer, pack

INTERPOLATIONS = {
    "linear": cv2.INTER_LINEAR,
    "nearest": cv2.INTER_NEAREST,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
}
TARGETS = [
    ("float32", Layout.LINEAR, 64),
    ("float16", Layout.LINEAR, 64),
    ("int8", Layout.LINEAR, 64),
    ("float16", Layout.DLA_LINEAR, 64),
    ("int8", Layout.DLA_LINEAR, 64),
    ("int8", Layout.HWC4, 32),
    ("int8", Layout.HWC4, 64),
    ("float16", Layout.HWC4, 32),
    ("float16", Layout.HWC4, 64),
    ("float16", Layout.CHW16, 64),
    ("int8", Layout.CHW32, 64),
]
# scale, mean, std, INT8 scale: tables that are p // 2, other lines, with negative values, with
# values beyond 127, with ties that float32 decides, and different ones for each channel
NORMALISATIONS: list[tuple[Any, ...]] = [
    (1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 1 / 127),
    (1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.0078720935),
    (1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.0078759380),
    (1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 255 / 127),
    (1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 1 / 127),
    (1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.005),
    (1 / 255, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 2 / 255),
    (1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 0.048),
    (1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 0.0207),
]


def describe(input_size: tuple[int, int], **changes: Any) -> ModelDescription:
    return ModelDescription("yolov8", 80, input_size, **changes)


def input_spec(
    size: tuple[int, int],
    dtype: str,
    layout: Layout = Layout.LINEAR,
    scale: float | None = 1 / 127,
    row_alignment: int = 64,
) -> TensorSpec:
    width, height = size
    int8_scale = scale if dtype == "int8" else None
    shape = (1, 3, height, width)
    return TensorSpec("images", shape, np.dtype(dtype), layout, int8_scale, row_alignment)


def reference(
    description: ModelDescription,
    spec: TensorSpec,
    pixels: np.ndarray,
    channel_order: str,
    rounding: str,
) -> np.ndarray:
    """The buffer, made of floats: letterbox, normalise, transpose, quantise, pack."""
    width, height = description.input_size
    letterbox = Letterbox.fit(pixels.shape[1::-1], (width, height), description.placement)
    image = np.full((height, width, 3), description.pad_value, np.uint8)
    x, y = letterbox.offset
    content = pixels
    if letterbox.content_size != letterbox.image_size:
        flag = INTERPOLATIONS[description.interpolation]
        content = cv2.resize(np.array(pixels), letterbox.content_size, interpolation=flag)
    image[y : y + content.shape[0], x : x + content.shape[1]] = content
    if channel_order != description.channel_order:
        image = image[..., ::-1]
    real = (image * description.scale - np.array(description.mean)) / np.array(description.std)
    tensor = real.transpose(2, 0, 1)[None]
    if spec.dtype == np.int8:
        steps = tensor.astype(np.float32) / np.float32(spec.scale)
        steps = np.rint(steps) if rounding == "nearest" else np.trunc(steps)
        tensor = np.clip(steps, -128, 127)
    return pack(tensor.astype(spec.dtype), spec)


def assert_same_bits(buffer: np.ndarray, expected: np.ndarray) -> None:
    assert buffer.dtype == expected.dtype
    np.testing.assert_array_equal(buffer.view(np.uint8), expected.view(np.uint8))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    size = (draw(st.integers(1, 90)), draw(st.integers(1, 90)))
    dtype, layout, row_alignment = draw(st.sampled_from(TARGETS))
    scale, mean, std, int8_scale = draw(st.sampled_from(NORMALISATIONS))
    description = describe(
        size,
        channel_order=draw(st.sampled_from(["rgb", "bgr"])),
        scale=scale,
        mean=mean,
        std=std,
        placement=draw(st.sampled_from(list(Placement))),
        pad_value=draw(st.integers(0, 255)),
        interpolation=draw(st.sampled_from(list(INTERPOLATIONS))),
    )
    spec = input_spec(size, dtype, layout, int8_scale, row_alignment)
    frame = st.tuples(
        st.integers(1, 120),
        st.integers(1, 120),
        st.sampled_from(["rgb", "bgr"]),
        st.sampled_from(["plain", "padded rows", "every other row", "four channels", "mirrored"]),
        st.integers(0, 1),  # slot
    )
    frames = draw(st.lists(frame, min_size=1, max_size=5))
    rounding = draw(st.sampled_from(["nearest", "truncate"]))
    return description, spec, rounding, frames, draw(st.integers(0, 2**32 - 1))


def image_of(generator: np.random.Generator, width: int, height: int, kind: str) -> np.ndarray:
    """An image whose rows, or pixels, do not follow one another in memory."""
    extra_rows, extra_columns, channels = (2 if kind == "every other row" else 1), 0, 3
    if kind == "padded rows":
        extra_columns = 5
    if kind == "four channels":
        channels = 4
    shape = (height * extra_rows, width + extra_columns, channels)
    pixels = generator.integers(0, 256, shape, np.uint8)
    pixels = pixels[::extra_rows, :width, :3]
    return pixels[:, ::-1] if kind == "mirrored" else pixels


@settings(max_examples=250, deadline=None)
@given(cases())
def test_equals_float_preprocessing_then_quantisation_and_packing(case):
    """Several images of changing size through two slots that held something else before."""
    description, spec, rounding, frames, seed = case
    generator = np.random.default_rng(seed)
    preprocess = Preprocessor(description, spec, rounding)
    buffers = [np.full(buffer_shape(spec), 77, spec.dtype) for _ in range(2)]
    for width, height, channel_order, kind, slot in frames:
        pixels = image_of(generator, width, height, kind)
        before = pixels.copy()
        letterbox = preprocess(pixels, channel_order, buffers[slot])
        np.testing.assert_array_equal(pixels, before)
        expected = reference(description, spec, pixels, channel_order, rounding)
        assert_same_bits(buffers[slot], expected)
        assert letterbox == Letterbox.fit(
            (width, height), description.input_size, description.placement
        )


@pytest.mark.parametrize(("dtype", "layout", "row_alignment"), TARGETS)
@pytest.mark.parametrize("image_size", [(1280, 720), (640, 480), (480, 640), (1279, 719)])
def test_camera_images(dtype, layout, row_alignment, image_size):
    """Real sizes: OpenCV and numpy go other ways through memory than for small images."""
    size = (416, 416) if image_size[0] < 1000 else (640, 640)
    spec = input_spec(size, dtype, layout, 1 / 127, row_alignment)
    description = describe(size)
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (image_size[1], image_size[0], 3), np.uint8)
    buffer = empty_buffer(spec)
    Preprocessor(description, spec)(pixels, "bgr", buffer)
    assert_same_bits(buffer, reference(description, spec, pixels, "bgr", "nearest"))


@pytest.mark.parametrize(("dtype", "layout", "row_alignment"), TARGETS)
def test_images_that_are_no_whole_number_of_words(dtype, layout, row_alignment):
    pixels = np.random.default_rng(2).integers(0, 256, (3, 7, 3), np.uint8)
    for width, height in [(1, 1), (3, 3), (5, 1), (7, 3), (5, 7)]:
        spec = input_spec((width, height), dtype, layout, 1 / 127, row_alignment)
        description = describe((width, height), placement=Placement.STRETCH)
        buffer = empty_buffer(spec)
        Preprocessor(description, spec)(pixels, "bgr", buffer)
        assert_same_bits(buffer, reference(description, spec, pixels, "bgr", "nearest"))


@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_int8_is_the_float32_input_quantised(normalisation, rounding):
    """Our own float32 buffer, quantised as a Q layer does, is our INT8 HWC4 buffer."""
    scale, mean, std, int8_scale = normalisation
    description = describe((64, 48), scale=scale, mean=mean, std=std)
    every_value = np.arange(256, dtype=np.uint8)
    pixels = np.stack([every_value, every_value[::-1], np.roll(every_value, 99)], axis=1)
    pixels = np.tile(pixels.reshape(4, 64, 3), (12, 1, 1))
    floats = np.empty((1, 3, 48, 64), np.float32)
    Preprocessor(description, input_spec((64, 48), "float32"))(pixels, "rgb", floats)
    spec = input_spec((64, 48), "int8", Layout.HWC4, int8_scale)
    buffer = empty_buffer(spec)
    Preprocessor(description, spec, rounding)(pixels, "rgb", buffer)
    steps = floats / np.float32(int8_scale)
    steps = np.rint(steps) if rounding == "nearest" else np.fix(steps)
    assert_same_bits(buffer, pack(np.clip(steps, -128, 127).astype(np.int8), spec))


@settings(max_examples=400, deadline=None)
@given(
    st.floats(0.001, 3.0),
    st.floats(-1.0, 1.0),
    st.floats(0.0005, 0.05),
    st.sampled_from(["nearest", "truncate"]),
)
def test_quick_conversions_give_the_table(scale, mean, int8_scale, rounding):
    """Whatever stands in for a table lookup gives the table's value for each pixel value."""
    description = describe((256, 3), scale=scale / 255, mean=(mean,) * 3)
    pixels = np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (3, 1, 3))
    for layout in (Layout.HWC4, Layout.LINEAR):
        spec = input_spec((256, 3), "int8", layout, int8_scale)
        buffer = empty_buffer(spec)
        Preprocessor(description, spec, rounding)(pixels, "rgb", buffer)
        row = buffer[0, 0, :, 0] if layout is Layout.HWC4 else buffer[0, 0, 0]
        np.testing.assert_array_equal(row, pixel_tables(description, spec, rounding)[0])


def test_tables():
    description = describe((8, 8))
    halves = pixel_tables(description, input_spec((8, 8), "int8", scale=1 / 127))
    np.testing.assert_array_equal(halves, np.tile(np.arange(256) // 2, (3, 1)))
    # 126.5 is a tie: to the even 126, toward zero 126; 127.5 to 128, limited to 127
    ties = describe((8, 8), scale=0.5)
    spec = input_spec((8, 8), "int8", scale=1.0)
    assert pixel_tables(ties, spec)[0, [3, 5, 253, 255]].tolist() == [2, 2, 126, 127]
    truncated = pixel_tables(ties, spec, "truncate")[0, [3, 5, 253, 255]]
    assert truncated.tolist() == [1, 2, 126, 127]
    shifted = describe((8, 8), scale=1.0, mean=(128.0, 200.0, 0.6))
    spec = input_spec((8, 8), "int8", scale=1.0)
    assert pixel_tables(shifted, spec)[:, 0].tolist() == [-128, -128, -1]
    assert pixel_tables(shifted, spec, "truncate")[:, 0].tolist() == [-128, -128, 0]
    real = pixel_tables(
        describe((8, 8), mean=(0.5, 0, 0), std=(0.25, 1, 1)), input_spec((8, 8), "float32")
    )
    assert real[0, 255] == np.float32(2.0)
    assert real[1, 1] == np.float32(1 / 255)


@pytest.mark.parametrize(("dtype", "layout", "row_alignment"), TARGETS)
def test_pad_is_written_once_per_place_and_buffer(dtype, layout, row_alignment):
    size = (64, 64)
    spec = input_spec(size, dtype, layout, 1 / 127, row_alignment)
    preprocess = Preprocessor(describe(size, pad_value=200), spec)
    wide, tall = np.zeros((32, 64, 3), np.uint8), np.zeros((64, 32, 3), np.uint8)
    slots = [empty_buffer(spec) for _ in range(2)]
    for buffer in slots:
        preprocess(wide, "bgr", buffer)
    whole = slots[0].copy()
    for buffer in slots:
        buffer.reshape(-1)[0] = 55  # the first element of the first row: padding, marked
    for buffer in slots * 2:
        preprocess(wide, "bgr", buffer)
        assert buffer.reshape(-1)[0] == 55
    for image in (tall, wide):
        for buffer in slots:
            preprocess(image, "bgr", buffer)
    for buffer in slots:
        assert_same_bits(buffer, whole)


def test_keeps_no_buffer_alive_and_knows_a_new_one():
    spec = input_spec((64, 64), "int8", Layout.HWC4)
    description = describe((64, 64))
    preprocess = Preprocessor(description, spec)
    pixels = np.full((32, 64, 3), 9, np.uint8)
    expected = reference(description, spec, pixels, "bgr", "nearest")
    for _ in range(20):  # some of them at the address of an earlier one
        buffer = np.full(buffer_shape(spec), 88, np.int8)
        preprocess(pixels, "bgr", buffer)
        assert_same_bits(buffer, expected)
        gone = weakref.ref(buffer)
        del buffer
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (input_spec((8, 8), "int8", scale=None), "INT8 scale is unknown"),
        (input_spec((8, 8), "int8", scale=-1.0), "INT8 scale is -1.0"),
        (input_spec((8, 8), "float64"), "float32, float16 or int8"),
        (input_spec((9, 8), "float32"), "expected [1, 3, 8, 8]"),
        (TensorSpec("x", (1, 1, 8, 8), np.dtype(np.float32)), "expected [1, 3, 8, 8]"),
        (TensorSpec("x", (2, 3, 8, 8), np.dtype(np.float32)), "expected [1, 3, 8, 8]"),
    ],
)
def test_refuses_inputs_it_cannot_fill(spec, words):
    with pytest.raises(PreprocessError) as error:
        Preprocessor(describe((8, 8)), spec)
    assert words in str(error.value)
    assert str(error.value).startswith(f"input {spec}: ")
    assert "\n" not in str(error.value)


def test_refuses_values_beyond_the_type_and_layouts_of_other_types():
    with pytest.raises(PreprocessError, match="values up to 255000, more than float16 holds"):
        Preprocessor(describe((8, 8), scale=1000.0), input_spec((8, 8), "float16"))
    with pytest.raises(LayoutError, match="holds float16 only"):
        Preprocessor(describe((8, 8)), input_spec((8, 8), "int8", Layout.CHW16))


def test_refuses_wrong_arguments():
    spec = input_spec((8, 8), "float32")
    preprocess = Preprocessor(describe((8, 8)), spec)
    buffer, pixels = empty_buffer(spec), np.zeros((4, 4, 3), np.uint8)
    for wrong in (pixels[..., 0], pixels.astype(np.float32), pixels[:0]):
        with pytest.raises(ValueError, match=r"expected pixels \(H, W, 3\) uint8"):
            preprocess(wrong, "bgr", buffer)
    with pytest.raises(ValueError, match="channel_order: 'mono8'"):
        preprocess(pixels, "mono8", buffer)
    with pytest.raises(ValueError, match="expected a buffer"):
        preprocess(pixels, "bgr", buffer[0])
    with pytest.raises(ValueError, match="rounding: 'up'"):
        Preprocessor(describe((8, 8)), spec, rounding="up")
