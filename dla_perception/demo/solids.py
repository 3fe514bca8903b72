"""Solids standing upright on the ground, and where rays from the camera meet them.

Every solid is given in the view frame of :mod:`dla_perception.demo.camera` (metres, ``y`` up,
camera at the origin). ``trace`` finds the nearest meeting for all rays of a window; ``surface``
then describes only the points that turned out to be visible.

Arrays: ``t (h, w) float32`` is the distance along a ray in units of the ray's length, infinite
where the ray misses. Points, normals and coordinates are ``(3, M) float32``, one column per
visible pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional, Protocol, Tuple, Union

import cv2
import numpy as np

from dla_perception.demo.camera import Rays

FloatLike = Union[np.ndarray, np.floating, float]

_MISS = np.float32(np.inf)
_CIRCLE = np.array([(math.cos(a), 0.0, math.sin(a)) for a in np.arange(12) * (math.pi / 6)])
_LATITUDES = ((-0.8, 0.6), (0.0, 1.0), (0.8, 0.6))
_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)


class Solid(Protocol):
    """A shape that rays can meet."""

    def trace(self, rays: Rays) -> np.ndarray:
        """``t (h, w)`` of the nearest meeting, infinite where there is none."""

    def surface(self, points: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Unit normals and the solid's own coordinates of points on it, both ``(3, M)``."""

    def moved(self, x: float, y: float, z: float, yaw: float) -> Solid:
        """The solid turned by ``yaw`` round the origin's vertical, then moved."""

    def scaled(self, factor: float) -> Solid:
        """The solid enlarged about the origin."""

    def hull(self) -> np.ndarray:
        """Points ``(N, 3)`` whose convex hull is, nearly, the solid."""


@dataclass(frozen=True)
class Ellipsoid:
    """A ball, or one squeezed along the vertical axis.

    ``centre`` in metres, ``radius`` across and ``half_height`` up. Own coordinates: the unit
    sphere, turned by the rotation ``turn (3, 3)``.
    """

    centre: Tuple[float, float, float]
    radius: float
    half_height: float
    turn: np.ndarray

    def trace(self, rays: Rays) -> np.ndarray:
        squeeze = np.float32(self.radius / self.half_height)
        x, y, z = self.centre
        tall = rays.y * squeeze
        a = rays.x * rays.x + (rays.z * rays.z + tall * tall)
        b = rays.x * np.float32(x) + (rays.z * np.float32(z) + tall * (np.float32(y) * squeeze))
        c = np.float32(x * x + z * z + (y * squeeze) ** 2 - self.radius**2)
        return _first_root(a, b, c)

    def surface(self, points: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        scale = np.array([self.radius, self.half_height, self.radius], np.float32)[:, None]
        unit = (points - np.array(self.centre, np.float32)[:, None]) / scale
        normals = _normalised(unit / scale)
        return normals, self.turn.astype(np.float32) @ unit

    def moved(self, x: float, y: float, z: float, yaw: float) -> Ellipsoid:
        cos, sin = math.cos(yaw), math.sin(yaw)
        turn = self.turn @ np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]])
        return replace(self, centre=_moved(self.centre, x, y, z, yaw), turn=turn)

    def scaled(self, factor: float) -> Ellipsoid:
        return replace(
            self,
            centre=_times(self.centre, factor),
            radius=self.radius * factor,
            half_height=self.half_height * factor,
        )

    def hull(self) -> np.ndarray:
        size = np.array([self.radius, self.half_height, self.radius])
        rings = [_CIRCLE * (wide, 0, wide) + (0, up, 0) for up, wide in _LATITUDES]
        return np.concatenate(rings) * size + self.centre


@dataclass(frozen=True)
class Frustum:
    """A cylinder, cone or bucket round a vertical axis, closed at the top.

    ``x`` and ``z`` of the axis, ``bottom`` and ``top``, radii there: metres. Own coordinates:
    horizontal unit direction from the axis turned by ``yaw`` (first and last row), and the
    height in [0, 1] in between (middle row), which is 2 on the lid.
    """

    x: float
    z: float
    bottom: float
    top: float
    bottom_radius: float
    top_radius: float
    yaw: float = 0.0

    @property
    def _slope(self) -> float:
        return (self.top_radius - self.bottom_radius) / (self.top - self.bottom)

    def trace(self, rays: Rays) -> np.ndarray:
        slope = self._slope
        # the radius the side would have at the height of the camera
        level = self.bottom_radius - slope * self.bottom
        a = rays.x * rays.x + (rays.z * rays.z - np.float32(slope**2) * rays.y * rays.y)
        b = rays.x * np.float32(self.x) + (
            rays.z * np.float32(self.z) + np.float32(slope * level) * rays.y
        )
        c = np.float32(self.x**2 + self.z**2 - level**2)
        side = _first_root(a, b, c)
        height = side * rays.y
        side[(height < self.bottom) | (height > self.top)] = _MISS
        if self.top < 0:
            lid = np.float32(self.top) / np.minimum(rays.y, np.float32(-1e-6))
            east, north = lid * rays.x - np.float32(self.x), lid * rays.z - np.float32(self.z)
            on_lid = (east * east + north * north) <= self.top_radius**2
            side = np.where(on_lid & (lid < side), lid, side)
        return side

    def surface(self, points: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        east = points[0] - np.float32(self.x)
        north = points[2] - np.float32(self.z)
        height = (points[1] - np.float32(self.bottom)) / np.float32(self.top - self.bottom)
        radius = np.sqrt(east * east + north * north) + np.float32(1e-6)
        east_unit, north_unit = east / radius, north / radius
        # on the lid the radius is smaller than the side's at that height
        edge = self.bottom_radius + self._slope * (self.top - self.bottom) * height
        lid = (height > 0.999) & (radius < 0.995 * edge)
        rise = np.float32(-self._slope)
        length = np.float32(1 / math.hypot(1.0, self._slope))
        normals = _rows(east_unit * length, rise * length, north_unit * length)
        normals[:, lid] = np.array([[0], [1], [0]], np.float32)
        cos, sin = np.float32(math.cos(self.yaw)), np.float32(math.sin(self.yaw))
        coordinates = _rows(
            east_unit * cos - north_unit * sin,
            np.where(lid, np.float32(2), height),
            east_unit * sin + north_unit * cos,
        )
        return normals, coordinates

    def moved(self, x: float, y: float, z: float, yaw: float) -> Frustum:
        east, _, north = _moved((self.x, 0.0, self.z), x, y, z, yaw)
        return replace(
            self,
            x=east,
            z=north,
            bottom=self.bottom + y,
            top=self.top + y,
            yaw=self.yaw + yaw,
        )

    def scaled(self, factor: float) -> Frustum:
        x, bottom, z = _times((self.x, self.bottom, self.z), factor)
        top, low, high = _times((self.top, self.bottom_radius, self.top_radius), factor)
        return Frustum(x, z, bottom, top, low, high, self.yaw)

    def hull(self) -> np.ndarray:
        low = _CIRCLE * self.bottom_radius + (self.x, self.bottom, self.z)
        high = _CIRCLE * self.top_radius + (self.x, self.top, self.z)
        return np.concatenate([low, high])


@dataclass(frozen=True)
class Block:
    """A box turned by ``yaw`` round the vertical axis.

    ``centre`` and half extents ``half`` in metres. Own coordinates: [-1, 1] along each of the
    box's own axes, so that the coordinate of size 1 names the face.
    """

    centre: Tuple[float, float, float]
    half: Tuple[float, float, float]
    yaw: float

    def trace(self, rays: Rays) -> np.ndarray:
        cos, sin = np.float32(math.cos(self.yaw)), np.float32(math.sin(self.yaw))
        axes = (rays.x * cos - rays.z * sin, rays.y, rays.x * sin + rays.z * cos)
        middle = self._turned(np.array(self.centre, np.float32)[:, None])[:, 0]
        nearest = np.full((rays.y.shape[0], rays.x.shape[1]), _MISS)
        for axis in range(3):
            face = self._visible_face(float(middle[axis]), self.half[axis])
            if face is None:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                t = np.float32(face) / axes[axis]
            inside = t > 0
            for other in range(3):
                if other != axis:
                    off = t * axes[other] - middle[other]
                    inside = inside & (np.abs(off) <= np.float32(self.half[other]))
            # a convex solid shows at most one of its near faces to a ray
            nearest = np.where(inside & (t < nearest), t, nearest)
        return nearest

    def surface(self, points: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        offset = self._turned(points - np.array(self.centre, np.float32)[:, None])
        coordinates = offset / np.array(self.half, np.float32)[:, None]
        axis = np.abs(coordinates).argmax(axis=0)
        columns = np.arange(points.shape[1])
        normals = np.zeros_like(coordinates)
        normals[axis, columns] = np.sign(coordinates[axis, columns])
        cos, sin = np.float32(math.cos(self.yaw)), np.float32(math.sin(self.yaw))
        world = _rows(
            normals[0] * cos + normals[2] * sin,
            normals[1],
            normals[2] * cos - normals[0] * sin,
        )
        return world, coordinates

    def moved(self, x: float, y: float, z: float, yaw: float) -> Block:
        return replace(self, centre=_moved(self.centre, x, y, z, yaw), yaw=self.yaw + yaw)

    def scaled(self, factor: float) -> Block:
        return Block(_times(self.centre, factor), _times(self.half, factor), self.yaw)

    def hull(self) -> np.ndarray:
        corners = _CORNERS * self.half
        return np.array([_moved(tuple(c), *self.centre, self.yaw) for c in corners])

    def _turned(self, points: np.ndarray) -> np.ndarray:
        cos, sin = np.float32(math.cos(self.yaw)), np.float32(math.sin(self.yaw))
        return _rows(
            points[0] * cos - points[2] * sin, points[1], points[0] * sin + points[2] * cos
        )

    @staticmethod
    def _visible_face(middle: float, half: float) -> Optional[float]:
        """Where along its axis the face towards the camera lies, if one is."""
        if middle - half > 0:
            return middle - half
        if middle + half < 0:
            return middle + half
        return None


@dataclass(frozen=True)
class Plate:
    """A thin upright plate of any outline, turned by ``yaw``.

    ``centre`` and half extents in metres; ``outline (n, n) uint8`` is opaque where not zero, row 0
    at the top. Own coordinates: [-1, 1] to the right and up as seen from the front; the last row is
    1 on the front and -1 on the back.
    """

    centre: Tuple[float, float, float]
    half_width: float
    half_height: float
    yaw: float
    outline: np.ndarray

    def trace(self, rays: Rays) -> np.ndarray:
        cos, sin = np.float32(math.cos(self.yaw)), np.float32(math.sin(self.yaw))
        x, y, z = (np.float32(v) for v in self.centre)
        ahead = rays.x * sin + rays.z * cos
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (x * sin + z * cos) / ahead
        # texel coordinates of the outline, by OpenCV so that they are rounded and clipped once
        scale_x = np.float32(len(self.outline) / (2 * self.half_width))
        scale_y = np.float32(len(self.outline) / (2 * self.half_height))
        half = np.float32(len(self.outline) / 2 - 0.5)
        right = (t * (rays.x * cos - rays.z * sin) - (x * cos - z * sin)) * scale_x + half
        down = half - (t * rays.y - y) * scale_y
        inside = cv2.remap(
            self.outline, right, down, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT
        )
        return np.where((inside > 127) & (t > 0), t, _MISS)

    def surface(self, points: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        cos, sin = np.float32(math.cos(self.yaw)), np.float32(math.sin(self.yaw))
        offset = points - np.array(self.centre, np.float32)[:, None]
        # yaw 0 faces the camera: its front normal is -z
        front = self.centre[0] * math.sin(self.yaw) + self.centre[2] * math.cos(self.yaw) > 0
        side = np.float32(1 if front else -1)
        normals = np.empty_like(points)
        normals[:] = ((-sin * side,), (0,), (-cos * side,))
        coordinates = _rows(
            (offset[0] * cos - offset[2] * sin) / np.float32(self.half_width),
            offset[1] / np.float32(self.half_height),
            side,
        )
        return normals, coordinates

    def moved(self, x: float, y: float, z: float, yaw: float) -> Plate:
        return replace(self, centre=_moved(self.centre, x, y, z, yaw), yaw=self.yaw + yaw)

    def scaled(self, factor: float) -> Plate:
        return replace(
            self,
            centre=_times(self.centre, factor),
            half_width=self.half_width * factor,
            half_height=self.half_height * factor,
        )

    def hull(self) -> np.ndarray:
        rim = _CIRCLE[:, [0, 2, 1]] * (self.half_width, self.half_height, 0)
        return np.array([_moved(tuple(c), *self.centre, self.yaw) for c in rim])


def _times(values: Tuple[float, float, float], factor: float) -> Tuple[float, float, float]:
    return values[0] * factor, values[1] * factor, values[2] * factor


def _moved(
    centre: Tuple[float, float, float], x: float, y: float, z: float, yaw: float
) -> Tuple[float, float, float]:
    cos, sin = math.cos(yaw), math.sin(yaw)
    return (
        centre[0] * cos + centre[2] * sin + x,
        centre[1] + y,
        -centre[0] * sin + centre[2] * cos + z,
    )


def _first_root(a: np.ndarray, b: np.ndarray, c: np.floating) -> np.ndarray:
    """The nearer solution of ``a t² - 2 b t + c = 0`` in front of the camera."""
    discriminant = b * b - a * c
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (b - np.sqrt(discriminant)) / a
    t[~((discriminant > 0) & (t > 0))] = _MISS
    return t


def _rows(first: np.ndarray, second: FloatLike, third: FloatLike) -> np.ndarray:
    """Three rows of one length as ``(3, M) float32``; the last two may be single numbers."""
    rows = np.empty((3, len(first)), np.float32)
    rows[0] = first
    rows[1] = second
    rows[2] = third
    return rows


def _normalised(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.sqrt((vectors * vectors).sum(axis=0))
