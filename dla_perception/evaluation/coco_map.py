"""Average precision as COCO defines it, over a folder of annotated images.

The matching and the averaging are those of pycocotools, the reference implementation of
T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", https://cocodataset.org.
"""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

import cv2
import numpy as np

from dla_perception.detection.description import ModelDescription
from dla_perception.detection.detections import Detections
from dla_perception.detection.images import ImageError, read_image
from dla_perception.errors import DlaPerceptionError, MissingPackageError

MAX_DETECTIONS = 100
"""Detections that COCO looks at, per image and category."""

DARKNET_NAMES = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
}
"""What Darknet's ``data/coco.names`` calls six of COCO's categories, after Pascal VOC."""


class AnnotationError(DlaPerceptionError):
    """An annotation file is wrong or does not fit its images or the network."""


@dataclass(frozen=True)
class AnnotatedImage:
    """One image of an annotation file: its id, file name and ``(width, height)`` in pixels."""

    image_id: int
    file_name: str
    size: tuple[int, int]


@dataclass(frozen=True)
class Annotations:
    """What an annotation file in COCO's format says.

    Attributes:
        path: the file.
        images: in the file's order.
        categories: names by category id.
        objects: COCO's own dictionaries (``image_id``, ``category_id``, ``bbox`` as x y w h in
            pixels, ``area``, ``iscrowd``), one per annotated object.
    """

    path: str
    images: tuple[AnnotatedImage, ...]
    categories: Mapping[int, str]
    objects: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision in [0, 1] over ``images`` images and the categories judged.

    Attributes:
        ap: mean over the IoU thresholds 0.50, 0.55, ... 0.95.
        ap50, ap75: at IoU 0.50 and 0.75.
        images: how many images were judged.
    """

    ap: float
    ap50: float
    ap75: float
    images: int


@dataclass(frozen=True)
class ClassMapping:
    """Which category of the annotations each class of a network is.

    Attributes:
        category_ids: one a class, ``None`` where the annotations do not know the class.
        unknown_classes: names of those classes: their detections cannot be judged.
        undetectable_categories: names of annotated categories that the network does not have:
            they are left out of the mean.
    """

    category_ids: tuple[int | None, ...]
    unknown_classes: tuple[str, ...]
    undetectable_categories: tuple[str, ...]


def read_annotations(path: str | Path) -> Annotations:
    """Read an annotation file in COCO's ``instances`` format.

    Raises:
        AnnotationError: the file cannot be read, is no JSON, or lacks something.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AnnotationError(f"{path}: cannot read it: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise AnnotationError(
            f"{path}: not a JSON text; expected annotations in COCO's 'instances' format"
        ) from None
    if not isinstance(document, dict):
        document = {}
    for key in ("images", "annotations", "categories"):
        if not isinstance(document.get(key), list) or not document[key]:
            raise AnnotationError(
                f"{path}: it has no list '{key}'; expected COCO's 'instances' format with "
                "'images', 'annotations' and 'categories'"
            )
    images = tuple(
        _checked(path, "images", index, item, _image)
        for index, item in enumerate(document["images"])
    )
    categories = dict(
        _checked(path, "categories", index, item, _category)
        for index, item in enumerate(document["categories"])
    )
    objects = tuple(
        _checked(path, "annotations", index, item, _object)
        for index, item in enumerate(document["annotations"])
    )
    image_ids = {image.image_id for image in images}
    for index, item in enumerate(objects):
        for key, known in (("image_id", image_ids), ("category_id", categories.keys())):
            if item[key] not in known:
                raise AnnotationError(
                    f"{path}: annotations[{index}]: {key} {item[key]} is not in the file's list"
                )
    return Annotations(str(path), images, categories, objects)


def map_classes(annotations: Annotations, description: ModelDescription) -> ClassMapping:
    """Match a network's classes with the annotations' categories by name, case ignored.

    Raises:
        AnnotationError: the network's classes have no names, two classes are one category, or
            no class is a category.
    """
    if description.class_names is None:
        raise AnnotationError(
            f"{annotations.path}: categories are matched by name, but the network's "
            f"{description.num_classes} classes have none; give them with --labels"
        )
    by_name = {name.strip().lower(): number for number, name in annotations.categories.items()}
    category_ids = []
    for name in description.class_names:
        key = name.strip().lower()
        category_ids.append(by_name.get(key, by_name.get(DARKNET_NAMES.get(key, key))))
    found = [number for number in category_ids if number is not None]
    if not found:
        raise AnnotationError(
            f"{annotations.path}: none of the network's classes "
            f"({_some(description.class_names)}) is one of its categories "
            f"({_some(list(annotations.categories.values()))}); check --labels"
        )
    for number in found:
        if found.count(number) > 1:
            raise AnnotationError(
                f"{annotations.path}: two classes of the network are its category "
                f"'{annotations.categories[number]}'; each needs its own name"
            )
    annotated = {item["category_id"] for item in annotations.objects}
    return ClassMapping(
        tuple(category_ids),
        tuple(
            name for name, number in zip(description.class_names, category_ids) if number is None
        ),
        tuple(annotations.categories[number] for number in sorted(annotated - set(found))),
    )


def find_images(
    annotations: Annotations, folder: str | Path
) -> tuple[list[AnnotatedImage], list[AnnotatedImage]]:
    """The annotated images that ``folder`` holds and those that it lacks.

    Raises:
        AnnotationError: no such folder, or none of the images is in it.
    """
    if not Path(folder).is_dir():
        raise AnnotationError(f"{folder}: there is no such folder; expected a folder of images")
    present: list[AnnotatedImage] = []
    missing: list[AnnotatedImage] = []
    for image in annotations.images:
        (present if (Path(folder) / image.file_name).is_file() else missing).append(image)
    if not present:
        raise AnnotationError(
            f"{folder}: none of the {len(missing)} images of {annotations.path} is in it "
            f"(the first is '{missing[0].file_name}')"
        )
    return present, missing


def read_annotated_image(folder: str | Path, image: AnnotatedImage) -> np.ndarray:
    """The pixels ``(H, W, 3) uint8`` of an annotated image, BGR, turned as the annotations are.

    COCO's boxes refer to the stored pixels, other sets' to the picture that EXIF turns upright:
    the annotated size tells which.

    Raises:
        ImageError: no picture, or its size is not the annotated one.
    """
    path = Path(folder) / image.file_name
    upright = read_image(path)
    if _size(upright) == image.size:
        return upright
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    stored = cv2.imdecode(np.fromfile(str(path), np.uint8), flags)
    if stored is None or _size(stored) != image.size:
        raise ImageError(
            f"{path}: it is {'x'.join(map(str, _size(upright)))}, but its annotations are for "
            f"{'x'.join(map(str, image.size))} pixels"
        )
    return stored


def average_precision(
    annotations: Annotations,
    mapping: ClassMapping,
    detections: Mapping[int, Detections],
) -> AveragePrecision:
    """Judge detections.

    Args:
        annotations: the truth.
        mapping: from :func:`map_classes`.
        detections: by image id, of every image to judge; boxes in pixels of the image.

    Raises:
        AnnotationError: no object is annotated that could be found on these images.
        MissingPackageError: pycocotools is not installed.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        raise MissingPackageError(
            "pycocotools", "COCO average precision", "pip install pycocotools"
        ) from None
    judged = sorted(number for number in mapping.category_ids if number is not None)
    objects = [
        # pycocotools takes the id 0 for 'not matched'
        {**item, "id": index}
        for index, item in enumerate(annotations.objects, 1)
        if item["image_id"] in detections and item["category_id"] in judged
    ]
    if not any(not item["iscrowd"] for item in objects):
        raise AnnotationError(
            f"{annotations.path}: it has no object on these images that the network could find"
        )
    truth, found = COCO(), COCO()
    frame = {
        "images": [{"id": number} for number in detections],
        "categories": [{"id": number} for number in judged],
    }
    truth.dataset = {**frame, "annotations": objects}
    found.dataset = {**frame, "annotations": _coco_results(mapping, detections)}
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools talks on stdout
        truth.createIndex()
        found.createIndex()
        judge = COCOeval(truth, found, "bbox")
        judge.params.maxDets = [1, 10, MAX_DETECTIONS]
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    ap, ap50, ap75 = (float(value) for value in judge.stats[:3])
    return AveragePrecision(ap, ap50, ap75, len(detections))


def _coco_results(
    mapping: ClassMapping, detections: Mapping[int, Detections]
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for image_id, found in detections.items():
        for box, score, class_id in found:
            category_id = mapping.category_ids[class_id]
            if category_id is None:
                continue
            x1, y1, x2, y2 = (float(edge) for edge in box)
            results.append(
                {
                    "id": len(results) + 1,
                    "image_id": image_id,
                    "category_id": category_id,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": 0,
                    "score": score,
                }
            )
    return results


def _size(pixels: np.ndarray) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[0]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _checked(path: str | Path, key: str, index: int, item: Any, read: Any) -> Any:
    try:
        return read(item)
    except KeyError as error:
        raise AnnotationError(f"{path}: {key}[{index}]: it has no {error}") from None
    except (TypeError, ValueError, AttributeError):
        raise AnnotationError(
            f"{path}: {key}[{index}]: a value cannot be; expected COCO's 'instances' format"
        ) from None


def _image(item: Any) -> AnnotatedImage:
    size = (_whole(item["width"]), _whole(item["height"]))
    if min(size) < 1:
        raise ValueError
    return AnnotatedImage(_whole(item["id"]), _text(item["file_name"]), size)


def _category(item: Any) -> tuple[int, str]:
    return _whole(item["id"]), _text(item["name"])


def _object(item: Any) -> dict[str, Any]:
    box = [float(value) for value in item["bbox"]]
    if len(box) != 4 or not np.isfinite(box).all() or min(box[2:]) < 0:
        raise ValueError
    return {
        "image_id": _whole(item["image_id"]),
        "category_id": _whole(item["category_id"]),
        "bbox": box,
        "area": float(item.get("area", box[2] * box[3])),
        "iscrowd": int(bool(item.get("iscrowd", 0))),
    }


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value
