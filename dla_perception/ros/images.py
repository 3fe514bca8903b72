"""``sensor_msgs/Image`` to pixels, and pictures to ``sensor_msgs/Image``."""

from __future__ import annotations

from array import array
from typing import Callable, Mapping

import cv2
import numpy as np
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from dla_perception.detection.detector import Frame
from dla_perception.detection.images import ImageError


class ImageMessageError(ImageError):
    """An image message that cannot be used; ``reason`` is the name it is counted under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def stamp_to_ns(header: Header) -> int:
    """The header's stamp in nanoseconds."""
    return int(header.stamp.sec) * 1_000_000_000 + int(header.stamp.nanosec)


def frame_from_image(message: Image, source: str = "") -> Frame:
    """The pixels of an image message; a view on its data for bgr8, rgb8 and 8UC3.

    16-bit greys are scaled to 8 bits by their full range, ``round(value * 255 / 65535)``.
    ``8UC1``, ``8UC3``, ``8UC4`` and ``16UC1``, which do not tell their meaning, are read as
    mono8, bgr8, bgra8 and mono16. YUV is read as BT.601 with video range, as OpenCV has it.

    Raises:
        ImageMessageError: the message contradicts itself or its encoding is unknown.
    """
    encoding = _SAME_AS.get(message.encoding, message.encoding)
    if encoding in _VIEWED:
        pixels, order = _strided(message, 3), _VIEWED[encoding]
    elif encoding in _CONVERTED:
        pixels, order = _CONVERTED[encoding](message, encoding), "bgr"
    else:
        known = ", ".join([*_VIEWED, *_CONVERTED, *_SAME_AS])
        raise ImageMessageError(
            "encoding", f"image encoding {message.encoding!r} is not one of: {known}"
        )
    return Frame(pixels, order, stamp_to_ns(message.header), message.header.frame_id, source)


def image_from_pixels(pixels: np.ndarray, header: Header) -> Image:
    """A bgr8 message from pixels ``(H, W, 3) uint8`` in BGR order."""
    height, width = pixels.shape[:2]
    return Image(
        header=header,
        height=height,
        width=width,
        encoding="bgr8",
        step=width * 3,
        # of all that the message takes, an array of bytes is taken over fastest
        data=array("B", pixels.tobytes()),
    )


def _strided(
    message: Image, channels: int, dtype: str = "u1", rows: int | None = None
) -> np.ndarray:
    """The message's data as ``(rows, W, channels)``, whatever pads its rows.

    ``rows`` is the image's height unless planes of other heights follow one another.
    """
    height, width, step = message.height, message.width, message.step
    if width < 1 or height < 1:
        raise ImageMessageError("size", f"image of {width} x {height} pixels has no content")
    rows = height if rows is None else rows
    item = np.dtype(dtype).itemsize
    needed = width * channels * item
    if step < needed:
        raise ImageMessageError(
            "step",
            f"image step {step} is too small: {width} pixels of {message.encoding} need "
            f"{needed} bytes a row",
        )
    if len(message.data) != step * rows:
        raise ImageMessageError(
            "data length",
            f"image data has {len(message.data)} bytes; expected step {step} x {rows} rows "
            f"= {step * rows}",
        )
    return np.ndarray(
        (rows, width, channels),
        dtype,
        buffer=message.data,
        strides=(step, channels * item, item),
    )


def _by_cv_bridge(channels: int) -> Callable[[Image, str], np.ndarray]:
    def convert(message: Image, encoding: str) -> np.ndarray:
        from cv_bridge import CvBridge

        # handed over without row padding: not every cv_bridge honours the step
        image = Image(
            height=message.height,
            width=message.width,
            encoding=encoding,
            step=message.width * channels,
            data=array("B", _strided(message, channels).tobytes()),
        )
        pixels: np.ndarray = CvBridge().imgmsg_to_cv2(image, "bgr8")
        return pixels

    return convert


def _by_opencv(channels: int, code: int) -> Callable[[Image, str], np.ndarray]:
    """For what not every cv_bridge converts, or converts right."""

    def convert(message: Image, encoding: str) -> np.ndarray:
        return cv2.cvtColor(_strided(message, channels), code)

    return convert


def _grey_16(message: Image, encoding: str) -> np.ndarray:
    values = _strided(message, 1, ">u2" if message.is_bigendian else "<u2")[:, :, 0]
    grey = cv2.convertScaleAbs(values.astype(np.uint16), alpha=255 / 65535)
    return cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR)


def _yuv_422(code: int) -> Callable[[Image, str], np.ndarray]:
    def convert(message: Image, encoding: str) -> np.ndarray:
        _refuse_odd(message, height=False)
        return cv2.cvtColor(_strided(message, 2), code)

    return convert


def _yuv_420(code: int) -> Callable[[Image, str], np.ndarray]:
    """A plane of luma, then one of interleaved chroma of half the height."""

    def convert(message: Image, encoding: str) -> np.ndarray:
        _refuse_odd(message, height=True)
        planes = _strided(message, 1, rows=message.height * 3 // 2)
        return cv2.cvtColor(planes, code)

    return convert


def _nv24(message: Image, encoding: str) -> np.ndarray:
    """A plane of luma, then one of interleaved chroma, a pair for each pixel.

    OpenCV does not know it. It does know YUYV, where two pixels share their chroma: so each pixel
    is written twice, and every second one of the result is taken.
    """
    height, width = message.height, message.width
    rows = _strided(message, 1, rows=height * 3)  # a row of chroma is two rows long
    luma = rows[:height, :, 0]
    chroma: np.ndarray = np.ndarray(
        (height, width, 2),
        np.uint8,
        buffer=message.data,
        offset=height * message.step,
        strides=(2 * message.step, 2, 1),
    )
    twice = np.empty((height, 2 * width, 2), np.uint8)
    twice[:, :, 0] = luma.repeat(2, axis=1)
    twice[:, 0::2, 1] = chroma[:, :, 0]
    twice[:, 1::2, 1] = chroma[:, :, 1]
    return np.ascontiguousarray(cv2.cvtColor(twice, cv2.COLOR_YUV2BGR_YUY2)[:, ::2])


def _refuse_odd(message: Image, height: bool) -> None:
    """Pixels that share their chroma come in pairs."""
    if message.width % 2 or (height and message.height % 2):
        even = "width and height" if height else "width"
        raise ImageMessageError(
            "size",
            f"image of {message.width} x {message.height} pixels: {message.encoding} needs an "
            f"even {even}",
        )


_VIEWED: Mapping[str, str] = {"bgr8": "bgr", "rgb8": "rgb"}
"""Encodings whose pixels are used where they lie in the message."""

# OpenCV names a Bayer pattern by the second row's second and third pixel, ROS by the first row.
_CONVERTED: Mapping[str, Callable[[Image, str], np.ndarray]] = {
    "bgra8": _by_cv_bridge(4),
    "rgba8": _by_cv_bridge(4),
    "mono8": _by_cv_bridge(1),
    "mono16": _grey_16,
    "bayer_rggb8": _by_opencv(1, cv2.COLOR_BayerBG2BGR),
    "bayer_bggr8": _by_opencv(1, cv2.COLOR_BayerRG2BGR),
    "bayer_gbrg8": _by_opencv(1, cv2.COLOR_BayerGR2BGR),
    "bayer_grbg8": _by_opencv(1, cv2.COLOR_BayerGB2BGR),
    "yuv422": _yuv_422(cv2.COLOR_YUV2BGR_UYVY),
    "yuv422_yuy2": _yuv_422(cv2.COLOR_YUV2BGR_YUY2),
    "nv12": _yuv_420(cv2.COLOR_YUV2BGR_NV12),
    "nv21": _yuv_420(cv2.COLOR_YUV2BGR_NV21),
    "nv24": _nv24,
}

_SAME_AS: Mapping[str, str] = {
    "8UC1": "mono8",
    "8UC3": "bgr8",
    "8UC4": "bgra8",
    "16UC1": "mono16",
    "uyvy": "yuv422",
    "yuyv": "yuv422_yuy2",
}
