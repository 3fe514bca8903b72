"""What a network expects and returns, and the YAML that says so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Mapping

from dla_perception.detection.anchors import PUBLISHED_ANCHORS, Anchors
from dla_perception.detection.letterbox import Placement
from dla_perception.errors import DlaPerceptionError


class DescriptionError(DlaPerceptionError):
    """A description file or label list is wrong, or does not fit its network."""


@dataclass(frozen=True)
class ModelDescription:
    """What a network expects and returns.

    A pixel value ``p`` in 0..255 of channel ``c`` enters the network as
    ``(p * scale - mean[c]) / std[c]``, channels in ``channel_order``.

    Attributes:
        family: the head family, a key of :data:`dla_perception.detection.heads.FAMILIES`.
        num_classes: how many classes the head tells apart.
        class_names: their names, or ``None``: then a class is called by its index.
        input_size: ``(width, height)`` of the network's input in pixels.
        channel_order: ``rgb`` or ``bgr``.
        scale, mean, std: the normalisation above.
        placement: where the image lies in the input.
        pad_value: 0..255, fills the rest of the input.
        interpolation: ``linear``, ``nearest``, ``area`` or ``cubic``.
        input_rounding: ``nearest`` or ``truncate`` (toward zero), for INT8 inputs.
        strides: pixels of the input per cell, one a level, finest first; empty where the network
            itself has chosen the boxes.
        anchors: ``(width, height)`` in pixels of the input, for each level, finest first.
        scale_x_y: Darknet's ``scale_x_y``, one a level or one for all; ``None``: 1.
        new_coords: Darknet's ``new_coords``; ``None``: false.
        reg_max: how many bins a side of a box is spread over; 1: it is given as it is.
        boxes_decoded: the outputs hold boxes, not what they are computed from.
        scores_activated: the outputs hold probabilities, not logits.
        channels_last: the values of one cell lie next to each other in the outputs' shapes:
            ``(1, cells, channels)``.
        metrics: measured quality, for people: kept as it is written.

    ``None`` from ``anchors`` to ``channels_last``: what is usual for the family.
    """

    family: str
    num_classes: int
    input_size: tuple[int, int]
    class_names: tuple[str, ...] | None = None
    channel_order: str = "rgb"
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    placement: Placement = Placement.CENTRE
    pad_value: int = 114
    interpolation: str = "linear"
    input_rounding: str = "nearest"
    strides: tuple[int, ...] = (8, 16, 32)
    anchors: Anchors | None = None
    scale_x_y: tuple[float, ...] | None = None
    new_coords: bool | None = None
    reg_max: int | None = None
    boxes_decoded: bool | None = None
    scores_activated: bool | None = None
    channels_last: bool | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def label(self, class_id: int) -> str:
        """The name of a class, or its index where the classes have no names."""
        return self.class_names[class_id] if self.class_names else str(class_id)


def description_path(model_path: str | Path) -> Path:
    """Where the description of a model lies: ``net.onnx`` -> ``net.yaml``."""
    return Path(model_path).with_suffix(".yaml")


def read_description(path: str | Path) -> dict[str, Any]:
    """The keys that a description file states, checked one by one.

    Raises:
        DescriptionError: the file cannot be read, is no YAML mapping, or a key is unknown, is
            there twice or has a value that cannot be.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        _refuse_repeated_keys(path, yaml.compose(text, Loader=yaml.SafeLoader))
        document = yaml.safe_load(text)
    except OSError as error:
        raise DescriptionError(f"{path}: cannot read it: {error.strerror}") from None
    # a number or date of impossible form, such as 2026-13-01, is a ValueError
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DescriptionError(
            f"{path}: not a YAML text: {' '.join(str(error).split())}; "
            "expected 'key: value' lines, as in 'family: yolox'"
        ) from None
    if not isinstance(document, dict):
        raise DescriptionError(f"{path}: expected 'key: value' lines, as in 'family: yolox'")
    return {key: _check_value(path, key, value) for key, value in document.items()}


def write_description(path: str | Path, description: ModelDescription) -> None:
    """Write a description file that :func:`read_description` reads back.

    Every key is written that has a value: what is left out of a file may be read as another
    default, that of the family.

    Raises:
        DescriptionError: the file cannot be written.
    """
    import yaml

    values = {item.name: getattr(description, item.name) for item in fields(description)}
    stated = {key: _plain(value) for key, value in values.items() if value not in (None, (), {})}
    text = yaml.safe_dump(
        stated, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DescriptionError(f"{path}: cannot write it: {error.strerror}") from None


def read_labels(path: str | Path) -> tuple[str, ...]:
    """Class names from a UTF-8 text file, one a line.

    Surrounding space, a byte-order mark and the kind of line ends do not matter. Blank lines at
    the end are ignored; one before a name is refused, since it would shift the names of all later
    classes, and so is a name that is there twice.

    Raises:
        DescriptionError: the file cannot be read or is no list of names.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DescriptionError(f"labels file {path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DescriptionError(
            f"labels file {path}: not UTF-8 text; expected one class name a line"
        ) from None
    # reading as text has made every line end a line feed; other separators belong to names
    lines = [line.strip() for line in text.rstrip().split("\n")]
    if lines == [""]:
        raise DescriptionError(f"labels file {path}: it is empty; expected one class name a line")
    return check_labels(lines, f"labels file {path}")


def check_labels(names: list[str], where: str) -> tuple[str, ...]:
    """Refuse empty and repeated class names; ``where`` names their source in the message."""
    seen: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if not name:
            raise DescriptionError(f"{where}: name {number} is blank; remove the blank line")
        if name in seen:
            raise DescriptionError(
                f"{where}: '{name}' is both name {seen[name]} and name {number}; "
                "each class needs its own name"
            )
        seen[name] = number
    return tuple(names)


def _refuse_repeated_keys(path: str | Path, node: Any) -> None:
    """YAML would silently keep the last of them."""
    seen = set()
    for key, _ in node.value if node is not None and node.id == "mapping" else ():
        if key.id == "scalar":
            if key.value in seen:
                raise DescriptionError(
                    f"{path}: {key.value}: the key is there twice; remove one of them"
                )
            seen.add(key.value)


def _plain(value: Any) -> Any:
    """A value of a description as YAML's own types."""
    if isinstance(value, Placement):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def _positive(value: Any) -> float:
    if _number(value) <= 0:
        raise ValueError
    return float(value)


def _three(check: Callable[[Any], float]) -> Callable[[Any], tuple[float, ...]]:
    def check_three(value: Any) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != 3:
            raise ValueError
        return tuple(check(item) for item in value)

    return check_three


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check_whole(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return check_whole


def _whole_list(least: int, most: int, low: int, high: int) -> Callable[[Any], tuple[int, ...]]:
    def check_list(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ValueError
        return tuple(_whole(low, high)(item) for item in value)

    return check_list


def _strides(value: Any) -> tuple[int, ...]:
    strides = _whole_list(1, 8, 1, 1024)(value)
    if any(finer >= coarser for finer, coarser in zip(strides, strides[1:])):
        raise ValueError
    return strides


def _anchors(value: Any) -> Anchors:
    if isinstance(value, str):
        if value not in PUBLISHED_ANCHORS:
            raise ValueError
        return PUBLISHED_ANCHORS[value]
    if not isinstance(value, list) or not 1 <= len(value) <= 8:
        raise ValueError
    levels = []
    for level in value:
        if not isinstance(level, list) or not level or any(len(pair) != 2 for pair in level):
            raise ValueError
        levels.append(tuple((_positive(width), _positive(height)) for width, height in level))
    return tuple(levels)


def _scale_x_y(value: Any) -> tuple[float, ...]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= 8 or any(not 1 <= _number(item) <= 4 for item in values):
        raise ValueError
    return tuple(float(item) for item in values)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check_choice(value: Any) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return check_choice


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError
    # YAML reads an unquoted 'no' or '7' as something else than text: names are text here
    if not all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in value):
        raise ValueError
    return tuple(str(item).strip() for item in value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value


_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "family": (_text, "the name of a head family"),
    "num_classes": (_whole(1, 65535), "a whole number from 1 to 65535"),
    "class_names": (_names, "a list of names (quote names such as 'no' or 'on')"),
    "input_size": (_whole_list(2, 2, 1, 8192), "[width, height] in pixels, 1 to 8192 each"),
    "channel_order": (_one_of("rgb", "bgr"), "rgb or bgr"),
    "scale": (_positive, "a positive number, such as 0.00392156862745098 for 1/255"),
    "mean": (_three(_number), "three numbers"),
    "std": (_three(_positive), "three positive numbers"),
    "placement": (lambda value: Placement(value), "centre, top_left or stretch"),
    "pad_value": (_whole(0, 255), "a whole number from 0 to 255"),
    "interpolation": (
        _one_of("linear", "nearest", "area", "cubic"),
        "linear, nearest, area or cubic",
    ),
    "input_rounding": (_one_of("nearest", "truncate"), "nearest or truncate"),
    "strides": (_strides, "1 to 8 whole numbers from 1 to 1024, finest first, as [8, 16, 32]"),
    "anchors": (
        _anchors,
        "[width, height] pairs in pixels for each level, finest first, as "
        "[[[10, 13], [16, 30]], [[30, 61], [62, 45]]], or one of " + ", ".join(PUBLISHED_ANCHORS),
    ),
    "scale_x_y": (_scale_x_y, "a number from 1 to 4, or one for each level, finest first"),
    "new_coords": (_flag, "true or false"),
    "reg_max": (_whole(1, 64), "a whole number from 1 to 64"),
    "boxes_decoded": (_flag, "true or false"),
    "scores_activated": (_flag, "true or false"),
    "channels_last": (_flag, "true or false"),
    "metrics": (_mapping, "a mapping"),
}


def _check_value(path: str | Path, key: Any, value: Any) -> Any:
    if key not in _CHECKS:
        known = ", ".join(item.name for item in fields(ModelDescription))
        raise DescriptionError(f"{path}: unknown key '{key}'; known keys: {known}")
    check, expected = _CHECKS[key]
    try:
        checked = check(value)
    except (ValueError, TypeError, OverflowError):
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        raise DescriptionError(f"{path}: {key}: {shown} cannot be; expected {expected}") from None
    if key == "class_names":
        check_labels(list(checked), f"{path}: class_names")
    return checked
