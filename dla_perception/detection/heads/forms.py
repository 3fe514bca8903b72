"""What the outputs of a network can be: every head family lists the forms that fit.

A form says which channels of which output hold a cell's box, objectness and class scores, and
what a description has to agree with for the outputs to be read so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Sequence

from dla_perception.detection.description import DescriptionError, ModelDescription
from dla_perception.engines.engine import TensorSpec

HEAD_KEYS = (
    "num_classes",
    "strides",
    "anchors",
    "scale_x_y",
    "new_coords",
    "reg_max",
    "boxes_decoded",
    "scores_activated",
    "channels_last",
)
"""The keys of a description that say how outputs are read."""


@dataclass(frozen=True)
class Network:
    """What is known of a network while its outputs are looked at.

    Attributes:
        outputs: its output tensors.
        input_size: ``(width, height)`` of its input.
        known: what is stated of :data:`HEAD_KEYS`; a key that is left out is open.
    """

    outputs: tuple[TensorSpec, ...]
    input_size: tuple[int, int]
    known: Mapping[str, Any]

    def cells(self, stride: int) -> int:
        """How many cells a level has; 0 where the stride does not divide the input."""
        width, height = self.input_size
        return 0 if width % stride or height % stride else width // stride * (height // stride)

    def stride_choices(self, usual: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The strides to try: those that are usual and those that are stated."""
        stated = self.known.get("strides")
        return [*usual, stated] if stated and stated not in usual else list(usual)


@dataclass(frozen=True)
class Field:
    """Channels ``start`` to ``stop`` of one output."""

    output: int
    start: int
    stop: int


@dataclass(frozen=True)
class Group:
    """Cells whose values lie in the same channels of the same outputs.

    Attributes:
        boxes, classes, objectness: where a cell's values are.
        levels: the levels whose cells follow each other.
        anchors: the anchors of each level whose cells follow each other; ``None``: one box a cell
            without anchors.
    """

    boxes: Field
    classes: Field
    objectness: Field | None = None
    levels: tuple[int, ...] = ()
    anchors: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Form:
    """One way to read a network's outputs.

    Attributes:
        family: the head family.
        text: the form in words.
        settles: the value of each of :data:`HEAD_KEYS` that the outputs themselves decide.
        groups: where everything is; empty for a family that reads its outputs in another way.
        uses: keys that this form also makes use of.
        needs: those of them without which it cannot be decoded.
        anchor_counts: how many anchors each level has.
        rank: 0 for what exporters write; forms of a higher rank are taken only where no other
            fits what is known.
        mirror: the axes of the output are equally long, so the other axis order fits as well.
    """

    family: str
    text: str
    settles: Mapping[str, Any]
    groups: tuple[Group, ...] = ()
    uses: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    anchor_counts: tuple[int, ...] = ()
    rank: int = 0
    mirror: bool = False

    @property
    def num_classes(self) -> int | None:
        """How many classes the outputs tell apart; ``None`` where they do not say."""
        return self.settles["num_classes"]

    def contradictions(self, known: Mapping[str, Any]) -> list[str]:
        """The keys of ``known`` that this form cannot have."""
        wrong = []
        for key in HEAD_KEYS:
            value = known.get(key)
            if value is None:
                continue
            if key in self.settles:
                fits = self.settles[key] in (None, value)
            elif key == "anchors":
                fits = key in self.uses and tuple(map(len, value)) == self.anchor_counts
            elif key == "scale_x_y":
                fits = key in self.uses and len(value) in (1, len(self.settles["strides"]))
            else:
                fits = key in self.uses
            if not fits:
                wrong.append(key)
        return wrong

    def expects(self, key: str) -> str | None:
        """What this form can have for a key, in words; ``None``: it has no such key."""
        if key in self.settles:
            value = self.settles[key]
            return _words(list(value) if isinstance(value, tuple) else value)
        if key == "anchors" and key in self.uses:
            counts = ", ".join(map(str, self.anchor_counts))
            return f"{len(self.anchor_counts)} levels of {counts} pairs"
        if key == "scale_x_y" and key in self.uses:
            return f"one number or {len(self.settles['strides'])}"
        return None

    def __str__(self) -> str:
        classes = "" if self.num_classes is None else f" with {_classes(self.num_classes)}"
        return f"{self.family} ({self.text}){classes}"


def _words(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _classes(count: int) -> str:
    return f"{count} class" if count == 1 else f"{count} classes"


def best(forms: Sequence[Form]) -> list[Form]:
    """The forms of the lowest rank, and where axes are equally long both axis orders."""
    lowest = [form for form in forms if form.rank == min(other.rank for other in forms)]
    return [
        form for form in forms if form in lowest or any(_is_mirror(form, other) for other in lowest)
    ]


def _is_mirror(form: Form, other: Form) -> bool:
    keys = [key for key in HEAD_KEYS if key != "channels_last"]
    return (
        form.mirror
        and form.family == other.family
        and all(form.settles.get(key) == other.settles.get(key) for key in keys)
    )


def form_of(
    forms: Iterable[Form], outputs: Sequence[TensorSpec], description: ModelDescription
) -> Form:
    """The one form of a family that outputs and a complete description agree on.

    Raises:
        DescriptionError: none does, or several do.
    """
    known = {key: getattr(description, key) for key in HEAD_KEYS}
    found = f"outputs {describe_outputs(outputs)}"
    listed = list(forms)
    fitting = best([form for form in listed if not form.contradictions(known)])
    if len(fitting) > 1:
        raise DescriptionError(f"{found} can be {list_forms(fitting)}; state {deciding(fitting)}")
    if not fitting:
        nearest = min(listed, key=lambda form: len(form.contradictions(known)), default=None)
        if nearest is None:
            raise DescriptionError(f"{found} do not fit the head family '{description.family}'")
        key = nearest.contradictions(known)[0]
        value = known[key]
        raise DescriptionError(
            f"{found} fit {description.family} with {key}: {nearest.expects(key) or 'left out'}, "
            f"not {list(value) if isinstance(value, tuple) else _words(value)}"
        )
    form = fitting[0]
    missing = [key for key in form.needs if known[key] is None]
    if missing:
        raise DescriptionError(f"{found}: {description.family} ({form.text}) needs {missing[0]}")
    return form


def list_forms(forms: Sequence[Form]) -> str:
    """Forms in words: ``yolov5 with 80 classes or yolox with 250 classes``."""
    families = list(dict.fromkeys(form.family for form in forms))
    if len(families) == 1:
        return " or ".join(dict.fromkeys(str(form) for form in forms))
    parts = []
    for family in families:
        counts = sorted({form.num_classes or 0 for form in forms if form.family == family})
        classes = " or ".join(map(str, counts[:-1] + [_classes(counts[-1])]))
        parts.append(f"{family} with {classes}" if counts[0] else family)
    return ", ".join(parts[:-1]) + " or " + parts[-1]


def deciding(forms: Sequence[Form]) -> str:
    """Keys whose statement tells forms apart: ``family and num_classes``."""
    families = {form.family for form in forms}
    if len(families) > 1:
        counts = {(form.family, form.num_classes) for form in forms}
        return "family and num_classes" if len(counts) > len(families) else "family"
    for key in HEAD_KEYS:
        if len({repr(form.settles.get(key)) for form in forms}) > 1:
            return key
    return "which is which by names of the outputs that contain 'box' and 'cls'"


def describe_outputs(outputs: Sequence[TensorSpec]) -> str:
    """Names and shapes for a message."""
    return ", ".join(f"{spec.name} {list(spec.shape)}" for spec in outputs) or "none"


@dataclass(frozen=True)
class Pyramid:
    """Outputs sorted by level.

    Attributes:
        strides: of the levels, finest first.
        levels: for each level the numbers of its outputs, in the engine's order.
        channels_last: the outputs' axis order.
    """

    strides: tuple[int, ...]
    levels: tuple[tuple[int, ...], ...]
    channels_last: bool

    def channels(self, network: Network) -> list[tuple[int, ...]]:
        """For each level the channels of its outputs."""
        axis = 3 if self.channels_last else 1
        return [
            tuple(network.outputs[index].shape[axis] for index in level) for level in self.levels
        ]


def pyramids(
    network: Network, outputs_per_level: int, usual_strides: Sequence[tuple[int, ...]]
) -> Iterator[Pyramid]:
    """The network's outputs as ``outputs_per_level`` maps a level, in either axis order.

    The strides follow from the sizes of the maps; they must be usual ones or those stated.
    """
    choices = network.stride_choices(usual_strides)
    if any(len(spec.shape) != 4 for spec in network.outputs):
        return
    for channels_last in (False, True):
        by_stride: dict[int, list[int]] = {}
        for index, spec in enumerate(network.outputs):
            height, width = spec.shape[1:3] if channels_last else spec.shape[2:4]
            by_stride.setdefault(_stride(network.input_size, width, height), []).append(index)
        strides = tuple(sorted(by_stride))
        levels = tuple(tuple(by_stride[stride]) for stride in strides)
        if strides in choices and all(len(level) == outputs_per_level for level in levels):
            yield Pyramid(strides, levels, channels_last)


def _stride(input_size: tuple[int, int], width: int, height: int) -> int:
    """Pixels per cell of a map; 0 where it is no map of the input."""
    if min(width, height) < 1 or input_size[0] % width or input_size[1] % height:
        return 0
    stride = input_size[0] // width
    return stride if input_size[1] // height == stride else 0


@dataclass(frozen=True)
class Joined:
    """One output that holds the cells of all levels one after the other."""

    strides: tuple[int, ...]
    channels: int
    channels_last: bool
    mirror: bool


def joined(
    network: Network, anchors_per_level: int, usual_strides: Sequence[tuple[int, ...]]
) -> Iterator[Joined]:
    """The network's only output ``(1, cells, channels)`` or ``(1, channels, cells)``."""
    if len(network.outputs) != 1 or len(network.outputs[0].shape) != 3:
        return
    _, first, second = network.outputs[0].shape
    for strides in network.stride_choices(usual_strides):
        levels = [network.cells(stride) for stride in strides]
        cells = sum(levels) * anchors_per_level
        if not all(levels):
            continue
        mirror = first == second
        if first == cells:
            yield Joined(strides, second, True, mirror)
        if second == cells:
            yield Joined(strides, first, False, mirror)


def anchored_maps(
    network: Network, usual_strides: Sequence[tuple[int, ...]]
) -> Iterator[tuple[Pyramid, int, tuple[int, ...], tuple[Group, ...]]]:
    """One map a level with ``anchors x (5 + classes)`` channels: box, objectness, classes.

    Yields the pyramid, the number of classes, the number of anchors of each level and the groups.
    Three anchors a level are usual; others must be stated.
    """
    for pyramid in pyramids(network, 1, usual_strides):
        usual = (3,) * len(pyramid.levels)
        stated = tuple(map(len, network.known.get("anchors") or ()))
        for counts in dict.fromkeys((usual, stated)):
            if len(counts) != len(pyramid.levels):
                continue
            channels = [level[0] for level in pyramid.channels(network)]
            sizes = {divmod(size, count) for size, count in zip(channels, counts)}
            size, rest = sizes.pop()
            if sizes or rest or size < 6:
                continue
            groups = tuple(
                Group(
                    Field(output, start, start + 4),
                    Field(output, start + 5, start + size),
                    Field(output, start + 4, start + 5),
                    (level,),
                    (anchor,),
                )
                for level, (output,) in enumerate(pyramid.levels)
                for anchor, start in enumerate(range(0, counts[level] * size, size))
            )
            yield pyramid, size - 5, counts, groups


_BOX_WORDS = ("box", "reg", "cv2")
_CLASS_WORDS = ("cls", "class", "score", "cv3")
"""In the names that exporters give: Megvii's reg_preds and cls_preds, Ultralytics' cv2 and cv3."""


def boxes_and_classes(
    network: Network, pairs: Sequence[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Which output of each pair holds boxes and which classes, where their shapes are equal.

    Returns:
        The pairs as (boxes, classes): one list where the outputs' names tell, else both orders.
    """
    ordered = []
    for pair in pairs:
        names = [network.outputs[index].name.lower() for index in pair]
        boxes = [any(word in name for word in _BOX_WORDS) for name in names]
        classes = [any(word in name for word in _CLASS_WORDS) for name in names]
        if boxes[0] > classes[0] and boxes[1] <= classes[1]:
            ordered.append(pair)
        elif boxes[1] > classes[1] and boxes[0] <= classes[0]:
            ordered.append((pair[1], pair[0]))
    if len(ordered) == len(pairs):
        return [ordered]
    return [list(pairs), [(second, first) for first, second in pairs]]
