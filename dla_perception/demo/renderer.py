"""One picture: backdrop, ground and props, far to near, with the exact pixels of each prop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple

import cv2
import numpy as np

from dla_perception.demo.backdrop import Backdrop
from dla_perception.demo.camera import Camera, Window
from dla_perception.demo.ground import Ground, Strip
from dla_perception.demo.materials import ragged
from dla_perception.demo.props import Part
from dla_perception.demo.solids import Solid
from dla_perception.demo.weather import Weather
from dla_perception.demo.world import Placed

_DETAIL_M = 9.0
"""Farther off, a prop's shadow is one outline instead of one a part."""
_GLOSS_PIXELS = 64
"""Parts of fewer pixels have no highlight: it would be less than one."""
_ASIDE_M = 2.5
"""Props up to this far beside the picture are looked at for the shadows they throw into it."""


@dataclass(frozen=True)
class Drawn:
    """A prop that has pixels in the picture.

    ``id`` is its value in the id buffer, ``window`` the pixels that can be its, ``pixels`` how many
    it covers when nothing stands before it, ``inside`` the share of its outline's box that
    lies inside the picture.
    """

    id: int
    class_id: int
    window: Window
    pixels: int
    inside: float


@dataclass(frozen=True)
class Rendering:
    """``pixels (H, W, 3) uint8`` BGR; ``ids (H, W) int16``, 0 where there is no prop."""

    pixels: np.ndarray
    ids: np.ndarray
    drawn: Tuple[Drawn, ...]


@dataclass(frozen=True)
class _Standing:
    """A prop before the camera: its solids in the view frame, and where it is on the picture."""

    placed: Placed
    x: float
    z: float
    yaw: float
    solids: Tuple[Solid, ...]
    bounds: Tuple[float, float, float, float]
    window: Optional[Window]


class _Seen(NamedTuple):
    """The ``M`` pixels of a part: where they are, and points, normals and albedo ``(3, M)``."""

    part: Part
    rows: np.ndarray
    columns: np.ndarray
    points: np.ndarray
    normals: np.ndarray
    albedo: np.ndarray


def render(
    camera: Camera,
    weather: Weather,
    backdrop: Backdrop,
    ground: Ground,
    path: Strip,
    lines: Sequence[Strip],
    things: Sequence[Placed],
) -> Rendering:
    """Draw what a camera sees."""
    canvas = np.empty((camera.height, camera.width, 3), np.uint8)
    ids = np.zeros((camera.height, camera.width), np.int16)
    standing = _before(camera, things)
    sun = camera.direction_to_view(weather.sun_direction)
    # shadows of what is beside the picture may still fall into it
    shadows = [outline for item in standing for outline in _shadows(item, camera, sun)]
    contacts = [
        _turned(item.placed.prop.footprint, item, -camera.elevation)
        for item in standing
        if item.placed.base == 0
    ]
    top = ground.paint(camera, weather, path, lines, shadows, contacts, canvas)
    backdrop.paint(camera, canvas, top)
    drawn: List[Drawn] = []
    for item in standing:
        if item.window is None:
            continue
        number = len(drawn) + 1
        pixels = _draw(item, camera, weather, sun, canvas, ids, number)
        if pixels:
            share = _inside(item.bounds, camera)
            prop = item.placed.prop
            drawn.append(Drawn(number, prop.class_id, item.window, pixels, share))
    return Rendering(canvas, ids, tuple(drawn))


def _before(camera: Camera, things: Sequence[Placed]) -> List[_Standing]:
    """The things in front of the camera, in the order in which they have to be drawn."""
    order, standing = [], []
    cos, sin = math.cos(camera.yaw), math.sin(camera.yaw)
    slant = camera.width / 2 / camera.focal
    for placed in things:
        east, north, prop = placed.x - camera.x, placed.z - camera.z, placed.prop
        x, z = east * cos - north * sin, east * sin + north * cos
        # out of sight, shadow and all
        if z < -prop.radius or abs(x) > (z + prop.radius) * slant + prop.radius + _ASIDE_M:
            continue
        floor = placed.base - camera.elevation
        bounds = camera.bounds(x, z, prop.radius, floor, floor + prop.height)
        if bounds is None:
            continue
        yaw = placed.yaw - camera.yaw
        window = camera.clip(bounds)
        solids: Tuple[Solid, ...] = ()
        if window is not None:
            solids = tuple(part.solid.moved(x, floor, z, yaw) for part in prop.parts)
        # discs that do not overlap hide one another in the order of their power distance
        order.append((x * x + z * z - prop.radius**2, -placed.base))
        standing.append(_Standing(placed, x, z, yaw, solids, bounds, window))
    ranked = sorted(range(len(order)), key=lambda index: order[index], reverse=True)
    return [standing[index] for index in ranked]


def _shadows(item: _Standing, camera: Camera, sun: np.ndarray) -> List[np.ndarray]:
    """The outlines ``(N, 3)``, in the view, of the shadows of a prop's parts on the ground."""
    prop = item.placed.prop
    hulls = prop.hulls
    if item.x**2 + item.z**2 > _DETAIL_M**2:
        hulls = (np.concatenate(hulls),)
    outlines = []
    for hull in hulls:
        above = np.maximum(hull[:, 1:2], 0) + item.placed.base
        flat = _turned(hull[:, 0::2], item, 0.0)[:, 0::2] - above * (sun[0::2] / sun[1])
        rim = cv2.convexHull(flat.astype(np.float32))[:, 0]
        outline = np.full((len(rim), 3), -camera.elevation)
        outline[:, 0::2] = rim
        outlines.append(outline)
    return outlines


def _turned(flat: np.ndarray, item: _Standing, level: float) -> np.ndarray:
    """Points ``(N, 2)``, x and z, of a prop's own frame as points ``(N, 3)`` of the view."""
    cos, sin = math.cos(item.yaw), math.sin(item.yaw)
    points = np.empty((len(flat), 3))
    points[:, 0] = flat[:, 0] * cos + flat[:, 1] * sin + item.x
    points[:, 1] = level
    points[:, 2] = flat[:, 1] * cos - flat[:, 0] * sin + item.z
    return points


def _inside(bounds: Tuple[float, float, float, float], camera: Camera) -> float:
    left, top, right, bottom = bounds
    width = min(right, camera.width) - max(left, 0)
    height = min(bottom, camera.height) - max(top, 0)
    return max(width, 0) * max(height, 0) / ((right - left) * (bottom - top))


def _draw(
    item: _Standing,
    camera: Camera,
    weather: Weather,
    sun: np.ndarray,
    canvas: np.ndarray,
    ids: np.ndarray,
    number: int,
) -> int:
    """Draw one prop over what is there; returns how many pixels it covers."""
    window = item.window
    assert window is not None
    rays = camera.rays(window)
    area = (slice(window.top, window.bottom), slice(window.left, window.right))
    nearest = np.full((window.bottom - window.top, window.right - window.left), np.float32(np.inf))
    seen: List[_Seen] = []
    for part, solid in zip(item.placed.prop.parts, item.solids):
        t = solid.trace(rays)
        rows, columns = np.nonzero(t < nearest)
        if not len(rows):
            continue
        reach = t[rows, columns]
        points: np.ndarray = np.empty((3, len(rows)), np.float32)
        np.multiply(rays.x[0, columns], reach, out=points[0])
        np.multiply(rays.y[rows, 0], reach, out=points[1])
        np.multiply(rays.z[rows, 0], reach, out=points[2])
        normals, coordinates = solid.surface(points)
        if part.ragged:
            facing = -_dot(points, normals) / np.sqrt(_dot(points, points))
            kept = np.flatnonzero(ragged(coordinates, facing, part.ragged, part.seed))
            rows, columns, reach = rows[kept], columns[kept], reach[kept]
            points, normals = points[:, kept], normals[:, kept]
            coordinates = coordinates[:, kept]
        nearest[rows, columns] = reach
        seen.append(_Seen(part, rows, columns, points, normals, part.material(coordinates)))
    if not seen:
        return 0
    colours = _lit(seen, camera, weather, sun)
    haze = np.float32(weather.haziness(np.array(math.hypot(item.x, item.z))))
    colours *= 1 - haze
    colours += (haze * weather.haze)[:, None]
    np.maximum(colours, 0, out=colours)
    np.minimum(colours, 255, out=colours)
    rows, columns = _joined([one.rows for one in seen]), _joined([one.columns for one in seen])
    # a pixel of several parts comes several times, the nearest last
    canvas[area][rows, columns] = colours.T.astype(np.uint8)
    ids[area][rows, columns] = number
    return int(np.count_nonzero(np.isfinite(nearest)))


def _lit(seen: Sequence[_Seen], camera: Camera, weather: Weather, sun: np.ndarray) -> np.ndarray:
    """Colours ``(3, M)`` in the light of the pixels of all parts of a prop, one after the other."""
    points, normals = _joined([one.points for one in seen]), _joined([one.normals for one in seen])
    colours = _joined([one.albedo for one in seen])
    direction = sun.astype(np.float32)
    direct = np.maximum(direction @ normals, 0)
    start = 0
    for one in seen:
        end = start + len(one.rows)
        if one.part.ragged:
            # light goes through leaves: no side is quite dark
            direct[start:end] = np.float32(0.35) + np.float32(0.65) * direct[start:end]
        start = end
    # what lies close to the ground sees less of the sky, and what looks down sees none
    above = points[1] + np.float32(camera.elevation)
    open_sky = np.float32(0.72) + np.float32(0.28) * normals[1]
    open_sky *= np.float32(0.68) + np.minimum(above * np.float32(1.28), np.float32(0.32))
    for channel in range(3):
        colours[channel] *= weather.sun[channel] * direct + weather.ambient[channel] * open_sky
    start = 0
    for one in seen:
        end = start + len(one.rows)
        if one.part.gloss and end - start >= _GLOSS_PIXELS:
            shine = _shine(points[:, start:end], normals[:, start:end], direction)
            for channel in range(3):
                strength = np.float32(one.part.gloss * 200 * weather.sun[channel])
                colours[channel, start:end] += strength * shine
        start = end
    return colours


def _shine(points: np.ndarray, normals: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The share ``(M,)`` of the sun that each point reflects to the camera."""
    half = direction[:, None] - points / np.sqrt(_dot(points, points))
    # the eighth power of the cosine's square, twice: a highlight of a few degrees
    shine = np.maximum(_dot(half, normals), 0)
    shine *= shine
    shine /= _dot(half, half)
    for _ in range(4):
        shine *= shine
    return shine


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays side by side along their last axis, without a copy where there is but one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)


def _dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Dot products ``(M,)`` of the columns of two ``(3, M)``."""
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]
