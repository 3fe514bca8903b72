"""The synthetic drive: deterministic, exact in its truth, and continuous."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.demo.scene import (
    CLASS_NAMES,
    MIN_SIDE,
    Scene,
    SceneFrame,
    random_scene,
)

SIZE = (640, 480)


@lru_cache(maxsize=8)
def scene(seed: int) -> Scene:
    return Scene(seed)


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Counted pixel by pixel; the right and lower edges are exclusive."""
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def check_truth(frame: SceneFrame) -> None:
    """Every box is that of an object's pixels, and every object with pixels has one."""
    assert frame.pixels.shape == (*frame.ids.shape, 3)
    assert frame.pixels.dtype == np.uint8
    assert len(frame.truth_ids) == len(frame.truth) == len(set(frame.truth_ids.tolist()))
    for box, number in zip(frame.truth.boxes, frame.truth_ids):
        np.testing.assert_array_equal(box, box_of(frame.ids == number))
        least = MIN_SIDE * frame.ids.shape[1] / 640
        assert min(box[2] - box[0], box[3] - box[1]) >= least
    others = [
        box_of(frame.ids == number)
        for number in np.unique(frame.ids)
        if number and number not in frame.truth_ids
    ]
    # what is not truth is ignored, or clutter
    assert {tuple(box) for box in frame.ignore.astype(int)} <= set(others)
    assert ((frame.truth.class_ids >= 0) & (frame.truth.class_ids < len(CLASS_NAMES))).all()
    np.testing.assert_array_equal(frame.truth.scores, 1)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**31))
def test_the_truth_of_a_still_is_what_the_id_buffer_shows(seed: int) -> None:
    check_truth(random_scene(seed))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 3), st.integers(0, 10_000))
def test_the_truth_of_a_drive_is_what_the_id_buffer_shows(seed: int, index: int) -> None:
    check_truth(scene(seed).frame(index))


@pytest.mark.parametrize("size", [(320, 240), (641, 359), (1280, 720)])
def test_other_sizes(size: tuple[int, int]) -> None:
    frame = Scene(3, size).frame(40)
    assert frame.ids.shape == (size[1], size[0])
    assert len(frame.truth)
    check_truth(frame)
    check_truth(random_scene(3, size))


def test_a_frame_depends_on_seed_and_index_alone() -> None:
    once = Scene(5).frame(77)
    later = Scene(5)
    for index in (400, 0, 76):
        later.frame(index)
    again = later.frame(77)
    np.testing.assert_array_equal(once.pixels, again.pixels)
    np.testing.assert_array_equal(once.ids, again.ids)
    np.testing.assert_array_equal(once.truth.boxes, again.truth.boxes)
    np.testing.assert_array_equal(once.ignore, again.ignore)
    assert not np.array_equal(once.pixels, Scene(6).frame(77).pixels)
    assert not np.array_equal(once.pixels, Scene(5).frame(78).pixels)


def test_another_process_draws_the_same() -> None:
    program = (
        "import zlib; from dla_perception.demo.scene import Scene, random_scene; "
        "print(zlib.crc32(Scene(2).frame(9).pixels.tobytes() + random_scene(4).pixels.tobytes()))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


def test_from_frame_to_frame_everything_moves_a_little() -> None:
    drive = scene(1)
    before = drive.frame(120)
    for index in range(121, 141):
        after = drive.frame(index)
        change = np.abs(after.pixels.astype(int) - before.pixels).mean()
        assert 0.1 < change < 25
        # an object may come or go, but most stay, nearly where they were
        kept = 0
        for box, class_id in zip(after.truth.boxes, after.truth.class_ids):
            same = before.truth.boxes[before.truth.class_ids == class_id]
            kept += bool(len(same)) and bool((np.abs(same - box).max(axis=1) < 24).any())
        assert kept >= 0.7 * len(after.truth)
        before = after


def test_the_robot_gets_somewhere_and_the_drive_does_not_end() -> None:
    drive = scene(0)
    near, far = drive.frame(0), drive.frame(100_000)
    assert not np.array_equal(near.ids, far.ids)
    check_truth(far)
    assert any(len(drive.frame(100_000 + step).truth) for step in (0, 60, 120))


def test_drives_show_every_class_and_several_things_at_a_time() -> None:
    frames = [scene(seed).frame(index) for seed in range(4) for index in range(0, 450, 90)]
    seen = np.concatenate([frame.truth.class_ids for frame in frames])
    assert set(seen.tolist()) == set(range(len(CLASS_NAMES)))
    assert 3 < len(seen) / len(frames) < 20
    assert any(len(frame.ignore) for frame in frames)


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="frame -1"):
        scene(0).frame(-1)
    with pytest.raises(ValueError, match="seed -3"):
        Scene(-3)
    with pytest.raises(ValueError, match="seed -1"):
        random_scene(-1)
