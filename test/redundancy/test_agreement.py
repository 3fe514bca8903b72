"""Two detectors' boxes against each other: no alarm for noise, one for each real difference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dla_perception.detection.detections import Detections
from dla_perception.detection.nms import box_iou, suppress
from dla_perception.monitoring.health import Level
from dla_perception.redundancy.agreement import (
    AgreementMonitor,
    AgreementSettings,
    AgreementSettingsError,
    compare,
)

SETTINGS = AgreementSettings()
WIDTH, HEIGHT = 640, 480


def detections(*rows):
    """Rows of x1, y1, x2, y2, score, class id."""
    array = np.array(rows, float).reshape(-1, 6)
    return Detections(array[:, :4], array[:, 4], array[:, 5])


def scene(rng, count=None, smallest=10.0):
    """A detector's output: boxes from ``smallest`` pixels on, after suppression."""
    count = rng.integers(0, 25) if count is None else count
    sizes = smallest * 20 ** rng.random((count, 2))
    corners = rng.random((count, 2)) * (np.array([WIDTH, HEIGHT]) - sizes)
    found = Detections(
        np.hstack([corners, corners + sizes]),
        rng.uniform(0.3, 1.0, count),
        rng.integers(0, 4, count),
    )
    return suppress(found, 0.45, 300)


def shuffled(found, rng):
    return found[rng.permutation(len(found))]


def scenes(count, seed=0):
    rng = np.random.default_rng(seed)
    return [(scene(rng), rng) for _ in range(count)]


# No alarm for nothing -----------------------------------------------------------------------------


def test_identical_streams_disagree_in_0_of_1000_frames():
    differing = [
        agreement.reason
        for found, rng in scenes(1000)
        for agreement in [compare(found, shuffled(found, rng), SETTINGS)]
        if agreement.disagrees
    ]
    assert differing == []


@pytest.mark.parametrize("noise", ["uniform", "worst", "normal"])
def test_one_pixel_of_noise_disagrees_in_0_of_1000_frames(noise):
    differing = []
    for found, rng in scenes(1000, seed=1):
        moves = {
            "uniform": lambda shape, rng=rng: rng.uniform(-1, 1, shape),
            "worst": lambda shape, rng=rng: rng.choice([-1.0, 1.0], shape),
            "normal": lambda shape, rng=rng: rng.normal(0, 1, shape) / np.sqrt(2),
        }[noise]
        # on both sides, so that an edge differs by up to two pixels (normal: sigma of one)
        sides = [
            Detections(found.boxes + moves(found.boxes.shape), found.scores, found.class_ids)
            for _ in range(2)
        ]
        agreement = compare(sides[0], shuffled(sides[1], rng), SETTINGS)
        if agreement.disagrees:
            differing.append(agreement.reason)
    assert differing == []


@pytest.mark.parametrize(("size", "moved"), [(5.5, 1.0), (9.0, 2.0)])
def test_the_bounds_in_the_documentation(size, moved):
    """The least IoU over all ways of moving edges: one side by 1 px; both sides by 1 px each."""
    each = moved / 2 if moved == 2 else moved
    box = np.array([0.0, 0.0, size, size])
    ways = np.array(list(itertools.product([-each, 0, each], repeat=4)))
    first = box + ways if moved == 2 else box[None]
    least = box_iou(first, box + ways).min()
    assert least >= SETTINGS.iou_threshold
    bound = ((size - 2) / size) ** 2 if moved == 1 else ((size - 2) / (size + 2)) ** 2
    assert least == pytest.approx(bound)


def test_scores_around_the_threshold_are_no_disagreement():
    both = (10, 10, 60, 60, 0.9, 0)
    for score in (0.30, 0.35, 0.399):
        assert not compare(
            detections(both, (200, 200, 260, 260, score, 1)), detections(both), SETTINGS
        ).disagrees


def test_two_uncertain_classes_of_one_object_are_no_disagreement():
    box = (200, 200, 260, 260)
    for scores, differs in [((0.39, 0.39), False), ((0.41, 0.39), True), ((0.39, 0.41), True)]:
        agreement = compare(
            detections((*box, scores[0], 1)), detections((*box, scores[1], 2)), SETTINGS
        )
        assert agreement.disagrees is differs
        assert agreement.class_mismatches == (((0, 0),) if differs else ())


@pytest.mark.parametrize("swap", [False, True])
def test_a_score_clearly_above_the_threshold_is(swap):
    sides = [detections((200, 200, 260, 260, 0.4, 1)), detections()]
    agreement = compare(*(sides[::-1] if swap else sides), SETTINGS)
    assert agreement.missing_on_primary == ((0,) if swap else ())
    assert agreement.missing_on_secondary == (() if swap else (0,))


def test_a_firm_object_may_have_a_partner_that_is_not_firm():
    agreement = compare(
        detections((10, 10, 60, 60, 0.95, 0)), detections((10, 10, 60, 60, 0.31, 0)), SETTINGS
    )
    assert agreement.matches == ((0, 0),)
    assert not agreement.disagrees


def test_thresholds_of_single_classes():
    strict = AgreementSettings(class_score_thresholds={1: 0.6})
    for score, class_id, differs in [(0.65, 1, False), (0.71, 1, True), (0.65, 0, True)]:
        found = detections((10, 10, 60, 60, score, class_id))
        assert compare(found, Detections.empty(), strict).disagrees is differs


# An alarm for each difference ---------------------------------------------------------------------


def firm_scene(seed):
    rng = np.random.default_rng(seed)
    found = scene(rng, count=int(rng.integers(1, 25)))
    return Detections(found.boxes, np.maximum(found.scores, 0.41), found.class_ids), rng


@pytest.mark.parametrize("seed", range(50))
def test_a_missing_object_is_reported_in_its_frame(seed):
    found, rng = firm_scene(seed)
    gone = int(rng.integers(len(found)))
    rest = np.delete(np.arange(len(found)), gone)
    agreement = compare(found, shuffled(found[rest], rng), SETTINGS)
    assert agreement.missing_on_secondary == (gone,)
    assert not agreement.missing_on_primary
    assert "is missing on the secondary" in agreement.reason
    assert compare(found[rest], found, SETTINGS).missing_on_primary == (gone,)


@pytest.mark.parametrize("seed", range(50))
def test_a_wrong_class_is_reported_in_its_frame(seed):
    found, rng = firm_scene(seed)
    index = int(rng.integers(len(found)))
    classes = found.class_ids.copy()
    classes[index] = 9
    agreement = compare(found, Detections(found.boxes, found.scores, classes), SETTINGS)
    assert agreement.class_mismatches == ((index, index),)
    assert not agreement.missing_on_primary
    assert not agreement.missing_on_secondary
    assert "is class 9 on the secondary" in agreement.reason


@pytest.mark.parametrize("direction", [(1, 0), (0, 1), (-1, 0), (0.5, 0.5)])
@pytest.mark.parametrize(("iou", "differs"), [(0.39, True), (0.41, False), (0.0, True)])
def test_a_shifted_box_is_reported_when_its_iou_is_under_the_limit(direction, iou, differs):
    box = np.array([200.0, 200.0, 300.0, 300.0])
    shift = np.array([*direction, *direction])
    steps = np.linspace(0, 250, 25001)
    moved = box + steps[:, None] * shift
    # the smallest shift whose IoU is not above the wanted one
    overlaps = box_iou(box[None], moved)[0]
    step = moved[np.argmax(overlaps <= iou)]
    first, second = (Detections(b[None], [0.9], [2]) for b in (box, step))
    agreement = compare(first, second, SETTINGS)
    assert agreement.disagrees is differs
    if differs:
        assert (agreement.missing_on_primary, agreement.missing_on_secondary) == ((0,), (0,))
        assert ("the closest has IoU 0.39" in agreement.reason) is (iou > 0)


def test_the_reason_in_words():
    first = detections((10, 10, 60, 60, 0.9, 0), (200, 200, 260, 260, 0.8, 1))
    second = detections((200, 200, 260, 260, 0.7, 2))
    agreement = compare(first, second, SETTINGS, labels={0: "cone", 1: "ball", 2: "box"})
    assert agreement.reason == (
        "ball 0.80 at (200, 200, 260, 260) of the primary is box on the secondary (and 1 more)"
    )
    assert compare(first, first, SETTINGS).reason == ""


def test_values_that_are_not_finite_match_nothing_and_raise_nothing():
    good = detections((10, 10, 60, 60, 0.9, 0))
    for broken in (
        detections((np.nan, 10, 60, 60, 0.9, 0)),
        detections((10, 10, np.inf, 60, 0.9, 0)),
        detections((60, 60, 10, 10, 0.9, 0)),
    ):
        agreement = compare(good, broken, SETTINGS)
        assert (agreement.missing_on_secondary, agreement.missing_on_primary) == ((0,), (0,))


def test_nothing_on_both_sides_agrees():
    assert not compare(Detections.empty(), Detections.empty(), SETTINGS).disagrees


# The matching is the best there is ----------------------------------------------------------------


@st.composite
def crowds(draw):
    """Few places, many overlapping boxes of one or two classes: partners are contested."""

    def side():
        count = draw(st.integers(0, 7))
        xs = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
        scores = draw(st.lists(st.sampled_from([0.35, 0.9]), min_size=count, max_size=count))
        classes = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        boxes = np.array([(x, 0, x + 10, 10) for x in xs], float).reshape(-1, 4)
        return Detections(boxes, scores, classes)

    return side(), side()


GREEDY_FAILS = (
    detections((4, 0, 14, 10, 0.9, 0), (0, 0, 10, 10, 0.9, 0)),
    detections((3, 0, 13, 10, 0.9, 0), (7, 0, 17, 10, 0.9, 0)),
)


@settings(max_examples=500, deadline=None)
@given(crowds())
@example(GREEDY_FAILS)
@example(GREEDY_FAILS[::-1])
def test_as_many_firm_objects_find_partners_as_an_optimal_assignment_finds(sides):
    first, second = sides
    agreement = compare(first, second, SETTINGS)
    firm = [found.scores > 0.5 for found in sides]
    possible = box_iou(first.boxes, second.boxes) >= SETTINGS.iou_threshold
    possible &= first.class_ids[:, None] == second.class_ids[None, :]
    gain = possible * (firm[0][:, None].astype(int) + firm[1][None, :])
    rows, columns = linear_sum_assignment(gain, maximize=True)
    for first_index, second_index in agreement.matches:
        assert possible[first_index, second_index]
    for used in zip(*agreement.matches):
        assert len(set(used)) == len(used)
    covered = sum(int(firm[0][i]) + int(firm[1][j]) for i, j in agreement.matches)
    assert covered == gain[rows, columns].sum()


def test_greedy_matching_alone_would_raise_a_false_alarm():
    assert compare(*GREEDY_FAILS, SETTINGS).matches == ((0, 1), (1, 0))
    assert not compare(*GREEDY_FAILS, SETTINGS).disagrees


@settings(max_examples=200, deadline=None)
@given(crowds(), st.randoms())
def test_neither_order_nor_sides_matter(sides, chance):
    first, second = sides
    agreement = compare(first, second, SETTINGS)
    order = list(range(len(first)))
    chance.shuffle(order)
    assert compare(first[order], second, SETTINGS).disagrees == agreement.disagrees
    assert compare(second, first, SETTINGS).disagrees == agreement.disagrees


@settings(max_examples=200, deadline=None)
@given(crowds())
def test_every_detection_is_told_at_most_once(sides):
    agreement = compare(*sides, SETTINGS)
    assume(agreement.disagrees)
    pairs = (*agreement.matches, *agreement.class_mismatches)
    first = [pair[0] for pair in pairs] + list(agreement.missing_on_secondary)
    second = [pair[1] for pair in pairs] + list(agreement.missing_on_primary)
    assert len(set(first)) == len(first)
    assert len(set(second)) == len(second)
    assert agreement.reason


# Counting -----------------------------------------------------------------------------------------

SAME = compare(Detections.empty(), Detections.empty(), SETTINGS)
DIFFERENT = compare(detections((10, 10, 60, 60, 0.9, 0)), Detections.empty(), SETTINGS)
SECOND = 10**9


def judge(monitor, now):
    return monitor.finding(SETTINGS, silent_after_ms=1000, now_ns=now)


def test_nothing_compared_is_stale():
    finding = judge(AgreementMonitor(), 0)
    assert (finding.name, finding.level) == ("agreement", Level.STALE)
    assert finding.values["disagreement_ratio"] == "n/a"


def test_one_disagreement_warns_for_five_seconds_and_three_in_a_row_are_an_error():
    monitor = AgreementMonitor()
    monitor.add(SAME, 0)
    assert judge(monitor, 0).level is Level.OK
    for number, level in enumerate([Level.WARN, Level.WARN, Level.ERROR, Level.ERROR]):
        monitor.add(DIFFERENT, SECOND + number)
        assert judge(monitor, SECOND + number).level is level
    assert judge(monitor, SECOND + 3).message == (
        "4 images in a row differ: class 0 0.90 at (10, 10, 60, 60) is missing on the secondary"
    )
    for now in range(2, 8):
        monitor.add(SAME, now * SECOND)
        expected = Level.WARN if now <= 6 else Level.OK
        assert judge(monitor, now * SECOND).level is expected
    values = judge(monitor, 7 * SECOND).values
    assert (values["compared"], values["disagreements"]) == ("11", "4")
    assert values["disagreement_ratio"] == "0.364"
    assert values["consecutive_disagreements"] == "0"


def test_no_more_pairs_is_stale():
    monitor = AgreementMonitor()
    monitor.add(SAME, 0)
    assert judge(monitor, SECOND - 1).level is Level.OK
    finding = judge(monitor, 2 * SECOND)
    assert finding.level is Level.STALE
    assert finding.message == "no image for 2.0 s that both sides answered in time"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iou_threshold": 0}, "iou_threshold: 0; expected above 0 and at most 1"),
        ({"score_margin": -0.1}, "score_margin: -0.1 is out of range; expected 0 to 1"),
        (
            {"class_score_thresholds": {3: 2.0}},
            "class_score_thresholds: 3: 2.0 is out of range; expected 0 to 1",
        ),
        (
            {"max_consecutive_disagreements": 0},
            "max_consecutive_disagreements: 0; expected 1 or more",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(AgreementSettingsError) as error:
        AgreementSettings(**changes)
    assert str(error.value) == message
