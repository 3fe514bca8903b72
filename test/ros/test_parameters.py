"""The nodes' parameters: one list, one file of defaults, and what is made from them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from dla_perception.errors import DlaPerceptionError
from dla_perception.ros import detector_parameters, redundancy_parameters
from dla_perception.ros.detector_parameters import DetectorParameters
from dla_perception.ros.parameters import json_schema, markdown_table, read_defaults

ROOT = Path(__file__).resolve().parents[2]
NODES = {"detector": detector_parameters.PARAMETERS, "redundancy": redundancy_parameters.PARAMETERS}
TABLES = {"detector": "README.md", "redundancy": "docs/redundancy.md"}

each_node = pytest.mark.parametrize("node", NODES)


def defaults_of(node):
    return read_defaults(ROOT / f"config/{node}.yaml")


@pytest.fixture
def defaults():
    return defaults_of("detector")


@each_node
def test_every_parameter_has_a_description_and_a_default(node):
    assert list(NODES[node]) == list(defaults_of(node))
    assert all(info.description for info in NODES[node].values())


@each_node
def test_the_comments_mark_what_may_change_while_running(node):
    lines = (ROOT / f"config/{node}.yaml").read_text().splitlines()
    for name, info in NODES[node].items():
        key = name.split(".")[-1]
        (place,) = [i for i, line in enumerate(lines) if line.strip().startswith(f"{key}:")]
        comment = place
        while lines[comment - 1].strip().startswith("#"):
            comment -= 1
        assert comment < place, f"{name} has no comment"
        assert lines[comment].strip().startswith("# *") == info.dynamic, name


@each_node
def test_the_schema_is_the_one_made_from_the_list(node):
    schema = json.loads((ROOT / f"config/{node}.schema.json").read_text())
    assert schema == json_schema(NODES[node], defaults_of(node)), (
        "write it anew: json.dumps(json_schema(PARAMETERS, read_defaults(...)), indent=1)"
    )
    jsonschema.validate(yaml.safe_load((ROOT / f"config/{node}.yaml").read_text()), schema)


def test_the_schema_refuses_mistakes():
    schema = json.loads((ROOT / "config/detector.schema.json").read_text())
    document = yaml.safe_load((ROOT / "config/detector.yaml").read_text())
    for name, value in [
        ("score_threshold", 1.5),
        ("score_treshold", 0.5),
        ("class_id_format", "colour"),
        ("max_detections", "many"),
        ("diagnostics", {"period": 1}),
    ]:
        wrong = {"/**": {"ros__parameters": {**document["/**"]["ros__parameters"], name: value}}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@each_node
def test_the_documentation_has_the_table(node):
    table = markdown_table(NODES[node], defaults_of(node))
    assert table in (ROOT / TABLES[node]).read_text(), f"put this into {TABLES[node]}:\n{table}"


def test_values_become_settings(defaults):
    values = {
        **defaults,
        "class_score_thresholds": ["person:0.4", "traffic light: 0.25", "a:b:0.5"],
        "class_filter": ["person", ""],
        "cameras": ["front", "rear/left"],
        "on_inference_timeout": "exit",
    }
    parameters = DetectorParameters.from_values(values)
    settings = parameters.settings
    assert settings.class_score_thresholds == {"person": 0.4, "traffic light": 0.25, "a:b": 0.5}
    assert settings.class_filter == ("person",)
    assert parameters.cameras == ("front", "rear/left")
    assert parameters.inference_timeout_s == 1.0
    assert parameters.exit_on_timeout
    assert DetectorParameters.from_values(defaults).settings.class_filter == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class_score_thresholds": ["person"]}, "'person' is not a class and a score"),
        ({"class_score_thresholds": ["person:high"]}, "'person:high' is not a class"),
        ({"class_score_thresholds": ["person:1.4"]}, "class_score_thresholds: person: 1.4"),
        ({"image_reliability": "maybe"}, "'maybe' is not one of best_effort, reliable"),
        ({"cameras": ["/front"]}, "'/front' is no relative ROS name"),
        ({"cameras": ["1st"]}, "'1st' is no relative ROS name"),
    ],
)
def test_values_that_cannot_be(defaults, change, words):
    with pytest.raises(DlaPerceptionError, match=words):
        DetectorParameters.from_values({**defaults, **change})
