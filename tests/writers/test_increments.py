"""What increments are made of, without Spark: digests as text, when a chain is too long, and what a commit of an increment costs."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.rules import checkpoints, decision, jobs
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.types import (
    AttemptToken,
    ChainLimit,
    CheckpointId,
    Chunk,
    FileId,
    JobId,
    KeepLast,
    Role,
    Scope,
    StateInfo,
    StoredFile,
)
from holdfast.writers.spark.chain_limit import too_many_changes, too_many_groups
from holdfast.writers.spark.group_digests import GroupDigest, changed_groups, decode, encode, runs, total
from holdfast.writers.upload import ParentState
from tests.support.scenes import resume
from tests.support.world import World

INT64 = st.integers(-(2**63), 2**63 - 1)
DIGESTS = st.dictionaries(st.integers(0, 32_767), st.builds(GroupDigest, st.integers(1, 2**40), INT64, INT64), max_size=50)


@given(DIGESTS)
def test_digests_come_back_from_their_text(digests) -> None:
    assert decode(encode(digests), 32_768) == digests


@given(DIGESTS, DIGESTS)
def test_changed_groups_are_those_that_came_went_or_differ(old, new) -> None:
    assert changed_groups(old, new) == [g for g in range(32_768) if old.get(g) != new.get(g)]
    assert changed_groups(old, old) == []


@given(DIGESTS, DIGESTS)
def test_a_total_of_totals_is_the_total(one, other) -> None:
    assert total([total(one.values()), total(other.values())]) == total([*one.values(), *other.values()])


@given(st.sets(st.integers(0, 40)))
def test_runs_are_the_same_groups_in_as_few_ranges_as_there_can_be(groups) -> None:
    found = runs(sorted(groups))
    assert [group for run in found for group in run] == sorted(groups)
    assert all(before.stop < after.start for before, after in pairwise(found))


@pytest.mark.parametrize("values", [{"change_sets": -1}, {"share_of_base": -0.1}, {"share_of_base": float("nan")}])
def test_a_limit_below_nothing_is_refused(values) -> None:
    with pytest.raises(ValueError, match="is not a limit"):
        ChainLimit(**values)


# ---- when it is too much --------------------------------------------------------------------------------------------------


def chunk(layer: int, groups: tuple[int, int], role: Role = Role.BASE, length_bytes: int = 1000) -> Chunk:
    return Chunk(
        operator="main",
        state="planes",
        file_id=FileId(f"{role}-{layer}-{groups}"),
        scope=Scope.SHARED,
        role=role,
        layer=layer,
        offset_bytes=0,
        length_bytes=length_bytes,
        sha256="0" * 64,
        rows=10,
        key_group_from=groups[0],
        key_group_to=groups[1],
    )


def parent_of(*chunks: Chunk) -> ParentState:
    return ParentState(max_parallelism=8, info=StateInfo(operator="main", state="planes", format="parquet"), chunks=chunks, files={})


def upserts(layer: int, length_bytes: int) -> Chunk:
    return chunk(layer, (0, 7), Role.UPSERTS, length_bytes)


@pytest.mark.parametrize(
    ("chunks", "change", "limit", "expected"),
    [
        ([chunk(0, (0, 7))], upserts(1, 100), ChainLimit(), False),
        ([chunk(0, (0, 7))], upserts(1, 501), ChainLimit(), True),
        ([chunk(0, (0, 7)), upserts(1, 250)], upserts(2, 251), ChainLimit(), True),
        ([chunk(0, (0, 7)), upserts(1, 1)], upserts(2, 1), ChainLimit(change_sets=2), False),
        ([chunk(0, (0, 7)), upserts(1, 1), upserts(2, 1)], upserts(3, 1), ChainLimit(change_sets=2), True),
        ([chunk(0, (0, 7))], upserts(1, 1), ChainLimit(change_sets=0), True),
        ([], upserts(0, 1), ChainLimit(), True),
    ],
    ids=["small", "half the base", "half with the others", "as many as may be", "one too many", "none at all", "nothing below"],
)
def test_change_sets_are_bounded_by_number_and_by_share_of_the_base(chunks, change, limit, expected) -> None:
    assert too_many_changes(parent_of(*chunks), [change], limit) is expected


EVEN = {group: GroupDigest(10, 1, 1) for group in range(8)}


@pytest.mark.parametrize(
    ("chunks", "changed", "limit", "expected"),
    [
        ([chunk(0, (0, 7))], [1], ChainLimit(), False),
        ([chunk(0, (0, 7))], [1, 2, 3, 4, 5], ChainLimit(), True),
        ([chunk(0, (0, 7)), chunk(1, (0, 3), length_bytes=200)], [4], ChainLimit(), True),
        ([chunk(0, (0, 3)), chunk(0, (4, 7)), chunk(1, (0, 3))], [4], ChainLimit(), False),
        ([chunk(0, (0, 7)), chunk(1, (1, 1))], [2], ChainLimit(change_sets=2), False),
        ([chunk(0, (0, 7)), chunk(1, (1, 1)), chunk(2, (2, 2))], [3], ChainLimit(change_sets=2), True),
        ([chunk(0, (0, 7)), chunk(1, (1, 1)), chunk(2, (2, 2))], [2], ChainLimit(change_sets=2), False),
        ([chunk(0, (0, 7))], [1], ChainLimit(change_sets=0), True),
    ],
    ids=["one", "most rows", "most bytes hidden", "hidden whole costs nothing", "layers", "too many layers", "one goes", "none at all"],
)
def test_new_bases_of_groups_are_bounded_by_number_and_by_what_they_hide(chunks, changed, limit, expected) -> None:
    assert too_many_groups(parent_of(*chunks), changed, EVEN, limit) is expected


# ---- what a commit costs ----------------------------------------------------------------------------------------------------


def test_a_commit_writes_the_change_and_no_more() -> None:
    """1 % of 100,000 handles changed: ends of those, handles for what came in their place, and nothing of the others."""
    handles, changed = 100_000, 1_000
    job = JobId("flights-00000001")
    state = CatalogState(handles_of="*")

    def say(transaction: decision.Decision):
        state.apply(transaction.facts)
        return transaction.facts, transaction.result

    def commit(token: AttemptToken, content: list[Chunk], own: list[Chunk]):
        stored = [StoredFile(file_id=c.file_id, path=f"x/{c.file_id}", size_bytes=10, sha256="0" * 64, scope=c.scope) for c in own]
        manifest = StoredFile(file_id=paths.manifest_file_id(token), path="m", size_bytes=1, sha256="1" * 64, scope=Scope.EXCLUSIVE)
        request = CommitRequest(
            attempt=token,
            content=tuple(content),
            states=(StateInfo(operator="main", state="planes", format="parquet", key_columns=("id",)),),
            inherited=frozenset(c.identity for c in content) - {c.identity for c in own},
            files=tuple(stored),
            acks=(),
            manifest=manifest,
            progress=None,
            retention=KeepLast(1),
        )
        return say(checkpoints.commit_checkpoint(state, job, request))[0]

    say(jobs.register(state, job, "flights", 32_768))
    _, epoch = say(jobs.start(state, job, None))
    base = [replace(chunk(0, (0, 7)), file_id=FileId(f"base-{n}")) for n in range(handles)]
    one, two = AttemptToken("1" * 16), AttemptToken("2" * 16)
    say(checkpoints.open_checkpoint(state, job, epoch, one, None))
    commit(one, base, base)
    say(checkpoints.open_checkpoint(state, job, epoch, two, Ref(job, CheckpointId(1))))
    own = [replace(chunk(1, (0, 7)), file_id=FileId(f"new-{n}")) for n in range(changed)]
    facts = commit(two, [*base[changed:], *own], own)
    ends = [fact for fact in facts if isinstance(fact, f.HandleEnded)]
    added = [fact for fact in facts if isinstance(fact, f.HandleAdded) and fact.role is not Role.MANIFEST]
    assert {fact.file_id for fact in ends} == {c.file_id for c in base[:changed]}
    assert {fact.file_id for fact in added} == {c.file_id for c in own}
    assert len(ends) + len(added) <= handles * 2 // 100


# ---- a checkpoint of increments, over the reference adapters ----------------------------------------------------------------


@pytest.fixture
def world() -> World:
    return World()


def rows_of(world: World, number: int) -> bytes:
    """What the change sets of the fake writer come to: all chunks of `planes`, lower layers first."""
    manifest = load_committed(world.objects, world.job().checkpoints[CheckpointId(number)].fact)
    info = manifest.state("main", "planes")
    assert info is not None
    return b"".join(world.objects.read(manifest.files[chunk.file_id].path) for chunk in manifest.chunks_of(info))


def handles_of(world: World, number: int) -> tuple[int, int]:
    fact = world.job().checkpoints[CheckpointId(number)].fact
    return fact.new_handles, fact.handles


def test_a_change_set_refers_to_everything_below_it(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1", b"p2"], "routes": [b"r1"]})
    with coordinator.checkpoint() as writer:
        writer.write_changes("planes", [b"p3"], key="id")
    assert rows_of(world, 2) == b"p1p2p3"
    assert handles_of(world, 2) == (1, 4)
    assert writer.result is not None
    assert (writer.result.new_bytes, writer.result.reused_bytes) == (2, 6)
    acks = [fact for commit in world.log.commits for fact in commit.facts if isinstance(fact, f.Acknowledged) and fact.checkpoint_id == 2]
    assert [(ack.bytes_written, ack.bytes_reused) for ack in acks] == [(2, 4)], "of the state's own chunks, not of the other's"
    resume(world)


def test_what_is_reused_is_the_pinned_parents_and_not_a_newer_checkpoints(world: World) -> None:
    """Two attempts overlap: the later one stands on checkpoint 1, whatever was committed meanwhile."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1"]})
    early, late = process.open_beside(coordinator, 1), process.open_beside(coordinator, 1)
    early.write_changes("planes", [b"early"], key="id")
    late.write_changes("planes", [b"late"], key="id")
    process.commit_beside(coordinator, early)
    process.commit_beside(coordinator, late)
    assert rows_of(world, late.checkpoint_id) == b"p1late"
    resume(world)


def test_a_state_is_written_once_whatever_the_way(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1"]})
    with pytest.raises(RefusedError, match="already written"), coordinator.checkpoint() as writer:
        writer.write_changes("planes", [b"p2"], key="id")
        writer.write("planes", [b"p3"], mode="changed-groups")


def test_an_unknown_mode_is_refused_by_name(world: World) -> None:
    """The state may still be written."""
    process = world.process()
    coordinator = process.coordinate()
    with coordinator.checkpoint() as writer:
        with pytest.raises(UsageError, match="mode='changed' is not a way to write a state: pass 'full' or 'changed-groups'"):
            writer.write("planes", [b"p1"], mode="changed")
        writer.write("planes", [b"p1"])
    assert world.states_of(1) == {"planes": b"p1"}


def test_changes_that_failed_are_not_taken_for_no_changes(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1"]})
    with pytest.raises(RefusedError, match="the write of 'planes' failed"), coordinator.checkpoint() as writer:
        with pytest.raises(TypeError):
            writer.write_changes("planes", 7, key="id")
