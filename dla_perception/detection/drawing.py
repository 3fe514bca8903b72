"""Boxes, labels and scores on a picture."""

from __future__ import annotations

import colorsys

import cv2
import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections


def class_colour(class_id: int) -> tuple[int, int, int]:
    """A bright BGR colour per class, far from its neighbours' (golden-ratio hue steps)."""
    red, green, blue = colorsys.hsv_to_rgb((class_id * 0.61803398875 + 0.02) % 1.0, 0.85, 1.0)
    return int(blue * 255), int(green * 255), int(red * 255)


def draw_detections(
    pixels: np.ndarray, detections: Detections, description: ModelDescription, note: str = ""
) -> np.ndarray:
    """A copy of ``pixels`` (BGR) with boxes, labels and scores; ``note`` in the top left corner."""
    picture = np.ascontiguousarray(pixels).copy()
    size = max(min(picture.shape[:2]) / 900, 0.45)
    thickness = max(round(size * 2), 1)
    for box, score, class_id in detections:
        colour = class_colour(class_id)
        x1, y1, x2, y2 = (int(round(float(edge))) for edge in box)
        cv2.rectangle(picture, (x1, y1), (x2 - 1, y2 - 1), colour, thickness)
        _draw_text(picture, f"{description.label(class_id)} {score:.2f}", (x1, y1), size, colour)
    if note:
        _draw_text(picture, note, (0, 0), size, (255, 255, 255))
    return picture


def _draw_text(
    picture: np.ndarray,
    text: str,
    corner: tuple[int, int],
    size: float,
    colour: tuple[int, int, int],
) -> None:
    """Black text on a plate whose lower left corner is ``corner``, moved into the picture."""
    font = cv2.FONT_HERSHEY_SIMPLEX
    (width, height), baseline = cv2.getTextSize(text, font, size, 1)
    x = max(min(corner[0], picture.shape[1] - width), 0)
    y = max(corner[1], height + baseline)
    cv2.rectangle(picture, (x, y - height - baseline), (x + width, y), colour, cv2.FILLED)
    cv2.putText(picture, text, (x, y - baseline), font, size, (0, 0, 0), 1, cv2.LINE_AA)
