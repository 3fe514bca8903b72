"""An error that comes with every frame is told with a count, not with every frame."""

from __future__ import annotations

from dla_perception.ros.repeated_errors import RepeatedErrors


class Log(list):
    def error(self, line):
        self.append(line)


def test_the_first_at_once_then_with_a_count():
    log = Log()
    errors = RepeatedErrors(log, period_s=10.0)
    for frame in range(61):
        errors.log("camera", f"frame {frame} is damaged", 100.0 + frame / 3)
    assert log == [
        "frame 0 is damaged",
        "frame 30 is damaged (29 more of these in the 10 s before)",
        "frame 60 is damaged (29 more of these in the 10 s before)",
    ]


def test_each_thing_has_a_count_of_its_own():
    log = Log()
    errors = RepeatedErrors(log, period_s=10.0)
    errors.log("left", "left: first", 0.0)
    errors.log("left", "left: second", 1.0)
    errors.log("right", "right: first", 2.0)
    errors.log("left", "left: third", 10.0)
    errors.log("right", "right: long after", 1000.0)
    assert log == [
        "left: first",
        "right: first",
        "left: third (1 more of these in the 10 s before)",
        "right: long after",
    ]
