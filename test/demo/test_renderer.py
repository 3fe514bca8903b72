"""Rays, occlusion and visibility on scenes so simple that the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dla_perception.demo.backdrop import Backdrop
from dla_perception.demo.camera import Camera, Window
from dla_perception.demo.ground import Ground
from dla_perception.demo.materials import plain
from dla_perception.demo.props import CLASS_NAMES, CLUTTER_MAKERS, Part, Prop, make_prop
from dla_perception.demo.renderer import Rendering, render
from dla_perception.demo.solids import Block, Ellipsoid, Frustum, Plate, Solid
from dla_perception.demo.weather import outdoor
from dla_perception.demo.world import Curve, Placed

CAMERA = Camera(320, 240, 260.0, x=0.0, z=0.0, elevation=0.7, yaw=0.0, pitch=0.1)
WHOLE = Window(0, 0, 320, 240)


def ball(radius: float) -> Prop:
    solid = Ellipsoid((0.0, radius, 0.0), radius, radius, np.eye(3))
    return Prop(1, radius, 2 * radius, (Part(solid, plain((60, 60, 200))),))


def draw(things: list[Placed], camera: Camera = CAMERA) -> Rendering:
    rng = np.random.default_rng(0)
    weather = outdoor(rng, harsh=False)
    backdrop = Backdrop("hills", False, weather, rng)
    path = Curve(rng).strip(-2, 40, -1, 1, 1.0)
    return render(camera, weather, backdrop, Ground("asphalt", "grass", rng), path, (), things)


def shown(rendering: Rendering, number: int) -> int:
    return int((rendering.ids == number).sum())


SOLIDS: dict[str, Solid] = {
    "ball": Ellipsoid((0.1, -0.2, 3.0), 0.4, 0.4, np.eye(3)),
    "squeezed ball": Ellipsoid((-0.3, -0.3, 2.5), 0.5, 0.2, np.eye(3)),
    "cylinder": Frustum(0.2, 3.0, -0.7, -0.1, 0.3, 0.3),
    "cone": Frustum(-0.2, 2.0, -0.7, 0.1, 0.3, 0.05),
    "bucket": Frustum(0.0, 2.0, -0.7, -0.3, 0.2, 0.3),
    "box": Block((0.1, -0.4, 2.5), (0.3, 0.25, 0.2), 0.6),
    "plate": Plate((0.0, 0.1, 2.5), 0.3, 0.3, 0.5, np.full((16, 16), 255, np.uint8)),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_rays_end_on_the_surface_and_inside_the_hull(name: str) -> None:
    solid = SOLIDS[name]
    rays = CAMERA.rays(WHOLE)
    t = solid.trace(rays)
    hit = np.isfinite(t)
    assert hit.sum() > 200
    points = np.stack([np.broadcast_to(axis, t.shape)[hit] * t[hit] for axis in rays])
    normals, _ = solid.surface(points)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=0), 1, atol=1e-3)
    # what is seen faces the camera
    assert ((normals * points).sum(axis=0) < 1e-3).all()
    hull = solid.hull()
    assert (hull.min(axis=0) - 0.08 < points.T).all()
    assert (hull.max(axis=0) + 0.08 > points.T).all()


@settings(max_examples=30, deadline=None)
@given(st.floats(-0.6, 0.6), st.floats(1.5, 6.0), st.floats(0.1, 0.3), st.floats(-math.pi, math.pi))
def test_a_ball_covers_the_angle_that_geometry_says(
    x: float, z: float, radius: float, yaw: float
) -> None:
    solid = ball(radius).parts[0].solid.moved(x, -0.7, z, yaw)
    rays = CAMERA.rays(WHOLE)
    centre = np.array([x, radius - 0.7, z])
    direction = np.stack([np.broadcast_to(axis, (240, 320)) for axis in rays]).astype(float)
    cosine = np.tensordot(centre, direction, 1) / (
        np.linalg.norm(direction, axis=0) * np.linalg.norm(centre)
    )
    limit = math.sqrt(1 - (radius / float(np.linalg.norm(centre))) ** 2)
    sure = np.abs(cosine - limit) > 1e-5
    np.testing.assert_array_equal(np.isfinite(solid.trace(rays))[sure], (cosine > limit)[sure])


def test_what_is_nearer_hides_what_is_behind_whatever_the_order() -> None:
    near, far = Placed(ball(0.2), 0.0, 2.0, 0.0), Placed(ball(0.2), 0.05, 4.0, 0.0)
    for things in ([near, far], [far, near]):
        rendering = draw(things)
        behind, front = rendering.drawn
        assert shown(rendering, front.id) == front.pixels
        assert 0 < shown(rendering, behind.id) < behind.pixels
        assert front.pixels > 2 * behind.pixels


def test_the_share_inside_the_picture() -> None:
    (whole,) = draw([Placed(ball(0.2), 0.0, 3.0, 0.0)]).drawn
    assert whole.inside == pytest.approx(1.0)
    # the right edge of the picture looks 159.5 / 260 to the side
    (half,) = draw([Placed(ball(0.2), 3.0 * 159.5 / 260, 3.0, 0.0)]).drawn
    assert half.inside == pytest.approx(0.5, abs=0.06)
    assert draw([Placed(ball(0.2), 4.0, 3.0, 0.0), Placed(ball(0.2), 0.0, -2.0, 0.0)]).drawn == ()


@pytest.mark.parametrize("class_id", range(len(CLASS_NAMES)), ids=CLASS_NAMES)
def test_things_stay_inside_the_cylinder_that_they_claim(class_id: int) -> None:
    for seed in range(25):
        prop = make_prop(class_id, np.random.default_rng(seed))
        assert prop.class_id == class_id
        points = np.concatenate(prop.hulls)
        assert np.hypot(points[:, 0], points[:, 2]).max() <= prop.radius * 1.1 + 0.02
        assert points[:, 1].min() >= -0.01
        assert points[:, 1].max() <= prop.height + 0.01


@pytest.mark.parametrize("kind", CLUTTER_MAKERS)
def test_clutter_is_drawn_and_is_no_class(kind: str) -> None:
    prop = CLUTTER_MAKERS[kind](np.random.default_rng(1))
    (drawn,) = draw([Placed(prop, 0.0, 4.5, 0.3)]).drawn
    assert drawn.class_id not in range(len(CLASS_NAMES))
    assert drawn.pixels > 50


def test_a_camera_that_looks_up_or_down_only() -> None:
    thing = [Placed(ball(0.2), 0.0, 2.0, 0.0)]
    up = Camera(320, 240, 260.0, 0.0, 0.0, 0.7, 0.0, -0.8)
    down = Camera(320, 240, 260.0, 0.0, 0.0, 0.7, 0.0, 0.9)
    assert up.horizon > 240
    assert down.horizon < 0
    for camera in (up, down):
        assert draw(thing, camera).pixels.std() > 1
