"""Pixels into the engine's input buffer, in the engine's own layout.

What happens to a pixel value depends on the value alone, so normalisation, quantisation and
rounding are one table of 256 entries a channel. An image is resized, its channels are taken
apart, looked up, and written where the engine reads them; no array of floats is made that the
engine does not need.
"""

from __future__ import annotations

import math
import weakref
from typing import Callable, Mapping, Sequence, Tuple

import cv2
import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.letterbox import Letterbox
from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.layouts import Layout, buffer_shape
from dla_perception.errors import DlaPerceptionError

ROUNDINGS = ("nearest", "truncate")
"""How a value between two steps of an INT8 input is rounded.

``nearest``, with ties to the even step, is TensorRT's quantisation (developer guide, "Quantization
Schemes"). ``truncate``, toward zero, is what NVIDIA's cuDLA sample does
(``convert_float_to_int8_kernel`` in ``matx_reformat.cu`` of NVIDIA-AI-IOT/cuDLA-samples).
"""

_INTERPOLATIONS = {
    "linear": cv2.INTER_LINEAR,
    "nearest": cv2.INTER_NEAREST,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
}

_BITS: Mapping[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.uint16),
    "int8": np.dtype(np.uint8),
}
"""Input dtypes and the dtype of their size that OpenCV copies without looking at the values."""


_Lines = Tuple[np.ndarray, np.ndarray]
"""Slope and intercept of each channel."""

_Converter = Callable[[np.ndarray, np.ndarray], object]
"""Takes pixels and the array that their values go to."""


class PreprocessError(DlaPerceptionError):
    """An engine whose input cannot be filled with an image."""


def pixel_tables(
    description: ModelDescription, spec: TensorSpec, rounding: str = "nearest"
) -> np.ndarray:
    """What each pixel value becomes in the engine's input.

    Floats are the nearest to ``(p * scale - mean) / std``. An INT8 entry is the ``float32`` value
    divided by ``spec.scale`` in ``float32``, as a quantising layer behind a float input would do,
    rounded, and limited to -128..127.

    Returns:
        ``(3, 256)`` of ``spec.dtype``, channels in the network's order.

    Raises:
        PreprocessError: no such input type, an INT8 input without a scale, or values that the
            type cannot hold.
    """
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding: {rounding!r}; expected one of {', '.join(ROUNDINGS)}")
    name = np.dtype(spec.dtype).name
    if name not in _BITS:
        raise PreprocessError(
            f"input {spec}: images go into float32, float16 or int8 inputs; "
            "export or build the network with one of these"
        )
    mean, std = (np.array([values]).T for values in (description.mean, description.std))
    real = (np.arange(256) * description.scale - mean) / std
    if name == "int8":
        return _quantize(real.astype(np.float32), spec, rounding)
    with np.errstate(over="ignore"):
        tables = real.astype(spec.dtype)
    if not np.isfinite(tables).all():
        raise PreprocessError(
            f"input {spec}: the normalisation gives values up to {np.abs(real).max():.6g}, more "
            f"than {name} holds; correct scale, mean or std in the description"
        )
    return tables


def _quantize(values: np.ndarray, spec: TensorSpec, rounding: str) -> np.ndarray:
    if spec.scale is None or not 0 < spec.scale < np.inf:
        raise PreprocessError(
            f"input {spec}: its INT8 scale is {spec.scale or 'unknown'}; expected a positive "
            "number: give the calibration cache that holds this tensor's scale"
        )
    steps = values / np.float32(spec.scale)
    steps = np.rint(steps) if rounding == "nearest" else np.trunc(steps)
    return np.clip(steps, -128, 127).astype(np.int8)


class Preprocessor:
    """Letterboxes images into the input of one network.

    Each buffer's pad area is written when the buffer comes for the first time or the place of the
    image in it changes, not per image. So a buffer that was given to a preprocessor belongs to
    it: nobody else may write into it. Not for several threads at once: the canvases are reused.
    """

    def __init__(
        self, description: ModelDescription, spec: TensorSpec, rounding: str = "nearest"
    ) -> None:
        """Prepare tables and canvases.

        Args:
            description: normalisation, channel order, letterbox and interpolation.
            spec: the engine's input: ``(1, 3, height, width)``, ``float32``, ``float16`` or
                ``int8`` with a scale, in any layout that holds it.
            rounding: one of :data:`ROUNDINGS`, for ``int8``.

        Raises:
            PreprocessError: an input that cannot be filled with an image.
            LayoutError: the layout cannot hold this input.
        """
        width, height = description.input_size
        if tuple(spec.shape) != (1, 3, height, width):
            raise PreprocessError(
                f"input {spec}: expected [1, 3, {height}, {width}], one image of three channels "
                f"of the description's input_size [{width}, {height}]"
            )
        self._description = description
        self._spec = spec
        self._shape = buffer_shape(spec)
        tables = pixel_tables(description, spec, rounding)
        lines = _lines(description, spec, rounding)
        planar = spec.layout in (Layout.LINEAR, Layout.DLA_LINEAR)
        self._writer = (_PlanarWriter if planar else _PixelWriter)(spec, tables, lines)
        self._pads = self._writer.elements(tables[:, description.pad_value])
        self._canvas = np.empty(3 * width * height, np.uint8)
        self._letterbox: Letterbox | None = None
        self._known: dict[int, tuple[weakref.ref[np.ndarray], tuple[int, ...]]] = {}

    def __call__(self, pixels: np.ndarray, channel_order: str, buffer: np.ndarray) -> Letterbox:
        """Write an image into the engine's input.

        Args:
            pixels: ``(H, W, 3) uint8``; rows may be padded.
            channel_order: ``rgb`` or ``bgr``, of ``pixels``.
            buffer: the engine's input buffer, in the physical shape of its layout.

        Returns:
            Where the image lies in the network's input.
        """
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
            raise ValueError(f"expected pixels (H, W, 3) uint8, got {pixels.shape} {pixels.dtype}")
        if channel_order not in ("rgb", "bgr"):
            raise ValueError(f"channel_order: {channel_order!r}; expected 'rgb' or 'bgr'")
        if buffer.shape != self._shape or buffer.dtype != self._spec.dtype:
            raise ValueError(
                f"input {self._spec}: expected a buffer {self._shape}, "
                f"got {buffer.shape} {buffer.dtype}"
            )
        letterbox = self._fit((pixels.shape[1], pixels.shape[0]))
        areas = self._writer.areas(buffer)
        self._pad(buffer, areas, letterbox)
        (x, y), (width, height) = letterbox.offset, letterbox.content_size
        targets = [area[y : y + height, x : x + width] for area in areas]
        content = pixels
        if letterbox.image_size != letterbox.content_size:
            content = _cut(self._canvas, height, width, 3)
            interpolation = _INTERPOLATIONS[self._description.interpolation]
            cv2.resize(pixels, (width, height), dst=content, interpolation=interpolation)
        self._writer.write(content, channel_order != self._description.channel_order, targets)
        return letterbox

    def _fit(self, image_size: tuple[int, int]) -> Letterbox:
        if self._letterbox is None or self._letterbox.image_size != image_size:
            description = self._description
            self._letterbox = Letterbox.fit(
                image_size, description.input_size, description.placement
            )
        return self._letterbox

    def _pad(self, buffer: np.ndarray, areas: Sequence[np.ndarray], letterbox: Letterbox) -> None:
        """Write all that is no image, unless it is there already."""
        key, known = id(buffer), self._known
        place = (*letterbox.offset, *letterbox.content_size)
        if key not in known:
            buffer.fill(0)
            reference = weakref.ref(buffer, lambda _: known.pop(key, None))
        else:
            reference, written = known[key]
            if written == place:
                return
        x, y, width, height = place
        for area, value in zip(areas, self._pads):
            area[:y] = value
            area[y + height :] = value
            area[y : y + height, :x] = value
            area[y : y + height, x + width :] = value
        known[key] = (reference, place)


class _PlanarWriter:
    """Writes layouts that keep the channels apart: ``LINEAR`` and ``DLA_LINEAR``."""

    def __init__(self, spec: TensorSpec, tables: np.ndarray, lines: _Lines | None) -> None:
        _, channels, height, width = spec.shape
        self._width = width
        self._bits = _BITS[tables.dtype.name]
        self._pixels = np.empty(channels * height * width, np.uint8)
        self._planes = np.empty(channels * height * width, np.uint8)
        if _halves(tables):
            self._converters: list[_Converter] = [_halve] * channels
        else:
            rows = [slice(channel, channel + 1) for channel in range(channels)]
            self._converters = [
                _converter(tables[row], lines and (lines[0][row], lines[1][row])) for row in rows
            ]

    def elements(self, values: np.ndarray) -> np.ndarray:
        """What to write into each area for the values of one pixel."""
        return values.view(self._bits)

    def areas(self, buffer: np.ndarray) -> list[np.ndarray]:
        """Views ``(height, width)`` on the channels in a buffer."""
        return [plane[:, : self._width] for plane in buffer.view(self._bits)[0]]

    def write(self, pixels: np.ndarray, swap: bool, targets: Sequence[np.ndarray]) -> None:
        """Write an image of its final size into parts of the areas."""
        height, width, channels = pixels.shape
        if not pixels.flags.c_contiguous:
            # OpenCV takes an array without gaps between its rows apart several times faster
            canvas = _cut(self._pixels, height, width, channels)
            np.copyto(canvas, pixels)
            pixels = canvas
        planes = list(_cut(self._planes, channels, height, width))
        cv2.split(pixels, planes)
        for plane, convert, target in zip(
            planes[::-1] if swap else planes, self._converters, targets
        ):
            convert(plane, target)


class _PixelWriter:
    """Writes layouts with the channels of a pixel side by side: ``HWC4``, ``CHW16``, ``CHW32``.

    The first four channels of a pixel are one word: colours and a zero. Further lanes stay as
    they are.
    """

    def __init__(self, spec: TensorSpec, tables: np.ndarray, lines: _Lines | None) -> None:
        _, channels, height, width = spec.shape
        self._width = width
        self._bits = _BITS[tables.dtype.name]
        self._word = np.dtype(f"u{4 * self._bits.itemsize}")
        self._values = np.empty(channels * height * width, self._bits)
        self._words = np.empty(height * width, self._word)
        self._halved = _halves(tables)
        # OpenCV fills the fourth channel with ones; bits that come from a neighbour go too
        colour = 0x7F if self._halved else np.iinfo(self._bits).max
        self._mask = self.elements(np.full(channels, colour, self._bits))[0]
        self._convert = _converter(tables, lines)
        self._convert_swapped = _converter(tables[::-1], lines and (lines[0][::-1], lines[1][::-1]))

    def elements(self, values: np.ndarray) -> np.ndarray:
        """What to write into each area for the values of one pixel."""
        return np.append(values, values.dtype.type(0)).view(self._word)

    def areas(self, buffer: np.ndarray) -> list[np.ndarray]:
        """The view ``(height, width)`` on the words in a buffer."""
        words = buffer.view(self._word)
        return [words[(0,) * (words.ndim - 3)][:, : self._width, 0]]

    def write(self, pixels: np.ndarray, swap: bool, targets: Sequence[np.ndarray]) -> None:
        """Write an image of its final size into a part of the area."""
        height, width, channels = pixels.shape
        target = targets[0]
        words = target if target.flags.c_contiguous else _cut(self._words, height, width)
        if not self._halved:
            values = _cut(self._values, height, width, channels)
            (self._convert_swapped if swap else self._convert)(pixels, values)
            pixels = values
        code = cv2.COLOR_BGR2RGBA if swap else cv2.COLOR_BGR2BGRA
        cv2.cvtColor(pixels, code, dst=words.view(self._bits).reshape(height, width, 4))
        if self._halved:
            np.right_shift(words, self._word.type(1), out=words)
        np.bitwise_and(words, self._mask, out=target)


def _cut(memory: np.ndarray, *shape: int) -> np.ndarray:
    """An array of ``shape``, without gaps, in the front of ``memory``."""
    return memory[: math.prod(shape)].reshape(shape)


def _lines(description: ModelDescription, spec: TensorSpec, rounding: str) -> _Lines | None:
    """Slopes and intercepts of the lines that are, rounded, an INT8 input's tables."""
    if spec.scale is None:
        return None
    step = np.array(description.std) * spec.scale
    # truncating what is not negative is rounding what is half a step less
    shift = 0.5 if rounding == "truncate" else 0.0
    return description.scale / step, -np.array(description.mean) / step - shift


def _halves(tables: np.ndarray) -> bool:
    """Whether every table is ``p // 2``.

    It is where a network takes 0..1 and the INT8 scale is 1/127, or 0..255 and 255/127.
    """
    return tables.dtype == np.int8 and bool((tables == np.arange(256) // 2).all())


def _halve(source: np.ndarray, out: np.ndarray) -> None:
    """``source // 2`` by eight bytes at a time, a third of the time of a lookup; both change."""
    flat = source.reshape(-1)
    whole = flat.size // 8 * 8
    words = flat[:whole].view(np.uint64)
    np.right_shift(words, np.uint64(1), out=words)
    np.bitwise_and(words, np.uint64(0x7F7F7F7F7F7F7F7F), out=words)
    flat[whole:] //= 2
    np.copyto(out, source)


def _converter(tables: np.ndarray, lines: _Lines | None) -> _Converter:
    """What looks pixels up in tables ``(channels, 256)``, in the fastest exact way."""
    bits = tables.view(_BITS[tables.dtype.name])
    if (tables != tables[0]).any():
        by_value = np.ascontiguousarray(bits.T)[None]
        return lambda source, out: cv2.LUT(source, by_value, dst=out)
    if tables.dtype == np.int8 and lines is not None:
        slope, intercept = float(lines[0][0]), float(lines[1][0])
        values = np.abs(np.arange(256) * slope + intercept)
        # OpenCV takes the absolute value and computes in float32, in an order that varies; what
        # is not within 0.0001 of a tie comes out the same however it is computed
        if all((np.rint(values + margin) == tables[0]).all() for margin in (-1e-4, 1e-4)):
            return lambda source, out: cv2.convertScaleAbs(
                source, dst=out, alpha=slope, beta=intercept
            )
    table = np.ascontiguousarray(bits[:1])
    return lambda source, out: cv2.LUT(source, table, dst=out)
