"""Declare a node's parameters from its YAML, described and ranged, and check them as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
)
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node

from dla_perception.errors import DlaPerceptionError


class ParameterError(DlaPerceptionError):
    """A parameter has a value that cannot be used."""


@dataclass(frozen=True)
class ParameterInfo:
    """What a parameter means; its default is in the YAML, and only there.

    Attributes:
        description: for people, with the unit.
        minimum, maximum: inclusive bounds of a number; both or none.
        choices: the only texts allowed.
        dynamic: whether it may change while the node runs.
    """

    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[str] = ()
    dynamic: bool = False


def read_defaults(path: Path) -> dict[str, Any]:
    """The parameters of a ROS parameter file, nested names joined with dots."""
    import yaml

    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return _flatten(document["/**"]["ros__parameters"])


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def declare_parameters(
    node: Node, infos: Mapping[str, ParameterInfo], defaults: Mapping[str, Any]
) -> None:
    """Declare every parameter of ``infos`` with its default.

    Raises:
        ParameterError: a value given at the start is of another type or out of range.
        ValueError: ``infos`` and ``defaults`` do not name the same parameters.
    """
    if set(infos) != set(defaults):
        raise ValueError(f"described and defaulted differ: {set(infos) ^ set(defaults)}")
    for name, info in infos.items():
        try:
            node.declare_parameter(name, defaults[name], _descriptor(info, defaults[name]))
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            raise ParameterError(" ".join(str(error).split())) from None


def markdown_table(infos: Mapping[str, ParameterInfo], defaults: Mapping[str, Any]) -> str:
    """The parameters as a table for a README; a star marks those that may change while running."""
    lines = ["| parameter | default | meaning |", "|---|---|---|"]
    for name, info in infos.items():
        default = "" if defaults[name] in ("", [""]) else f"`{json.dumps(defaults[name])}`"
        meaning = info.description
        if info.choices:
            meaning += f": {', '.join(info.choices)}"
        elif info.minimum is not None:
            meaning += f" ({info.minimum:.10g} to {info.maximum:.10g})"
        lines.append(f"| `{name}`{' *' if info.dynamic else ''} | {default} | {meaning} |")
    return "\n".join(lines)


def json_schema(infos: Mapping[str, ParameterInfo], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema of a parameter file in which nothing is required and nothing is unknown."""
    root: dict[str, Any] = _object_schema()
    for name, info in infos.items():
        node = root
        *groups, last = name.split(".")
        for group in groups:
            node = node["properties"].setdefault(group, _object_schema())
        node["properties"][last] = _value_schema(info, defaults[name])
    wrapped = _object_schema()
    wrapped["properties"]["ros__parameters"] = root
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": wrapped,
    }


def _object_schema() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _value_schema(info: ParameterInfo, default: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": info.description}
    if isinstance(default, list):
        schema.update(type="array", items={"type": "string"})
    else:
        kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
        schema["type"] = kinds[type(default)]
    if info.choices:
        schema["enum"] = list(info.choices)
    if info.minimum is not None:
        schema.update(minimum=info.minimum, maximum=info.maximum)
    return schema


def parameter_values(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """The present values of parameters, by name."""
    return {name: node.get_parameter(name).value for name in names}


def check_choices(values: Mapping[str, Any], infos: Mapping[str, ParameterInfo]) -> None:
    """Refuse a text that is not one of the parameter's choices.

    Raises:
        ParameterError: names the parameter, its value and the choices.
    """
    for name, info in infos.items():
        if info.choices and values[name] not in info.choices:
            choices = ", ".join(info.choices)
            raise ParameterError(f"{name}: '{values[name]}' is not one of {choices}")


def _descriptor(info: ParameterInfo, default: Any) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=info.description, read_only=False)
    if info.choices:
        descriptor.additional_constraints = f"one of: {', '.join(info.choices)}"
    if info.minimum is not None and info.maximum is not None:
        if isinstance(default, float):
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(info.minimum), to_value=float(info.maximum))
            ]
        else:
            descriptor.integer_range = [
                IntegerRange(from_value=int(info.minimum), to_value=int(info.maximum), step=1)
            ]
    return descriptor
