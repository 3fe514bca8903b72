"""Train the demo's network anew, from nothing but the renderer.

    pip install 'dla_perception[train,onnx]'
    python -m dla_perception.demo.train --output model_folder

Renders the training pictures with all processors, trains on a GPU if there is one, and exports the
network. Then ``python -m dla_perception.demo.evaluate_model`` measures the exported file.
Another ``--seed`` renders other pictures, and ``--start-from`` goes on from earlier weights: the
network in the package comes from two runs like these, the second mostly on drives, 6 and 3
minutes on one NVIDIA H200:

    train --stills 26000 --drive-frames 16000 --epochs 49 --output first
    train --stills 5000 --drive-frames 17000 --epochs 45 --seed 1 --output second
        --learning-rate 1e-3 --start-from first/demo_yolo.pt
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from dla_perception.demo.dataset import PICTURE, Pictures, held_out_stills, render_training
from dla_perception.demo.evaluate_model import write_description
from dla_perception.demo.scene import CLASS_NAMES, SceneFrame
from dla_perception.demo.scoring import Truth, mean_average_precision
from dla_perception.detection.detections import Detections
from dla_perception.detection.nms import suppress
from dla_perception.errors import DlaPerceptionError, MissingPackageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dla_perception.demo.loss import Targets
    from dla_perception.demo.network import DemoYolo

_PAD_ROWS = 8
"""Rows of padding above and below the picture in the network's input."""
_PAD_VALUE = 114
_WARM_UP = 0.03
"""Share of the training in which the learning rate rises."""
_AVERAGE_DECAY = 0.9995
_WATCHED = 200
"""Held-out stills that show how the training goes; nothing is chosen by them."""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train and export; 2 and one line where something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("demo_model"), help="%(default)s")
    parser.add_argument("--stills", type=int, default=26000, help="pictures (%(default)s)")
    parser.add_argument("--drive-frames", type=int, default=14000, help="pictures (%(default)s)")
    parser.add_argument("--epochs", type=int, default=80, help="%(default)s")
    parser.add_argument("--batch", type=int, default=128, help="pictures (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="%(default)s")
    parser.add_argument("--weight-decay", type=float, default=0.03, help="%(default)s")
    parser.add_argument("--seed", type=int, default=0, help="0 to 999 (%(default)s)")
    parser.add_argument(
        "--start-from", type=Path, metavar="PT", help="weights of an earlier training to go on from"
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="to render (%(default)s)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="end the schedule after so long, rendering included, if that is sooner",
    )
    options = parser.parse_args(arguments)
    try:
        _train(options)
    except DlaPerceptionError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    return 0


def _train(options: argparse.Namespace) -> None:
    started = time.monotonic()
    try:
        import torch
    except ImportError:
        raise MissingPackageError(
            "torch", "training the demo's network", "pip install 'dla_perception[train]'"
        ) from None
    from dla_perception.demo.network import DemoYolo, export_onnx

    torch.manual_seed(options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures = render_training(
        options.stills, options.drive_frames, options.processes, options.seed
    )
    _say(started, f"rendered {len(pictures.pixels)} pictures")
    network = DemoYolo(len(CLASS_NAMES))
    if options.start_from:
        network.load_state_dict(torch.load(options.start_from, "cpu", weights_only=True))
    network = network.to(device).to(memory_format=torch.channels_last)
    watched = list(held_out_stills(_WATCHED))
    averaged = _optimise(network, pictures, watched, options, started, device)
    _say(started, f"trained: {_quality(averaged, watched)}")
    torch.save(averaged.state_dict(), options.output / "demo_yolo.pt")
    model = options.output / "demo_yolo.onnx"
    export_onnx(averaged, model)
    # what the exported file reaches is for evaluate_model to measure
    write_description(model.with_suffix(".yaml"), {})
    _say(started, f"wrote {model}")


def _optimise(
    network: DemoYolo,
    pictures: Pictures,
    watched: Sequence[SceneFrame],
    options: argparse.Namespace,
    started: float,
    device: torch.device,
) -> DemoYolo:
    """Train ``network``; returns the running average of its weights, which is the better one."""
    import copy

    import torch

    from dla_perception.demo.loss import detection_loss

    averaged = copy.deepcopy(network).eval()
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        fused=device.type == "cuda",
    )
    mine, theirs = _floats(averaged), _floats(network)
    batches = Batches(pictures, options.batch, device, options.seed)
    step, total = 0, options.epochs * batches.count
    deadline = options.minutes * 60
    trained_from = time.monotonic() - started
    for epoch in range(options.epochs):
        network.train()
        sums = torch.zeros(4, device=batches.device)
        for images, targets in batches:
            elapsed = time.monotonic() - started
            # the schedule follows whichever runs out first, the epochs or the time
            progress = max(
                step / total, (elapsed - trained_from) / max(deadline - trained_from, 1e-9)
            )
            for group in optimiser.param_groups:
                group["lr"] = options.learning_rate * _rate(min(progress, 1.0))
            losses = detection_loss(network(images), targets)
            optimiser.zero_grad(set_to_none=True)
            losses.total.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimiser.step()
            step += 1
            decay = min(_AVERAGE_DECAY, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(mine, theirs, 1 - decay)
            sums += torch.stack(list(losses)).detach()
        means = (sums / batches.count).tolist()
        _say(
            started,
            f"epoch {epoch + 1}: loss {means[0]:.3f}, box {means[1]:.3f}, "
            f"objectness {means[2]:.3f}, class {means[3]:.3f}",
        )
        if (epoch + 1) % 20 == 0:
            _say(started, _quality(averaged, watched))
            torch.save(averaged.state_dict(), options.output / "checkpoint.pt")
        if time.monotonic() - started > deadline:
            break
    return averaged


def _rate(progress: float) -> float:
    """The learning rate at ``progress`` in [0, 1], as a share of its highest."""
    if progress < _WARM_UP:
        return max(progress / _WARM_UP, 0.01)
    along = (progress - _WARM_UP) / (1 - _WARM_UP)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * along))


def _floats(network: nn.Module) -> List[Tensor]:
    """The weights and statistics of a network, as they are while it lives."""
    return [value for value in network.state_dict().values() if value.is_floating_point()]


class Batches:
    """Shuffled, varied batches of the training pictures, made where the network is."""

    def __init__(self, pictures: Pictures, size: int, device: torch.device, seed: int) -> None:
        import torch

        self.device = device
        self.count = max(len(pictures.pixels) // size, 1)
        self._size = min(size, len(pictures.pixels))
        self._pixels = torch.from_numpy(pictures.pixels).to(self.device)
        shift = np.array([0, _PAD_ROWS, 0, _PAD_ROWS], np.float32)
        present = (pictures.class_ids >= 0)[..., None]
        boxes = np.where(present, pictures.boxes + shift, 0)
        skipped = (pictures.ignore[..., 2:] > pictures.ignore[..., :2]).all(-1, keepdims=True)
        ignore = np.where(skipped, pictures.ignore + shift, 0)
        self._boxes = torch.from_numpy(boxes.astype(np.float32)).to(self.device)
        self._ignore = torch.from_numpy(ignore.astype(np.float32)).to(self.device)
        self._class_ids = torch.from_numpy(pictures.class_ids).to(self.device)
        self._random = torch.Generator(self.device).manual_seed(seed + 1)

    def __iter__(self) -> Iterator[Tuple[Tensor, Targets]]:
        import torch

        from dla_perception.demo.loss import Targets

        order = torch.randperm(len(self._pixels), generator=self._random, device=self.device)
        for start in range(0, self.count * self._size, self._size):
            rows = order[start : start + self._size]
            images = network_input(self._vary(self._pixels[rows]))
            boxes, ignore = self._boxes[rows], self._ignore[rows]
            mirrored = self._uniform(len(rows)) < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
            boxes = torch.where(mirrored[:, None, None], _mirror(boxes), boxes)
            ignore = torch.where(mirrored[:, None, None], _mirror(ignore), ignore)
            layout = torch.channels_last
            yield (
                images.contiguous(memory_format=layout),
                Targets(boxes, self._class_ids[rows], ignore),
            )

    def _uniform(self, *shape: int) -> Tensor:
        import torch

        return torch.rand(shape, generator=self._random, device=self.device)

    def _vary(self, pixels: Tensor) -> Tensor:
        """Other exposures, contrasts and tints, ``(N, 3, H, W) float32`` in 0..255."""
        count = len(pixels)
        images = pixels.permute(0, 3, 1, 2).float()
        gain = (0.8 + 0.45 * self._uniform(count, 1, 1, 1)) * (
            0.94 + 0.12 * self._uniform(count, 3, 1, 1)
        )
        pivot = images.mean((1, 2, 3), keepdim=True)
        contrast = 0.8 + 0.4 * self._uniform(count, 1, 1, 1)
        grey = images.mean(1, keepdim=True)
        saturation = 0.7 + 0.6 * self._uniform(count, 1, 1, 1)
        images = grey + (images - grey) * saturation
        return (((images - pivot) * contrast + pivot) * gain).clamp(0, 255)


def network_input(images: Tensor) -> Tensor:
    """Pictures ``(N, 3, 240, 320)`` in 0..255, letterboxed: ``(N, 3, 256, 320)`` in 0..1."""
    import torch.nn.functional as functional

    return functional.pad(images, (0, 0, _PAD_ROWS, _PAD_ROWS), value=_PAD_VALUE) / 255


def _mirror(boxes: Tensor) -> Tensor:
    """Boxes ``(N, M, 4)`` in a picture flipped sideways; places without a box stay empty."""
    import torch

    width = PICTURE[0]
    flipped = torch.stack(
        [width - boxes[..., 2], boxes[..., 1], width - boxes[..., 0], boxes[..., 3]], -1
    )
    return torch.where((boxes[..., 2:3] > boxes[..., 0:1]), flipped, boxes)


def _quality(network: DemoYolo, frames: Sequence[SceneFrame]) -> str:
    """Average precision of the network as it is in memory, in words."""
    found = [detect(network, frame.pixels) for frame in frames]
    truths = [Truth(frame.truth, frame.ignore) for frame in frames]
    map50, map50_95 = mean_average_precision(found, truths, len(CLASS_NAMES))
    return f"mAP50 {map50:.4f}, mAP50-95 {map50_95:.4f} on {len(frames)} held-out stills"


def detect(network: DemoYolo, pixels: np.ndarray) -> Detections:
    """What a network in memory finds in a scene's picture ``(480, 640, 3) uint8`` BGR."""
    import cv2
    import torch

    from dla_perception.demo.network import decode

    small = cv2.resize(pixels, PICTURE, interpolation=cv2.INTER_LINEAR)[:, :, ::-1]
    device = next(network.parameters()).device
    images = torch.from_numpy(small.transpose(2, 0, 1)[None].astype(np.float32)).to(device)
    with torch.no_grad():
        boxes, objectness, classes = decode(network(network_input(images)))
        best = (classes[0].sigmoid() * objectness[0].sigmoid()[:, None]).max(1)
    candidates = Detections(
        boxes[0].cpu().numpy(), best.values.cpu().numpy(), best.indices.cpu().numpy()
    )
    kept = suppress(candidates[candidates.scores >= 0.01], 0.6, 300)
    factor = pixels.shape[1] / PICTURE[0]
    shift = np.array([0, _PAD_ROWS, 0, _PAD_ROWS], np.float32)
    limit = np.array([pixels.shape[1], pixels.shape[0]] * 2, np.float32)
    return Detections(np.clip((kept.boxes - shift) * factor, 0, limit), kept.scores, kept.class_ids)


def _say(started: float, line: str) -> None:
    print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
