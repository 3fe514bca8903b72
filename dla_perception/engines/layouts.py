"""How a tensor lies in an engine's buffer: sizes, strides, packing and unpacking.

Source of the layouts and their limits: TensorRT developer guide, "DLA supported I/O formats",
and the comments of ``TensorFormat`` in ``NvInferRuntime.h``. ``N C H W`` below are the sizes of
the logical tensor, ``e`` the bytes of one element; a physical shape is that of a C-ordered array.

=============  ============  ===============================  =================================
layout         dtypes        physical shape                   limits
=============  ============  ===============================  =================================
``LINEAR``     any           the logical shape
``DLA_LINEAR`` float16 int8  ``N, C, H, W'``                  ``W' e`` a multiple of 64
``HWC4``       float16 int8  ``N, H, W', C'``                 C is 1, 3 or 4; ``C'`` is 1 or 4;
                                                              ``W' C' e`` a multiple of 32 bytes
                                                              (Xavier) or 64 bytes (Orin)
``CHW16``      float16       ``N, ceil(C/16), H, W, 16``
``CHW32``      int8          ``N, ceil(C/32), H, W, 32``
=============  ============  ===============================  =================================

All but ``LINEAR`` hold four-dimensional tensors with C, H and W of at most 8192. Whatever an
element of the logical tensor does not fill is padding and is zero.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Mapping

import numpy as np

from dla_perception.errors import DlaPerceptionError

if TYPE_CHECKING:
    from dla_perception.engines.engine import TensorSpec

DLA_LINEAR_ROW_BYTES = 64
"""Rows of ``DLA_LINEAR`` are padded to multiples of this on every DLA."""

HWC4_ROW_BYTES: Mapping[str, int] = {"xavier": 32, "orin": 64}
"""Rows of ``HWC4`` are padded to multiples of this: ``TensorSpec.row_alignment``."""

MAX_DIMENSION = 8192
"""The most channels, rows or columns of a DLA tensor."""


class LayoutError(DlaPerceptionError):
    """A tensor of a shape, type or row alignment that its layout cannot hold."""


class Layout(str, Enum):
    """Memory layout of an input or output tensor; the module's text describes each."""

    LINEAR = "linear"
    DLA_LINEAR = "dla_linear"
    HWC4 = "dla_hwc4"
    CHW16 = "chw16"
    CHW32 = "chw32"


LAYOUT_DTYPES: Mapping[Layout, tuple[str, ...]] = {
    Layout.DLA_LINEAR: ("float16", "int8"),
    Layout.HWC4: ("float16", "int8"),
    Layout.CHW16: ("float16",),
    Layout.CHW32: ("int8",),
}
"""Names of the dtypes that a layout holds; ``LINEAR``, which is not listed, holds any."""

_LANES = {Layout.CHW16: 16, Layout.CHW32: 32}
"""Channels that lie next to each other for one pixel."""


def buffer_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The physical shape of a tensor: that of the C-ordered array an engine's buffer is.

    Raises:
        LayoutError: the layout cannot hold this tensor.
    """
    _check(spec)
    if spec.layout is Layout.LINEAR:
        return tuple(spec.shape)
    batch, channels, height, width = spec.shape
    if spec.layout is Layout.DLA_LINEAR:
        return (batch, channels, height, _round_up(width, DLA_LINEAR_ROW_BYTES // _itemsize(spec)))
    if spec.layout is Layout.HWC4:
        pixel = 1 if channels == 1 else 4
        row_pixels = spec.row_alignment // pixel // _itemsize(spec)
        return (batch, height, _round_up(width, row_pixels), pixel)
    lanes = _LANES[spec.layout]
    return (batch, _round_up(channels, lanes) // lanes, height, width, lanes)


def buffer_bytes(spec: TensorSpec) -> int:
    """The size of a tensor's buffer in bytes, padding included.

    Raises:
        LayoutError: the layout cannot hold this tensor.
    """
    size = _itemsize(spec)
    for length in buffer_shape(spec):
        size *= length
    return size


def buffer_strides(spec: TensorSpec) -> tuple[int, ...]:
    """Bytes between neighbours along each axis of :func:`buffer_shape`.

    Raises:
        LayoutError: the layout cannot hold this tensor.
    """
    strides = []
    step = _itemsize(spec)
    for length in reversed(buffer_shape(spec)):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def empty_buffer(spec: TensorSpec) -> np.ndarray:
    """A buffer of a tensor in ordinary memory, all zero.

    Raises:
        LayoutError: the layout cannot hold this tensor.
    """
    return np.zeros(buffer_shape(spec), spec.dtype)


def pack(array: np.ndarray, spec: TensorSpec, out: np.ndarray | None = None) -> np.ndarray:
    """Put a logical tensor into a buffer.

    Args:
        array: of ``spec.shape`` and ``spec.dtype``; it is not converted.
        spec: what the tensor is.
        out: the buffer, of the physical shape and ``spec.dtype``; a new one by default. It is
            written whole: padding becomes zero.

    Returns:
        The buffer.

    Raises:
        LayoutError: the layout cannot hold this tensor.
        ValueError: ``array`` or ``out`` is not what ``spec`` says.
    """
    shape = buffer_shape(spec)
    _expect("array", array, tuple(spec.shape), spec)
    if out is None:
        out = np.empty(shape, spec.dtype)
    _expect("out", out, shape, spec)
    if spec.layout in _LANES:
        lanes = _LANES[spec.layout]
        channels = spec.shape[1]
        for group in range(shape[1]):
            part = array[:, group * lanes : (group + 1) * lanes].transpose(0, 2, 3, 1)
            out[:, group, :, :, : part.shape[3]] = part
        if channels % lanes:
            out[:, -1, :, :, channels % lanes :] = 0
        return out
    logical = unpack(out, spec)
    logical[...] = array
    if spec.layout is Layout.DLA_LINEAR:
        out[..., spec.shape[3] :] = 0
    elif spec.layout is Layout.HWC4:
        out[:, :, spec.shape[3] :] = 0
        out[..., spec.shape[1] :] = 0
    return out


def unpack(buffer: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """The logical tensor in a buffer.

    Returns:
        Of ``spec.shape``. A view on ``buffer`` for ``LINEAR``, ``DLA_LINEAR`` and ``HWC4``, and
        for ``CHW16`` and ``CHW32`` where all channels lie in one group of lanes or an image is one
        pixel; a copy for the other tensors of these two.

    Raises:
        LayoutError: the layout cannot hold this tensor.
        ValueError: ``buffer`` is not what ``spec`` says.
    """
    shape = buffer_shape(spec)
    _expect("buffer", buffer, shape, spec)
    if spec.layout is Layout.LINEAR:
        return buffer
    batch, channels, height, width = spec.shape
    if spec.layout is Layout.DLA_LINEAR:
        return buffer[..., :width]
    if spec.layout is Layout.HWC4:
        return buffer[:, :, :width, :channels].transpose(0, 3, 1, 2)
    planes = buffer.transpose(0, 1, 4, 2, 3)
    if shape[1] > 1:  # reshape copies unless neighbouring groups happen to follow each other
        planes = planes.reshape(batch, 1, -1, height, width)
    return planes[:, 0, :channels]


def _check(spec: TensorSpec) -> None:
    if any(size < 1 for size in spec.shape):
        raise LayoutError(f"tensor {spec}: every size must be 1 or more; use static shapes")
    if spec.layout is Layout.LINEAR:
        return
    if len(spec.shape) != 4:
        raise LayoutError(
            f"tensor {spec}: {spec.layout.value} holds [N, C, H, W] only; "
            "use the layout linear for other ranks"
        )
    dtypes = LAYOUT_DTYPES[spec.layout]
    if np.dtype(spec.dtype).name not in dtypes:
        raise LayoutError(
            f"tensor {spec}: {spec.layout.value} holds {' or '.join(dtypes)} only; "
            "build the engine with that type or another layout"
        )
    if max(spec.shape[1:]) > MAX_DIMENSION:
        raise LayoutError(
            f"tensor {spec}: a DLA takes C, H and W of at most {MAX_DIMENSION} each; "
            "use a smaller network"
        )
    if spec.layout is Layout.HWC4:
        _check_hwc4(spec)


def _check_hwc4(spec: TensorSpec) -> None:
    if spec.shape[1] not in (1, 3, 4):
        raise LayoutError(
            f"tensor {spec}: dla_hwc4 holds 1, 3 or 4 channels; use dla_linear, chw16 or chw32"
        )
    if spec.row_alignment not in HWC4_ROW_BYTES.values():
        raise LayoutError(
            f"tensor {spec}: rows of dla_hwc4 are aligned to {spec.row_alignment} bytes; "
            "expected 32 (Xavier) or 64 (Orin)"
        )


def _expect(what: str, array: np.ndarray, shape: tuple[int, ...], spec: TensorSpec) -> None:
    if array.shape != shape or array.dtype != spec.dtype:
        raise ValueError(
            f"{what} of tensor {spec}: expected {np.dtype(spec.dtype).name} {list(shape)}, "
            f"got {array.dtype.name} {list(array.shape)}"
        )


def _itemsize(spec: TensorSpec) -> int:
    return np.dtype(spec.dtype).itemsize


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
