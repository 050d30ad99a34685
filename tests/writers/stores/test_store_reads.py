"""Stores built from the canonical format: an adapter is given the entries that no higher base hides, whatever lies over what."""

import random
from pathlib import Path

import pytest

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import Role
from holdfast.writers.stores.canonical import ENTRIES, StoreReader
from tests.support.layered_state import LayeredState

M = 16


class Given:
    """An adapter that keeps what it is given."""

    def entries(self, directory):
        raise NotImplementedError

    def build(self, directory, entries):
        Path(directory).mkdir()
        self.found = [*entries]


def restored(state, groups, tmp_path):
    adapter = Given()
    reader = StoreReader(
        storage=state.storage, environment=SystemEnvironment(), what="it", max_parallelism=M, chunks=tuple(state.chunks),
        files=state.files, adapter=adapter,
    )  # fmt: skip
    reader.restore(tmp_path, key_groups=groups)
    return adapter.found


@pytest.mark.parametrize("seed", range(12))
def test_an_adapter_gets_the_rows_of_a_random_history_of_changed_groups(tmp_path, seed):
    """Seen: of a state by changed groups, deleted keys came back and changed keys had two values: hidden groups were not left out."""
    rng = random.Random(seed)
    state, expected = LayeredState(LocalStorage(tmp_path / "catalog"), ENTRIES, "{}", ["key"], M), {}
    for layer in range(rng.randint(1, 4)):
        changed = {*range(M)} if layer == 0 else {*rng.sample(range(M), rng.randint(1, M))}
        rows = [{"key": b"k%d" % i, "value": b"%d of %d" % (i, layer)} for i in rng.sample(range(200), rng.randint(1, 120))]
        groups = state.groups(rows)
        expected = {key: value for key, value in expected.items() if state.groups([{"key": key}])[0] not in changed}
        for group in sorted(changed):
            of_group = [row for row, found in zip(rows, groups, strict=True) if found == group]
            expected |= {row["key"]: row["value"] for row in of_group}
            if layer == 0:
                continue
            state.add(layer, Role.BASE, of_group, bounds=range(group, group + 1)) if of_group else state.add_empty(
                layer, range(group, group + 1)
            )
        if layer == 0:
            state.add(0, Role.BASE, rows, row_groups=rng.randint(1, 3))
    parallelism = rng.randint(1, 5)
    for i in range(parallelism):
        groups = groups_of(i, parallelism, M)
        found = restored(state, groups, tmp_path / f"store-{i}")
        assert len(found) == len(dict(found))
        assert dict(found) == {key: value for key, value in expected.items() if state.groups([{"key": key, "value": value}])[0] in groups}
