"""Findings to ``diagnostic_msgs``."""

from __future__ import annotations

from typing import Sequence

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from dla_perception.monitoring.health import Finding, Level


def status_message(finding: Finding, node_name: str, hardware_id: str) -> DiagnosticStatus:
    """One status, named ``<node>: <thing>`` as REP-107 has it."""
    return DiagnosticStatus(
        level=bytes([finding.level]),
        name=f"{node_name}: {finding.name}",
        message=finding.message,
        hardware_id=hardware_id,
        values=[KeyValue(key=key, value=value) for key, value in finding.values.items()],
    )


def diagnostics_message(statuses: Sequence[DiagnosticStatus], stamp: Time) -> DiagnosticArray:
    """All statuses of a node at one time."""
    message = DiagnosticArray()
    message.header.stamp = stamp
    message.status = list(statuses)
    return message


def level_of(status: DiagnosticStatus) -> Level:
    """The level of a status; the message holds it as one byte."""
    return Level(status.level[0])
