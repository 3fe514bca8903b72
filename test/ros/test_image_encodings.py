"""Every encoding a camera driver publishes, against conversions written out here."""

from __future__ import annotations

from array import array

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import CompressedImage, Image

from dla_perception.ros.compressed_images import frame_from_compressed
from dla_perception.ros.images import ImageMessageError, frame_from_image

RNG = np.random.default_rng(11)
PADDINGS = (0, 2, 30)


def message_of(rows: np.ndarray, width: int, height: int, encoding: str, padding: int = 0) -> Image:
    """A message whose data is ``(R, B) uint8`` rows of bytes, each with padding after it."""
    padded = np.full((len(rows), rows.shape[1] + padding), 0xEE, np.uint8)
    padded[:, : rows.shape[1]] = rows
    step = padded.size // len(rows)
    return Image(
        width=width,
        height=height,
        encoding=encoding,
        step=step,
        data=array("B", padded.tobytes()),
    )


def bgr_of(message: Image) -> np.ndarray:
    frame = frame_from_image(message)
    assert frame.pixels.dtype == np.uint8
    return frame.pixels if frame.channel_order == "bgr" else frame.pixels[:, :, ::-1]


def yuv_to_bgr(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """BT.601, video range, in floating point (ITU-R BT.601-7, section 2.5)."""
    y, u, v = (plane.astype(np.float64) for plane in (y, u, v))
    luma = 1.164383 * (y - 16)
    red = luma + 1.596027 * (v - 128)
    green = luma - 0.391762 * (u - 128) - 0.812968 * (v - 128)
    blue = luma + 2.017232 * (u - 128)
    return np.clip(np.rint(np.stack([blue, green, red], axis=-1)), 0, 255)


CHROMA_TOLERANCE = 1
"""OpenCV computes in fixed point."""


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("big", [0, 1])
@pytest.mark.parametrize("encoding", ["mono16", "16UC1"])
def test_16_bit_greys_are_scaled_by_their_full_range(encoding, big, padding):
    values = RNG.integers(0, 65536, (5, 7), np.uint16)
    values[0, :3] = 0, 65535, 257
    stored = values.astype(">u2" if big else "<u2")
    message = message_of(stored.view(np.uint8).reshape(5, 14), 7, 5, encoding, padding)
    message.is_bigendian = big
    expected = np.rint(values * (255 / 65535)).astype(np.uint8)
    assert tuple(expected[0, :3]) == (0, 255, 1)
    np.testing.assert_array_equal(bgr_of(message), np.repeat(expected[:, :, None], 3, axis=2))


@pytest.mark.parametrize("padding", PADDINGS)
def test_encodings_without_a_meaning_of_their_own(padding):
    pixels = RNG.integers(0, 256, (5, 7, 4), np.uint8)
    for encoding, channels in (("8UC1", 1), ("8UC3", 3), ("8UC4", 4)):
        rows = pixels[:, :, :channels].reshape(5, -1)
        found = bgr_of(message_of(rows, 7, 5, encoding, padding))
        expected = np.repeat(pixels[:, :, :1], 3, axis=2) if channels == 1 else pixels[:, :, :3]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer_patterns(pattern, padding):
    """A picture of one colour has the same colour after interpolation, and ramps stay ramps."""
    blue, green, red = 40, 90, 200
    value = {"r": red, "g": green, "b": blue}
    cell = np.array([value[letter] for letter in pattern], np.uint8).reshape(2, 2)
    mosaic = np.tile(cell, (4, 5))
    found = bgr_of(message_of(mosaic, 10, 8, f"bayer_{pattern}8", padding))
    np.testing.assert_array_equal(found, np.broadcast_to([blue, green, red], (8, 10, 3)))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("encoding", "order"),
    [("yuv422", "uyvy"), ("uyvy", "uyvy"), ("yuv422_yuy2", "yuyv"), ("yuyv", "yuyv")],
)
def test_yuv_with_chroma_for_two_pixels(encoding, order, padding):
    height, width = 6, 8
    y = RNG.integers(16, 236, (height, width), np.uint8)
    u, v = RNG.integers(16, 241, (2, height, width // 2), np.uint8)
    rows = np.empty((height, width, 2), np.uint8)
    luma, chroma = (1, 0) if order == "uyvy" else (0, 1)
    rows[:, :, luma] = y
    rows[:, 0::2, chroma], rows[:, 1::2, chroma] = u, v
    found = bgr_of(message_of(rows.reshape(height, -1), width, height, encoding, padding))
    expected = yuv_to_bgr(y, u.repeat(2, axis=1), v.repeat(2, axis=1))
    np.testing.assert_allclose(found, expected, atol=CHROMA_TOLERANCE)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("encoding", ["nv12", "nv21"])
def test_yuv_with_chroma_for_four_pixels(encoding, padding):
    height, width = 6, 8
    y = RNG.integers(16, 236, (height, width), np.uint8)
    u, v = RNG.integers(16, 241, (2, height // 2, width // 2), np.uint8)
    first, second = (u, v) if encoding == "nv12" else (v, u)
    chroma = np.stack([first, second], axis=-1).reshape(height // 2, width)
    message = message_of(np.vstack([y, chroma]), width, height, encoding, padding)
    expected = yuv_to_bgr(y, *(plane.repeat(2, axis=0).repeat(2, axis=1) for plane in (u, v)))
    np.testing.assert_allclose(bgr_of(message), expected, atol=CHROMA_TOLERANCE)


@pytest.mark.parametrize("padding", PADDINGS)
def test_yuv_with_chroma_for_each_pixel(padding):
    height, width = 5, 7
    y = RNG.integers(16, 236, (height, width), np.uint8)
    u, v = RNG.integers(16, 241, (2, height, width), np.uint8)
    step = width + padding
    data = np.full((3 * height, step), 0xEE, np.uint8)
    data[:height, :width] = y
    chroma = data[height:].reshape(height, 2 * step)
    chroma[:, : 2 * width] = np.stack([u, v], axis=-1).reshape(height, 2 * width)
    message = message_of(data, width, height, "nv24")
    np.testing.assert_allclose(bgr_of(message), yuv_to_bgr(y, u, v), atol=CHROMA_TOLERANCE)


@pytest.mark.parametrize(
    ("encoding", "width", "height", "words"),
    [
        ("yuv422", 7, 4, "yuv422 needs an even width"),
        ("yuv422_yuy2", 7, 4, "yuv422_yuy2 needs an even width"),
        ("nv12", 7, 4, "nv12 needs an even width and height"),
        ("nv21", 8, 5, "nv21 needs an even width and height"),
    ],
)
def test_odd_sizes_of_shared_chroma_are_refused_by_name(encoding, width, height, words):
    rows = np.zeros((height * 3 // 2, width * 2), np.uint8)
    with pytest.raises(ImageMessageError, match=words) as caught:
        frame_from_image(message_of(rows, width, height, encoding))
    assert caught.value.reason == "size"


ENCODINGS = (
    *("bgr8", "rgb8", "bgra8", "rgba8", "mono8", "mono16", "16UC1", "8UC1", "8UC3", "8UC4"),
    *("bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"),
    *("yuv422", "yuv422_yuy2", "nv12", "nv21", "nv24"),
)

edge = st.integers(0, 40) | st.integers(0, 2**32 - 1)


@settings(max_examples=2500, deadline=None)
@given(
    st.sampled_from(ENCODINGS) | st.text(max_size=8),
    edge,
    edge,
    edge,
    st.integers(0, 2000),
    st.integers(0, 255),
)
def test_whatever_a_message_says_it_is_pixels_or_a_named_refusal(
    encoding, width, height, step, length, big
):
    message = Image(width=width, height=height, step=step, encoding=encoding, is_bigendian=big)
    message.data = array("B", bytes(length))
    try:
        frame = frame_from_image(message)
    except ImageMessageError as error:
        refusal = error
    else:
        assert frame.pixels.shape == (height, width, 3)
        return
    assert refusal.reason in ("size", "step", "data length", "encoding")
    assert "\n" not in str(refusal)


PICTURE = cv2.GaussianBlur(RNG.integers(0, 256, (48, 64, 3), np.uint8), (0, 0), 3)


def compressed(suffix: str, text: str, *parameters: int) -> CompressedImage:
    encoded, data = cv2.imencode(suffix, PICTURE, list(parameters))
    assert encoded
    message = CompressedImage(format=text, data=array("B", data.tobytes()))
    message.header.stamp.sec = 9
    return message


@pytest.mark.parametrize(
    "text", ["jpeg", "bgr8; jpeg compressed bgr8", "rgb8; jpeg compressed bgr8", ""]
)
def test_jpeg_whatever_the_format_says(text):
    frame = frame_from_compressed(compressed(".jpg", text), "left")
    np.testing.assert_allclose(frame.pixels.astype(int), PICTURE, atol=12)
    assert (frame.channel_order, frame.stamp_ns, frame.source) == ("bgr", 9_000_000_000, "left")


@pytest.mark.parametrize(
    "message",
    [
        compressed(".png", "bgr8; png compressed bgr8"),
        compressed(".webp", "bgr8; webp compressed bgr8", cv2.IMWRITE_WEBP_QUALITY, 101),
    ],
)
def test_lossless_formats_are_exact(message):
    np.testing.assert_array_equal(frame_from_compressed(message).pixels, PICTURE)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.7, 0.97])
def test_pictures_that_are_cut_off_are_refused(suffix, share):
    whole = compressed(suffix, suffix[1:])
    cut = CompressedImage(format=whole.format, data=whole.data[: int(len(whole.data) * share)])
    with pytest.raises(ImageMessageError, match="not a whole JPEG, PNG or WebP") as caught:
        frame_from_compressed(cut)
    assert caught.value.reason == "compressed data"


def test_a_cut_picture_is_not_saved_by_the_thumbnail_in_its_metadata():
    whole = compressed(".jpg", "jpeg").data.tobytes()
    thumbnail = b"\xff\xe1" + (len(whole) + 2).to_bytes(2, "big") + whole
    cut = b"\xff\xd8" + thumbnail + whole[2:-30]
    with pytest.raises(ImageMessageError, match="not a whole"):
        frame_from_compressed(CompressedImage(format="jpeg", data=array("B", cut)))


def test_depth_is_no_picture():
    message = compressed(".png", "16UC1; compressedDepth png")
    with pytest.raises(ImageMessageError, match="depth map") as caught:
        frame_from_compressed(message)
    assert caught.value.reason == "encoding"


@settings(max_examples=2500, deadline=None)
@given(
    st.sampled_from([".jpg", ".png", ".webp"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.binary(max_size=20),
)
def test_damaged_pictures_are_decoded_or_refused(suffix, damages, tail):
    data = bytearray(MUTATED[suffix])
    for place, value in damages:
        data[int(place * len(data))] = value
    message = CompressedImage(format=suffix, data=array("B", bytes(data) + tail))
    try:
        frame = frame_from_compressed(message)
    except ImageMessageError as error:
        refusal = error
    else:
        assert frame.pixels.ndim == 3
        return
    assert refusal.reason == "compressed data"


MUTATED = {suffix: compressed(suffix, "").data.tobytes() for suffix in (".jpg", ".png", ".webp")}
