"""Where an image of one size lies in a network input of another, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np


class Placement(str, Enum):
    """How an image is fitted into the network's input."""

    CENTRE = "centre"
    TOP_LEFT = "top_left"
    STRETCH = "stretch"


@dataclass(frozen=True)
class Letterbox:
    """The part of a network input that an image fills.

    Sizes are ``(width, height)`` in pixels. The image is resized to ``content_size`` and put at
    ``offset``; the rest of the input is padding. Coordinates are continuous (edges of pixels),
    and resizing with pixel centres at half-integers, as OpenCV does, maps edges onto edges. So
    the inverse below is exact for each axis, also where rounding the content to whole pixels
    makes the two axes' factors differ.
    """

    image_size: tuple[int, int]
    input_size: tuple[int, int]
    content_size: tuple[int, int]
    offset: tuple[int, int]

    @classmethod
    def fit(
        cls,
        image_size: tuple[int, int],
        input_size: tuple[int, int],
        placement: Placement = Placement.CENTRE,
    ) -> Letterbox:
        """Fit ``image_size`` into ``input_size``, keeping the aspect ratio unless stretched.

        Raises:
            ValueError: a size below 1, or a placement that there is not.
        """
        placement = Placement(placement)  # from its name too: "top_left" is no Placement
        (width, height), (input_width, input_height) = image_size, input_size
        if min(width, height, input_width, input_height) < 1:
            raise ValueError(f"sizes must be positive, got {image_size} and {input_size}")
        if placement == Placement.STRETCH:
            return cls(image_size, input_size, input_size, (0, 0))
        factor = min(input_width / width, input_height / height)
        content_width = _whole(width * factor, input_width, placement)
        content_height = _whole(height * factor, input_height, placement)
        if placement == Placement.TOP_LEFT:
            offset = (0, 0)
        else:
            offset = ((input_width - content_width) // 2, (input_height - content_height) // 2)
        return cls(image_size, input_size, (content_width, content_height), offset)

    def to_input(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes ``(N, 4)`` in image pixels as boxes in network input pixels, ``float64``."""
        return boxes * self._factors + self._offsets

    def to_image(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes ``(N, 4)`` in network input pixels as boxes in image pixels, ``float64``."""
        return (boxes - self._offsets) / self._factors

    @cached_property
    def _factors(self) -> np.ndarray:
        x = self.content_size[0] / self.image_size[0]
        y = self.content_size[1] / self.image_size[1]
        return np.array([x, y, x, y])

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.array([*self.offset, *self.offset], np.float64)


def _whole(size: float, limit: int, placement: Placement) -> int:
    """A content size in whole pixels, exactly as the reference code of each placement has it.

    Megvii's YOLOX (``yolox/data/data_augment.py``), which puts images at the top left, cuts the
    fraction off, even where floating point made 415.99999 of 416; Ultralytics, which centres
    them, rounds. This is no detail: a row of content more or less moves some boxes by many pixels.
    """
    whole = int(size) if placement == Placement.TOP_LEFT else round(size)
    return min(max(whole, 1), limit)
