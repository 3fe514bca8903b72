"""Everything beyond the ground: the sky or the hall, and a skyline all round.

It is painted once as a panorama and looked up per frame by the direction of each column, so it
turns with the robot but never comes nearer.
"""

from __future__ import annotations

import math
from typing import Callable, Dict

import cv2
import numpy as np

from dla_perception.demo import noise
from dla_perception.demo.camera import Camera
from dla_perception.demo.weather import Weather

WIDTH = 2048
"""Columns of the panorama for a full turn."""
HEIGHT = 300
"""Rows of the panorama; the last is the horizon."""

_ROWS_PER_RADIAN = WIDTH / (2 * math.pi)


class Backdrop:
    """The panorama of one place in one weather."""

    def __init__(
        self, skyline: str, roofed: bool, weather: Weather, rng: np.random.Generator
    ) -> None:
        image = _hall(rng, weather) if roofed else _sky(rng, weather)
        SKYLINES[skyline](image, rng, weather)
        np.clip(image, 0, 255, out=image)
        picture = image.astype(np.uint8)
        # a few columns of the other end, so that interpolation never meets an edge
        self._panorama = np.concatenate([picture, picture[:, :4]], axis=1)

    def paint(self, camera: Camera, canvas: np.ndarray, rows: int) -> None:
        """Fill the first ``rows`` rows of ``canvas (H, W, 3) uint8``, down to the horizon."""
        if rows <= 0:
            return
        columns = (np.arange(camera.width) - camera.centre[0]) / camera.focal
        angle = camera.yaw + np.arctan(columns)
        across = np.mod(angle * (WIDTH / (2 * math.pi)), WIDTH).astype(np.float32)
        above = (camera.horizon - np.arange(rows)) / camera.focal
        down = (HEIGHT - 1.5 - np.arctan(above) * _ROWS_PER_RADIAN * 1.5).astype(np.float32)
        cv2.remap(
            self._panorama,
            np.broadcast_to(across, (rows, camera.width)).copy(),
            np.broadcast_to(down[:, None], (rows, camera.width)).copy(),
            cv2.INTER_LINEAR,
            dst=canvas[:rows],
            borderMode=cv2.BORDER_REPLICATE,
        )


def _sky(rng: np.random.Generator, weather: Weather) -> np.ndarray:
    """A gradient with clouds, ``(HEIGHT, WIDTH, 3) float32``."""
    height = np.linspace(1, 0, HEIGHT, dtype=np.float32)[:, None, None]
    blend = np.sqrt(height)
    image = weather.zenith * blend + weather.haze * (1 - blend)
    image = np.repeat(image.astype(np.float32), WIDTH, axis=1)
    clouds = noise.shifted(noise.field(3, 2, 128, 0.62), rng)
    rows = (np.linspace(0, 1, HEIGHT) ** 0.6 * 260).astype(int)
    columns = (np.arange(WIDTH) * (2 * noise.SIZE / WIDTH)).astype(int) % noise.SIZE
    cover = clouds[rows[:, None], columns[None, :]]
    thick = np.clip((cover - (1.1 - 2.2 * weather.clouds)) * 0.9, 0, 1)
    thick *= np.clip((height[:, 0] - 0.02) * 6, 0, 1)
    bright = 1 - 0.18 * np.clip(cover, 0, 2)
    for channel in range(3):
        layer = image[:, :, channel]
        layer += (bright * weather.cloud_colour[channel] - layer) * thick
    return image


def _hall(rng: np.random.Generator, weather: Weather) -> np.ndarray:
    """A hall's far wall and roof with rows of lamps, ``(HEIGHT, WIDTH, 3) float32``."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    wall = weather.haze
    shade = np.linspace(0.45, 1.0, HEIGHT, dtype=np.float32)[:, None, None]
    image[:] = wall * shade
    for column in range(0, WIDTH, 64):
        image[:, column : column + 3] *= 0.78
    for row in (30, 62, 92, 118):
        image[row : row + 3] *= 0.7
        step, half = 128, max(row // 5, 5)
        for column in range(int(rng.integers(step)), WIDTH - half, step):
            glow = image[row + 5 : row + 9, column : column + 2 * half]
            glow[:] = 250
    return cv2.GaussianBlur(image, (0, 0), 1.0)


def _outline(rng: np.random.Generator, low: float, high: float, rough: int) -> np.ndarray:
    """Heights ``(WIDTH,)`` above the horizon that meet at both ends; ``rough`` waves a turn."""
    angle = np.arange(WIDTH) * (2 * math.pi / WIDTH)
    line = np.zeros(WIDTH)
    for octave in range(5):
        waves = rough * 2**octave + int(rng.integers(3))
        line += np.sin(waves * angle + rng.uniform(0, 6.3)) * 0.55**octave
    line = (line - line.min()) / (line.max() - line.min())
    return low + (high - low) * line


def _fill_below(image: np.ndarray, heights: np.ndarray, colour: np.ndarray, grain: float) -> None:
    """Colour everything from the horizon up to ``heights (WIDTH,)``."""
    tall = min(int(heights.max()) + 1, HEIGHT)
    area = image[HEIGHT - tall :]
    below = np.arange(tall, 0, -1)[:, None] <= heights[None, :]
    texture = noise.fine(1)[:tall, np.arange(WIDTH) % noise.SIZE]
    shade = 1 + np.float32(grain) * texture
    for channel in range(3):
        np.copyto(area[:, :, channel], np.float32(colour[channel]) * shade, where=below)


def _hills(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    for layer, (low, high) in enumerate(((18, 62), (10, 40), (4, 20))):
        near = (layer + 1) / 4
        colour = weather.haze * (1 - near) + weather.shade((62, 100, 84)) * near
        _fill_below(image, _outline(rng, low, high, 3 + 2 * layer), colour, 0.03 + 0.03 * layer)


def _mesas(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    for layer, high in enumerate((58, 36)):
        near = 0.35 + 0.3 * layer
        colour = weather.haze * (1 - near) + weather.shade((72, 104, 158)) * near
        outline = np.minimum(_outline(rng, 0, high * 1.9, 4 + 3 * layer), high)
        _fill_below(image, outline, colour, 0.05)


def _trees(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    if rng.random() < 0.5:
        _hills(image, rng, weather)
    bumps = np.abs(noise.fine(2)[int(rng.integers(noise.SIZE))][np.arange(WIDTH) % noise.SIZE])
    for layer, size in enumerate((34, 22)):
        near = 0.45 + 0.25 * layer
        colour = weather.haze * (1 - near) + weather.shade((38, 66, 46)) * near
        outline = _outline(rng, size * 0.4, size, 9) + np.roll(bumps, layer * 200) * 6
        _fill_below(image, outline, colour, 0.16)


def _city(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    for layer in range(2):
        near = 0.4 + 0.3 * layer
        column = 0
        while column < WIDTH:
            width, tall = int(rng.integers(28, 96)), int(rng.integers(22, 110 - 40 * layer))
            wall = weather.shade(tuple(rng.uniform(70, 170) + rng.uniform(-22, 22, 3)))
            colour = weather.haze * (1 - near) + wall * near
            right = min(column + width, WIDTH)
            block = image[HEIGHT - tall :, column:right]
            block[:] = colour
            pane = colour * rng.uniform(0.55, 1.25)
            for row in range(4, tall - 4, 8):
                for start in range(3, right - column - 4, 7):
                    block[row : row + 4, start : start + 3] = pane
            column = right + int(rng.integers(0, 30))


def _containers(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    _trees(image, rng, weather)
    paints = ((40, 60, 150), (130, 80, 30), (60, 110, 60), (60, 120, 180), (120, 120, 120))
    column = 0
    while column < WIDTH:
        width, stack = int(rng.integers(70, 130)), int(rng.integers(0, 4))
        right = min(column + width, WIDTH)
        for level in range(stack):
            paint = weather.shade(paints[int(rng.integers(len(paints)))])
            bottom = HEIGHT - level * 20
            block = image[bottom - 20 : bottom, column:right]
            block[:] = 0.75 * paint + 0.25 * weather.haze
            block[:, ::4] *= 0.82
            block[:1] *= 0.6
        column = right + int(rng.integers(2, 14))


def _racks(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    loads = ((104, 150, 188), (120, 120, 124), (150, 110, 60), (60, 90, 150), (200, 204, 206))
    for column in range(0, WIDTH - 40, 84):
        for level in range(4):
            bottom = HEIGHT - 6 - level * 30
            image[bottom : bottom + 4, column : column + 78] = weather.shade((30, 100, 200))
            start = column + 4
            while start < column + 64:
                width, tall = int(rng.integers(10, 22)), int(rng.integers(8, 24))
                load = weather.shade(loads[int(rng.integers(len(loads)))])
                if rng.random() < 0.8:
                    dim = 0.55 * load + 0.2 * weather.haze
                    image[bottom - tall : bottom, start : start + width] = dim
                start += width + 2
        image[HEIGHT - 130 :, column : column + 3] = weather.shade((120, 60, 30))


def _wall(image: np.ndarray, rng: np.random.Generator, weather: Weather) -> None:
    stripe = weather.shade(tuple(rng.uniform(50, 190, 3)))
    image[HEIGHT - 46 :] = image[HEIGHT - 46 :] * 0.35 + stripe * 0.5
    for column in range(int(rng.integers(200)), WIDTH - 90, 330):
        image[HEIGHT - 84 :, column : column + 72] = weather.haze * 0.62
        image[HEIGHT - 84 :: 9, column : column + 72] = weather.haze * 0.5


Painter = Callable[[np.ndarray, np.random.Generator, Weather], None]

SKYLINES: Dict[str, Painter] = {
    "hills": _hills,
    "mesas": _mesas,
    "trees": _trees,
    "city": _city,
    "containers": _containers,
    "racks": _racks,
    "wall": _wall,
}
"""Painters of skylines by name."""
