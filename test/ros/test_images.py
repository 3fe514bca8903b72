"""Image messages to pixels: exact values, padded rows, and every way to be malformed."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from sensor_msgs.msg import Image

from dla_perception.ros.images import ImageMessageError, frame_from_image, image_from_pixels

RNG = np.random.default_rng(7)
BGR = RNG.integers(0, 256, (5, 7, 3), np.uint8)


def image_message(pixels: np.ndarray, encoding: str, padding: int = 0) -> Image:
    """A message from ``(H, W, C)`` pixels with ``padding`` bytes of 0xEE after each row."""
    height, width, channels = pixels.shape
    step = width * channels + padding
    rows = np.full((height, step), 0xEE, np.uint8)
    rows[:, : width * channels] = pixels.reshape(height, -1)
    message = Image(height=height, width=width, encoding=encoding, step=step)
    message.data = array("B", rows.tobytes())
    message.header.stamp.sec, message.header.stamp.nanosec = 12, 345678901
    message.header.frame_id = "cam_left_optical"
    return message


def as_bgr(frame) -> np.ndarray:
    return frame.pixels if frame.channel_order == "bgr" else frame.pixels[:, :, ::-1]


@pytest.mark.parametrize("padding", [0, 1, 3, 64])
@pytest.mark.parametrize(
    ("encoding", "pixels"),
    [
        ("bgr8", BGR),
        ("rgb8", BGR[:, :, ::-1]),
        ("bgra8", np.dstack([BGR, np.full((5, 7), 9, np.uint8)])),
        ("rgba8", np.dstack([BGR[:, :, ::-1], np.full((5, 7), 9, np.uint8)])),
    ],
)
def test_colour_encodings_give_the_same_pixels(encoding, pixels, padding):
    frame = frame_from_image(image_message(pixels, encoding, padding), "left")
    np.testing.assert_array_equal(as_bgr(frame), BGR)
    assert frame.pixels.shape == (5, 7, 3)
    assert (frame.stamp_ns, frame.frame_id, frame.source) == (
        12_345_678_901,
        "cam_left_optical",
        "left",
    )


@pytest.mark.parametrize("padding", [0, 5])
def test_mono8_becomes_grey(padding):
    grey = BGR[:, :, :1]
    frame = frame_from_image(image_message(grey, "mono8", padding))
    np.testing.assert_array_equal(frame.pixels, np.repeat(grey, 3, axis=2))


def test_three_channel_pixels_are_a_view_on_the_message():
    message = image_message(BGR, "bgr8", padding=2)
    frame = frame_from_image(message)
    message.data[0] = 255 - message.data[0]
    assert frame.pixels[0, 0, 0] == 255 - BGR[0, 0, 0]


def test_a_big_endian_flag_changes_nothing_for_bytes():
    message = image_message(BGR[:, :, :1], "mono8")
    message.is_bigendian = 1
    np.testing.assert_array_equal(frame_from_image(message).pixels[:, :, 0], BGR[:, :, 0])


def malformed(**changes) -> Image:
    message = image_message(BGR, "bgr8")
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        (malformed(width=0), "size", "0 x 5"),
        (malformed(height=0), "size", "7 x 0"),
        (malformed(step=20), "step", "need 21 bytes"),
        (malformed(step=0), "step", "need 21 bytes"),
        (malformed(data=array("B", bytes(104))), "data length", "104 bytes; expected"),
        (malformed(data=array("B", bytes(106))), "data length", "106 bytes; expected"),
        (malformed(data=array("B")), "data length", "0 bytes"),
        (malformed(step=22), "data length", "step 22 x 5 rows = 110"),
        (malformed(encoding="jpeg9000"), "encoding", "'jpeg9000' is not one of: bgr8, rgb8"),
        (malformed(encoding=""), "encoding", "'' is not one of"),
    ],
)
def test_malformed_messages_are_refused_by_name(message, reason, words):
    with pytest.raises(ImageMessageError) as caught:
        frame_from_image(message)
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pixels_to_message_and_back():
    header = image_message(BGR, "bgr8").header
    message = image_from_pixels(BGR[:, ::-1], header)
    assert message.header == header
    assert (message.encoding, message.step) == ("bgr8", 21)
    np.testing.assert_array_equal(frame_from_image(message).pixels, BGR[:, ::-1])
