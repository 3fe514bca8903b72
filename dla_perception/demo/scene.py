"""A synthetic drive with exact ground truth: what the demo shows and its network learned from.

Everything is a pure function of a seed and a frame's index: no state, no clock, no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Tuple

import numpy as np

from dla_perception.demo.backdrop import Backdrop
from dla_perception.demo.ground import Ground
from dla_perception.demo.props import CLASS_NAMES, CLUTTER
from dla_perception.demo.renderer import Rendering, render
from dla_perception.demo.themes import THEMES, Theme
from dla_perception.demo.weather import Film, Lens, Weather, indoor, outdoor
from dla_perception.demo.world import FRAMES_PER_SECOND, Curve, Drive, still_camera, still_things
from dla_perception.detection.detections import Detections

__all__ = ("CLASS_NAMES", "MIN_SIDE", "MIN_VISIBLE", "Scene", "SceneFrame", "random_scene")

MIN_SIDE = 20
"""Least side of a truth box in pixels of a picture 640 wide; in proportion for other widths."""
MIN_VISIBLE = 0.5
"""Least share of an object that has to be seen for it to be truth."""


@dataclass(frozen=True)
class SceneFrame:
    """One picture and what is in it.

    Attributes:
        pixels: ``(H, W, 3) uint8``, blue, green, red.
        truth: the objects that a detector has to find; the scores are 1. A box spans exactly the
            object's visible pixels: a single one at column 3, row 4 has the box 3, 4, 4, 5.
        ignore: ``(K, 4) float32``, boxes in the same form round objects that are neither a hit
            nor a miss, because the box's shorter side is below ``MIN_SIDE`` or less than
            ``MIN_VISIBLE`` of the object is seen. That share is its visible pixels over all it
            would have here if nothing stood before it, times the share of its
            outline's box that lies inside the picture.
        ids: ``(H, W) int16``, which object a pixel shows, 0 for none; clutter has ids too.
        truth_ids: ``(N,) int32``, the ids of the objects in ``truth``.
    """

    pixels: np.ndarray
    truth: Detections
    ignore: np.ndarray
    ids: np.ndarray
    truth_ids: np.ndarray


class Scene:
    """An endless drive of 30 frames a second.

    Args:
        seed: any whole number from 0; another seed, another place, weather and path.
        size: width and height of the pictures in pixels.
    """

    def __init__(self, seed: int, size: Tuple[int, int] = (640, 480)) -> None:
        rng = _generator(seed, 0)
        self.theme = THEMES[int(rng.integers(len(THEMES)))]
        self._seed = seed
        self._weather = _weather(self.theme, rng, harsh=False)
        self._backdrop, self._ground = _place(self.theme, self._weather, rng)
        self._film = Film(Lens.random(rng, harsh=False), size[0], size[1])
        self._drive = Drive(seed, self.theme, size)
        self._cloud_phase = float(rng.uniform(0, 2 * math.pi))
        self._painted = self.theme.lines and bool(rng.random() < 0.8)

    def frame(self, index: int) -> SceneFrame:
        """The picture number ``index``, from 0."""
        if index < 0:
            raise ValueError(f"frame {index}: frames are numbered from 0")
        camera = self._drive.camera(index)
        rendering = render(
            camera,
            self._clouded(index),
            self._backdrop,
            self._ground,
            self._drive.path(camera.z),
            self._drive.lines(camera.z) if self._painted else (),
            self._drive.things(camera.z),
        )
        grain = np.random.default_rng([self._seed, 3, index])
        return _finished(rendering, self._film.expose(rendering.pixels, grain))

    def _clouded(self, index: int) -> Weather:
        """The weather with clouds passing before the sun, slowly."""
        if self.theme.roofed:
            return self._weather
        wave = math.sin(index / FRAMES_PER_SECOND * 0.5 + self._cloud_phase)
        return self._weather.dimmed(1 - 0.35 * self._weather.clouds * max(wave, 0.0))


def random_scene(seed: int, size: Tuple[int, int] = (640, 480)) -> SceneFrame:
    """A single picture with more variety than drives have, for training.

    Cameras at any height, things anywhere and of more sizes, dusk, fog, noise and blur.
    """
    rng = _generator(seed, 10)
    theme = THEMES[int(rng.integers(len(THEMES)))]
    weather = _weather(theme, rng, harsh=True)
    if rng.random() < 0.3:
        weather = weather.dimmed(float(rng.uniform(0.3, 1.0)))
    backdrop, ground = _place(theme, weather, rng)
    camera = still_camera(rng, size)
    curve = Curve(rng, float(rng.uniform(0.3, 2.0)))
    aside, half = float(rng.normal(0, 1.5)), float(rng.uniform(0.8, 3.0))
    shift = aside - float(curve.x(np.array(0.0)))
    path = curve.strip(-1, 60, shift - half, shift + half, 1.0)
    lines = []
    if theme.lines and rng.random() < 0.7:
        edge = half - 0.15
        lines = [
            curve.strip(-1, 30, shift + s * edge - 0.05, shift + s * edge + 0.05, 1.0)
            for s in (-1, 1)
        ]
    things = still_things(camera, theme.clutter, rng)
    rendering = render(camera, weather, backdrop, ground, path, lines, things)
    film = Film(Lens.random(rng, harsh=True), size[0], size[1])
    return _finished(rendering, film.expose(rendering.pixels, rng))


def _generator(seed: int, purpose: int) -> np.random.Generator:
    if seed < 0:
        raise ValueError(f"seed {seed}: expected a whole number from 0")
    return np.random.default_rng([seed, purpose])


def _weather(theme: Theme, rng: np.random.Generator, harsh: bool) -> Weather:
    return indoor(rng) if theme.roofed else outdoor(rng, harsh)


def _place(theme: Theme, weather: Weather, rng: np.random.Generator) -> Tuple[Backdrop, Ground]:
    def one_of(names: Tuple[str, ...]) -> str:
        return names[int(rng.integers(len(names)))]

    backdrop = Backdrop(one_of(theme.skylines), theme.roofed, weather, rng)
    return backdrop, Ground(one_of(theme.path), one_of(theme.verge), rng)


def _finished(rendering: Rendering, pixels: np.ndarray) -> SceneFrame:
    """Work the truth out from the id buffer."""
    least = MIN_SIDE * rendering.ids.shape[1] / 640
    boxes: List[Tuple[int, int, int, int]] = []
    classes: List[int] = []
    numbers: List[int] = []
    ignore: List[Tuple[int, int, int, int]] = []
    for drawn in rendering.drawn:
        if drawn.class_id == CLUTTER:
            continue
        left, top, right, bottom = drawn.window
        mine = rendering.ids[top:bottom, left:right] == drawn.id
        rows, columns = np.flatnonzero(mine.any(axis=1)), np.flatnonzero(mine.any(axis=0))
        if not len(rows):
            continue
        box = (
            left + int(columns[0]),
            top + int(rows[0]),
            left + int(columns[-1]) + 1,
            top + int(rows[-1]) + 1,
        )
        visible = np.count_nonzero(mine) / drawn.pixels * drawn.inside
        if min(box[2] - box[0], box[3] - box[1]) >= least and visible >= MIN_VISIBLE:
            boxes.append(box)
            classes.append(drawn.class_id)
            numbers.append(drawn.id)
        else:
            ignore.append(box)
    return SceneFrame(
        pixels,
        Detections(np.array(boxes), np.ones(len(boxes)), np.array(classes)),
        np.array(ignore, np.float32).reshape(-1, 4),
        rendering.ids,
        np.array(numbers, np.int32),
    )
