"""From the distribution of a tensor's values to the largest value that INT8 should hold."""

from __future__ import annotations

import numpy as np

LEVELS = 128
"""Magnitudes that INT8 tells apart: 0 to 127."""

BINS = 2048
"""Of a histogram of magnitudes, as in TensorRT's calibration."""

_NOTHING = 1e-4


def entropy_threshold(histogram: np.ndarray, largest: float) -> float:
    """The clipping point that loses least information, as an entropy calibrator chooses it.

    Each candidate keeps the first ``i`` of 2048 bins, 128 <= i <= 2048. Its reference distribution
    ``P`` has all that is clipped in its last bin; ``Q`` is what 128 equal steps leave of these
    bins, spread evenly over those that are not empty. The candidate with the least
    Kullback-Leibler divergence of ``Q`` from ``P`` is chosen, the largest of equal ones, among
    those that clip at most half of the values (an addition to the published method). Where
    ``Q`` has nothing to stand for what is clipped, it gets 0.0001 counts instead.

    Sources: S. Migacz, "8-bit Inference with TensorRT", GTC 2017; NVIDIA's pytorch-quantization,
    ``calib/histogram.py``, whose treatment of the first bin is followed: exact zeros, which
    every scale holds exactly, would outweigh everything else behind a ReLU; ONNX Runtime,
    ``quantization/calibrate.py``, for the 0.0001. TensorRT's own EntropyCalibration2 is not
    published in more detail.

    Args:
        histogram: counts ``(bins,)`` of magnitudes in equal bins from 0 to ``largest``.
        largest: upper edge of the last bin.

    Returns:
        A value in (0, ``largest``].
    """
    counts = histogram.astype(np.float64)
    counts[0] = counts[1]
    total = counts.sum()
    if total <= 0:
        return largest
    sizes = np.arange(LEVELS, len(counts) + 1)
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    filled = np.concatenate([[0], np.cumsum(counts > 0)])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(counts > 0, counts * np.log(np.where(counts > 0, counts, 1)), 0.0)
        log_sums = np.concatenate([[0.0], np.cumsum(logs)])
        kept = sums[sizes]
        last = counts[sizes - 1]
        clipped = total - kept
        # sum over the bins of P log P, its last bin with what is clipped
        end = last + clipped
        own = log_sums[sizes - 1] + np.where(end > 0, end * np.log(end), 0.0)
        edges = np.ceil(np.arange(LEVELS + 1) * (sizes[:, None] / LEVELS) - 1e-9).astype(np.int64)
        level_sums = np.diff(sums[edges], axis=1)
        occupied = np.diff(filled[edges], axis=1)
        occupied[:, -1] += (last == 0) & (clipped > 0)  # by what is clipped
        levels = np.where(level_sums > 0, level_sums / occupied, _NOTHING)
        level_logs = np.log(levels)
        # sum of P log Q: P equals the counts but for what is clipped, in the last level
        crossed = (level_sums * level_logs).sum(axis=1) + clipped * level_logs[:, -1]
        divergence = (own - crossed) / total - np.log(total) + np.log(kept)
    # what clips more than half of the values is compared in one bin, where nothing differs
    divergence = np.where(np.isfinite(divergence) & (kept >= total / 2), divergence, np.inf)
    best = len(sizes) - 1 - int(np.argmin(divergence[::-1]))
    return float(largest * sizes[best] / len(counts))


def percentile_threshold(histogram: np.ndarray, largest: float, percentile: float) -> float:
    """The magnitude below which ``percentile`` per cent of the values lie.

    Linear within a bin. Source: NVIDIA's pytorch-quantization, ``calib/histogram.py``, which
    takes the bin's edge.

    Args:
        histogram: counts ``(bins,)`` of magnitudes in equal bins from 0 to ``largest``.
        largest: upper edge of the last bin.
        percentile: above 0, at most 100.

    Returns:
        A value in (0, ``largest``].
    """
    sums = np.concatenate([[0.0], np.cumsum(histogram, dtype=np.float64)])
    if sums[-1] <= 0:
        return largest
    wanted = sums[-1] * percentile / 100
    index = int(np.searchsorted(sums, wanted, side="left"))
    if index == 0:
        return largest / len(histogram)
    inside = (wanted - sums[index - 1]) / (sums[index] - sums[index - 1])
    return float(largest * (index - 1 + inside) / len(histogram))
