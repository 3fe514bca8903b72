"""Where things stand and where the robot drives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import List, Optional, Sequence, Tuple

import numpy as np

from dla_perception.demo.camera import Camera
from dla_perception.demo.ground import Strip
from dla_perception.demo.props import CLASS_NAMES, CLUTTER, Prop, make_clutter, make_prop
from dla_perception.demo.themes import Theme

CELL_M = 3.0
"""The drive is furnished in cells of this length, each from a generator of its own."""
RANGE_M = 18.0
"""How far ahead things are drawn."""
CLEAR_M = 0.8
"""Half the width of the lane that stays free for the robot."""
FRAMES_PER_SECOND = 30

_BOX, _CONE, _BARREL, _SIGN = (CLASS_NAMES.index(n) for n in ("box", "cone", "barrel", "sign"))


@dataclass(frozen=True)
class Placed:
    """A prop in the world: ``x``, ``z`` and the height ``base`` of what it stands on, in metres."""

    prop: Prop
    x: float
    z: float
    yaw: float
    base: float = 0.0


class Curve:
    """The middle of the path: ``x`` as a smooth, endless function of ``z``."""

    def __init__(self, rng: np.random.Generator, bend: float = 1.0) -> None:
        self._waves = [
            (
                bend * rng.uniform(0.5, 1.0) * length / 22,
                2 * math.pi / length,
                rng.uniform(0, 2 * math.pi),
            )
            for length in (rng.uniform(16, 24), rng.uniform(34, 50), rng.uniform(70, 110))
        ]

    def x(self, z: np.ndarray) -> np.ndarray:
        """The path's ``x`` at ``z``, in metres."""
        total = np.zeros_like(np.asarray(z, float))
        for size, rate, phase in self._waves:
            total = total + size * np.sin(rate * z + phase)
        return total

    def heading(self, z: float) -> float:
        """Direction of the path at ``z``, in radians to the right of straight ahead."""
        slope = sum(size * rate * math.cos(rate * z + phase) for size, rate, phase in self._waves)
        return math.atan(slope)

    def strip(self, start: float, end: float, low: float, high: float, step: float) -> Strip:
        """The band between ``low`` and ``high`` metres to the right of the middle."""
        z = np.linspace(start, end, max(int((end - start) / step), 1) + 1)
        middle = self.x(z)
        return Strip(np.stack([middle + low, z], axis=1), np.stack([middle + high, z], axis=1))


class Furniture:
    """Collects things that do not stand in one another, within one patch of ground."""

    def __init__(self) -> None:
        self.things: List[Placed] = []

    def add(self, prop: Prop, x: float, z: float, yaw: float, gap: float = 0.02) -> bool:
        """Place a prop unless something is there already; says whether it was placed."""
        for other in self.things:
            reach = other.prop.radius + prop.radius + gap
            if (other.x - x) ** 2 + (other.z - z) ** 2 < reach * reach:
                return False
        self.things.append(Placed(prop, x, z, yaw))
        return True

    def stack(self, prop: Prop, yaw: float) -> None:
        """Put a prop onto the thing placed last."""
        below = self.things[-1]
        base = below.base + below.prop.height
        self.things.append(Placed(prop, below.x, below.z, yaw, base))


class Drive:
    """A robot on an endless winding path with things on both sides."""

    def __init__(self, seed: int, theme: Theme, size: Tuple[int, int]) -> None:
        rng = np.random.default_rng([seed, 1])
        self._seed = seed
        self._theme = theme
        self._size = size
        self.curve = Curve(rng)
        self.half_width = float(rng.uniform(1.5, 2.1))
        self._focal = float(rng.uniform(0.76, 0.86)) * size[0]
        self._elevation = float(rng.uniform(0.62, 0.86))
        self._pitch = float(rng.uniform(0.12, 0.17))
        self._speed = float(rng.uniform(0.9, 1.3))
        self._phases = rng.uniform(0, 2 * math.pi, 4)
        # one cache a drive; the cells themselves depend on the seed alone
        self._cell = lru_cache(maxsize=64)(self._furnish)

    def camera(self, index: int) -> Camera:
        """Where the camera is at frame ``index``; it sways and nods a little as robots do."""
        seconds = index / FRAMES_PER_SECOND
        z = self._speed * seconds
        sway, nod, shake, weave = (
            math.sin(rate * seconds + phase)
            for rate, phase in zip((1.1, 5.3, 8.9, 0.7), self._phases)
        )
        return Camera(
            width=self._size[0],
            height=self._size[1],
            focal=self._focal,
            x=float(self.curve.x(np.array(z))) + 0.12 * weave,
            z=z,
            elevation=self._elevation + 0.006 * shake,
            yaw=self.curve.heading(z + 1.2) + 0.02 * sway,
            pitch=self._pitch + 0.005 * nod,
        )

    def things(self, z: float) -> List[Placed]:
        """Everything that may be seen from ``z``."""
        first, last = math.floor(z / CELL_M), math.floor((z + RANGE_M) / CELL_M)
        return [thing for cell in range(first, last + 1) for thing in self._cell(cell)]

    def path(self, z: float) -> Strip:
        """The path ahead of ``z``."""
        return self.curve.strip(z - 2, z + 60, -self.half_width, self.half_width, 1.0)

    def lines(self, z: float) -> List[Strip]:
        """The painted edges and middle dashes ahead of ``z``."""
        edge = self.half_width - 0.18
        strips = [
            self.curve.strip(z - 2, z + 30, side * edge - 0.05, side * edge + 0.05, 1.0)
            for side in (-1, 1)
        ]
        first = math.floor(z / 2) * 2
        strips += [
            self.curve.strip(start, start + 1.0, -0.05, 0.05, 0.5)
            for start in range(first, math.ceil(z) + 16, 2)
        ]
        return strips

    def _furnish(self, cell: int) -> List[Placed]:
        """The things of one cell; none reaches beyond the cell's ends."""
        rng = np.random.default_rng([self._seed, 2, cell + (1 << 20)])
        furniture = Furniture()
        pattern = rng.random()
        if pattern < 0.16:
            self._cone_row(furniture, cell, rng)
        elif pattern < 0.32:
            self._pile(furniture, cell, rng)
        elif pattern < 0.44:
            self._barrels(furniture, cell, rng)
        # beside a group, fewer single things: a crowd is no drive
        grouped = len(furniture.things) > 0
        for _ in range(int(rng.integers(0, 2) if grouped else rng.integers(1, 3))):
            self._place(furniture, make_prop(int(rng.integers(5)), rng), cell, rng)
        for _ in range(int(rng.integers(0, 3))):
            self._place(furniture, make_clutter(self._theme.clutter, rng), cell, rng)
        return furniture.things

    def _place(
        self,
        furniture: Furniture,
        prop: Prop,
        cell: int,
        rng: np.random.Generator,
        spot: Optional[Tuple[float, float]] = None,
    ) -> bool:
        """Put a prop at ``spot`` (right of the path's middle, into the cell) or anywhere fit."""
        clear = CLEAR_M + prop.radius
        room = max(CELL_M / 2 - prop.radius, 0.0)
        for _ in range(1 if spot else 6):
            if spot:
                right, along = spot
            else:
                away = rng.exponential(1.3) if prop.class_id != CLUTTER else rng.uniform(0.4, 5.5)
                right = float(rng.choice((-1, 1))) * (clear + min(away, 5.0))
                along = CELL_M / 2 + rng.uniform(-room, room)
            z = cell * CELL_M + along
            yaw = self.curve.heading(z) + self._turn(prop, rng)
            x = float(self.curve.x(np.array(z))) + right
            if abs(along - CELL_M / 2) <= room and furniture.add(prop, x, z, yaw):
                return True
        return False

    @staticmethod
    def _turn(prop: Prop, rng: np.random.Generator) -> float:
        # signs look roughly at whoever comes along the path
        if prop.class_id == _SIGN:
            return float(np.clip(rng.normal(0, 0.35), -0.8, 0.8))
        return float(rng.uniform(-math.pi, math.pi))

    def _cone_row(self, furniture: Furniture, cell: int, rng: np.random.Generator) -> None:
        prop = make_prop(_CONE, rng)
        side = float(rng.choice((-1, 1)))
        right = side * (CLEAR_M + prop.radius + rng.uniform(0.05, 0.5))
        for along in (0.5, 1.5, 2.5):
            self._place(furniture, prop, cell, rng, (right, along))

    def _pile(self, furniture: Furniture, cell: int, rng: np.random.Generator) -> None:
        first, second = make_prop(_BOX, rng), make_prop(_BOX, rng)
        right = float(rng.choice((-1, 1))) * (CLEAR_M + first.radius + rng.uniform(0.1, 1.6))
        if not self._place(furniture, first, cell, rng, (right, CELL_M / 2)):
            return
        if rng.random() < 0.6 and second.radius < first.radius * 1.15:
            furniture.stack(second, rng.uniform(-math.pi, math.pi))
        else:
            beside = right + math.copysign(first.radius + second.radius + 0.05, right)
            self._place(furniture, second, cell, rng, (beside, CELL_M / 2 + rng.uniform(-0.3, 0.3)))

    def _barrels(self, furniture: Furniture, cell: int, rng: np.random.Generator) -> None:
        prop = make_prop(_BARREL, rng)
        other = prop if rng.random() < 0.5 else make_prop(_BARREL, rng)
        side = float(rng.choice((-1, 1)))
        right = CLEAR_M + prop.radius + rng.uniform(0.05, 1.5)
        along = CELL_M / 2 + rng.uniform(-0.4, 0.4)
        self._place(furniture, prop, cell, rng, (side * right, along))
        right += prop.radius + other.radius + rng.uniform(0.03, 0.2)
        self._place(furniture, other, cell, rng, (side * right, along + rng.uniform(-0.3, 0.3)))


def still_camera(rng: np.random.Generator, size: Tuple[int, int]) -> Camera:
    """A camera of any height, tilt and field of view that a robot might carry, at the origin."""
    return Camera(
        width=size[0],
        height=size[1],
        focal=float(rng.uniform(0.6, 1.05)) * size[0],
        x=0.0,
        z=0.0,
        elevation=float(rng.uniform(0.35, 1.3)),
        yaw=float(rng.uniform(-0.3, 0.3)),
        pitch=float(rng.uniform(0.0, 0.32)),
    )


def still_things(camera: Camera, clutter: Sequence[str], rng: np.random.Generator) -> List[Placed]:
    """Things strewn over what a camera sees, from right before it into the distance."""
    furniture = Furniture()
    half_angle = math.atan(camera.width / 2 / camera.focal)
    wanted = [int(rng.integers(5)) for _ in range(int(rng.integers(0, 12)))]
    wanted += [CLUTTER] * int(rng.integers(0, 7))
    for class_id in wanted:
        prop = make_clutter(clutter, rng) if class_id == CLUTTER else make_prop(class_id, rng)
        if class_id not in (CLUTTER, _SIGN) and rng.random() < 0.2:
            prop = _rescaled(prop, rng.uniform(0.7, 1.4))
        for _ in range(4):
            ahead = math.exp(rng.uniform(math.log(0.9), math.log(13.0))) + prop.radius
            if prop.class_id == CLUTTER:
                ahead += 1.2
            angle = camera.yaw + rng.uniform(-1.08, 1.08) * half_angle
            limit = 0.9 if class_id == _SIGN else math.pi
            yaw = camera.yaw + rng.uniform(-limit, limit)
            if furniture.add(prop, ahead * math.sin(angle), ahead * math.cos(angle), yaw):
                if class_id == _BOX and rng.random() < 0.15:
                    furniture.stack(make_prop(int(rng.integers(3)), rng), yaw + 0.4)
                break
    return furniture.things


def _rescaled(prop: Prop, factor: float) -> Prop:
    """The prop, larger or smaller."""
    parts = tuple(replace(part, solid=part.solid.scaled(factor)) for part in prop.parts)
    return replace(prop, radius=prop.radius * factor, height=prop.height * factor, parts=parts)
