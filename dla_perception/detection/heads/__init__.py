"""Head families: raw output arrays to candidates, one file per family.

Each family's module has ``MODELS``, the networks it decodes in words; ``DEFAULTS``, what its
reference implementation does with an image; ``forms(network)``, the ways to read the outputs of a
network as this family; and ``make(description, outputs, form)``, the decoder.
"""

from __future__ import annotations

from types import ModuleType
from typing import Mapping, Sequence

from dla_perception.detection.description import DescriptionError, ModelDescription
from dla_perception.detection.heads import darknet, yolov5, yolov8, yolov10, yolox
from dla_perception.detection.heads.forms import HEAD_KEYS, Network, form_of
from dla_perception.detection.heads.head import Decoded, Head
from dla_perception.engines.engine import TensorSpec

FAMILIES: Mapping[str, ModuleType] = {
    "darknet": darknet,
    "yolov5": yolov5,
    "yolox": yolox,
    "yolov8": yolov8,
    "yolov10": yolov10,
}
"""The head families by the name that a description states."""

__all__ = ["FAMILIES", "Decoded", "Head", "make_head"]


def make_head(description: ModelDescription, outputs: Sequence[TensorSpec]) -> Head:
    """The decoder for a network's outputs.

    Raises:
        DescriptionError: the outputs are not what the description says.
    """
    if description.family not in FAMILIES:
        raise DescriptionError(
            f"family: '{description.family}' is unknown; known families: {', '.join(FAMILIES)}"
        )
    module = FAMILIES[description.family]
    known = {key: getattr(description, key) for key in HEAD_KEYS}
    network = Network(tuple(outputs), description.input_size, known)
    form = form_of(module.forms(network), outputs, description)
    head: Head = module.make(description, outputs, form)
    return head
