"""What the demo's network is trained to do: YOLOX's losses, with SimOTA's assignment.

Source of the method: Ge et al., "YOLOX: Exceeding YOLO Series in 2021". All pictures of a batch are
assigned at once, without a loop: the network is so small that a loop would take longer than it.
Shapes: ``N`` pictures, ``A`` cells of all levels, ``M`` places for objects, ``C`` classes.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence, Tuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from dla_perception.demo.network import STRIDES, decode

_CENTRE_CELLS = 1.5
"""A cell may learn an object whose middle is at most this many cells away."""
_MOST_CELLS = 10
"""At most this many cells learn one object."""
_FORBIDDEN = 1e5


class Targets(NamedTuple):
    """``boxes (N, M, 4)`` in input pixels; ``class_ids (N, M)``, -1: none; ``ignore (N, M, 4)``."""

    boxes: Tensor
    class_ids: Tensor
    ignore: Tensor


class Losses(NamedTuple):
    """Scalars; ``total`` is what to minimise."""

    total: Tensor
    box: Tensor
    objectness: Tensor
    class_: Tensor


def detection_loss(levels: Sequence[Tensor], targets: Targets) -> Losses:
    """The loss of one batch of head outputs."""
    boxes, objectness, classes = decode(levels)
    centres, strides = _cells(levels)
    with torch.no_grad():
        owner, overlap = _assign(boxes, objectness, classes, centres, strides, targets)
        learning = owner >= 0
        in_ignored = _contains(targets.ignore, centres).any(1)
        counted = (learning | ~in_ignored).float()
        index = owner.clamp(min=0)
        wanted_boxes = torch.gather(targets.boxes, 1, index[..., None].expand(-1, -1, 4))
        wanted_class = torch.gather(targets.class_ids, 1, index).clamp(min=0)
        every_class = torch.arange(classes.shape[-1], device=classes.device)
        one_hot = (wanted_class[..., None] == every_class).float()
        count = learning.sum().clamp(min=1)
    mask = learning.float()
    box_loss = ((1 - generalised_iou(boxes, wanted_boxes)) * mask).sum() / count
    object_loss = functional.binary_cross_entropy_with_logits(objectness, mask, reduction="none")
    object_loss = (object_loss * counted).sum() / count
    # the class learns how well the box fits, so that the score says it
    class_loss = functional.binary_cross_entropy_with_logits(
        classes, one_hot * overlap[..., None], reduction="none"
    )
    class_loss = (class_loss.sum(-1) * mask).sum() / count
    total = 5 * box_loss + object_loss + class_loss
    return Losses(total, box_loss.detach(), object_loss.detach(), class_loss.detach())


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU less the empty share of the box round both, ``(...)``, of boxes ``(..., 4)``."""
    top_left = torch.maximum(first[..., :2], second[..., :2])
    bottom_right = torch.minimum(first[..., 2:], second[..., 2:])
    common = (bottom_right - top_left).clamp(min=0).prod(-1)
    union = _area(first) + _area(second) - common
    hull_size = torch.maximum(first[..., 2:], second[..., 2:]) - torch.minimum(
        first[..., :2], second[..., :2]
    )
    hull = hull_size.prod(-1).clamp(min=1e-6)
    return common / union.clamp(min=1e-6) - (hull - union) / hull


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def _cells(levels: Sequence[Tensor]) -> Tuple[Tensor, Tensor]:
    """Middles of all cells ``(A, 2)`` in input pixels and their strides ``(A,)``."""
    centres, strides = [], []
    for level, stride in zip(levels, STRIDES):
        height, width = level.shape[2:]
        row = (torch.arange(height, device=level.device) + 0.5) * stride
        column = (torch.arange(width, device=level.device) + 0.5) * stride
        grid = torch.stack(torch.meshgrid(row, column, indexing="ij")[::-1], -1).reshape(-1, 2)
        centres.append(grid)
        strides.append(torch.full((len(grid),), float(stride), device=level.device))
    return torch.cat(centres), torch.cat(strides)


def _contains(boxes: Tensor, centres: Tensor) -> Tensor:
    """Whether each cell's middle lies in each box, ``(N, M, A)``."""
    x, y = centres[:, 0], centres[:, 1]
    across = (x > boxes[..., 0:1]) & (x < boxes[..., 2:3])
    return across & (y > boxes[..., 1:2]) & (y < boxes[..., 3:4])


def _assign(
    boxes: Tensor,
    objectness: Tensor,
    classes: Tensor,
    centres: Tensor,
    strides: Tensor,
    targets: Targets,
) -> Tuple[Tensor, Tensor]:
    """Which object each cell learns, ``(N, A)`` with -1 for none, and the IoU it has with it."""
    present = targets.class_ids >= 0
    middles = (targets.boxes[..., :2] + targets.boxes[..., 2:]) / 2
    offset = (centres[None, None] - middles[:, :, None]).abs().amax(-1)
    near = offset < _CENTRE_CELLS * strides
    inside = _contains(targets.boxes, centres)
    allowed = near & present[..., None]

    iou = _pairwise_iou(targets.boxes, boxes)
    # the cost of a cell's class for each object's class: all "no" but one "yes"
    probability = (classes.sigmoid() * objectness.sigmoid()[..., None]).sqrt().clamp(1e-6, 1 - 1e-6)
    no, yes = -(1 - probability).log(), -probability.log()
    change = (yes - no).transpose(1, 2)
    index = targets.class_ids.clamp(min=0)[..., None].expand(-1, -1, change.shape[-1])
    class_cost = no.sum(-1)[:, None] + torch.gather(change, 1, index)
    cost = class_cost - 3 * (iou + 1e-8).log() + 10 * (~inside).float()
    cost = torch.where(allowed, cost, torch.full_like(cost, _FORBIDDEN))

    # an object takes as many cells as its best candidates' overlaps add up to
    best_iou = (iou * allowed).topk(_MOST_CELLS, dim=-1).values
    wanted = best_iou.sum(-1).int().clamp(min=1)
    least_cost, chosen = cost.topk(_MOST_CELLS, dim=-1, largest=False)
    rank = torch.arange(_MOST_CELLS, device=cost.device)
    taken = (rank < wanted[..., None]) & (least_cost < _FORBIDDEN)
    matched = torch.zeros_like(allowed).scatter_(-1, chosen, taken)
    # a cell that several objects want learns the cheapest
    priced = torch.where(matched, cost, torch.full_like(cost, float("inf")))
    price, owner = priced.min(1)
    owner = torch.where(price.isfinite(), owner, torch.full_like(owner, -1))
    overlap = torch.gather(iou, 1, owner.clamp(min=0)[:, None])[:, 0]
    return owner, overlap * (owner >= 0)


def _pairwise_iou(objects: Tensor, boxes: Tensor) -> Tensor:
    """IoU ``(N, M, A)`` of objects ``(N, M, 4)`` with boxes ``(N, A, 4)``."""
    first, second = objects[:, :, None], boxes[:, None]
    top_left = torch.maximum(first[..., :2], second[..., :2])
    bottom_right = torch.minimum(first[..., 2:], second[..., 2:])
    common = (bottom_right - top_left).clamp(min=0).prod(-1)
    union = _area(first) + _area(second) - common
    return common / union.clamp(min=1e-6)
