"""``sensor_msgs/CompressedImage`` to pixels."""

from __future__ import annotations

import cv2
import numpy as np
from sensor_msgs.msg import CompressedImage

from dla_perception.detection.detector import Frame
from dla_perception.ros.images import ImageMessageError, stamp_to_ns


def frame_from_compressed(message: CompressedImage, source: str = "") -> Frame:
    """The pixels of a JPEG, PNG or WebP message, as BGR.

    What the data is, is told by the data. ``format``, which image_transport writes as
    ``jpeg``, ``bgr8; jpeg compressed bgr8`` or ``16UC1; compressedDepth png``, is only looked at
    to refuse depth, whose data is no picture. A decoder that runs out of data returns a picture
    that is grey from there on: so the end of the data is looked for first.

    Raises:
        ImageMessageError: no picture, not whole, or of no format that is known here.
    """
    data = bytes(message.data)
    if "compressedDepth" in message.format:
        raise ImageMessageError(
            "encoding", f"compressed image of format {message.format!r}: a depth map is no picture"
        )
    if not _is_whole(data):
        raise ImageMessageError(
            "compressed data",
            f"compressed image of {len(data)} bytes, format {message.format!r}: not a whole JPEG, "
            "PNG or WebP picture",
        )
    try:
        pixels = cv2.imdecode(
            np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        )
    except cv2.error as error:  # a size beyond OpenCV's limit
        raise ImageMessageError(
            "compressed data", f"compressed image cannot be decoded: {error.err}"
        ) from None
    if pixels is None:
        raise ImageMessageError(
            "compressed data",
            f"compressed image of {len(data)} bytes, format {message.format!r}: damaged",
        )
    return Frame(pixels, "bgr", stamp_to_ns(message.header), message.header.frame_id, source)


def _is_whole(data: bytes) -> bool:
    """Whether the data begins and ends as a JPEG, PNG or WebP file does."""
    if data.startswith(b"\xff\xd8"):
        # a thumbnail in the metadata has an end of its own: the picture's comes after its scan
        return data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda") > 0
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return b"IEND" in data[-16:]
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return len(data) >= 8 + int.from_bytes(data[4:8], "little")
    return False
