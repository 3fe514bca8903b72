"""Whether two detectors saw the same objects in one image.

Two boxes can be the same object when their classes are equal and their IoU is at least
``iou_threshold``. An object is *firm* when its score is at least its class's threshold plus
``score_margin``: a detector on the other side, a little less sure, would still have reported it.
**The sides agree when the objects can be paired, one to one, so that every firm one has a
partner**; the partner need not be firm. That is an exact statement about the two sets, so no
order of boxes and no choice of the matching can make two sides disagree that could be paired.

Small noise does not make them disagree:

- If each of the four edges of a box differs by at most ``d`` pixels from side to side, and the
  box is at least ``s`` pixels wide and high on one of them, then IoU >= ((s - 2d) / s)^2: the
  worst case is the box shrunk by ``d`` at every edge; one that grows or is shifted keeps more.
  With the default ``iou_threshold`` of 0.4, one pixel of noise on one side is safe for objects
  from 5.5 pixels on, and one on each side, at worst ((s - 2) / (s + 2))^2, from 9 pixels on.
- A score on one side at the threshold and on the other just below it is one object reported and
  one not: no disagreement within ``score_margin``.

Greedy matching alone would not do. IoU distance is a metric (Lipkus, "A proof of the triangle
inequality for the Tanimoto distance", 1999), so a box with IoU above t with two boxes says that
these two have IoU above 2t - 1 with each other; boxes that survived suppression at 0.45 can
therefore not compete for a partner when t >= 0.725, but they can at the limits used here. So
what greedy matching leaves over is repaired along alternating paths (Kuhn's algorithm), which
gives the greatest set of firm objects on both sides at once: a path that covers one object of a
side uncovers none of the other side, and no firm one of its own (Mendelsohn and Dulmage, 1958).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Mapping, Sequence

import numpy as np

from dla_perception.detection.detections import Detections
from dla_perception.detection.nms import box_iou
from dla_perception.errors import DlaPerceptionError
from dla_perception.monitoring.health import Finding, Level, worst

WINDOW = 300
"""Compared frames over which the share of disagreements is told: ten seconds at 30 Hz."""

RECENT_NS = 5_000_000_000
"""How long a disagreement stays a problem: five diagnostics at 1 Hz."""


class AgreementSettingsError(DlaPerceptionError):
    """A limit that makes no sense."""


@dataclass(frozen=True)
class AgreementSettings:
    """What counts as the same object.

    Attributes:
        iou_threshold: least IoU of two boxes of one object, in (0, 1].
        score_threshold: the detectors' own score threshold, in [0, 1].
        class_score_thresholds: the detectors' thresholds of single classes, by class id.
        score_margin: how far above the threshold a score must be for the object to be missed
            when the other side does not report it, in [0, 1].
        max_consecutive_disagreements: compared frames in a row that may disagree before it is
            an error.
    """

    iou_threshold: float = 0.4
    score_threshold: float = 0.3
    class_score_thresholds: Mapping[int, float] = field(default_factory=dict)
    score_margin: float = 0.1
    max_consecutive_disagreements: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.iou_threshold <= 1:
            raise AgreementSettingsError(
                f"iou_threshold: {self.iou_threshold}; expected above 0 and at most 1"
            )
        scores = {"score_threshold": self.score_threshold, "score_margin": self.score_margin}
        for class_id, threshold in self.class_score_thresholds.items():
            scores[f"class_score_thresholds: {class_id}"] = threshold
        for name, value in scores.items():
            if not 0 <= value <= 1:
                raise AgreementSettingsError(f"{name}: {value} is out of range; expected 0 to 1")
        if self.max_consecutive_disagreements < 1:
            raise AgreementSettingsError(
                f"max_consecutive_disagreements: {self.max_consecutive_disagreements}; "
                "expected 1 or more"
            )

    def firm(self, detections: Detections) -> np.ndarray:
        """Which detections ``(N,) bool`` the other side must have too."""
        least = np.full(len(detections), self.score_threshold)
        for class_id, threshold in self.class_score_thresholds.items():
            least[detections.class_ids == class_id] = threshold
        return detections.scores >= least + self.score_margin


@dataclass(frozen=True)
class Agreement:
    """How two sides' detections of one image compare. All indices are into the given arrays.

    Attributes:
        matches: ``(primary, secondary)`` of each object that both have.
        class_mismatches: ``(primary, secondary)`` of boxes that lie on each other and differ in
            class; at least one of the two is firm.
        missing_on_primary: firm objects of the secondary that the primary has not.
        missing_on_secondary: firm objects of the primary that the secondary has not.
        reason: one line naming the first difference and the number of others; empty when the
            sides agree.
    """

    matches: tuple[tuple[int, int], ...]
    class_mismatches: tuple[tuple[int, int], ...]
    missing_on_primary: tuple[int, ...]
    missing_on_secondary: tuple[int, ...]
    reason: str

    @property
    def disagrees(self) -> bool:
        """Whether there is any difference that small noise does not explain."""
        return bool(self.class_mismatches or self.missing_on_primary or self.missing_on_secondary)


def compare(
    primary: Detections,
    secondary: Detections,
    settings: AgreementSettings,
    labels: Mapping[int, str] | None = None,
) -> Agreement:
    """Match two sides' detections of one image.

    Args:
        primary, secondary: class ids of one numbering. A box that is not finite matches
            nothing, and a score that is not finite is not firm.
        settings: what counts as the same.
        labels: names of class ids for the reason; others are told by their number.
    """
    iou = box_iou(primary.boxes, secondary.boxes)
    same_class = primary.class_ids[:, None] == secondary.class_ids[None, :]
    close = iou >= settings.iou_threshold
    firm = (settings.firm(primary), settings.firm(secondary))
    partners = _match(np.where(same_class & close, iou, 0.0), *firm)

    alone = (
        np.array([index not in partners for index in range(len(primary))], bool),
        ~np.isin(np.arange(len(secondary)), list(partners.values())),
    )
    wanted = firm[0][:, None] | firm[1][None, :]
    on_each_other = close & ~same_class & alone[0][:, None] & alone[1][None, :] & wanted
    mismatches = _greedy(np.where(on_each_other, iou, 0.0))
    missing = (
        np.setdiff1d(np.flatnonzero(alone[0] & firm[0]), list(mismatches)),
        np.setdiff1d(np.flatnonzero(alone[1] & firm[1]), list(mismatches.values())),
    )
    reasons = [
        *(
            f"{_name(primary, i, labels)} of the primary is "
            f"{_label(secondary, j, labels)} on the secondary"
            for i, j in mismatches.items()
        ),
        *_missing_reasons("secondary", primary, missing[0], iou * same_class, labels),
        *_missing_reasons("primary", secondary, missing[1], (iou * same_class).T, labels),
    ]
    others = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return Agreement(
        tuple(sorted(partners.items())),
        tuple(sorted(mismatches.items())),
        tuple(missing[1].tolist()),
        tuple(missing[0].tolist()),
        reasons[0] + others if reasons else "",
    )


def _greedy(weights: np.ndarray) -> dict[int, int]:
    """Pairs of row and column with positive weight, each used once, the greatest weights first."""
    rows, columns = np.nonzero(weights)
    order = np.argsort(-weights[rows, columns], kind="stable")
    partners: dict[int, int] = {}
    used: set[int] = set()
    for row, column in zip(rows[order].tolist(), columns[order].tolist()):
        if row not in partners and column not in used:
            partners[row] = column
            used.add(column)
    return partners


def _match(weights: np.ndarray, firm_rows: np.ndarray, firm_columns: np.ndarray) -> dict[int, int]:
    """A matching of rows and columns with positive weight that covers all firm ones it can."""
    partners = _greedy(weights)
    partners = _cover(weights, partners, firm_rows)
    flipped = {column: row for row, column in partners.items()}
    flipped = _cover(weights.T, flipped, firm_columns)
    return {row: column for column, row in flipped.items()}


def _cover(weights: np.ndarray, partners: dict[int, int], firm: np.ndarray) -> dict[int, int]:
    """Change ``partners`` so that as many firm rows as possible have one.

    Columns that had a partner keep having one.
    """
    for row in np.flatnonzero(firm).tolist():
        if row not in partners:
            _free_a_partner(weights, partners, firm, row)
    return partners


def _free_a_partner(
    weights: np.ndarray, partners: dict[int, int], firm: np.ndarray, start: int
) -> None:
    """Give row ``start`` a partner along a shortest alternating path, if there is one.

    The path ends at a free column, or at a row that is not firm and gives its column away.
    """
    owners = {column: row for row, column in partners.items()}
    came_from: dict[int, int] = {}  # column -> the row that wants it
    queue: Deque[int] = deque([start])
    while queue:
        row = queue.popleft()
        for column in np.flatnonzero(weights[row]).tolist():
            if column in came_from:
                continue
            came_from[column] = row
            owner = owners.get(column)
            if owner is not None and firm[owner]:
                queue.append(owner)
                continue
            if owner is not None:
                del partners[owner]
            _shift(partners, came_from, column, start)
            return


def _shift(partners: dict[int, int], came_from: Mapping[int, int], column: int, start: int) -> None:
    """Hand each column on the path to the row that wants it, from its end to ``start``."""
    while True:
        row = came_from[column]
        former = partners.get(row)
        partners[row] = column
        if row == start or former is None:
            return
        column = former


def _missing_reasons(
    side: str,
    detections: Detections,
    missing: Sequence[int] | np.ndarray,
    iou: np.ndarray,
    labels: Mapping[int, str] | None,
) -> list[str]:
    reasons = []
    for index in missing:
        closest = float(iou[index].max(initial=0.0))
        found = f": the closest has IoU {closest:.2f}" if closest > 0 else ""
        reasons.append(f"{_name(detections, index, labels)} is missing on the {side}{found}")
    return reasons


def _label(detections: Detections, index: int, labels: Mapping[int, str] | None) -> str:
    class_id = int(detections.class_ids[index])
    return (labels or {}).get(class_id, f"class {class_id}")


def _name(detections: Detections, index: int, labels: Mapping[int, str] | None) -> str:
    x1, y1, x2, y2 = detections.boxes[index]
    return (
        f"{_label(detections, index, labels)} {float(detections.scores[index]):.2f} at "
        f"({x1:.0f}, {y1:.0f}, {x2:.0f}, {y2:.0f})"
    )


class AgreementMonitor:
    """Counts agreements and disagreements of compared frames.

    Attributes:
        compared, disagreements: frames so far.
        consecutive: disagreements in a row up to the last compared frame.
    """

    def __init__(self) -> None:
        self.compared = 0
        self.disagreements = 0
        self.consecutive = 0
        self._window: Deque[bool] = deque(maxlen=WINDOW)
        self._last_reason = "n/a"
        self._last_compared_ns: int | None = None
        self._last_disagreed_ns: int | None = None

    def add(self, agreement: Agreement, now_ns: int) -> None:
        """Count one compared frame at ``now_ns`` of a steady clock."""
        self.compared += 1
        self._last_compared_ns = now_ns
        self._window.append(agreement.disagrees)
        if not agreement.disagrees:
            self.consecutive = 0
            return
        self.disagreements += 1
        self.consecutive += 1
        self._last_reason = agreement.reason
        self._last_disagreed_ns = now_ns

    def finding(self, settings: AgreementSettings, silent_after_ms: float, now_ns: int) -> Finding:
        """Judge the comparison: ``agreement``.

        STALE when nothing was compared for ``silent_after_ms``: one side at least does not
        answer, and what that means is told elsewhere.
        """
        problems = []
        if self._last_compared_ns is None:
            problems.append((Level.STALE, "no image yet that both sides answered in time"))
        elif now_ns - self._last_compared_ns >= silent_after_ms * 1e6:
            silent_s = (now_ns - self._last_compared_ns) / 1e9
            problems.append(
                (Level.STALE, f"no image for {silent_s:.1f} s that both sides answered in time")
            )
        if self.consecutive >= settings.max_consecutive_disagreements:
            problems.append(
                (Level.ERROR, f"{self.consecutive} images in a row differ: {self._last_reason}")
            )
        elif self._last_disagreed_ns is not None and now_ns - self._last_disagreed_ns <= RECENT_NS:
            problems.append((Level.WARN, f"the sides differed: {self._last_reason}"))
        level, message = worst(problems, "both sides see the same")
        ratio = sum(self._window) / len(self._window) if self._window else None
        values = {
            "compared": str(self.compared),
            "disagreements": str(self.disagreements),
            "consecutive_disagreements": str(self.consecutive),
            "disagreement_ratio": "n/a" if ratio is None else f"{ratio:.3f}",
            "last_disagreement": self._last_reason,
        }
        return Finding("agreement", level, message, values)
