"""The demo's live table, its summary and its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Sequence

import cv2
import numpy as np

from dla_perception.demo.monitor import SIDES, Monitor
from dla_perception.demo.scene import CLASS_NAMES, Scene
from dla_perception.detection.description import ModelDescription
from dla_perception.detection.drawing import draw_detections
from dla_perception.detection.images import write_image

if TYPE_CHECKING:
    from rich.table import Table

CONTACT_SHEET_COLUMNS = 4


def live_table(monitor: Monitor, now_s: float, elapsed_s: float, duration_s: float) -> Table:
    """What the topics say at this moment."""
    from rich.table import Table

    table = Table(title=f"dla_perception demo: {elapsed_s:.0f} of {duration_s:.0f} s", width=88)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("said by")
    latency = monitor.latency()
    side = monitor.active or "secondary"
    stages = monitor.figures(f"{side}/detector_node: inference latency")
    table.add_row("images per second", figure(monitor.truth_rate.rate(now_s), 1), "ground_truth")
    table.add_row("detections per second", figure(monitor.found_rate.rate(now_s), 1), "detections")
    table.add_row(
        "image to detections, ms: median / 95 % / worst",
        f"{figure(latency.p50)} / {figure(latency.p95)} / {figure(latency.maximum)}",
        "detections",
    )
    for stage in ("wait", "preprocess", "inference", "postprocess", "publish"):
        median, worst = (stages.get(f"{stage}_{name}_ms", "n/a") for name in ("p50", "p99"))
        table.add_row(f"  {stage}, ms: median / 99 %", f"{median} / {worst}", "/diagnostics")
    dropped = ", ".join(f"{count} {reason}" for reason, count in monitor.dropped(side).items())
    table.add_row("images dropped", dropped or "none", "/diagnostics")
    table.add_section()
    table.add_row("active side", monitor.active, "redundancy_node/active")
    for name in SIDES:
        told = monitor.messages.get(f"{monitor.get_namespace()}/redundancy_node: {name}", "n/a")
        table.add_row(f"  {name}", told, "/diagnostics")
    table.add_section()
    for name in CLASS_NAMES:
        table.add_row(f"{name}s found", str(monitor.per_class[name]), "detections")
    return table


def progress_line(monitor: Monitor, now_s: float, elapsed_s: float) -> str:
    """The table in one line, for what is not a terminal."""
    latency = monitor.latency()
    found = ", ".join(f"{monitor.per_class[name]} {name}" for name in CLASS_NAMES)
    return (
        f"{elapsed_s:5.1f} s: {figure(monitor.truth_rate.rate(now_s), 1)} images/s, "
        f"{figure(monitor.found_rate.rate(now_s), 1)} detections/s, "
        f"latency p50 {figure(latency.p50)} ms p95 {figure(latency.p95)} ms; "
        f"{monitor.active} is active; {found}"
    )


def figure(value: float | None, digits: int = 2) -> str:
    """A number for people; ``n/a`` where there is none."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def write_pictures(
    folder: Path, monitor: Monitor, scene: Scene, rate_hz: float, count: int = 12
) -> Sequence[Path]:
    """Annotated pictures of frames spread over the run, and all on one contact sheet.

    The contact sheet is the last path returned.
    """
    stamps = sorted(set(monitor.found) & set(monitor.truth))
    places = np.linspace(0, len(stamps) - 1, min(count, len(stamps)), dtype=int)
    chosen = [stamps[place] for place in places]
    names = ModelDescription("demo", len(CLASS_NAMES), (1, 1), class_names=CLASS_NAMES)
    folder.mkdir(parents=True, exist_ok=True)
    pictures, paths = [], []
    for stamp_ns in chosen:
        index = monitor.frame_index(stamp_ns, rate_hz)
        pixels = scene.frame(index).pixels
        picture = draw_detections(pixels, monitor.found[stamp_ns], names, f"frame {index}")
        paths.append(folder / f"frame_{index:05d}.png")
        write_image(paths[-1], picture)
        pictures.append(cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))
    blank = np.zeros_like(pictures[0])
    pictures += [blank] * (-len(pictures) % CONTACT_SHEET_COLUMNS)
    rows = [
        np.hstack(pictures[start : start + CONTACT_SHEET_COLUMNS])
        for start in range(0, len(pictures), CONTACT_SHEET_COLUMNS)
    ]
    paths.append(folder / "contact_sheet.png")
    write_image(paths[-1], np.vstack(rows))
    return paths
