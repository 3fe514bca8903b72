"""The quality of service of every topic of this package."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

RELIABILITIES = {
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
    "reliable": ReliabilityPolicy.RELIABLE,
}


def image_qos(reliability: str = "best_effort") -> QoSProfile:
    """Newest frame wins: keep last 1. Best effort hears best-effort and reliable cameras alike."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=1, reliability=RELIABILITIES[reliability]
    )


DETECTIONS_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=10, reliability=ReliabilityPolicy.RELIABLE
)

ANNOTATED_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.RELIABLE
)
"""Reliable, so that every viewer can listen; a slow one gets the newest only."""

LATCHED_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
"""For what is said once: who subscribes later still gets it."""
