"""Any sequence of writes, changes, carries and removals reads back as a plain dict of Python would."""

import math
import random

import pytest

import holdfast
from holdfast.catalog.types import ChainLimit, KeepLast
from tests.support.invariants import assert_catalog_sound, evidence_of

pytestmark = pytest.mark.usefixtures("keeps_change_sets")

SCHEMA = "id int, part string, number double, text string"
KEY = ("part", "id")
STATES = ("planes", "routes")
STEPS = 5
VALUES = (0.0, -0.0, 1.5, math.nan, math.inf, None)


class Story:
    """One job and the dict that it must be like: of each state, key -> row."""

    def __init__(self, spark, catalog, seed):
        self.spark, self.catalog, self.random = spark, catalog, random.Random(seed)
        self.states = {}

    def row(self, key):
        part, number = key
        return (number, part, self.random.choice(VALUES), self.random.choice(["", "x", "long text", None]))

    def keys(self, count):
        return [(self.random.choice(["a", "b", None]), self.random.choice([None, *range(12)])) for _ in range(count)]

    def frame(self, rows):
        return self.spark.createDataFrame(rows, SCHEMA).repartition(self.random.randint(1, 3))

    def full(self, checkpoint, name, mode):
        rows = dict(self.states.get(name, {})) if mode == "changed-groups" else {}
        for key in self.keys(self.random.choice([0, 1, 2, 30])):
            rows[key] = self.row(key)
        for key in self.random.sample(sorted(rows, key=repr), min(len(rows), self.random.choice([0, 1, 8]))):
            del rows[key]
        checkpoint.write(name, self.frame([*rows.values()]), key=KEY, mode=mode)
        return rows

    def changes(self, checkpoint, name):
        rows = dict(self.states.get(name, {}))
        keys = [*dict.fromkeys(self.keys(self.random.choice([0, 1, 5, 20])))]
        cut = self.random.randint(0, len(keys))
        upserts, deletes = {key: self.row(key) for key in keys[:cut]}, keys[cut:]
        checkpoint.write_changes(
            name,
            self.frame([*upserts.values()]) if upserts or not deletes or name not in self.states else None,
            self.frame([self.row(key) for key in deletes]) if deletes else None,
            key=KEY,
        )
        for key in deletes:
            rows.pop(key, None)
        return rows | upserts

    def step(self, checkpoint):
        """What the states are if this checkpoint is committed."""
        after = dict(self.states)
        for name in STATES:
            what = self.random.choice(["full", "changed-groups", "changed-groups", "changes", "changes", "changes", "carry", "remove"])
            if what == "remove" and name in self.states:
                checkpoint.remove(name)
                del after[name]
            elif what == "changes":
                after[name] = self.changes(checkpoint, name)
            elif what in ("full", "changed-groups"):
                after[name] = self.full(checkpoint, name, what)
        return after

    def assert_like(self, latest):
        assert sorted(latest.states) == sorted(self.states)
        for name, expected in self.states.items():
            found = latest.read(self.spark, name).collect()
            assert sorted(map(repr, map(tuple, found))) == sorted(map(repr, expected.values()))
            info = latest.manifest.state("main", name)
            assert info.rows in (None, len(expected))


class Boom(Exception):
    pass


@pytest.mark.parametrize("upload", ["streamed", pytest.param("native", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_any_sequence_reads_back_as_a_dict_would(spark, tmp_path, seed, upload):
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        story = Story(spark, catalog, seed)
        limit = ChainLimit(change_sets=3, share_of_base=story.random.choice([1.0, 1e9]))
        with catalog.coordinate("flights", max_parallelism=16, upload=upload, chain=limit, retention=KeepLast(2)) as job:
            for n in range(STEPS):
                with job.checkpoint() as checkpoint:
                    after = story.step(checkpoint)
                story.states = after
                story.assert_like(job.latest())
                if n == STEPS // 2:
                    with pytest.raises(Boom), job.checkpoint() as checkpoint:
                        story.step(checkpoint)
                        raise Boom
                    catalog.vacuum()
                    story.assert_like(job.latest())
        catalog.vacuum()
        assert_catalog_sound(evidence_of(catalog))
        story.assert_like(catalog.checkpoint("flights"))
