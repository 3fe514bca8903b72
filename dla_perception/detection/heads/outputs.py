"""Reading single cells out of an engine's output buffer, whatever its type and layout.

A head looks at every score of an output, but at the boxes of few cells. So an output is not
converted: scores are compared where and as they lie, and what belongs to the cells that pass is
read and converted to real values.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from dla_perception.detection.description import DescriptionError
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.layouts import Layout, buffer_shape

_BLOCKS = {Layout.CHW16: 16, Layout.CHW32: 32}
_HALF_MINUS_INFINITY = np.uint16(0xFC00)


def check_output(spec: TensorSpec, engine: str = "") -> None:
    """Refuse an output that no head can read; ``engine`` names its file in the message.

    Raises:
        DescriptionError: its type is none of those, or an INT8 output has no scale.
    """
    where = f"{engine}: output {spec.name}" if engine else f"output {spec.name}"
    if spec.dtype not in (np.float32, np.float16, np.int8):
        raise DescriptionError(
            f"{where}: it is of type {np.dtype(spec.dtype).name}; expected float32, "
            "float16 or int8: build the engine with one of these"
        )
    if spec.dtype == np.int8 and not (spec.scale and 0 < spec.scale < np.inf):
        what = "has no scale" if spec.scale is None else f"has the scale {spec.scale}"
        raise DescriptionError(
            f"{where}: it is int8 and {what}; expected a positive one: give the engine "
            "its calibration cache, or build it with float16 outputs"
        )
    if spec.layout is Layout.HWC4:
        raise DescriptionError(
            f"{where}: {spec.layout.value} is a layout of inputs; build the engine with "
            "linear, dla_linear, chw16 or chw32 outputs"
        )


class CellReader:
    """One output as cells with channels; for one thread at a time.

    A cell's number counts row by row through the logical tensor, without padding.

    Args:
        spec: the output; batch 1.
        channels_last: whether channels are the last axis of its shape, else the second.

    Raises:
        DescriptionError: see :func:`check_output`.
    """

    def __init__(self, spec: TensorSpec, channels_last: bool = False) -> None:
        check_output(spec)
        if channels_last and spec.layout in _BLOCKS:
            raise DescriptionError(
                f"output {spec}: a cell's values are its last axis, which {spec.layout.value} "
                "cannot hold; build the engine with linear outputs"
            )
        self._shape = buffer_shape(spec)
        self._scale = 1.0 if spec.scale is None else spec.scale
        self._dtype = np.dtype(spec.dtype)
        self._channels_last = channels_last
        self._lanes = _BLOCKS.get(spec.layout, 0)
        self._width = spec.shape[-1]
        self._padding = self._shape[-1] - self._width if spec.layout is Layout.DLA_LINEAR else 0
        # scratch for comparisons of rows: bytes that no comparison writes stay false
        self._marks = np.zeros((0, 0), bool)
        self._lane_masks: dict[tuple[int, int], np.ndarray] = {}
        self._floor = 0.0
        self._bound = _make_bound(self._dtype, self._scale, self._floor)

    def find(self, buffer: np.ndarray, start: int, stop: int, floor: float) -> np.ndarray:
        """The cells in which a channel from ``start`` to ``stop`` is not below ``floor``.

        A value that is not a number is not below anything.

        Returns:
            Cell numbers in ascending order.
        """
        bound = self._bound_of(floor)
        if self._lanes:
            return self._find_in_blocks(buffer, start, stop, bound)
        if self._channels_last:
            return self._find_in_rows(buffer, start, stop, bound)
        planes = buffer.reshape(self._shape[1], -1)[start:stop]
        reached = bound.reaches(planes[0]) if len(planes) == 1 else bound.any_reaches(planes)
        cells = np.flatnonzero(reached)
        if not self._padding:
            return cells
        row, column = np.divmod(cells, self._shape[-1])
        inside = column < self._width
        return row[inside] * self._width + column[inside]

    def read(self, buffer: np.ndarray, start: int, stop: int, cells: np.ndarray) -> np.ndarray:
        """Real values ``(stop - start, len(cells)) float32`` of channels of some cells."""
        if self._lanes:
            first = start // self._lanes
            blocks = buffer[0].reshape(self._shape[1], -1, self._lanes)
            values = blocks[first : -(-stop // self._lanes)].take(cells, axis=1)
            values = values.transpose(0, 2, 1).reshape(len(values) * self._lanes, len(cells))
            values = values[start - first * self._lanes : stop - first * self._lanes]
        elif self._channels_last:
            values = buffer.reshape(-1, self._shape[-1]).take(cells, axis=0)[:, start:stop].T
        else:
            if self._padding:
                cells = cells + cells // self._width * self._padding
            values = buffer.reshape(self._shape[1], -1)[start:stop].take(cells, axis=1)
        if self._dtype == np.int8:
            return np.multiply(values, np.float32(self._scale), dtype=np.float32)
        return values.astype(np.float32, copy=False)

    def _find_in_rows(self, buffer: np.ndarray, start: int, stop: int, bound: _Bound) -> np.ndarray:
        rows = buffer.reshape(-1, self._shape[-1])[:, start:stop]
        count = stop - start
        if count == 1:
            return np.flatnonzero(bound.reaches(rows[:, 0]))
        words = -(-count // 8)
        marks = bound.reaches(rows)
        if count % 8:
            if self._marks.shape != (len(rows), 8 * words):
                self._marks = np.zeros((len(rows), 8 * words), bool)
            self._marks[:, :count] = marks
            marks = self._marks
        return _marked_rows(marks.view(np.uint64).ravel(), words)

    def _find_in_blocks(
        self, buffer: np.ndarray, start: int, stop: int, bound: _Bound
    ) -> np.ndarray:
        blocks = buffer[0].reshape(self._shape[1], -1, self._lanes)
        if stop - start == 1:
            lane = blocks[start // self._lanes, :, start % self._lanes]
            return np.flatnonzero(bound.reaches(lane))
        first, last = start // self._lanes, stop // self._lanes
        parts = []
        if start % self._lanes or first == last:
            lanes = slice(start % self._lanes, min(stop - first * self._lanes, self._lanes))
            parts.append(self._marks_of_lanes(blocks[first], lanes, bound))
            first += 1
        if first < last:
            parts.append(bound.any_reaches(blocks[first:last]).view(np.uint64).ravel())
        if first <= last and stop % self._lanes:
            parts.append(self._marks_of_lanes(blocks[last], slice(0, stop % self._lanes), bound))
        for part in parts[1:]:
            parts[0] |= part
        return _marked_rows(parts[0], self._lanes // 8)

    def _marks_of_lanes(self, block: np.ndarray, lanes: slice, bound: _Bound) -> np.ndarray:
        """A byte for each value of a block ``(cells, lanes)``, eight a word; 0 beside ``lanes``."""
        key = (lanes.start, lanes.stop)
        if key not in self._lane_masks:
            mask = np.zeros(block.shape, np.uint8)
            mask[:, lanes] = 1
            self._lane_masks[key] = mask.view(np.uint64).ravel()
        marks = bound.reaches(block).view(np.uint64).ravel()
        marks &= self._lane_masks[key]
        return marks

    def _bound_of(self, floor: float) -> _Bound:
        """Ready to compare; a network is decoded with the same thresholds frame after frame."""
        if floor != self._floor:
            self._bound = _make_bound(self._dtype, self._scale, floor)
            self._floor = floor
        return self._bound


def _marked_rows(words: np.ndarray, words_per_row: int) -> np.ndarray:
    """Numbers of the rows with a word that is not 0, ascending and each once."""
    rows = np.flatnonzero(words != 0) // words_per_row
    if len(rows) < 2:
        return rows
    is_new = np.ones(len(rows), bool)
    np.not_equal(rows[1:], rows[:-1], out=is_new[1:])
    return rows[is_new]


class _Bound(Protocol):
    """A real number that stored values are compared with as they are stored."""

    def reaches(self, values: np.ndarray) -> np.ndarray:
        """Elementwise: whether a value is not below the bound, or not a number."""

    def any_reaches(self, stack: np.ndarray) -> np.ndarray:
        """:meth:`reaches` of any along the first axis, with one pass a comparison."""


def _make_bound(dtype: np.dtype, scale: float, floor: float) -> _Bound:
    if dtype == np.int8:
        return _Int8Bound(floor / scale)
    if dtype == np.float16:
        return _Float16Bound(floor)
    return _Float32Bound(floor)


class _Float32Bound:
    def __init__(self, floor: float) -> None:
        self._floor = np.float32(floor)

    def reaches(self, values: np.ndarray) -> np.ndarray:
        below: np.ndarray = values < self._floor
        return np.logical_not(below, out=below)

    def any_reaches(self, stack: np.ndarray) -> np.ndarray:
        return self.reaches(stack.max(axis=0))


class _Int8Bound:
    """The scale is positive, so stored values compare as real ones do."""

    def __init__(self, floor: float) -> None:
        # rounding in the division must not lose a value that equals the bound
        self._least = max(floor - 1e-6 * abs(floor), -128.0)
        self._stored = np.int8(min(math.ceil(self._least), 127))

    def reaches(self, values: np.ndarray) -> np.ndarray:
        if self._least > 127:
            return np.zeros(values.shape, bool)
        reached: np.ndarray = values >= self._stored
        return reached

    def any_reaches(self, stack: np.ndarray) -> np.ndarray:
        return self.reaches(stack.max(axis=0))


class _Float16Bound:
    """Compares bits, since comparing float16 numbers converts each in software.

    With the sign bit clear, bits are in the order of the numbers; with it set, in reverse order;
    and beyond the bits of either infinity lie those that are not a number (IEEE 754).
    """

    def __init__(self, floor: float) -> None:
        if floor > 65504:
            bound = np.float16(np.inf)
        elif floor < -65504:
            bound = np.float16(-65504 if floor > -np.inf else -np.inf)
        else:
            bound = np.float16(floor)
            if float(bound) < floor:  # not as two float16, which NumPy 2 would compare
                bound = np.nextafter(bound, np.float16(np.inf))
        self._positive = bool(bound > 0)
        if self._positive:
            self._bits: Any = bound.view(np.int16)
        else:
            # of zero those with the sign, which every number that is not below reaches
            self._bits = bound.view(np.uint16) if bound < 0 else np.uint16(0x8000)

    def reaches(self, values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint16)
        if self._positive:
            reached = values.view(np.int16) >= self._bits
        else:
            reached = bits <= self._bits
        reached |= bits > _HALF_MINUS_INFINITY
        return reached

    def any_reaches(self, stack: np.ndarray) -> np.ndarray:
        bits = stack.view(np.uint16)
        if self._positive:
            reached = stack.view(np.int16).max(axis=0) >= self._bits
        else:
            reached = bits.min(axis=0) <= self._bits
        reached |= bits.max(axis=0) > _HALF_MINUS_INFINITY
        return reached
