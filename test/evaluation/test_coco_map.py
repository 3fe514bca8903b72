"""Average precision: known answers, bad files, and the published network on real photos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from dla_perception.cli.main import main
from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.detection.images import ImageError
from dla_perception.evaluation.coco_map import (
    AnnotatedImage,
    AnnotationError,
    average_precision,
    find_images,
    map_classes,
    read_annotated_image,
    read_annotations,
)


def document(**changes: Any) -> dict[str, Any]:
    """Two images, two categories with ids that are no indices, three objects."""
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "width": 100, "height": 80},
            {"id": 9, "file_name": "b.png", "width": 60, "height": 90},
        ],
        "categories": [{"id": 3, "name": "car"}, {"id": 90, "name": "toothbrush"}],
        "annotations": [
            # the id 0 is legal in the file; the judge must not take it for 'no match'
            {"id": 0, "image_id": 7, "category_id": 3, "bbox": [10, 10, 20, 20]},
            {"id": 1, "image_id": 9, "category_id": 3, "bbox": [0, 0, 30, 40]},
            {"id": 2, "image_id": 9, "category_id": 90, "bbox": [5, 50, 40, 30]},
        ],
        **changes,
    }


def write(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(document(**changes)))
    return path


def found(boxes: list[list[float]], scores: list[float], classes: list[int]) -> Detections:
    return Detections(np.array(boxes), np.array(scores), np.array(classes))


def network(*names: str) -> ModelDescription:
    return ModelDescription("yolox", len(names), (64, 64), names)


def test_perfect_detections_have_an_average_precision_of_one(tmp_path: Path) -> None:
    annotations = read_annotations(write(tmp_path))
    mapping = map_classes(annotations, network("toothbrush", "car"))
    assert mapping.category_ids == (90, 3)
    perfect = {
        7: found([[10, 10, 30, 30]], [0.9], [1]),
        9: found([[0, 0, 30, 40], [5, 50, 45, 80]], [0.8, 0.7], [1, 0]),
    }
    result = average_precision(annotations, mapping, perfect)
    assert (result.ap, result.ap50, result.ap75) == pytest.approx((1, 1, 1))
    assert result.images == 2


def test_a_known_overlap_counts_at_the_thresholds_below_it(tmp_path: Path) -> None:
    annotations = read_annotations(write(tmp_path))
    mapping = map_classes(annotations, network("car"))
    # 20x20 against 20x16: an IoU of exactly 0.8, which passes 0.50 to 0.80: 7 of 10 thresholds
    overlapping = {
        7: found([[10, 10, 30, 26]], [0.9], [0]),
        9: found([[0, 0, 30, 32]], [0.8], [0]),
    }
    result = average_precision(annotations, mapping, overlapping)
    assert result.ap == pytest.approx(0.7, abs=1e-6)
    assert (result.ap50, result.ap75) == pytest.approx((1, 1))
    assert mapping.undetectable_categories == ("toothbrush",)


def test_only_the_given_images_are_judged(tmp_path: Path) -> None:
    annotations = read_annotations(write(tmp_path))
    mapping = map_classes(annotations, network("car"))
    result = average_precision(annotations, mapping, {7: found([[10, 10, 30, 30]], [1], [0])})
    assert (result.ap, result.images) == (pytest.approx(1), 1)
    with pytest.raises(AnnotationError, match="no object on these images"):
        average_precision(
            annotations, map_classes(annotations, network("toothbrush")), {7: Detections.empty()}
        )


def test_no_detection_at_all_has_an_average_precision_of_zero(tmp_path: Path) -> None:
    annotations = read_annotations(write(tmp_path))
    mapping = map_classes(annotations, network("car"))
    nothing = {7: Detections.empty(), 9: Detections.empty()}
    assert average_precision(annotations, mapping, nothing).ap == 0


def test_darknet_s_names_are_understood(tmp_path: Path) -> None:
    names = ["motorcycle", "airplane", "couch", "potted plant", "dining table", "tv"]
    categories = [{"id": 10 + index, "name": name} for index, name in enumerate(names)]
    objects = [{"image_id": 7, "category_id": 10, "bbox": [1, 2, 3, 4]}]
    annotations = read_annotations(write(tmp_path, categories=categories, annotations=objects))
    darknet = ("motorbike", "aeroplane", "sofa", "pottedplant", "diningtable", "TVmonitor", "cat")
    mapping = map_classes(annotations, network(*darknet))
    assert mapping.category_ids == (10, 11, 12, 13, 14, 15, None)
    assert mapping.unknown_classes == ("cat",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat", "dog"), r"none of the network's classes \(cat, dog\) .* \(car, toothbrush\)"),
        (("car", "Car"), "two classes of the network are its category 'car'"),
    ],
)
def test_classes_that_cannot_be_matched(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(AnnotationError, match=message):
        map_classes(read_annotations(write(tmp_path)), network(*names))


def test_classes_without_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match="2 classes have none; give them with --labels"):
        map_classes(read_annotations(write(tmp_path)), ModelDescription("yolox", 2, (64, 64)))


BAD = [
    ({"images": []}, "no list 'images'"),
    ({"annotations": {}}, "no list 'annotations'"),
    ({"categories": [{"id": 1}]}, r"categories\[0\]: it has no 'name'"),
    ({"images": [{"id": 7, "file_name": "a", "width": 0, "height": 1}]}, r"images\[0\]: a value"),
    ({"annotations": [{"image_id": 8, "category_id": 3, "bbox": [0, 0, 1, 1]}]}, "image_id 8 is"),
    ({"annotations": [{"image_id": 7, "category_id": 4, "bbox": [0, 0, 1, 1]}]}, "category_id 4"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [0, 0, 1]}]}, r"annotations\[0\]"),
    ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [0, 0, -1, 1]}]}, "value cannot"),
    ({"annotations": ["x"]}, r"annotations\[0\]: a value cannot be"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_annotations(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        read_annotations(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a JSON"), (b"\xff\xfe\x00", "not a JSON"), (b"[1]", "no list 'images'")],
)
def test_files_that_are_no_annotations(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(AnnotationError, match=message):
        read_annotations(path)
    with pytest.raises(AnnotationError, match="No such file"):
        read_annotations(tmp_path / "missing.json")


def test_images_of_the_folder(tmp_path: Path) -> None:
    annotations = read_annotations(write(tmp_path))
    with pytest.raises(AnnotationError, match="none of the 2 images .* first is 'a.png'"):
        find_images(annotations, tmp_path)
    with pytest.raises(AnnotationError, match="no such folder"):
        find_images(annotations, tmp_path / "nowhere")
    cv2.imwrite(str(tmp_path / "b.png"), np.zeros((90, 60, 3), np.uint8))
    present, missing = find_images(annotations, tmp_path)
    assert [image.file_name for image in present] == ["b.png"]
    assert [image.file_name for image in missing] == ["a.png"]
    assert read_annotated_image(tmp_path, present[0]).shape == (90, 60, 3)
    with pytest.raises(ImageError, match="it is 60x90, but its annotations are for 50x90 pixels"):
        read_annotated_image(tmp_path, AnnotatedImage(9, "b.png", (50, 90)))


def test_a_picture_that_exif_turns_is_read_as_it_was_annotated(tmp_path: Path) -> None:
    ok, encoded = cv2.imencode(".jpg", np.zeros((40, 60, 3), np.uint8))
    assert ok
    # orientation 6: turn a quarter clockwise to see it upright
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    content = encoded.tobytes()
    (tmp_path / "turned.jpg").write_bytes(content[:2] + segment + content[2:])
    stored = read_annotated_image(tmp_path, AnnotatedImage(1, "turned.jpg", (60, 40)))
    upright = read_annotated_image(tmp_path, AnnotatedImage(1, "turned.jpg", (40, 60)))
    assert (stored.shape, upright.shape) == ((40, 60, 3), (60, 40, 3))


def test_yolox_nano_reaches_its_published_precision(
    assets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        [
            "evaluate",
            str(assets / "models" / "yolox_nano_416.onnx"),
            "--images",
            str(assets / "images" / "coco_val_ccby"),
            "--annotations",
            str(assets / "images" / "instances_val_ccby.json"),
            "--labels",
            "coco",
            "--json",
        ]
    )
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    result = json.loads(output.out)
    assert list(result) == ["AP", "AP50", "AP75", "images", "precision"]
    assert result["AP"] == pytest.approx(0.326, abs=0.005)
    assert result["AP50"] == pytest.approx(0.528, abs=0.005)
    assert (result["images"], result["precision"]) == (25, "fp32")


def test_what_is_left_out_is_said(
    assets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = json.loads((assets / "images" / "instances_val_ccby.json").read_text())
    folder = assets / "images" / "coco_val_ccby"
    for category in truth["categories"]:
        if category["name"] == "person":
            category["name"] = "human"
    extra = {"id": 1, "file_name": "away.jpg", "width": 9, "height": 9}
    truth["images"] = [*truth["images"][:2], extra]
    ids = [image["id"] for image in truth["images"]]
    truth["annotations"] = [item for item in truth["annotations"] if item["image_id"] in ids]
    human = {"image_id": ids[0], "category_id": 1, "bbox": [1, 1, 9, 9]}
    truth["annotations"].append(human)
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(truth))
    model = assets / "models" / "yolox_nano_416.onnx"
    where = ["--images", str(folder), "--annotations", str(path), "--labels", "coco"]
    assert main(["evaluate", str(model), *where]) == 0
    output = capsys.readouterr()
    assert "on 2 images, fp32" in output.out
    first, second, third = output.err.splitlines()
    assert "no category for the network's 'person': their detections are not judged" in first
    assert "no class for the annotated 'human': left out of the mean" in second
    assert "1 of the 3 annotated images are not in it" in third
