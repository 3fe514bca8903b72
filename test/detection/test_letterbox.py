"""Where an image lies in a network's input, and the way back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.detection.heads.head import Decoded
from dla_perception.detection.letterbox import Letterbox, Placement
from dla_perception.detection.nms import suppress
from dla_perception.detection.preprocess import Preprocessor
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.layouts import Layout, empty_buffer, unpack

image_sizes = st.tuples(st.integers(1, 4096), st.integers(1, 4096))
input_sizes = st.tuples(st.integers(1, 8192), st.integers(1, 8192))
placements = st.sampled_from(list(Placement))
shares = st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4)


@pytest.mark.parametrize(
    ("image", "network", "placement", "content", "offset"),
    [
        ((1280, 720), (640, 640), Placement.CENTRE, (640, 360), (0, 140)),
        ((1280, 720), (640, 640), Placement.TOP_LEFT, (640, 360), (0, 0)),
        ((1280, 720), (640, 640), Placement.STRETCH, (640, 640), (0, 0)),
        ((480, 640), (416, 416), Placement.CENTRE, (312, 416), (52, 0)),
        # 277.55 rows: Ultralytics rounds, Megvii cuts off
        ((640, 427), (416, 416), Placement.CENTRE, (416, 278), (0, 69)),
        ((640, 427), (416, 416), Placement.TOP_LEFT, (416, 277), (0, 0)),
        # an odd remainder: the smaller half goes before the image, as Ultralytics' LetterBox does
        ((640, 425), (640, 640), Placement.CENTRE, (640, 425), (0, 107)),
        ((64, 48), (640, 640), Placement.CENTRE, (640, 480), (0, 80)),
        ((4096, 1), (416, 416), Placement.CENTRE, (416, 1), (0, 207)),
        ((1, 1), (672, 416), Placement.TOP_LEFT, (416, 416), (0, 0)),
    ],
)
def test_known_places(image, network, placement, content, offset):
    letterbox = Letterbox.fit(image, network, placement)
    assert (letterbox.content_size, letterbox.offset) == (content, offset)


@settings(max_examples=300, deadline=None)
@given(image_sizes, input_sizes, placements)
def test_content_is_as_large_as_fits(image, network, placement):
    letterbox = Letterbox.fit(image, network, placement)
    factor = min(network[0] / image[0], network[1] / image[1])
    for axis in range(2):
        size, offset = letterbox.content_size[axis], letterbox.offset[axis]
        assert 0 <= offset < offset + size <= network[axis]
        if placement is Placement.STRETCH:
            assert size == network[axis]
        elif placement is Placement.CENTRE:  # rounded
            assert abs(size - max(image[axis] * factor, 1)) <= 0.5 + 1e-9
            after = network[axis] - offset - size
            assert offset <= after <= offset + 1
        else:  # cut off
            assert -1e-9 <= max(image[axis] * factor, 1) - size < 1 + 1e-9
            assert offset == 0


@settings(max_examples=300, deadline=None)
@given(image_sizes, input_sizes, placements, shares)
def test_inverse_within_a_hundredth_of_a_pixel(image, network, placement, corners):
    letterbox = Letterbox.fit(image, network, placement)
    box = np.array([corners]) * np.array([*image, *image])
    assert np.abs(letterbox.to_image(letterbox.to_input(box)) - box).max() < 0.01


network_sizes = st.tuples(st.integers(32, 2048), st.integers(32, 2048))


@settings(max_examples=300, deadline=None)
@given(image_sizes, network_sizes, placements, shares)
def test_inverse_of_single_precision_boxes(image, network, placement, corners):
    """Heads return float32, which is enough for every size that a detector has."""
    letterbox = Letterbox.fit(image, network, placement)
    box = np.array([corners]) * np.array([*image, *image])
    there = letterbox.to_input(box).astype(np.float32)
    back = letterbox.to_image(there).astype(np.float32)
    assert np.abs(back - box).max() < 0.01


@settings(max_examples=100, deadline=None)
@given(image_sizes, input_sizes, placements)
def test_edges_map_onto_edges(image, network, placement):
    letterbox = Letterbox.fit(image, network, placement)
    (x, y), (width, height) = letterbox.offset, letterbox.content_size
    whole = letterbox.to_input(np.array([[0, 0, *image]]))
    np.testing.assert_allclose(whole, [[x, y, x + width, y + height]], atol=1e-9)
    back = letterbox.to_image(np.array([[x, y, x + width, y + height]]))
    np.testing.assert_allclose(back, [[0, 0, *image]], atol=1e-9)


def test_no_boxes():
    letterbox = Letterbox.fit((1280, 720), (640, 640))
    assert letterbox.to_image(np.empty((0, 4), np.float32)).shape == (0, 4)


def test_refuses_sizes_below_one():
    with pytest.raises(ValueError, match="must be positive"):
        Letterbox.fit((0, 480), (640, 640))
    with pytest.raises(ValueError, match="must be positive"):
        Letterbox.fit((640, 480), (640, 0))


@pytest.mark.parametrize("placement", list(Placement))
def test_a_placement_may_be_given_by_its_name(placement):
    named = Letterbox.fit((333, 517), (320, 224), str(placement.value))
    assert named == Letterbox.fit((333, 517), (320, 224), placement)
    with pytest.raises(ValueError, match="middle"):
        Letterbox.fit((333, 517), (320, 224), "middle")


class IdentityEngine:
    """Its output is its input."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.input = empty_buffer(spec)
        self.output = empty_buffer(spec)

    def run(self) -> None:
        self.output[...] = self.input


class BrightestRectangleHead:
    """Finds one bright rectangle on black by how much light each row and column holds.

    An edge inside a pixel makes this pixel as bright as it is covered. So brightness summed
    along a line, in units of full brightness, is the rectangle's length on it.
    """

    def __init__(self, spec: TensorSpec, full: float) -> None:
        self.spec = spec
        self.full = full

    def decode(self, output: np.ndarray) -> Decoded:
        light = unpack(output, self.spec)[0, 0].astype(np.float64) / self.full
        x1, x2 = self._ends(light.max(axis=0))
        y1, y2 = self._ends(light.max(axis=1))
        return Decoded(Detections(np.array([[x1, y1, x2, y2]]), np.ones(1), np.zeros(1)), 0)

    def _ends(self, profile: np.ndarray) -> tuple[float, float]:
        middle = int(profile.argmax())
        return middle - profile[:middle].sum(), middle + profile[middle:].sum()


def drawn_and_found(
    image_size: tuple[int, int],
    box: tuple[int, int, int, int],
    description: ModelDescription,
    spec: TensorSpec,
) -> np.ndarray:
    """A white box drawn in a black image, as it comes back in pixels of the image."""
    pixels = np.zeros((image_size[1], image_size[0], 3), np.uint8)
    cv2.rectangle(pixels, box[:2], (box[2] - 1, box[3] - 1), (255, 255, 255), cv2.FILLED)
    engine = IdentityEngine(spec)
    preprocess = Preprocessor(description, spec)
    letterbox = preprocess(pixels, "bgr", engine.input)
    engine.run()
    decoded = BrightestRectangleHead(spec, 127 if spec.dtype == np.int8 else 1).decode(
        engine.output
    )
    kept = suppress(decoded.detections, 0.45, 300)
    assert len(kept) == 1
    return letterbox.to_image(kept.boxes)[0]


SPECS = [
    (np.float32, Layout.LINEAR),
    (np.float16, Layout.CHW16),
    (np.float16, Layout.HWC4),
    (np.int8, Layout.HWC4),
    (np.int8, Layout.DLA_LINEAR),
    (np.int8, Layout.CHW32),
]


@pytest.mark.parametrize(("dtype", "layout"), SPECS)
@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("image_size", [(1280, 720), (640, 480), (333, 517)])
def test_drawn_box_comes_back_where_it_was(dtype, layout, placement, image_size):
    """Shrunk by area, which loses no light: exact but for 8 bits of brightness."""
    spec = TensorSpec("images", (1, 3, 224, 320), np.dtype(dtype), layout, scale=1 / 127)
    description = ModelDescription(
        "yolov8", 1, (320, 224), placement=placement, pad_value=0, interpolation="area"
    )
    width, height = image_size
    box = (width // 7, height // 5, width // 2 + 1, height - height // 6)
    found = drawn_and_found(image_size, box, description, spec)
    # one step of an edge pixel's brightness is this part of an image pixel
    step = max(width / 320, height / 224) * (1 / 127 if dtype == np.int8 else 1 / 255)
    np.testing.assert_allclose(found, box, atol=2 * step)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(8, 150), st.integers(8, 150)),
    st.tuples(st.integers(160, 400), st.integers(160, 400)),
    placements,
    st.data(),
)
def test_drawn_box_comes_back_from_an_enlarged_image(image_size, network, placement, data):
    """Enlarged linearly, an edge becomes a ramp that is symmetric about where it was."""
    width, height = image_size
    x1, y1 = data.draw(st.integers(1, width // 2 - 2)), data.draw(st.integers(1, height // 2 - 2))
    x2 = data.draw(st.integers(width // 2 + 1, width - 1))
    y2 = data.draw(st.integers(height // 2 + 1, height - 1))
    spec = TensorSpec("images", (1, 3, network[1], network[0]), np.dtype(np.float32))
    description = ModelDescription("yolov8", 1, network, placement=placement, pad_value=0)
    found = drawn_and_found(image_size, (x1, y1, x2, y2), description, spec)
    letterbox = Letterbox.fit(image_size, network, placement)
    factor = min(np.array(letterbox.content_size) / image_size)
    # the sum over samples of a ramp with the slope 1/factor is off by an eighth of that at most
    np.testing.assert_allclose(found, [x1, y1, x2, y2], atol=1 / 8 / factor**2 + 0.01)
