"""Picture files to pixels and back."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from dla_perception.errors import DlaPerceptionError


class ImageError(DlaPerceptionError):
    """A picture file or an image message that cannot be used."""


def read_image(path: str | Path) -> np.ndarray:
    """The pixels ``(H, W, 3) uint8`` of a picture file in BGR order, upright as its EXIF says.

    Raises:
        ImageError: the file cannot be read or is no picture.
    """
    try:
        content = np.fromfile(str(path), np.uint8)
    except OSError as error:
        raise ImageError(f"{path}: cannot read it: {error.strerror}") from None
    pixels = cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None
    if pixels is None:
        raise ImageError(f"{path}: not a picture that can be decoded; expected JPEG, PNG or WebP")
    return pixels


def write_image(path: str | Path, pixels: np.ndarray) -> None:
    """Write pixels ``(H, W, 3) uint8`` in BGR order; the file's ending tells the format.

    Raises:
        ImageError: unknown ending, or the file cannot be written.
    """
    suffix = Path(path).suffix
    try:
        encoded, content = cv2.imencode(suffix, pixels) if suffix else (False, None)
    except cv2.error:
        encoded, content = False, None
    if not encoded or content is None:
        raise ImageError(f"{path}: '{suffix}' is no picture format; use .png or .jpg")
    try:
        content.tofile(str(path))
    except OSError as error:
        raise ImageError(f"{path}: cannot write it: {error.strerror}") from None
