"""Copies of a prepared scene are as good as the scene, and as strange to each other as two that were made."""

import pickle

import pytest

from tests.support.scenes import Scene, make_used_catalog, used_catalog
from tests.support.snapshots import Snapshot
from tests.support.world import FakeEnvironment, World


def seen(scene: Scene) -> tuple[object, ...]:
    """What the world of a scene holds."""
    world = scene.world
    objects = {path: world.objects.read(path) for path in sorted(world.paths())}
    return world.log.commits, world.log.durable_version, objects, world.acknowledged, world.owned, world.processes, world.storage.calls


def act(scene: Scene) -> tuple[object, ...]:
    """A commit of its coordinator and a cleanup: the calls that were made, and what is there afterwards."""
    scene.actor.arm()
    scene.actor.checkpoint(scene.coordinator, {"offsets": b"5", "rocks": None})
    scene.actor.vacuum()
    return [*scene.actor.faults.log], *seen(scene)


def test_a_copy_goes_on_as_the_scene_would() -> None:
    assert seen(used_catalog()) == seen(make_used_catalog())
    assert repr(act(used_catalog())) == repr(act(make_used_catalog()))


def test_what_one_copy_does_no_other_sees() -> None:
    before = repr(seen(used_catalog()))
    early = used_catalog()
    act(used_catalog())
    assert repr(seen(early)) == repr(seen(used_catalog())) == before


def test_what_can_be_neither_shared_nor_copied_is_refused() -> None:
    changing: list[int] = []
    for thing in (lambda: changing, (n for n in changing), World().objects.open_stream("x")):
        with pytest.raises((pickle.PicklingError, TypeError, AttributeError)):
            Snapshot(FakeEnvironment("p", iter(()), alarms=[thing]))
