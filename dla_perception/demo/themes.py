"""Places to drive through: what the ground, the distance and the clutter are like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Theme:
    """A place.

    ``path`` and ``verge`` name surfaces of :mod:`dla_perception.demo.ground`, ``skylines`` those of
    :mod:`dla_perception.demo.backdrop`, ``clutter`` makers of :mod:`dla_perception.demo.props`.
    ``lines`` says whether the path has painted edges; ``roofed`` whether there is a hall instead
    of a sky.
    """

    name: str
    path: Tuple[str, ...]
    verge: Tuple[str, ...]
    skylines: Tuple[str, ...]
    clutter: Tuple[str, ...]
    lines: bool = False
    roofed: bool = False


THEMES: Tuple[Theme, ...] = (
    Theme(
        "park",
        ("gravel", "pavers", "asphalt"),
        ("grass", "meadow"),
        ("trees", "hills"),
        ("tree", "tree", "bush", "bush", "rock", "lamp", "fir", "fence", "planter"),
    ),
    Theme(
        "street",
        ("asphalt", "asphalt", "slabs"),
        ("slabs", "pavers", "grass"),
        ("city", "city", "trees"),
        ("lamp", "bollard", "bollard", "planter", "cabinet", "kerb", "tree", "bush"),
        lines=True,
    ),
    Theme(
        "yard",
        ("slabs", "asphalt", "concrete"),
        ("gravel", "dirt", "concrete"),
        ("containers", "city", "trees"),
        ("pallet", "pallet", "tyres", "tyres", "bucket", "bollard", "cabinet", "kerb", "fence"),
        lines=True,
    ),
    Theme(
        "desert",
        ("dirt", "sand"),
        ("sand", "dirt"),
        ("mesas", "hills"),
        ("rock", "rock", "rock", "bush", "tyres", "fence"),
    ),
    Theme(
        "hall",
        ("epoxy", "concrete"),
        ("concrete", "epoxy"),
        ("racks", "wall"),
        ("pallet", "pallet", "bollard", "bucket", "cabinet", "tyres", "fence"),
        lines=True,
        roofed=True,
    ),
    Theme(
        "winter",
        ("asphalt", "snow", "pavers"),
        ("snow",),
        ("trees", "hills", "city"),
        ("fir", "fir", "fir", "rock", "lamp", "fence"),
    ),
)
