"""The parameters of ``redundancy_node``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from dla_perception.redundancy.agreement import AgreementSettings
from dla_perception.redundancy.arbiter import ArbiterSettings
from dla_perception.ros.parameters import ParameterInfo, check_choices

_HOUR_MS = 3_600_000

PARAMETERS: Mapping[str, ParameterInfo] = {
    "mode": ParameterInfo(
        "failover: publish one side's results; compare: also report disagreement",
        choices=("failover", "compare"),
    ),
    "result_deadline_ms": ParameterInfo(
        "How much later (ms) than the other side the active one may answer an image",
        minimum=1,
        maximum=_HOUR_MS,
        dynamic=True,
    ),
    "switch_after_misses": ParameterInfo(
        "So many misses in a row make the other side active", minimum=1, maximum=1000, dynamic=True
    ),
    "switch_back": ParameterInfo(
        "Whether the preferred side becomes active again on its own",
        choices=("auto", "manual"),
        dynamic=True,
    ),
    "switch_back_after": ParameterInfo(
        "So many results in time in a row bring the preferred side back",
        minimum=1,
        maximum=100_000,
        dynamic=True,
    ),
    "epoch_jump_ms": ParameterInfo(
        "Stamps that go back by more (ms) began anew, as those of a looping bag",
        minimum=1,
        maximum=_HOUR_MS,
        dynamic=True,
    ),
    "silent_after_ms": ParameterInfo(
        "A side without any result for so long (ms) is silent",
        minimum=1,
        maximum=_HOUR_MS,
        dynamic=True,
    ),
    "compare.iou_threshold": ParameterInfo(
        "Least IoU of two boxes of one object", minimum=0.01, maximum=1, dynamic=True
    ),
    "compare.score_threshold": ParameterInfo(
        "The detectors' score threshold", minimum=0, maximum=1, dynamic=True
    ),
    "compare.score_margin": ParameterInfo(
        "So far above the threshold an object must not be missing on one side",
        minimum=0,
        maximum=1,
        dynamic=True,
    ),
    "compare.max_consecutive_disagreements": ParameterInfo(
        "So many compared frames in a row that disagree are an error",
        minimum=1,
        maximum=100_000,
        dynamic=True,
    ),
    "diagnostics.period_s": ParameterInfo(
        "Seconds between two diagnostics messages", minimum=0.1, maximum=60
    ),
    "autostart": ParameterInfo("Configure and activate at start"),
}


@dataclass(frozen=True)
class RedundancyParameters:
    """All parameters at one time, checked as a whole."""

    compares: bool
    arbiter: ArbiterSettings
    agreement: AgreementSettings
    diagnostics_period_s: float
    autostart: bool

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> RedundancyParameters:
        """Check the values of :data:`PARAMETERS`.

        Raises:
            DlaPerceptionError: names the parameter, what is wrong and what was expected.
        """
        check_choices(values, PARAMETERS)
        return cls(
            compares=values["mode"] == "compare",
            arbiter=ArbiterSettings(
                result_deadline_ms=values["result_deadline_ms"],
                switch_after_misses=values["switch_after_misses"],
                switch_back=values["switch_back"],
                switch_back_after=values["switch_back_after"],
                epoch_jump_ms=values["epoch_jump_ms"],
                silent_after_ms=values["silent_after_ms"],
            ),
            agreement=AgreementSettings(
                iou_threshold=values["compare.iou_threshold"],
                score_threshold=values["compare.score_threshold"],
                score_margin=values["compare.score_margin"],
                max_consecutive_disagreements=values["compare.max_consecutive_disagreements"],
            ),
            diagnostics_period_s=values["diagnostics.period_s"],
            autostart=values["autostart"],
        )
