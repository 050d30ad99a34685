"""Which chunks of a state are seen, and which rows: against a model that knows one row at a time."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.layers import (
    CHANGES,
    base_layers,
    count_change_sets,
    is_seen_whole,
    only,
    seen_at,
    seen_chunks,
    seen_groups,
)
from holdfast.catalog.types import Chunk, FileId, Role, Scope
from holdfast.writers.parquet.plan import plan_reading

GROUPS = 8

ranges = st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(lambda pair: (min(pair), max(pair)))


def chunk(file, layer, role, low, high, offset=0, length=10, rows=1):
    return Chunk(
        operator="main",
        state="s",
        file_id=FileId(file),
        scope=Scope.SHARED,
        role=role,
        layer=layer,
        offset_bytes=offset,
        length_bytes=length,
        sha256="0" * 64,
        rows=rows,
        key_group_from=low,
        key_group_to=high,
    )


@st.composite
def states(draw):
    """Chunks of a few layers, each layer of one kind, as one write call makes it: row groups of files, and their footers."""
    chunks = []
    for layer in range(draw(st.integers(1, 5))):
        roles = [Role.BASE] if layer == 0 or draw(st.booleans()) else [Role.UPSERTS, Role.DELETES]
        for i in range(draw(st.integers(1, 3))):
            role, row_groups = draw(st.sampled_from(roles)), draw(st.integers(1, 3))
            for n in range(row_groups):
                low, high = draw(st.one_of(ranges, st.just((None, None))))
                chunks.append(chunk(f"{layer}-{i}", layer, role, low, high, offset=10 * n))
            if row_groups > 1:
                chunks.append(chunk(f"{layer}-{i}", layer, Role.FOOTER, None, None, offset=10 * row_groups, rows=None))
    return chunks


def has(chunk, group):
    return chunk.key_group_from is None or chunk.key_group_from <= group <= chunk.key_group_to


def is_seen(chunks, one, group):
    """The rule of the design, for one key group of one chunk."""
    return has(one, group) and not any(c.role is Role.BASE and c.layer > one.layer and has(c, group) for c in chunks)


@given(states())
def test_a_group_of_a_chunk_is_seen_unless_a_higher_base_has_the_group(chunks):
    base = base_layers(chunks, GROUPS)
    for one in chunks:
        expected = [group for group in range(GROUPS) if is_seen(chunks, one, group)]
        found = seen_groups(one, base)
        assert [group for each in found for group in each] == expected
        assert all(left.stop < right.start for left, right in itertools.pairwise(found))
        assert is_seen_whole(one, base) == (expected == [group for group in range(GROUPS) if has(one, group)])
        assert {group for each in seen_at(one.layer, base) for group in each} >= set(expected)


@given(states())
def test_chunks_without_a_seen_group_are_left_out_and_nothing_else(chunks):
    seen = seen_chunks(chunks, GROUPS)
    rows = [one for one in chunks if one.role is not Role.FOOTER and any(is_seen(chunks, one, group) for group in range(GROUPS))]
    assert [one for one in seen if one.role is not Role.FOOTER] == rows
    assert {one.file_id for one in seen} == {one.file_id for one in rows}
    assert seen_chunks(seen, GROUPS) == seen
    assert count_change_sets(seen) == len({one.layer for one in seen if one.role in CHANGES})


@given(states())
def test_leaving_out_what_is_hidden_changes_nothing_for_the_rest(chunks):
    seen = seen_chunks(chunks, GROUPS)
    before, after = base_layers(chunks, GROUPS), base_layers(seen, GROUPS)
    for one in seen:
        if one.role is not Role.FOOTER:
            assert seen_groups(one, before) == seen_groups(one, after)


@given(states(), ranges)
def test_a_look_at_some_groups_sees_what_the_whole_look_sees_there(chunks, wanted):
    groups = range(wanted[0], wanted[1] + 1)
    base = base_layers(chunks, GROUPS)
    for one in chunks:
        whole = {group for each in seen_groups(one, base) for group in each}
        assert {group for each in seen_groups(one, only(base, groups)) for group in each} == whole & set(groups)


@given(states(), st.one_of(st.none(), ranges), st.booleans())
def test_a_plan_scans_every_seen_row_once_and_no_hidden_one(chunks, wanted, is_trimmed):
    """A row is (file, row group, key group): one in each group that a chunk may have. Hidden chunks may be named or not: files have them."""
    groups = range(GROUPS) if wanted is None else range(wanted[0], wanted[1] + 1)
    sizes = {}
    for one in chunks:
        sizes[one.file_id] = max(sizes.get(one.file_id, 0), one.offset_bytes + one.length_bytes)
    files = {file: (f"{file}.parquet", size, "0" * 64) for file, size in sizes.items()}
    plan = plan_reading(seen_chunks(chunks, GROUPS) if is_trimmed else chunks, files, GROUPS, groups if wanted else None)
    for role, scans in ((Role.BASE, plan.base), (Role.UPSERTS, plan.upserts), (Role.DELETES, plan.deletes)):
        found = [
            (one.file_id, one.offset_bytes, group)
            for scan in scans
            for one in chunks
            if one.role is role and f"{one.file_id}.parquet" in scan.paths
            for group in range(GROUPS)
            if has(one, group) and (scan.groups is None or any(group in each for each in scan.groups))
        ]
        expected = [
            (one.file_id, one.offset_bytes, group) for one in chunks if one.role is role for group in groups if is_seen(chunks, one, group)
        ]
        assert sorted(found) == sorted(expected)
    read = {(f"{one.file_id}.parquet", one.offset_bytes) for one in chunks if any(is_seen(chunks, one, group) for group in groups)}
    read = {(path, offset) for path, offset in read if path in plan.parts}
    for path, parts in plan.parts.items():
        covered = {part.offset_bytes + n for part in parts for n in range(0, part.length_bytes, 10)}
        assert covered >= {offset for of, offset in read if of == path}
        assert parts[-1].end_bytes == sizes[path.removesuffix(".parquet")], "whoever reads a file reads its footer"
