"""Whether two engines can fail apart from each other: one row per case."""

from __future__ import annotations

import pytest

from dla_perception.monitoring.health import Level
from dla_perception.redundancy.arbiter import Side
from dla_perception.redundancy.independence import independence_finding


def engine(device: str, on_gpu: str = "0") -> dict[str, str]:
    return {"device": device, "layers_on_gpu": on_gpu}


@pytest.mark.parametrize(
    ("primary", "secondary", "level", "words"),
    [
        (engine("dla0"), engine("dla1"), Level.OK, "share no accelerator"),
        (engine("dla0"), engine("dla0"), Level.ERROR, "both sides run on dla0"),
        (engine("dla0", "3"), engine("dla1"), Level.ERROR, "3 layers of primary run on the GPU"),
        (engine("dla0"), engine("gpu", "9"), Level.ERROR, "secondary runs on the GPU"),
        (engine("gpu", "9"), engine("gpu", "9"), Level.ERROR, "primary runs on the GPU"),
        (engine("dla0", "n/a"), engine("dla1"), Level.WARN, "primary has not told whether"),
        (engine("cpu", "n/a"), engine("cpu", "n/a"), Level.WARN, "a development machine"),
        (engine("dla0"), engine("cpu"), Level.OK, "share no accelerator"),
        (engine("dla0"), None, Level.WARN, "secondary has not told what its engine runs on"),
        (None, None, Level.WARN, "primary has not told"),
    ],
)
def test_each_case(primary, secondary, level, words):
    told = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
    finding = independence_finding({side: info for side, info in told.items() if info})
    assert finding.level is level
    assert words in finding.message
    assert finding.values["primary_device"] == (primary["device"] if primary else "n/a")
