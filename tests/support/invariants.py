"""The invariants I1 to I9 of the design, section 5, each a function over what a ledger says and what storage holds.

`assert_catalog_sound(x)` takes anything that gives `Evidence`: a `World` of the in-memory tests (its `evidence()`), or a real
`holdfast.facade.Catalog`. What a world alone can tell (calls to storage with the version of the ledger at their time, what was
acknowledged to callers) is checked where it is there. The whole history is folded again, version by version: a promise that was
broken for one moment is broken.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow.parquet as pq

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.layers import seen_chunks
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.manifest import Manifest, decode
from holdfast.catalog.references import FileStatus, References
from holdfast.catalog.schema import SCHEMA, from_table
from holdfast.catalog.state import CatalogState
from holdfast.catalog.storage import Storage, StoredDirectory, StoredObject
from holdfast.catalog.types import AttemptToken, CheckpointId, Chunk, JobId, Role, Status
from holdfast.compaction.garbage import find_garbage
from holdfast.compaction.orphans import OrphanRule, Past, Verdict, nothing_forgotten
from tests.support.bisimulation import require_same

Versions = Sequence[Sequence[f.Fact]]
Content = frozenset[tuple[Any, ...]]
OF_CONTENT = (f.HandleAdded, f.HandleEnded, f.CheckpointCommitted)  # without one of them no checkpoint's content can change


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCall:
    """An object made or deleted, with the versions at which the ledger stood when it took effect."""

    verb: Literal["create", "delete"]
    path: str
    version: int
    durable_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """What a caller was told: this checkpoint is committed. `states` are the bytes that it gave or carried, by name."""

    job_id: JobId
    checkpoint_id: CheckpointId
    states: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`versions` has the facts that each ledger version said, oldest first. `now` is what a folded one says together.

    Of a long life it is the end: `versions` begins with version `first`, `base` is what a fold has left of all before, and `past` knows
    the attempts that it left out.
    """

    versions: Versions
    storage: Storage
    base: Sequence[f.Fact] = ()
    first: int = 0
    past: Past = nothing_forgotten
    calls: Sequence[StorageCall] = ()
    acknowledged: Sequence[Acknowledgement] = ()
    now: Sequence[f.Fact] | None = None  # None: it was never folded
    owned: Mapping[str, bytes] = field(default_factory=dict)  # by path: what an owner was told it has, and did not begin to release

    @property
    def every_fact(self) -> list[f.Fact]:
        return [*self.base, *(fact for facts in self.versions for fact in facts)]


def assert_catalog_sound(source: Any) -> None:
    """Every invariant holds, now and at every version before. The error names the invariant and the ids."""
    evidence = evidence_of(source)
    assert_sound_now(evidence)
    i5_attempts_end_once(evidence)
    folded = References.of(evidence.base)
    before = evidence.first - 1
    garbage = i2_garbage_is_stable(before, folded, set())
    contents: dict[tuple[JobId, int], Content] = {}
    i8_content_never_changes(before, folded, contents, folded.state.jobs)
    calls = _by_durable_version(evidence)
    i3_deletions_were_condemned(calls[before], folded, evidence.past)
    i4_attempts_were_opened(calls[before], folded, evidence.past)
    for version, facts in enumerate(evidence.versions, evidence.first):
        i5_one_transaction_for_each_seq(version, folded, facts)
        i6_gone_was_condemned(version, folded, facts, garbage)
        folded.apply(facts)
        i1_nothing_kept_is_condemned(version, folded)
        garbage = i2_garbage_is_stable(version, folded, garbage)
        i3_deletions_were_condemned(calls[version], folded, evidence.past)
        i4_attempts_were_opened(calls[version], folded, evidence.past)
        if any(isinstance(fact, OF_CONTENT) for fact in facts):
            i8_content_never_changes(version, folded, contents, {getattr(fact, "job_id", None) for fact in facts})


def assert_sound_now(source: Any) -> None:
    """What storage holds is what the ledger says and what callers were told: the part of `assert_catalog_sound` that a later commit or
    deletion may hide. The other part is of the history, and a later look has it too."""
    evidence = evidence_of(source)
    references = References.of(evidence.every_fact)
    for check in (
        i1_files_exist,
        i1_owners_have_their_files,
        i4_tokens_are_known,
        i6_gone_was_deleted,
        i7_acknowledged_is_there,
        i8_manifests_agree,
        i9_folds_change_nothing,
    ):
        check(evidence, references)


def assert_clean(source: Any) -> None:
    """With no attempt open, vacuumed and scrubbed: storage holds what live or held checkpoints need, the marker, and strangers' files."""
    evidence = evidence_of(source)
    references = References.of(evidence.every_fact)
    still_open = [token for job in references.state.jobs.values() for token in job.open_attempts]
    assert not still_open, f"attempts are still open, so nothing can be said: {still_open}"
    rule = OrphanRule.over(references.state, set(), evidence.past)
    found = {stored.path for stored in evidence.storage.list("")}
    ours = {path for path in found if rule.judge(path) not in {Verdict.FOREIGN, Verdict.INTERNAL}}
    needed = {references.files[handle.file_id].path for _, _, handle in _kept_handles(references) if handle.file_id in references.files}
    assert not ours - needed, f"left behind: {sorted(ours - needed)}"
    assert not needed - ours, f"missing: {sorted(needed - ours)}"
    empty = [path for path in empty_directories(evidence.storage) if rule.judge(path) is Verdict.ORPHAN]
    assert not empty, f"empty directories of ended attempts are left: {sorted(empty)}"


def empty_directories(storage: Storage, prefix: str = "") -> list[str]:
    """Directories that hold no object at any depth, deepest first."""
    found = list(storage.walk(prefix))
    holding = {str(above) for stored in found if isinstance(stored, StoredObject) for above in PurePosixPath(stored.path).parents}
    empty = [stored.path for stored in found if isinstance(stored, StoredDirectory) and stored.path not in holding]
    return sorted(empty, key=lambda path: (-path.count("/"), path))


# ---- the invariants -------------------------------------------------------------------------------------------------


def i1_files_exist(evidence: Evidence, references: References) -> None:
    """I1: a handle of a live or pinned checkpoint implies that its file exists with its size and digest."""
    for job_id, number, handle in _kept_handles(references):
        where = f"I1: {handle.state or handle.name} of checkpoint {number} of {job_id}"
        if handle.inline is not None:
            assert hashlib.sha256(handle.inline).hexdigest() == handle.sha256, f"{where} is inline with another digest"
            continue
        assert handle.file_id in references.files, f"{where} refers to {handle.file_id}, which has no file row"
        row = references.files[handle.file_id]
        try:
            found = evidence.storage.digest(row.path)
        except FileNotFoundError:
            raise AssertionError(f"{where}: {row.path} is missing") from None
        assert (found.size_bytes, found.sha256) == (row.size_bytes, row.sha256), f"{where}: {row.path} has other bytes"
        assert handle.offset_bytes + handle.length_bytes <= row.size_bytes, f"{where} lies beyond the end of {row.path}"


def i1_owners_have_their_files(evidence: Evidence, _: References) -> None:
    """What an owner wrote is there until it releases it, whatever checkpoints, coordinators and cleaners do."""
    found = {stored.path for stored in evidence.storage.list("")}
    for path, data in evidence.owned.items():
        assert path in found, f"I1: {path} is an owner's that has not released it, and is gone"
        assert evidence.storage.read(path) == data, f"I1: {path} of an owner has other bytes than it wrote"


def i1_nothing_kept_is_condemned(version: int, references: References) -> None:
    """I1 at every version: what a live or pinned checkpoint refers to is neither condemned nor gone."""
    for job_id, number, handle in _kept_handles(references):
        status = references.status.get(handle.file_id, FileStatus.PRESENT)
        assert status is FileStatus.PRESENT, (
            f"I1: at version {version} file {handle.file_id} is {status} and checkpoint {number} of {job_id} needs it"
        )


def i2_garbage_is_stable(version: int, references: References, before: set[str]) -> set[str]:
    """I2: a file that is unreferenced at version v is unreferenced at every later version (it may be gone by then)."""
    garbage = find_garbage(references)
    now = {str(file.file_id) for file in (*garbage.unreferenced, *garbage.condemned)}
    gone = {str(file_id) for file_id, status in references.status.items() if status is FileStatus.GONE}
    assert before <= now | gone, f"I2: at version {version} files came back to life: {sorted(before - now - gone)}"
    return now


def i3_deletions_were_condemned(calls: Sequence[StorageCall], at: References, past: Past = nothing_forgotten) -> None:
    """I3 and I7: when a file is deleted its condemnation is committed and durable, or it is an orphan at that version."""
    deletions = [call for call in calls if call.verb == "delete"]
    if not deletions:
        return
    status = {at.files[file_id].path: status for file_id, status in at.status.items()}
    rule = OrphanRule.over(at.state, {path for path, s in status.items() if s is not FileStatus.GONE}, past)
    for call in deletions:
        if status.get(call.path) in (FileStatus.CONDEMNED, FileStatus.GONE):  # gone: a late delete of an earlier vacuum; no path comes back
            continue
        verdict = rule.judge(call.path)
        assert verdict is Verdict.ORPHAN, (
            f"I3: {call.path} was deleted at version {call.version} (durable {call.durable_version}) and is {verdict}, not condemned"
        )


def i4_tokens_are_known(evidence: Evidence, references: References) -> None:
    """I4: a file that is there with the token of an attempt is of one that the ledger knows."""
    rule = OrphanRule.over(references.state, set(), evidence.past)
    for stored in evidence.storage.list(""):
        assert rule.judge(stored.path) is not Verdict.UNKNOWN_TOKEN, f"I4: {stored.path} carries a token that was never opened"


def i4_attempts_were_opened(calls: Sequence[StorageCall], at: References, past: Past = nothing_forgotten) -> None:
    """I4: a file with the token of an attempt was written only after the attempt's opening was committed, and was durable."""
    creations = [call for call in calls if call.verb == "create"]
    if not creations:
        return
    rule = OrphanRule.over(at.state, set(), past)
    for call in creations:
        assert rule.judge(call.path) is not Verdict.UNKNOWN_TOKEN, (
            f"I4: {call.path} was written at version {call.version} (durable {call.durable_version}), before its attempt was opened"
        )


def i5_attempts_end_once(evidence: Evidence) -> None:
    """I5: attempts are opened once and end once, after that; names and ids (jobs, tokens, checkpoints, files, paths) never come back."""
    facts = evidence.every_fact
    opened = [fact for fact in facts if isinstance(fact, f.AttemptOpened)]
    ended = [fact for fact in facts if isinstance(fact, f.AttemptEnded)]
    _require_unique("I5: attempt opened", [o.attempt for o in opened])
    _require_unique("I5: attempt ended", [e.attempt for e in ended])
    _require_unique("I5: checkpoint id", [(o.job_id, o.checkpoint_id) for o in opened if o.checkpoint_id is not None])
    committed = [fact for fact in facts if isinstance(fact, f.CheckpointCommitted)]
    _require_unique("I5: checkpoint committed", [(c.job_id, c.checkpoint_id) for c in committed])
    _require_unique("I5: job", [fact.job_id for fact in facts if isinstance(fact, f.JobRegistered)])
    _require_unique("I5: job's name", [fact.job for fact in facts if isinstance(fact, f.JobRegistered)])
    files = [fact for fact in facts if isinstance(fact, f.FileWritten)]
    _require_unique("I5: file", [file.file_id for file in files])
    _require_unique("I5: path", [file.path for file in files])
    opened_at = {o.attempt: o.seq for o in opened}
    for end in ended:
        assert end.attempt in opened_at, f"I5: attempt {end.attempt} ended and was never opened"
        assert opened_at[end.attempt] < end.seq, f"I5: attempt {end.attempt} ended before it was opened"
    ends = {e.attempt: e for e in ended}
    folded = {fact.attempt for fact in evidence.base if isinstance(fact, f.CheckpointCommitted)}
    for c in (c for c in committed if c.attempt not in folded):  # of those a fold keeps the checkpoint, and not the attempt
        assert ends[c.attempt].status is Status.COMMITTED, f"I5: checkpoint {c.checkpoint_id}: its attempt ended {ends[c.attempt].status}"
        assert ends[c.attempt].seq == c.seq, f"I5: checkpoint {c.checkpoint_id} and the end of its attempt are two transactions"


def i5_one_transaction_for_each_seq(version: int, before: References, facts: Sequence[f.Fact]) -> None:
    """What the compare-and-swap is for: a commit carries a job from one `seq` to the next, and no other commit has that one."""
    seqs: dict[JobId, set[int]] = {}
    for fact in facts:
        if (seq := getattr(fact, "seq", None)) is not None:
            seqs.setdefault(fact.job_id, set()).add(seq)
    for job_id, found in seqs.items():
        job = before.state.jobs.get(job_id)
        expected = {(job.seq if job else 0) + 1}
        assert found == expected, f"I5: version {version} carries seqs {found} of {job_id}, where {expected} is next: a lost update"


def i6_gone_was_condemned(version: int, before: References, facts: Sequence[f.Fact], garbage: set[str]) -> None:
    """I3 and I6: a file is condemned only while it is among the garbage of before, and called gone only after it was condemned in an
    earlier commit."""
    for fact in facts:
        status = before.status.get(fact.file_id) if isinstance(fact, f.Condemned | f.Gone) else None
        if isinstance(fact, f.Condemned):
            may = fact.file_id in garbage or status is FileStatus.GONE  # by a stale plan: another vacuum was faster
            assert may, f"I2: version {version} condemns {fact.file_id}, which is referenced"
        elif isinstance(fact, f.Gone):
            assert status in {FileStatus.CONDEMNED, FileStatus.GONE}, f"I6: version {version} calls {fact.file_id} gone, it was {status}"


def i6_gone_was_deleted(evidence: Evidence, references: References) -> None:
    """I6: a file is called gone only after its deletion is confirmed."""
    if not evidence.calls:
        return
    deleted = {}
    for call in evidence.calls:
        if call.verb == "delete":
            deleted.setdefault(call.path, call.version)
    for version, facts in enumerate(evidence.versions, evidence.first):
        for fact in facts:
            if isinstance(fact, f.Gone):
                path = references.files[fact.file_id].path
                assert deleted.get(path, version) < version, f"I6: {path} is called gone at version {version} and was never deleted before"


def i7_acknowledged_is_there(evidence: Evidence, references: References) -> None:
    """I7: every checkpoint that was acknowledged to a caller is committed, and while live it has the very states of the caller."""
    for ack in evidence.acknowledged:
        job = references.state.jobs.get(ack.job_id)
        assert job is not None, f"I7: job {ack.job_id} was acknowledged and is lost"
        row = job.checkpoints.get(ack.checkpoint_id)
        assert row is not None, f"I7: checkpoint {ack.checkpoint_id} of {ack.job_id} was acknowledged and is lost"
        if ack.states is not None and row.live:
            try:
                found = read_states(_decoded(evidence.storage.read(row.fact.path), row.fact.path), evidence.storage)
            except FileNotFoundError as error:
                raise AssertionError(f"I7: checkpoint {ack.checkpoint_id} of {ack.job_id} was acknowledged and misses {error}") from None
            assert found == dict(ack.states), f"I7: checkpoint {ack.checkpoint_id} of {ack.job_id} does not hold what was acknowledged"


def i8_manifests_agree(evidence: Evidence, references: References) -> None:
    """I8: the ledger's handles of a live or pinned checkpoint are what its manifest says, and the manifest is what was committed."""
    for job_id, number, seq, line in _kept_checkpoints(references.state):
        fact = references.state.jobs[job_id].checkpoints[number].fact
        data = evidence.storage.read(fact.path)
        where = f"I8: checkpoint {number} of {job_id}"
        assert hashlib.sha256(data).hexdigest() == fact.sha256, f"{where}: {fact.path} is not the manifest that was committed"
        manifest = _decoded(data, fact.path)
        assert (manifest.job_id, manifest.checkpoint_id, manifest.attempt) == (job_id, number, fact.attempt), f"{where}: of another attempt"
        assert content_of(references, job_id, seq, line) == frozenset(_plain(chunk) for chunk in manifest.chunks), (
            f"{where}: handles differ"
        )
        within = f"{paths.parent(fact.path)}/" if line else ""  # a savepoint's paths begin in its own directory
        for chunk in manifest.chunks:
            if chunk.inline is None:
                row, file = references.files[chunk.file_id], manifest.files[chunk.file_id]
                assert (row.path, row.size_bytes, row.sha256) == (within + file.path, file.size_bytes, file.sha256), (
                    f"{where}: {file.path} differs"
                )


def i8_content_never_changes(
    version: int, references: References, contents: dict[tuple[JobId, int], Content], moved: Collection[JobId | None]
) -> None:
    """I8: whatever commits, rolls back or drops afterwards, a committed checkpoint's content is what it was at its commit. Asked of the jobs
    that have `moved`: all of it is of their own handles."""
    for job_id, job in references.state.jobs.items():
        for number, row in job.checkpoints.items() if job_id in moved else ():
            if row.is_outside or not (row.live or (job_id, number) in contents):  # of one that was dropped, a fold keeps no content
                continue
            now = content_of(references, job_id, row.fact.seq, row.line)
            assert len(now) == row.fact.handles, (
                f"I8: at version {version} checkpoint {number} of {job_id} has {len(now)} handles, committed {row.fact.handles}"
            )
            was = contents.setdefault((job_id, number), now)
            assert now == was, f"I8: at version {version} the content of checkpoint {number} of {job_id} changed"


def i9_folds_change_nothing(evidence: Evidence, _: References) -> None:
    """I9: what a folded ledger says of what is live, open and garbage is what all facts together say."""
    if evidence.now is not None:
        require_same(evidence.every_fact, evidence.now, source=None, paths_found=(stored.path for stored in evidence.storage.list("")))


# ---- what they look at ----------------------------------------------------------------------------------------------


def content_of(references: References, job_id: JobId, seq: int, line: AttemptToken | None = None) -> Content:
    """A checkpoint's content by the ledger's intervals, its manifest left out."""
    return frozenset(_plain(handle) for handle in references.content(job_id, seq, line) if handle.role is not Role.MANIFEST)


def read_states(manifest: Manifest, storage: Storage) -> dict[str, bytes]:
    """The bytes of every state: of each what is seen of its chunks, joined from the lowest layer up, in the order of their files.

    So a state that was written in full is its files, and one with change sets (of which the tests' state writer says that upserts are
    what the state gets at its end) is its base and they. Of the directories of stores, it is each file with its subtask and name.
    """
    states = {}
    for info in manifest.states:
        seen = manifest.in_given_order(info)
        if info.format == "directory":
            states[info.state] = told_of_files((chunk.subtask, chunk.name, _bytes_of(chunk, manifest, storage)) for chunk in seen)
            continue
        if info.format != "files":
            seen = seen_chunks(manifest.chunks_of(info), manifest.max_parallelism)
        states[info.state] = b"".join(_bytes_of(chunk, manifest, storage) for chunk in sorted(seen, key=lambda chunk: chunk.layer))
    return states


def told_of_files(files: Iterable[tuple[int | None, str | None, bytes]]) -> bytes:
    """Files of stores, by subtask and name, in one text: of a name that is there twice, it has both."""
    return b"".join(f"{subtask} {name} {len(data)}:".encode() + data for subtask, name, data in sorted(files, key=str))


def facts_by_version(ledger_directory: Path) -> list[list[f.Fact]]:
    """The facts of each commit of a real ledger, while its log is whole. Commits without data change (compaction) count as empty."""
    log = ledger_directory / "_delta_log"
    versions: list[list[f.Fact]] = []
    for version in delta_log.commit_versions(log):
        added = [file.path for file in delta_log.read_commit(log, version).added if file.data_change]
        versions.append([fact for path in added for fact in from_table(pq.read_table(ledger_directory / path, schema=SCHEMA))])
    return versions


def evidence_of(source: Any) -> Evidence:
    """From a world, a real catalog, or evidence itself."""
    if isinstance(source, Evidence):
        return source
    give: Callable[[], Evidence] | None = getattr(source, "evidence", None)
    if give is not None:
        return give()
    storage: Storage = source._storage
    versions: list[list[f.Fact]] = []
    name: str | None = paths.LEDGER
    while name is not None:  # of a catalog that was upgraded, one after the other
        ledger = DeltaLedger.open(f"{storage.address}/{name}")
        versions += facts_by_version(Path(ledger.address))
        name = ledger.successor
    return Evidence(versions=versions, storage=storage)


def with_acknowledged(evidence: Evidence, acknowledged: Iterable[Acknowledgement]) -> Evidence:
    """The same evidence and what callers were told beside it: for tests over a real catalog."""
    return replace(evidence, acknowledged=tuple(acknowledged))


@lru_cache(256)
def _decoded(data: bytes, path: str) -> Manifest:
    return decode(data, path)


def _by_durable_version(evidence: Evidence) -> Mapping[int, Sequence[StorageCall]]:
    """The calls, by the version that was the newest durable one at their time."""
    calls: dict[int, list[StorageCall]] = defaultdict(list)
    for call in evidence.calls:
        calls[min(call.version, call.durable_version)].append(call)
    assert all(version < evidence.first + len(evidence.versions) for version in calls), "what was durable is lost"
    return calls


def _kept_checkpoints(state: CatalogState) -> list[tuple[JobId, CheckpointId, int, AttemptToken | None]]:
    """Job, number, seq and line of every live or pinned checkpoint or savepoint of the catalog."""
    pinned = {(ref.job_id, ref.checkpoint_id) for ref in state.pinned()}
    return [
        (job_id, number, row.fact.seq, row.line)
        for job_id, job in state.jobs.items()
        for number, row in job.checkpoints.items()
        if not row.is_outside and (row.live or (job_id, number) in pinned)
    ]


def _kept_handles(references: References) -> list[tuple[JobId, int, f.HandleAdded]]:
    """Every handle of every kept checkpoint, by going through all intervals: the slow and plain twin of the cleanup query."""
    return [
        (job_id, number, handle)
        for job_id, number, seq, line in _kept_checkpoints(references.state)
        for handle in references.content(job_id, seq, line)
    ]


def _plain(chunk: Chunk | f.HandleAdded) -> tuple[Any, ...]:
    return (
        chunk.operator, chunk.state, chunk.file_id, chunk.offset_bytes, chunk.length_bytes, chunk.sha256, chunk.scope, chunk.role,
        chunk.layer, chunk.rows, chunk.subtask, chunk.key_group_from, chunk.key_group_to, chunk.name, chunk.inline,
    )  # fmt: skip


def _bytes_of(chunk: Chunk, manifest: Manifest, storage: Storage) -> bytes:
    if chunk.inline is not None:
        return chunk.inline
    data = storage.read(manifest.files[chunk.file_id].path)
    return data[chunk.offset_bytes : chunk.offset_bytes + chunk.length_bytes]


def _require_unique(what: str, ids: Sequence[Any]) -> None:
    twice = sorted(str(i) for i, times in Counter(ids).items() if times > 1)
    assert not twice, f"{what} more than once: {', '.join(twice)}"
