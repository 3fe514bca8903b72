"""The benchmark of the pipeline: its two ways do the same work, and its output is as documented."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "pipeline.py"
    spec = importlib.util.spec_from_file_location("pipeline_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def threads():
    """The benchmark sets OpenCV's threads for its whole process."""
    import cv2

    before = cv2.getNumThreads()
    yield
    cv2.setNumThreads(before)


STAGES = {"preprocess", "decode", "nms", "total"}


def test_json(pipeline, capsys):
    assert pipeline.main(["--json", "--quick", "--repetitions", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["cases"]
    for result, case in zip(document["cases"], pipeline.QUICK_CASES):
        keys = ["image", "network", "layout", "head", "objects", "ours_ms", "usual_ms", "ratio"]
        assert list(result) == keys
        assert (tuple(result["image"]), tuple(result["network"])) == (case.image, case.network)
        assert (result["layout"], result["head"], result["objects"]) == (
            case.layout,
            case.head,
            case.objects,
        )
        for way in ("ours_ms", "usual_ms"):
            assert set(result[way]) == STAGES
            assert all(value > 0 for value in result[way].values())
        ratio = result["usual_ms"]["total"] / result["ours_ms"]["total"]
        assert result["ratio"] == pytest.approx(ratio, abs=0.006)
    assert len(document["cases"]) == len(pipeline.QUICK_CASES)


def test_has_the_case_that_the_goal_is_stated_for(pipeline):
    assert pipeline.QUICK_CASES[0] == pipeline.Case(
        image=(1280, 720), network=(640, 640), layout="int8:dla_hwc4", head="yolov8", objects=20
    )


def test_both_ways_find_the_objects_of_every_case(pipeline):
    for case in pipeline.CASES:
        ours, usual, images = pipeline.prepare(case)
        found = ours.find(images[0])
        pipeline.check_agreement(case, found, usual.find(images[0]))
        # two objects of a class may be one box; a cluster may leave a second box at its rim
        assert case.objects * 0.8 <= len(found) <= case.objects * 1.2, case


def test_prefilter_changes_only_the_time(pipeline):
    case = pipeline.QUICK_CASES[0]
    _, usual, images = pipeline.prepare(case)
    _, filtering, _ = pipeline.prepare(case, prefilter=True)
    first, second = usual.find(images[0]), filtering.find(images[0])
    np.testing.assert_array_equal(first.boxes, second.boxes)
    np.testing.assert_array_equal(first.scores, second.scores)


def test_float_inputs_are_the_same(pipeline):
    """What the usual way gives its network is what we give ours."""
    case = pipeline.Case(layout="float32:linear")
    ours, usual, images = pipeline.prepare(case)
    ours.find(images[1])
    blob, _ = usual.preprocess(images[1])
    np.testing.assert_allclose(ours.engine.input_buffers(0)[0], blob, atol=1e-6)


def test_different_boxes_are_not_compared(pipeline):
    case = pipeline.QUICK_CASES[0]
    ours, usual, images = pipeline.prepare(case)
    found = usual.find(images[0])
    found.boxes[3] += 5
    with pytest.raises(RuntimeError, match="finds"):
        pipeline.check_agreement(case, ours.find(images[0]), found)
    with pytest.raises(RuntimeError, match="finds"):
        pipeline.check_agreement(case, ours.find(images[0]), found[1:])


def test_table(pipeline, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "CASES", (pipeline.Case(objects=3),))
    assert pipeline.main(["--repetitions", "2", "--prefilter"]) == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[:5] == ["1280x720", "640x640", "int8:dla_hwc4", "yolov8", "3"]
    assert len(last) == 14


def test_refuses_no_repetitions(pipeline, capsys):
    with pytest.raises(SystemExit) as stop:
        pipeline.main(["--repetitions", "0"])
    assert stop.value.code == 2
    assert "expected 1 or more" in capsys.readouterr().err
