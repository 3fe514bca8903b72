"""Pictures of the synthetic drive as arrays: for training, and held out for judging.

Seeds are kept apart, so no picture that the network is judged by, and no drive that the demo shows
with a small seed, was ever trained on.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Tuple

import cv2
import numpy as np

from dla_perception.demo.scene import Scene, SceneFrame, random_scene

TRAINING_SEED = 1_000_000
"""Training takes seeds from here on; held-out pictures and the demo stay below."""
HELD_OUT_STILLS = 100_000
"""First seed of the held-out stills."""
HELD_OUT_DRIVES = 200_000
"""First seed of the held-out drives."""
FRAMES_PER_DRIVE = 10
FRAMES_APART = 45
"""Frames taken from one drive, and how far apart: 1.5 s, in which much of the view is new."""

PICTURE = (320, 240)
"""Width and height of a stored picture; a scene is rendered at twice that."""
MOST_OBJECTS = 24


@dataclass(frozen=True)
class Pictures:
    """``N`` pictures with their truth, boxes in pixels of the stored picture.

    Attributes:
        pixels: ``(N, 240, 320, 3) uint8``, red, green, blue.
        boxes: ``(N, MOST_OBJECTS, 4) float32``, zero where there is no object.
        class_ids: ``(N, MOST_OBJECTS) int64``, -1 where there is no object.
        ignore: ``(N, MOST_OBJECTS, 4) float32``, zero where there is none.
    """

    pixels: np.ndarray
    boxes: np.ndarray
    class_ids: np.ndarray
    ignore: np.ndarray


def held_out_stills(count: int) -> Iterator[SceneFrame]:
    """Independent pictures, never trained on."""
    for index in range(count):
        yield random_scene(HELD_OUT_STILLS + index)


def held_out_drive_frames(count: int) -> Iterator[SceneFrame]:
    """Frames of drives never trained on, ``FRAMES_PER_DRIVE`` of each."""
    for start in range(0, count, FRAMES_PER_DRIVE):
        scene = Scene(HELD_OUT_DRIVES + start // FRAMES_PER_DRIVE)
        for index in range(min(FRAMES_PER_DRIVE, count - start)):
            yield scene.frame(index * FRAMES_APART)


def render_training(stills: int, drive_frames: int, processes: int, seed: int) -> Pictures:
    """Render the pictures to train on, in several processes.

    ``seed`` below 1000 gives another set.
    """
    base = TRAINING_SEED * (1 + seed)
    total = stills + drive_frames
    chunks = [
        (False, base + start, min(FRAMES_PER_DRIVE, stills - start), start)
        for start in range(0, stills, FRAMES_PER_DRIVE)
    ] + [
        (True, base + start, min(FRAMES_PER_DRIVE, drive_frames - start), stills + start)
        for start in range(0, drive_frames, FRAMES_PER_DRIVE)
    ]
    boxes = np.zeros((total, MOST_OBJECTS, 4), np.float32)
    class_ids = np.full((total, MOST_OBJECTS), -1, np.int64)
    ignore = np.zeros((total, MOST_OBJECTS, 4), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        # the pixels go through a file that all processes map, and not through pipes
        path = Path(folder) / "pixels.npy"
        shape = (total, PICTURE[1], PICTURE[0], 3)
        shared = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
        jobs = [(str(path), *chunk) for chunk in chunks]
        # a fresh interpreter each: the renderer's libraries have threads, which fork would lose
        with multiprocessing.get_context("spawn").Pool(processes, _prepare) as pool:
            for start, labels in pool.imap_unordered(_render_chunk, jobs, chunksize=4):
                for offset, (found, classes, skipped) in enumerate(labels):
                    row = start + offset
                    boxes[row, : len(found)] = found
                    class_ids[row, : len(classes)] = classes
                    ignore[row, : len(skipped)] = skipped
        pixels = np.array(shared)
    return Pictures(pixels, boxes, class_ids, ignore)


Labels = Tuple[np.ndarray, np.ndarray, np.ndarray]


def _prepare() -> None:
    cv2.setNumThreads(1)


def _render_chunk(job: Tuple[str, bool, int, int, int]) -> Tuple[int, List[Labels]]:
    """Render a few pictures into the shared file; returns where, and their labels."""
    path, driving, seed, count, start = job
    shared = np.load(path, mmap_mode="r+")
    scene = Scene(seed) if driving else None
    labels = []
    for offset in range(count):
        if scene is None:
            frame = random_scene(seed + offset)
        else:
            frame = scene.frame(offset * FRAMES_APART)
        # at half the size, linear interpolation is the mean of four pixels, as in the detector
        small = cv2.resize(frame.pixels, PICTURE, interpolation=cv2.INTER_LINEAR)
        shared[start + offset] = small[:, :, ::-1]
        labels.append(
            (
                frame.truth.boxes[:MOST_OBJECTS] / 2,
                frame.truth.class_ids[:MOST_OBJECTS],
                frame.ignore[:MOST_OBJECTS] / 2,
            )
        )
    return start, labels
