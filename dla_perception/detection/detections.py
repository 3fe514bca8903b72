"""Detections of one image as a struct of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Sequence, Union

import numpy as np

Index = Union[slice, np.ndarray, Sequence[int]]


@dataclass(frozen=True)
class Detections:
    """``N`` boxes with their scores and classes.

    Attributes:
        boxes: ``(N, 4) float32``, ``x1 y1 x2 y2``. Coordinates are continuous: the left edge of
            the first pixel is 0.0 and the right edge of a ``W`` pixels wide image is ``W``.
        scores: ``(N,) float32`` in [0, 1].
        class_ids: ``(N,) int32``, not negative.
    """

    boxes: np.ndarray
    scores: np.ndarray
    class_ids: np.ndarray

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes, np.float32)
        object.__setattr__(self, "boxes", boxes.reshape(-1, 4) if boxes.size == 0 else boxes)
        object.__setattr__(self, "scores", np.asarray(self.scores, np.float32))
        object.__setattr__(self, "class_ids", np.asarray(self.class_ids, np.int32))
        count = len(self.boxes)
        shapes = (self.boxes.shape, self.scores.shape, self.class_ids.shape)
        if shapes != ((count, 4), (count,), (count,)):
            raise ValueError(f"expected shapes (N, 4), (N,) and (N,), got {shapes}")

    @classmethod
    def empty(cls) -> Detections:
        """No detection at all."""
        return cls(np.empty((0, 4)), np.empty(0), np.empty(0))

    @classmethod
    def concatenate(cls, parts: Sequence[Detections]) -> Detections:
        """All detections of ``parts`` in their order."""
        if not parts:
            return cls.empty()
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.class_ids for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, index: Index) -> Detections:
        """The detections chosen by a slice, an index array or a boolean mask."""
        return Detections(self.boxes[index], self.scores[index], self.class_ids[index])

    def __iter__(self) -> Iterator[tuple[np.ndarray, float, int]]:
        """``(box (4,) float32, score, class_id)`` one by one: for display, not for the hot path."""
        for box, score, class_id in zip(self.boxes, self.scores, self.class_ids):
            yield box, float(score), int(class_id)
