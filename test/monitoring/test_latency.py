"""Windows, percentiles, rates and deadlines on a clock that the test moves."""

from __future__ import annotations

import numpy as np
import pytest

from dla_perception.monitoring.latency import (
    DeadlineMonitor,
    FrameCounts,
    RateWindow,
    StageTimes,
    Summary,
    TimeWindow,
)


def test_a_window_forgets_what_is_old_and_what_overflows():
    window = TimeWindow(capacity=4)
    for second in range(6):
        window.add(second * 10.0, float(second))
    assert sorted(window.since(0)) == [20, 30, 40, 50]
    assert sorted(window.since(4)) == [40, 50]
    window.clear()
    assert len(window.since(0)) == 0


def test_summary_percentiles():
    summary = Summary.of(np.arange(101.0))
    assert (summary.count, summary.p50, summary.p95, summary.p99, summary.maximum) == (
        101,
        50,
        95,
        99,
        100,
    )
    assert Summary.of(np.array([])) == Summary(0)


def test_stage_times_cover_the_last_seconds_only():
    times = StageTimes(("inference", "total"), window_s=2)
    times.add({"inference": 100, "total": 200}, 0.0)
    times.add({"inference": 1, "total": 2}, 9.0)
    times.add({"inference": 3, "total": 4}, 10.0)
    summaries = times.summaries(10.5)
    assert (summaries["inference"].count, summaries["inference"].p50) == (2, 2)
    assert summaries["total"].maximum == 4


@pytest.mark.parametrize("rate_hz", [5, 30, 450])
@pytest.mark.parametrize("seconds", [1, 3, 20])
def test_a_steady_rate_is_told_from_the_start(rate_hz, seconds):
    window = RateWindow(window_s=5)
    for index in range(rate_hz * seconds + 1):
        window.add(index / rate_hz)
    assert window.rate(float(seconds)) == pytest.approx(rate_hz, rel=0.05)


def test_rate_without_events_or_time():
    window = RateWindow(window_s=5)
    assert window.rate(100.0) is None
    window.add(100.0)
    assert window.rate(100.0) is None  # two updates at one instant: no division by zero
    assert window.rate(200.0) == 0
    window.clear()
    assert window.rate(200.0) is None


def test_deadlines():
    monitor = DeadlineMonitor()
    monitor.add(50, 0, 0.0)  # no limit
    assert (monitor.misses, monitor.is_late()) == (0, False)
    monitor.add(50, 40, 1.0)
    monitor.add(50, 40, 1.5)
    assert (monitor.misses, monitor.is_late(), monitor.late_for_ms(2.0)) == (2, True, 1000)
    monitor.add(40, 40, 2.5)
    assert (monitor.misses, monitor.is_late(), monitor.late_for_ms(3.0)) == (2, False, 0)
    monitor.clear()
    assert monitor.misses == 0


def test_every_frame_is_accounted_for():
    counts = FrameCounts()
    for _ in range(5):
        counts.receive()
    counts.publish()
    counts.drop("replaced")
    counts.drop("encoding")
    counts.drop("replaced")
    assert (counts.received, counts.published) == (5, 1)
    assert counts.dropped() == {"replaced": 2, "encoding": 1}
