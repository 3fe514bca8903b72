"""Tileable noise fields, made once and shared by every texture of the renderer."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

SIZE = 512
"""Side of every field in texels; a power of two, so that ``index & (SIZE - 1)`` wraps."""


@lru_cache(maxsize=16)
def field(seed: int, coarsest: int, finest: int, persistence: float = 0.6) -> np.ndarray:
    """Fractal value noise ``(SIZE, SIZE) float32``, mean 0, standard deviation 1, tileable.

    ``coarsest`` and ``finest`` are cells a side (powers of two) of the first and last octave;
    each octave weighs ``persistence`` times the one before.
    """
    rng = np.random.default_rng([seed, coarsest, finest])
    total = np.zeros((SIZE, SIZE), np.float32)
    cells, weight = coarsest, 1.0
    while cells <= finest:
        total += weight * _stretched(rng.standard_normal((cells, cells), np.float32))
        cells, weight = cells * 2, weight * persistence
    total -= total.mean()
    total /= total.std()
    total.setflags(write=False)
    return total


def broad(seed: int) -> np.ndarray:
    """Soft blotches with little detail."""
    return field(seed % 4, 4, 32)


def fine(seed: int) -> np.ndarray:
    """Grain down to single texels with some larger structure."""
    return field(seed % 4 + 10, 16, 512, 0.85)


def shifted(noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same field rolled and flipped at random: another one, for nearly nothing."""
    rolled = np.roll(noise, tuple(int(v) for v in rng.integers(0, SIZE, 2)), (0, 1))
    return rolled[:: int(rng.choice((1, -1))), :: int(rng.choice((1, -1)))]


def _stretched(cells: np.ndarray) -> np.ndarray:
    """Cells ``(n, n)`` interpolated to ``(SIZE, SIZE)`` so that opposite edges still meet."""
    count = len(cells)
    if count == SIZE:
        return cells
    # four cells of wrap-around on each side are more than the cubic kernel reaches
    factor = SIZE // count
    wrapped = np.pad(cells, 4, mode="wrap")
    size = SIZE + 8 * factor
    smooth = cv2.resize(wrapped, (size, size), interpolation=cv2.INTER_CUBIC)
    edge = 4 * factor
    return smooth[edge : edge + SIZE, edge : edge + SIZE]
