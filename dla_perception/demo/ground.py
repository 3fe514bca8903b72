"""The ground plane: two textured surfaces, painted lines, shadows and distance."""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import cv2
import numpy as np

from dla_perception.demo import noise
from dla_perception.demo.camera import Camera, Rays, Window
from dla_perception.demo.weather import Weather

TILE_M = 3.0
"""Side of a surface's texture on the ground, after which it repeats."""
_LEVELS = 5
_SUBPIXEL = 4
"""Fractional bits of polygon corners handed to OpenCV."""
_CUT_M = 0.35
"""Polygons are cut here: nearer than any ground that the camera sees."""
_FULL_LIGHT = 128
"""The byte that stands for light of factor 1, in maps of light."""

_PAINT = (206, 210, 212)
"""Colour of painted lines."""

Polygons = Sequence[np.ndarray]


class Strip(NamedTuple):
    """A band of the ground: its two edges as points ``(N, 2)`` of the world (x, z), in metres."""

    left: np.ndarray
    right: np.ndarray


def outline(camera: Camera, strip: Strip) -> np.ndarray:
    """The corners ``(N, 3)`` of a strip in the view."""
    corners = np.concatenate([strip.left, strip.right[::-1]])
    east, north = camera.to_view(corners[:, 0], corners[:, 1])
    return np.stack([east, np.full_like(east, -camera.elevation), north], axis=1)


def fill(
    mask: np.ndarray,
    top: int,
    camera: Camera,
    polygons: Polygons,
    value: Union[int, Tuple[int, int, int]],
    scale: float = 1.0,
) -> None:
    """Fill polygons ``(N, 3)`` of view points in ``mask``.

    Its first row is row ``top`` of the picture; its resolution is ``scale`` times the picture's.
    """
    if not polygons:
        return
    # one projection for all: a call for each would cost more than the filling
    corners = np.concatenate(polygons)
    depth = camera.depth(corners)
    pixels = _subpixels(camera, corners, np.maximum(depth, _CUT_M), top, scale)
    start = 0
    for polygon in polygons:
        end = start + len(polygon)
        if depth[start:end].min() >= _CUT_M:
            cv2.fillPoly(mask, [pixels[start:end]], value, cv2.LINE_AA, _SUBPIXEL)
        else:
            kept = _cut(polygon, depth[start:end])
            if len(kept) >= 3:
                rest = _subpixels(camera, kept, camera.depth(kept), top, scale)
                cv2.fillPoly(mask, [rest], value, cv2.LINE_AA, _SUBPIXEL)
        start = end


def _subpixels(
    camera: Camera, points: np.ndarray, depth: np.ndarray, top: int, scale: float
) -> np.ndarray:
    """Pixel coordinates ``(N, 2) int32`` with ``_SUBPIXEL`` fractional bits."""
    edges = camera.project(points, depth) + (0.5, 0.5 - top)
    pixels = (edges * scale - 0.5) * (1 << _SUBPIXEL)
    return np.rint(np.clip(pixels, -(1 << 20), 1 << 20)).astype(np.int32)


def _cut(polygon: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """The part of a polygon that is not too near to be projected."""
    kept: List[np.ndarray] = []
    for index in range(len(polygon)):
        following = (index + 1) % len(polygon)
        if depth[index] >= _CUT_M:
            kept.append(polygon[index])
        if (depth[index] >= _CUT_M) != (depth[following] >= _CUT_M):
            part = (_CUT_M - depth[index]) / (depth[following] - depth[index])
            kept.append(polygon[index] + part * (polygon[following] - polygon[index]))
    return np.array(kept)


class Ground:
    """The ground of one place.

    ``path`` and ``verge`` are keys of :data:`SURFACES`.
    """

    def __init__(self, path: str, verge: str, rng: np.random.Generator) -> None:
        first = _pyramid(SURFACES[path](rng))
        # side by side, so that one look-up a pixel finds either: the verge, then the path
        self._surfaces = [
            np.concatenate([right, left], axis=1)
            for left, right in zip(first, _pyramid(SURFACES[verge](rng)))
        ]
        patches = np.clip(200 + 14 * noise.shifted(noise.broad(7), rng), 120, 255)
        self._macro = np.pad(patches.astype(np.uint8), 1, mode="wrap")

    def paint(
        self,
        camera: Camera,
        weather: Weather,
        path: Strip,
        lines: Sequence[Strip],
        shadows: Polygons,
        contacts: Polygons,
        canvas: np.ndarray,
    ) -> int:
        """Paint everything below the horizon of ``canvas (H, W, 3) uint8``.

        ``shadows`` and ``contacts`` are polygons ``(N, 3)`` of view points on the ground: where the
        sun does not reach, and where things stand so close that little of the sky does either.
        Returns the first row that is ground.
        """
        top = min(max(int(np.ceil(camera.horizon + 0.75)), 0), camera.height)
        if top == camera.height:
            return top
        rays = camera.rays(Window(0, top, camera.width, camera.height))
        reach = (np.float32(camera.elevation) / -rays.y[:, 0]).astype(np.float32)
        east, north = _positions(camera, rays, reach)
        # how many texels of the finest level one pixel covers, mostly in depth
        spread = reach * reach / np.float32(camera.elevation * camera.focal) * noise.SIZE / TILE_M
        level = np.clip(np.log2(np.maximum(0.45 * spread, 1)), 0, _LEVELS - 1)

        column, row = _fraction(east), _fraction(north)
        mask = np.zeros(column.shape, np.uint8)
        fill(mask, top, camera, [outline(camera, path)], 255)
        on_path = (mask > 127).astype(np.float32)
        colours = _sample(self._surfaces, column, row, on_path, level)
        fill(colours, top, camera, [outline(camera, line) for line in lines], _PAINT)

        # light changes slowly over the ground: half the resolution will do
        uneven = cv2.remap(
            self._macro,
            _fraction(east[::2, ::2] * np.float32(1 / 8)) * np.float32(noise.SIZE),
            _fraction(north[::2, ::2] * np.float32(1 / 8)) * np.float32(noise.SIZE),
            cv2.INTER_LINEAR,
        )
        haze = weather.haziness(reach)[:, None]
        uneven = (uneven * (1 - haze[::2])).astype(np.uint8)
        light = _light(camera, weather, shadows, contacts, uneven, top)
        light = cv2.resize(light, colours.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        cv2.multiply(colours, light, dst=colours, scale=1 / _FULL_LIGHT)
        air = np.broadcast_to((haze * weather.haze).astype(np.uint8)[:, None], colours.shape)
        cv2.add(colours, air, dst=canvas[top:])
        return top


def _positions(camera: Camera, rays: Rays, reach: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Where in the world each pixel's ground lies, x and z ``(h, w) float32`` in tiles."""
    # the tiling repeats, so whole periods can go: float32 stays exact on any long drive
    period = TILE_M * 8
    cos, sin = np.cos(camera.yaw), np.sin(camera.yaw)
    ahead = reach * rays.z[:, 0]
    across = (reach * np.float32(1 / TILE_M))[:, None] * rays.x
    east = across * np.float32(cos)
    east += ((ahead * sin + camera.x % period) / TILE_M).astype(np.float32)[:, None]
    north = across
    north *= np.float32(-sin)
    north += ((ahead * cos + camera.z % period) / TILE_M).astype(np.float32)[:, None]
    return east, north


def _light(
    camera: Camera,
    weather: Weather,
    shadows: Polygons,
    contacts: Polygons,
    uneven: np.ndarray,
    top: int,
) -> np.ndarray:
    """Light on the ground at half resolution, ``(h, w, 3) uint8``; ``uneven (h, w)`` varies it."""
    sunlit = np.full(uneven.shape, 255, np.uint8)
    fill(sunlit, top, camera, shadows, 0, 0.5)
    width = 1 + 2 * int(round(weather.softness))
    sunlit = cv2.blur(cv2.blur(sunlit, (width, width)), (3, 3))
    open_sky = np.full(uneven.shape, 255, np.uint8)
    fill(open_sky, top, camera, contacts, 70, 0.5)
    open_sky = cv2.blur(open_sky, (5, 3))
    sunlit = cv2.multiply(sunlit, uneven, scale=1 / 255)
    open_sky = cv2.multiply(open_sky, uneven, scale=1 / 255)
    # the unevenness is a byte round 200 for a factor of 1
    unit = _FULL_LIGHT / 200
    return cv2.merge(
        [
            cv2.addWeighted(
                sunlit,
                unit * float(weather.sun_direction[1] * weather.sun[channel]),
                open_sky,
                unit * float(weather.ambient[channel]),
                0,
            )
            for channel in range(3)
        ]
    )


def _fraction(values: np.ndarray) -> np.ndarray:
    return values - np.floor(values)


def _pyramid(texture: np.ndarray) -> List[np.ndarray]:
    """A tileable texture and ever coarser copies, each with a wrapped border of one texel."""
    levels = []
    for _ in range(_LEVELS):
        levels.append(cv2.copyMakeBorder(texture, 1, 1, 1, 1, cv2.BORDER_WRAP))
        texture = cv2.resize(texture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return levels


def _sample(
    levels: Sequence[np.ndarray],
    column: np.ndarray,
    row: np.ndarray,
    right: np.ndarray,
    level: np.ndarray,
) -> np.ndarray:
    """Look surfaces up at tile coordinates in [0, 1).

    ``right (h, w)`` is 1 where the texture on the right is meant, and ``level (h,)`` says how
    coarse each row is. Returns ``(h, w, 3) uint8``.
    """
    out = np.empty((*column.shape, 3), np.uint8)
    # a row belongs to one level, except in a narrow band where it fades into the next
    share = np.clip((level - np.floor(level) - 0.35) / 0.3, 0, 1)
    blended = np.floor(level) + share
    # rows run from far to near, so levels do from coarse to fine, and each is one run of rows
    for index in range(len(levels) - 1, -1, -1):
        weight = np.clip(1 - np.abs(blended - index), 0, 1)
        rows = np.flatnonzero(weight)
        if not len(rows):
            continue
        start, end = int(rows[0]), int(rows[-1]) + 1
        size = np.float32(len(levels[index]) - 2)
        found = cv2.remap(
            levels[index],
            column[start:end] * size + (right[start:end] * (size + 2) + np.float32(0.5)),
            row[start:end] * size + np.float32(0.5),
            cv2.INTER_LINEAR,
        )
        # what is still partly coarser was painted by the level before
        shared = int(np.count_nonzero(blended[start:end] > index))
        middle = start + shared
        part = weight[start:middle, None, None].astype(np.float32)
        out[start:middle] = out[start:middle] * (1 - part) + found[:shared] * part
        out[middle:end] = found[shared:]
    return out


Surface = Callable[[np.random.Generator], np.ndarray]


def _tinted(grain: np.ndarray, colour: np.ndarray, contrast: Sequence[float]) -> np.ndarray:
    channels = []
    for middle, spread in zip(colour, contrast):
        # a negative tone would come back positive
        floored = np.maximum(grain, np.float32(-middle / spread))
        channels.append(cv2.convertScaleAbs(floored, alpha=float(spread), beta=float(middle)))
    return cv2.merge(channels)


def _near(rng: np.random.Generator, colour: Sequence[float], spread: float = 0.12) -> np.ndarray:
    return np.array(colour) * rng.uniform(1 - spread, 1 + spread) * rng.uniform(0.97, 1.03, 3)


def _asphalt(rng: np.random.Generator) -> np.ndarray:
    grain = noise.shifted(noise.fine(0), rng) + 0.5 * noise.shifted(noise.broad(1), rng)
    return _tinted(grain, _near(rng, (92, 90, 88), 0.25), (11, 11, 11))


def _gravel(rng: np.random.Generator) -> np.ndarray:
    stones = noise.shifted(noise.field(5, 64, 256, 0.9), rng)
    grain = np.sign(stones) * np.sqrt(np.abs(stones)) + 0.3 * noise.shifted(noise.broad(2), rng)
    return _tinted(grain, _near(rng, (124, 136, 146), 0.15), (22, 23, 24))


def _concrete(rng: np.random.Generator) -> np.ndarray:
    grain = 0.5 * noise.shifted(noise.fine(1), rng) + noise.shifted(noise.broad(0), rng)
    return _tinted(grain, _near(rng, (140, 144, 146), 0.18), (7, 7, 7))


def _grid(image: np.ndarray, step: int, joint: int, dark: float, offset_rows: bool) -> np.ndarray:
    """Joints between slabs every ``step`` texels; every other course shifted if asked for."""
    shade = np.ones((noise.SIZE, noise.SIZE), np.float32)
    for course, top in enumerate(range(0, noise.SIZE, step)):
        shade[top : top + joint] = dark
        shift = step // 2 * (course % 2) if offset_rows else 0
        for left in range(shift, noise.SIZE, step):
            shade[top : top + step, left : left + joint] = dark
    return (image * shade[:, :, None]).astype(np.uint8)


def _slabs(rng: np.random.Generator) -> np.ndarray:
    return _grid(_concrete(rng), int(rng.choice((128, 256))), 3, 0.62, False)


def _pavers(rng: np.random.Generator) -> np.ndarray:
    step = int(rng.choice((32, 64)))
    stones = rng.uniform(-1, 1, (noise.SIZE // step, noise.SIZE // step))
    tone = np.kron(stones, np.ones((step, step))).astype(np.float32)
    grain = 1.1 * tone + 0.5 * noise.shifted(noise.fine(2), rng)
    base = _near(rng, ((86, 102, 142), (128, 132, 136), (104, 128, 148))[int(rng.integers(3))])
    return _grid(_tinted(grain, base, (11, 11, 12)), step, 2, 0.6, True)


def _grass(rng: np.random.Generator) -> np.ndarray:
    blades = noise.shifted(noise.field(6, 128, 512, 1.0), rng)
    grain = blades + 0.7 * noise.shifted(noise.broad(3), rng)
    return _tinted(grain, _near(rng, (44, 116, 84), 0.18), (12, 21, 19))


def _meadow(rng: np.random.Generator) -> np.ndarray:
    image = _grass(rng)
    for _ in range(int(rng.integers(60, 180))):
        middle = tuple(int(v) for v in rng.integers(4, noise.SIZE - 4, 2))
        colour = ((220, 226, 230), (70, 210, 240), (190, 120, 180))[int(rng.integers(3))]
        cv2.circle(image, middle, int(rng.integers(1, 3)), colour, cv2.FILLED, cv2.LINE_AA)
    return image


def _dirt(rng: np.random.Generator) -> np.ndarray:
    grain = noise.shifted(noise.fine(3), rng) + noise.shifted(noise.broad(1), rng)
    return _tinted(grain, _near(rng, (84, 112, 140), 0.18), (12, 14, 15))


def _sand(rng: np.random.Generator) -> np.ndarray:
    ripples = np.sin(np.arange(noise.SIZE) * (2 * np.pi * 10 / noise.SIZE))[:, None]
    warped = 0.4 * ripples.astype(np.float32) + 0.8 * noise.shifted(noise.broad(2), rng)
    grain = warped + 0.4 * noise.shifted(noise.fine(0), rng)
    return _tinted(grain, _near(rng, (134, 176, 204), 0.12), (9, 10, 10))


def _epoxy(rng: np.random.Generator) -> np.ndarray:
    base = ((120, 122, 118), (130, 116, 92), (96, 118, 92), (150, 152, 154))
    grain = 0.4 * noise.shifted(noise.fine(1), rng) + noise.shifted(noise.broad(3), rng)
    return _tinted(grain, _near(rng, base[int(rng.integers(4))]), (4, 4, 4))


def _snow(rng: np.random.Generator) -> np.ndarray:
    grain = 0.5 * noise.shifted(noise.fine(1), rng) + noise.shifted(noise.broad(0), rng)
    return _tinted(grain, _near(rng, (226, 220, 214), 0.05), (7, 7, 8))


SURFACES: Dict[str, Surface] = {
    "asphalt": _asphalt,
    "gravel": _gravel,
    "concrete": _concrete,
    "slabs": _slabs,
    "pavers": _pavers,
    "grass": _grass,
    "meadow": _meadow,
    "dirt": _dirt,
    "sand": _sand,
    "epoxy": _epoxy,
    "snow": _snow,
}
"""Makers of surface textures ``(SIZE, SIZE, 3) uint8`` by name."""
