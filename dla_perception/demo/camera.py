"""The robot's camera: a pinhole above a ground plane, without roll.

Two frames are used throughout the renderer.

- The *world*: ``x`` to the right of where the drive starts, ``z`` along it, both in metres on the
  ground; ``y`` is up and zero on the ground.
- The *view*: the same axes turned by the camera's yaw, with the camera at the origin. Its ``y``
  stays vertical, so the camera's pitch lives in the rays and not in the frame. Without roll the
  ray of a pixel then has an ``x`` that depends on the column alone and a ``y`` and a ``z`` that
  depend on the row alone, which is what makes ray casting with small arrays cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Optional, Tuple

import numpy as np

NEAR_M = 0.25
"""Nothing closer than this along the optical axis is drawn."""
_PRISM = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)


class Window(NamedTuple):
    """A rectangle of pixels; ``right`` and ``bottom`` are exclusive."""

    left: int
    top: int
    right: int
    bottom: int


class Rays(NamedTuple):
    """Rays of the pixels of a window, in the view frame, not normalised.

    ``x (1, w)``, ``y (h, 1)`` and ``z (h, 1)``, float32: they broadcast to ``(h, w)``.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray


@dataclass(frozen=True)
class Camera:
    """Where the camera is and how it looks.

    ``width`` and ``height`` and ``focal`` are in pixels, ``x``, ``z`` and ``elevation`` (above
    the ground) in metres, ``yaw`` (positive to the right) and ``pitch`` (positive down) in radians.
    """

    width: int
    height: int
    focal: float
    x: float
    z: float
    elevation: float
    yaw: float
    pitch: float

    @property
    def centre(self) -> Tuple[float, float]:
        """The optical centre in pixel coordinates, where (0, 0) is the middle of the first."""
        return (self.width - 1) / 2, (self.height - 1) / 2

    @property
    def horizon(self) -> float:
        """The row, in pixels, where the ground vanishes."""
        return self.centre[1] - self.focal * math.tan(self.pitch)

    def rays(self, window: Window) -> Rays:
        """The rays through the middles of a window's pixels."""
        centre_x, centre_y = self.centre
        columns = np.arange(window.left, window.right, dtype=np.float32)
        rows = np.arange(window.top, window.bottom, dtype=np.float32)
        across = (columns - np.float32(centre_x)) / np.float32(self.focal)
        down = (rows - np.float32(centre_y)) / np.float32(self.focal)
        cos, sin = np.float32(math.cos(self.pitch)), np.float32(math.sin(self.pitch))
        return Rays(across[None, :], (-down * cos - sin)[:, None], (cos - down * sin)[:, None])

    def to_view(self, x: np.ndarray, z: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Ground positions of the world, in metres, as ``x`` and ``z`` of the view."""
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        east, north = x - self.x, z - self.z
        return east * cos - north * sin, east * sin + north * cos

    def direction_to_view(self, direction: np.ndarray) -> np.ndarray:
        """A direction of the world, ``(3,)``, in the view."""
        cos, sin = math.cos(self.yaw), math.sin(self.yaw)
        east, up, north = direction
        return np.array([east * cos - north * sin, up, east * sin + north * cos])

    def project(self, points: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """View points ``(N, 3)`` as pixel coordinates ``(N, 2)``, given their positive depths."""
        cos, sin = math.cos(self.pitch), math.sin(self.pitch)
        scale = self.focal / depth
        pixels = np.empty((len(points), 2))
        pixels[:, 0] = self.centre[0] + scale * points[:, 0]
        pixels[:, 1] = self.centre[1] - scale * (points[:, 1] * cos + points[:, 2] * sin)
        return pixels

    def depth(self, points: np.ndarray) -> np.ndarray:
        """Distance of view points ``(N, 3)`` along the optical axis, in metres."""
        return points[:, 2] * math.cos(self.pitch) - points[:, 1] * math.sin(self.pitch)

    def bounds(
        self, x: float, z: float, radius: float, bottom: float, top: float
    ) -> Optional[Tuple[float, float, float, float]]:
        """The pixel edges around an upright prism: a square of half-side ``radius`` round (x, z).

        All in metres in the view; ``bottom`` and ``top`` are relative to the camera. ``None`` when
        part of it is nearer than ``NEAR_M``: such a thing is beside or behind the camera.
        """
        corners = _PRISM * (radius, (top - bottom) / 2, radius) + (x, (top + bottom) / 2, z)
        depth = self.depth(corners)
        if depth.min() < NEAR_M:
            return None
        pixels = self.project(corners, depth)
        left, upper = pixels.min(axis=0) - 0.5
        right, lower = pixels.max(axis=0) + 0.5
        return float(left), float(upper), float(right), float(lower)

    def clip(self, bounds: Tuple[float, float, float, float]) -> Optional[Window]:
        """The whole pixels of the picture inside ``bounds``, or ``None`` when there are none."""
        window = Window(
            max(int(math.floor(bounds[0])), 0),
            max(int(math.floor(bounds[1])), 0),
            min(int(math.ceil(bounds[2])) + 1, self.width),
            min(int(math.ceil(bounds[3])) + 1, self.height),
        )
        if window.right <= window.left or window.bottom <= window.top:
            return None
        return window
