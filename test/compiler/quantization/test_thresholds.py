"""Clipping points: against the algorithm written out loop by loop, and known answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.compiler.quantization.thresholds import (
    BINS,
    LEVELS,
    entropy_threshold,
    percentile_threshold,
)


def entropy_by_loops(histogram: np.ndarray) -> int:
    """How many bins are kept: the published algorithm, step by step."""
    counts = histogram.astype(float)
    counts[0] = counts[1]
    best, kept = np.inf, len(counts)
    for size in range(LEVELS, len(counts) + 1):
        reference = counts[:size].copy()
        reference[-1] += counts[size:].sum()
        quantised = np.zeros(size)
        # bin k belongs to the level in which its left edge lies
        level = np.array([k * LEVELS // size for k in range(size)])
        for value in range(LEVELS):
            inside = (level == value) & (reference > 0)
            if inside.any():
                quantised[inside] = counts[:size][inside].sum() / inside.sum()
        p, q = reference / reference.sum(), quantised / quantised.sum()
        q[(p > 0) & (q == 0)] = 1e-4 / quantised.sum()
        filled = p > 0
        divergence = (p[filled] * np.log(p[filled] / q[filled])).sum()
        if divergence <= best + 1e-12:
            best, kept = divergence, size
    return kept


@pytest.mark.parametrize("seed", range(4))
def test_entropy_agrees_with_the_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = np.abs(generator.standard_t(2 + seed, 20000))
    bins = 512  # the loops are slow
    histogram = np.histogram(values, bins, (0, values.max()))[0]
    kept = entropy_by_loops(histogram)
    assert entropy_threshold(histogram, 10.0) == pytest.approx(10.0 * kept / bins)
    assert kept >= LEVELS


def test_entropy_clips_a_lonely_outlier_and_keeps_a_flat_distribution() -> None:
    normal = np.abs(np.random.default_rng(0).normal(size=100000))
    spread = np.concatenate([normal, [100.0]])
    histogram = np.histogram(spread, BINS, (0, 100))[0]
    assert entropy_threshold(histogram, 100.0) < 10
    flat = np.full(BINS, 7)
    assert entropy_threshold(flat, 3.0) == 3.0


def test_zeros_behind_a_relu_do_not_count() -> None:
    values = np.abs(np.random.default_rng(0).normal(size=50000))
    histogram = np.histogram(values, BINS, (0, values.max()))[0]
    crowded = histogram.copy()
    crowded[0] += 10_000_000
    assert entropy_threshold(crowded, 5.0) == entropy_threshold(histogram, 5.0)


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(1e-6, 1e6))
@settings(max_examples=20, deadline=None)
def test_thresholds_are_within_the_values(seed: int, filled: float, largest: float) -> None:
    generator = np.random.default_rng(seed)
    histogram = generator.integers(0, 1000, BINS) * (generator.random(BINS) < filled)
    assert largest / BINS <= entropy_threshold(histogram, largest) <= largest
    assert 0 < percentile_threshold(histogram, largest, 99.9) <= largest


def test_percentiles() -> None:
    values = np.random.default_rng(0).uniform(0, 8, 200000)
    histogram = np.histogram(values, BINS, (0, 8))[0]
    for percentile in (1, 50, 99, 99.9):
        expected = np.percentile(values, percentile)
        assert percentile_threshold(histogram, 8.0, percentile) == pytest.approx(
            expected, abs=0.005
        )
    assert percentile_threshold(histogram, 8.0, 100) == 8.0
    one = np.zeros(BINS, np.int64)
    one[100] = 5
    assert percentile_threshold(one, BINS, 40) == pytest.approx(100.4)


def test_values_that_all_lie_far_from_zero_are_not_clipped_away():
    """A picture without dark pixels: the first candidates hold nothing, so nothing differs."""
    histogram = np.zeros(2048)
    histogram[128:] = np.random.default_rng(3).integers(1, 100, 1920)
    threshold = entropy_threshold(histogram, 1.0)
    kept = histogram[: round(threshold * 2048)].sum() / histogram.sum()
    assert kept >= 0.5
