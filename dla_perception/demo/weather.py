"""Light, air and lens: everything that changes a colour between its surface and the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Sequence, Tuple

import cv2
import numpy as np

Span = Tuple[float, float]
Triple = Tuple[float, float, float]


@dataclass(frozen=True)
class Weather:
    """The light of a moment. Colours are ``(3,) float32`` blue, green, red.

    ``sun_direction`` is a unit vector of the world towards the sun; ``sun`` and ``ambient`` are
    factors on albedo (both together near 1 on flat ground), ``haze`` and ``zenith`` colours of the
    air near the horizon and overhead (0..255). ``clouds`` in [0, 1] is how much sky they cover;
    ``density`` in 1/m how fast things vanish in the haze; ``softness`` the blur of shadows.
    """

    sun_direction: np.ndarray
    sun: np.ndarray
    ambient: np.ndarray
    haze: np.ndarray
    zenith: np.ndarray
    cloud_colour: np.ndarray
    clouds: float
    density: float
    softness: float

    def shade(self, albedo: Sequence[float]) -> np.ndarray:
        """A far-off upright surface of this colour, ``(3,) float32``."""
        return np.array(albedo, np.float32) * (0.6 * self.sun + self.ambient)

    def haziness(self, distance: np.ndarray) -> np.ndarray:
        """How much of what is seen over ``distance`` metres is air, in [0, 1]."""
        return 1 - np.exp(-self.density * distance)

    def dimmed(self, sun_factor: float) -> Weather:
        """The same with a thin cloud before the sun: less of it, and a little more sky."""
        return replace(
            self,
            sun=self.sun * np.float32(sun_factor),
            ambient=self.ambient * np.float32(1 + 0.15 * (1 - sun_factor)),
        )


def _colour(blue: float, green: float, red: float) -> np.ndarray:
    return np.array([blue, green, red], np.float32)


class _Sky(NamedTuple):
    """A kind of weather: spans of what varies (height in radians), and colours B, G, R."""

    height: Span
    clouds: Span
    density: Span
    strength: Span
    softness: float
    sun: Triple
    ambient: Triple
    haze: Triple
    zenith: Triple
    cloud: Triple


_SKIES = {
    "clear": _Sky(
        height=(0.6, 1.2),
        clouds=(0.1, 0.6),
        density=(0.004, 0.015),
        strength=(0.9, 1.1),
        softness=0.8,
        sun=(0.66, 0.72, 0.76),
        ambient=(0.40, 0.33, 0.29),
        haze=(232, 216, 196),
        zenith=(206, 142, 82),
        cloud=(246, 244, 242),
    ),
    "golden": _Sky(
        height=(0.25, 0.42),
        clouds=(0.2, 0.6),
        density=(0.006, 0.02),
        strength=(1.3, 1.9),
        softness=1.0,
        sun=(0.50, 0.76, 1.0),
        ambient=(0.46, 0.40, 0.38),
        haze=(178, 206, 238),
        zenith=(196, 158, 126),
        cloud=(206, 216, 246),
    ),
    "overcast": _Sky(
        height=(0.8, 1.2),
        clouds=(0.6, 0.95),
        density=(0.008, 0.03),
        strength=(1.0, 1.0),
        softness=3.0,
        sun=(0.20, 0.20, 0.20),
        ambient=(0.74, 0.70, 0.67),
        haze=(212, 208, 202),
        zenith=(182, 172, 162),
        cloud=(206, 204, 202),
    ),
    "dusk": _Sky(
        height=(0.18, 0.4),
        clouds=(0.2, 0.7),
        density=(0.006, 0.02),
        strength=(0.9, 1.4),
        softness=1.5,
        sun=(0.24, 0.30, 0.40),
        ambient=(0.40, 0.31, 0.27),
        haze=(112, 104, 138),
        zenith=(92, 58, 40),
        cloud=(92, 84, 112),
    ),
    "fog": _Sky(
        height=(0.6, 1.1),
        clouds=(0.5, 0.5),
        density=(0.05, 0.085),
        strength=(1.0, 1.0),
        softness=3.0,
        sun=(0.14, 0.14, 0.14),
        ambient=(0.72, 0.70, 0.69),
        haze=(204, 202, 200),
        zenith=(196, 192, 190),
        cloud=(204, 202, 200),
    ),
}
_FRIENDLY = ("clear", "golden", "overcast")
_ANY = (*_FRIENDLY, "dusk", "fog")


def outdoor(rng: np.random.Generator, harsh: bool) -> Weather:
    """Some weather under the sky; ``harsh`` admits dusk and fog that a demo would not choose."""
    azimuth = rng.uniform(0, 2 * math.pi)
    kinds = _ANY if harsh else _FRIENDLY
    sky = _SKIES[kinds[int(rng.integers(len(kinds)))]]
    height, clouds, density, strength = (
        _within(rng, span) for span in (sky.height, sky.clouds, sky.density, sky.strength)
    )
    return Weather(
        sun_direction=_towards(azimuth, height),
        sun=_colour(*sky.sun) * np.float32(strength),
        ambient=_colour(*sky.ambient),
        haze=_colour(*sky.haze),
        zenith=_colour(*sky.zenith),
        cloud_colour=_colour(*sky.cloud),
        clouds=clouds,
        density=density,
        softness=sky.softness,
    )


def _within(rng: np.random.Generator, span: Span) -> float:
    return span[0] if span[0] == span[1] else float(rng.uniform(*span))


def _towards(azimuth: float, height: float) -> np.ndarray:
    """The unit vector of the world ``(3,)`` with these angles in radians."""
    return np.array(
        [
            math.cos(height) * math.sin(azimuth),
            math.sin(height),
            math.cos(height) * math.cos(azimuth),
        ]
    )


def indoor(rng: np.random.Generator) -> Weather:
    """The lamps of a hall: light from above, soft shadows, no sky."""
    azimuth, height = rng.uniform(0, 2 * math.pi), rng.uniform(1.1, 1.4)
    tint = _colour(*(1 + rng.uniform(-0.08, 0.08, 3)))
    level = np.float32(rng.uniform(0.9, 1.2))
    wall = _colour(*(rng.uniform(130, 195) + rng.uniform(-9, 9, 3)))
    return Weather(
        sun_direction=_towards(azimuth, height),
        sun=np.float32(0.34) * tint * level,
        ambient=np.float32(0.56) * tint * level,
        haze=wall * level,
        zenith=wall * level,
        cloud_colour=wall,
        clouds=0.0,
        density=float(rng.uniform(0.002, 0.01)),
        softness=3.0,
    )


@dataclass(frozen=True)
class Lens:
    """What the camera adds.

    ``blur`` is the standard deviation of the optics' blur in pixels, ``smear`` the length of
    sideways motion blur in pixels (1: none), ``vignette`` the darkening of the corners in [0, 1],
    ``grain`` the standard deviation of sensor noise in grey levels, ``gain (3,)`` exposure and
    white balance per channel, ``gamma`` the exponent on tones.
    """

    blur: float
    smear: int
    vignette: float
    grain: float
    gain: np.ndarray
    gamma: float

    @classmethod
    def random(cls, rng: np.random.Generator, harsh: bool) -> Lens:
        """A lens; ``harsh`` admits blur, noise and exposure that a demo would not choose."""
        if not harsh:
            return cls(
                blur=float(rng.uniform(0.45, 0.6)),
                smear=1,
                vignette=float(rng.uniform(0.1, 0.25)),
                grain=float(rng.uniform(1.5, 4.0)),
                gain=rng.uniform(0.97, 1.03, 3) * rng.uniform(1.05, 1.18),
                gamma=float(rng.uniform(0.88, 0.98)),
            )
        return cls(
            blur=float(rng.uniform(0.4, 1.3)),
            smear=int(rng.choice((1, 1, 1, 1, 3, 5))),
            vignette=float(rng.uniform(0.0, 0.45)),
            grain=float(rng.uniform(0.5, 9.0)),
            gain=rng.uniform(0.90, 1.10, 3) * rng.uniform(0.85, 1.4),
            gamma=float(rng.uniform(0.75, 1.12)),
        )


@lru_cache(maxsize=2)
def _sensor_noise(height: int, width: int) -> np.ndarray:
    """Normal noise ``(height, width, 3) int8`` with a standard deviation of 32."""
    normal = np.random.default_rng(5).standard_normal((height, width, 3), np.float32)
    return np.clip(np.rint(normal * 32), -127, 127).astype(np.int8)


class Film:
    """Applies a lens to pictures of one size; everything constant is worked out beforehand."""

    _SPARE = 64

    def __init__(self, lens: Lens, width: int, height: int) -> None:
        self._lens = lens
        tones = np.arange(256, dtype=np.float64)[:, None] / 255
        curve = 255 * np.clip(tones * lens.gain[None, :], 0, 1) ** lens.gamma
        self._tones = np.rint(curve).astype(np.uint8).reshape(1, 256, 3)
        down = np.linspace(-1, 1, height)[:, None]
        across = np.linspace(-1, 1, width)[None, :]
        shade = 255 * (1 - lens.vignette * (down * down + across * across) / 2)
        self._shade = np.repeat(np.rint(shade).astype(np.uint8)[:, :, None], 3, axis=2)
        spare = _sensor_noise(height + self._SPARE, width + self._SPARE)
        self._grain = (spare * np.float32(lens.grain / 32)).astype(np.int16)

    def expose(self, picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The picture ``(H, W, 3) uint8`` as the sensor delivers it; ``rng`` places the noise."""
        lens = self._lens
        kernel = 3 if lens.blur < 0.7 else 7
        seen = cv2.GaussianBlur(picture, (kernel, kernel), lens.blur)
        if lens.smear > 1:
            seen = cv2.blur(seen, (lens.smear, 1))
        seen = cv2.multiply(seen, self._shade, scale=1 / 255)
        seen = cv2.LUT(seen, self._tones)
        top, left = rng.integers(0, self._SPARE, 2)
        height, width = seen.shape[:2]
        grain = self._grain[top : top + height, left : left + width]
        return cv2.add(seen, grain, dtype=cv2.CV_8U)
