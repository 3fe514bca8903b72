"""Layouts against the golden sizes of the DLA reference, and round trips of every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.engines.engine import TensorSpec
from dla_perception.engines.layouts import (
    Layout,
    LayoutError,
    buffer_bytes,
    buffer_shape,
    buffer_strides,
    empty_buffer,
    pack,
    unpack,
)

HALF, BYTE, SINGLE = np.dtype(np.float16), np.dtype(np.int8), np.dtype(np.float32)


def spec_of(
    shape: tuple[int, ...], dtype: np.dtype, layout: Layout, row_alignment: int = 64
) -> TensorSpec:
    return TensorSpec("t", shape, dtype, layout, row_alignment=row_alignment)


# shape, dtype, layout, row alignment, physical shape, bytes
GOLDEN: list[tuple[Any, ...]] = [
    # the sizes that the reference states
    ((1, 3, 672, 672), BYTE, Layout.HWC4, 64, (1, 672, 672, 4), 1_806_336),
    ((1, 255, 84, 84), HALF, Layout.CHW16, 64, (1, 16, 84, 84, 16), 3_612_672),
    ((1, 255, 84, 84), BYTE, Layout.CHW32, 64, (1, 8, 84, 84, 32), 1_806_336),
    ((1, 1, 1, 84), HALF, Layout.DLA_LINEAR, 64, (1, 1, 1, 96), 192),
    ((1, 1, 1, 84), BYTE, Layout.DLA_LINEAR, 64, (1, 1, 1, 128), 128),
    # rows of HWC4: 32 bytes on Xavier, 64 on Orin; 4 channels of 1 or 2 bytes each
    ((1, 3, 10, 10), BYTE, Layout.HWC4, 64, (1, 10, 16, 4), 640),
    ((1, 3, 10, 10), BYTE, Layout.HWC4, 32, (1, 10, 16, 4), 640),
    ((1, 3, 10, 17), BYTE, Layout.HWC4, 32, (1, 10, 24, 4), 960),
    ((1, 3, 10, 17), BYTE, Layout.HWC4, 64, (1, 10, 32, 4), 1280),
    ((1, 3, 10, 10), HALF, Layout.HWC4, 64, (1, 10, 16, 4), 1280),
    ((1, 3, 10, 10), HALF, Layout.HWC4, 32, (1, 10, 12, 4), 960),
    ((1, 4, 10, 10), HALF, Layout.HWC4, 32, (1, 10, 12, 4), 960),
    # one channel is not padded to four
    ((1, 1, 10, 10), BYTE, Layout.HWC4, 64, (1, 10, 64, 1), 640),
    ((1, 1, 10, 10), BYTE, Layout.HWC4, 32, (1, 10, 32, 1), 320),
    ((1, 1, 10, 10), HALF, Layout.HWC4, 32, (1, 10, 16, 1), 320),
    # rows of DLA_LINEAR are multiples of 64 bytes whatever the alignment of HWC4 is
    ((2, 3, 5, 33), HALF, Layout.DLA_LINEAR, 32, (2, 3, 5, 64), 3840),
    ((2, 3, 5, 64), BYTE, Layout.DLA_LINEAR, 64, (2, 3, 5, 64), 1920),
    ((1, 16, 2, 2), HALF, Layout.CHW16, 64, (1, 1, 2, 2, 16), 128),
    ((1, 17, 2, 2), HALF, Layout.CHW16, 64, (1, 2, 2, 2, 16), 256),
    ((1, 33, 2, 2), BYTE, Layout.CHW32, 64, (1, 2, 2, 2, 32), 256),
    # LINEAR is dense, of any rank and type
    ((1, 3549, 85), SINGLE, Layout.LINEAR, 64, (1, 3549, 85), 1_206_660),
    ((1, 3, 416, 416), HALF, Layout.LINEAR, 64, (1, 3, 416, 416), 1_038_336),
]


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "row_alignment", "physical", "size"),
    GOLDEN,
    ids=lambda value: getattr(value, "name", None) or str(value).replace(" ", ""),
)
def test_golden_sizes(shape, dtype, layout, row_alignment, physical, size):
    spec = spec_of(shape, dtype, layout, row_alignment)
    assert buffer_shape(spec) == physical
    assert buffer_bytes(spec) == size
    assert empty_buffer(spec).nbytes == size
    assert empty_buffer(spec).strides == buffer_strides(spec)


def test_strides_of_a_padded_row():
    assert buffer_strides(spec_of((1, 3, 20, 84), HALF, Layout.DLA_LINEAR)) == (11520, 3840, 192, 2)
    assert buffer_strides(spec_of((1, 3, 20, 84), BYTE, Layout.HWC4)) == (7680, 384, 4, 1)
    assert buffer_strides(spec_of((1, 40, 2, 3), BYTE, Layout.CHW32)) == (384, 192, 96, 32, 1)


def test_golden_bytes():
    pixels = np.arange(1, 13, dtype=np.int8).reshape(1, 3, 2, 2)  # r 1-4, g 5-8, b 9-12
    hwc4 = pack(pixels, spec_of((1, 3, 2, 2), BYTE, Layout.HWC4, 32)).tobytes()
    assert hwc4[:12] == bytes([1, 5, 9, 0, 2, 6, 10, 0, 0, 0, 0, 0])
    assert hwc4[32:44] == bytes([3, 7, 11, 0, 4, 8, 12, 0, 0, 0, 0, 0])
    rows = pack(pixels, spec_of((1, 3, 2, 2), BYTE, Layout.DLA_LINEAR)).tobytes()
    assert [rows[64 * row : 64 * row + 3] for row in range(6)] == [
        bytes([first, first + 1, 0]) for first in range(1, 13, 2)
    ]
    lanes = pack(pixels, spec_of((1, 3, 2, 2), BYTE, Layout.CHW32)).tobytes()
    assert [lanes[32 * pixel : 32 * pixel + 4] for pixel in range(4)] == [
        bytes([pixel + 1, pixel + 5, pixel + 9, 0]) for pixel in range(4)
    ]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorSpec, np.ndarray]:
    layout = draw(st.sampled_from(list(Layout)))
    dtypes = {Layout.CHW16: [HALF], Layout.CHW32: [BYTE], Layout.LINEAR: [SINGLE, HALF, BYTE]}
    dtype = draw(st.sampled_from(dtypes.get(layout, [HALF, BYTE])))
    channels = st.sampled_from([1, 3, 4]) if layout is Layout.HWC4 else st.integers(1, 70)
    shape = (
        draw(st.integers(1, 3)),
        draw(channels),
        draw(st.integers(1, 9)),
        draw(st.integers(1, 140)),
    )
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    array = generator.integers(-127, 128, shape).astype(dtype)
    return spec_of(shape, dtype, layout, draw(st.sampled_from([32, 64]))), array


@settings(max_examples=150, deadline=None)
@given(tensors())
def test_round_trip(tensor):
    spec, array = tensor
    dirty = np.full(buffer_shape(spec), 99, spec.dtype)
    packed = pack(array, spec, out=dirty)
    assert packed is dirty
    np.testing.assert_array_equal(unpack(packed, spec), array)
    # all that is not the tensor is zero, also in a buffer that held something else
    assert np.count_nonzero(packed) == np.count_nonzero(array)
    np.testing.assert_array_equal(packed, pack(array, spec))


@settings(max_examples=100, deadline=None)
@given(tensors())
def test_addresses(tensor):
    """Each element lies where its layout's formula says, worked out element by element."""
    spec, array = tensor
    flat = pack(array, spec).reshape(-1)
    steps = [step // spec.dtype.itemsize for step in buffer_strides(spec)]
    n, c, y, x = (size - 1 for size in spec.shape)
    for index in [(0, 0, 0, 0), (n, c, y, x), (n, c // 2, 0, x), (0, c, y, 0)]:
        batch, channel, row, column = index
        lanes = {Layout.CHW16: 16, Layout.CHW32: 32}.get(spec.layout)
        if lanes:
            place = (batch, channel // lanes, row, column, channel % lanes)
        elif spec.layout is Layout.HWC4:
            place = (batch, row, column, channel)
        else:
            place = index
        assert flat[sum(a * b for a, b in zip(place, steps))] == array[index]


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        ((1, 7, 4, 5), HALF, Layout.DLA_LINEAR),
        ((1, 3, 4, 5), BYTE, Layout.HWC4),
        ((2, 16, 4, 5), HALF, Layout.CHW16),
        ((1, 200, 1, 1), BYTE, Layout.CHW32),
        ((1, 7, 5), SINGLE, Layout.LINEAR),
    ],
)
def test_unpack_is_a_view_where_it_can_be(shape, dtype, layout):
    spec = spec_of(shape, dtype, layout)
    buffer = empty_buffer(spec)
    assert np.shares_memory(unpack(buffer, spec), buffer)
    unpack(buffer, spec)[...] = 1
    assert np.count_nonzero(buffer) == np.prod(shape)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of((1, 3, 8, 8), SINGLE, Layout.HWC4), "holds float16 or int8 only"),
        (spec_of((1, 3, 8, 8), BYTE, Layout.CHW16), "holds float16 only"),
        (spec_of((1, 3, 8, 8), HALF, Layout.CHW32), "holds int8 only"),
        (spec_of((1, 2, 8, 8), BYTE, Layout.HWC4), "holds 1, 3 or 4 channels"),
        (spec_of((1, 3, 8, 8), BYTE, Layout.HWC4, 128), "expected 32 (Xavier) or 64 (Orin)"),
        (spec_of((1, 3549, 85), HALF, Layout.CHW16), "holds [N, C, H, W] only"),
        (spec_of((1, 3, 8, 8193), HALF, Layout.DLA_LINEAR), "at most 8192"),
        (spec_of((-1, 3, 8, 8), SINGLE, Layout.LINEAR), "every size must be 1 or more"),
    ],
)
def test_refuses_what_a_layout_cannot_hold(spec, words):
    with pytest.raises(LayoutError) as error:
        buffer_shape(spec)
    assert words in str(error.value)
    assert str(error.value).startswith(f"tensor {spec}: ")
    assert "\n" not in str(error.value)


def test_refuses_wrong_arrays():
    spec = spec_of((1, 3, 8, 8), BYTE, Layout.HWC4)
    with pytest.raises(ValueError, match=r"array .* expected int8 \[1, 3, 8, 8\]"):
        pack(np.zeros((1, 3, 8, 9), np.int8), spec)
    with pytest.raises(ValueError, match=r"array .* got float32"):
        pack(np.zeros((1, 3, 8, 8), np.float32), spec)
    with pytest.raises(ValueError, match=r"out .* expected int8 \[1, 8, 16, 4\]"):
        pack(np.zeros((1, 3, 8, 8), np.int8), spec, out=np.zeros((1, 8, 8, 4), np.int8))
    with pytest.raises(ValueError, match=r"buffer .* expected int8 \[1, 8, 16, 4\]"):
        unpack(np.zeros((1, 3, 8, 8), np.int8), spec)
