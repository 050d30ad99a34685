"""I9: whether two lists of facts say the same of what is live, and lead to the same decisions: all there ever were, and folded ones with
what came later."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.errors import AttemptEndedError, FencedError, HoldfastError, NotFoundError, RefusedError
from holdfast.catalog.lineage import query_of
from holdfast.catalog.references import References
from holdfast.catalog.rules import checkpoints, jobs, owners, retention, savepoints
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import (
    AttemptToken,
    CheckpointId,
    Chunk,
    JobId,
    KeepAll,
    KeepLast,
    OnEnd,
    Outcome,
    OwnedFile,
    Retention,
    Role,
    Scope,
    Status,
    StoredFile,
)
from holdfast.compaction.orphans import OrphanRule, Past

NEW = AttemptToken("f" * 16)  # a token that was never given
RETENTIONS = (KeepLast(1), KeepLast(2), KeepLast(3), KeepAll())
SAMPLE = 150  # of the decisions at each comparison
Call = Callable[[CatalogState], Any]


class Difference(AssertionError):
    """A fold has changed an answer."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The same catalog twice: by every fact, and by what a fold left."""

    full: References
    folded: References

    @classmethod
    def of(cls, full: Iterable[f.Fact], folded: Iterable[f.Fact]) -> "Sides":
        return cls(References.of(full, handles_of="*"), References.of(folded, handles_of="*"))

    def require_same(self, what: object, answer: Callable[[References], Any]) -> None:
        """Raises Difference with what only one of them says."""
        full, folded = answer(self.full), answer(self.folded)
        if full == folded:
            return
        if isinstance(full, set) and isinstance(folded, set):
            full, folded = full - folded, folded - full
        elif isinstance(full, dict) and isinstance(folded, dict):
            keys = {key for key in {*full, *folded} if full.get(key) != folded.get(key) or (key in full) != (key in folded)}
            full, folded = ({key: each.get(key, "nothing") for key in keys} for each in (full, folded))
        raise Difference(f"I9: {what}: by every fact {str(full)[:600]}, folded {str(folded)[:600]}")


def require_same(
    full: Collection[f.Fact],
    folded: Iterable[f.Fact],
    *,
    source: random.Random | None,
    paths_found: Iterable[str] = (),
    past: Past | None = None,
) -> None:
    """Raises Difference. With a source of randomness, a sample of decisions is made on both sides as well.

    `paths_found` are what scrub may meet. `past` is what it asks of tokens that the folded side has forgotten: by default the truth.
    """
    sides = Sides.of(full, folded)
    _same_jobs(sides)
    _same_files(sides)
    _same_verdicts(sides, {*paths_found}, past or _truth(full))
    _same_lines(sides)
    if source is not None:
        for what, call in _sample(source, [*_decisions(sides.full)]):
            _same_decision(sides, what, call)


# ---- what is live, open and garbage ----------------------------------------------------------------------------------


def _same_jobs(sides: Sides) -> None:
    sides.require_same("names", lambda side: side.state.names)
    sides.require_same("pinned", lambda side: side.state.pinned())
    for job_id in sides.full.state.jobs:
        sides.require_same(f"job {job_id}", lambda side, j=job_id: _facts_of(side.state.jobs[j]))


def _facts_of(job: JobState) -> dict[str, Any]:
    """All that a job's state says, but for attempts that have ended and checkpoints that were dropped."""
    same = (
        "registered", "seq", "epoch", "begin", "last_checkpoint_id", "last_committed_id", "holds", "savepoints", "owner_names",
        "owners", "claimed_by", "open_handles",
    )  # fmt: skip
    return {
        **{name: getattr(job, name) for name in same},
        "live": {n: replace(row.fact, ancestor_job_id=None, ancestor_checkpoint_id=None) for n, row in job.live.items()},
        "open": {token: attempt.opened for token, attempt in job.open_attempts.items()},
        "droppable": [n for n, _ in job.droppable()],
    }


def _same_files(sides: Sides) -> None:
    sides.require_same("unreferenced files", lambda side: {*side.unreferenced()})
    sides.require_same("condemned files", lambda side: {*side.condemned()})
    sides.require_same("paths of rows that are not gone", lambda side: side.present_paths())
    sides.require_same("kept seqs", lambda side: side.kept_seqs())
    for (job_id, line), seqs in sides.full.kept_seqs().items():
        for seq in seqs:
            sides.require_same(
                f"content of {job_id} {line or ''} at {seq}",
                lambda side, of=(job_id, seq, line): {replace(handle, to_seq=None) for handle in side.content(*of)},
            )


# ---- scrub -----------------------------------------------------------------------------------------------------------


def _truth(full: Iterable[f.Fact]) -> Past:
    facts = [*full]
    opened = {fact.attempt: fact for fact in facts if isinstance(fact, f.AttemptOpened)}
    ended = {fact.attempt for fact in facts if isinstance(fact, f.AttemptEnded)}
    return lambda token: opened[token] if token in ended else None


def _same_verdicts(sides: Sides, found: set[str], past: Past) -> None:
    found |= {row.path for row in sides.full.files.values()}
    found |= {path.rpartition("/")[0] for path in found}
    for job in sides.full.state.jobs.values():
        found |= {paths.manifest_path(job.job_id, CheckpointId(n)) for n in range(1, job.last_checkpoint_id + 3)}
        found |= {paths.savepoint_directory(job.job_id, "x", token) for token in (*job.attempts, NEW)}
        for token, attempt in (*job.attempts.items(), (NEW, None)):
            number = attempt.opened.checkpoint_id if attempt and attempt.opened.checkpoint_id else CheckpointId(1)
            found |= {paths.streamed_file(job.job_id, n, token, 0, 0) for n in (number, CheckpointId(number + 1))}
    rules = [OrphanRule.over(sides.full.state, sides.full.present_paths())]
    rules.append(OrphanRule.over(sides.folded.state, sides.folded.present_paths(), past))
    for path in sorted(found):
        full, folded = (rule.judge(path) for rule in rules)
        if full != folded:
            raise Difference(f"I9: verdict of scrub on {path}: by every fact {full}, folded {folded}")


# ---- lines and their retention ---------------------------------------------------------------------------------------


def _kept(state: CatalogState) -> list[Ref]:
    return sorted({Ref(j.job_id, n) for j in state.jobs.values() for n in j.live} | state.pinned(), key=str)


def _same_lines(sides: Sides) -> None:
    kept = _kept(sides.full.state)
    for ref in kept:
        sides.require_same(f"live ancestry of {ref}", lambda side, r=ref: _live_ancestry(side.state, r))
        sides.require_same(f"newest batches before {ref}", lambda side, r=ref: _batches(side.state, r))
    for job_id in sides.full.state.jobs:
        for policy in RETENTIONS:
            for parent in (None, *kept):
                sides.require_same(
                    f"what {policy} of {job_id} drops on {parent}",
                    lambda side, of=(job_id, policy, parent): _retired(side.state, *of),
                )


def _live_ancestry(state: CatalogState, ref: Ref) -> list[Ref]:
    return [Ref(row.fact.job_id, row.fact.checkpoint_id) for row in state.ancestry(ref) if row.live]


def _batches(state: CatalogState, ref: Ref) -> dict[Any, str | None]:
    found: dict[Any, str | None] = {}
    for row in state.ancestry(ref):
        if (query := query_of(row)) is not None:
            found.setdefault(query, row.fact.progress)
    return found


def _retired(state: CatalogState, job_id: JobId, policy: Retention, parent: Ref | None) -> Any:
    job = state.job(job_id)
    own = parent.checkpoint_id if parent and parent.job_id == job_id else None
    claimed = {other.job_id: numbers for other, numbers in retention.retired_by_claim(state, job, parent, policy)}
    return retention.retired(job, CheckpointId(job.last_checkpoint_id + 1), own, job.seq + 1, policy), claimed


# ---- decisions -------------------------------------------------------------------------------------------------------


def _sample(source: random.Random, calls: list[tuple[str, Call]]) -> list[tuple[str, Call]]:
    return source.sample(calls, min(SAMPLE, len(calls)))


def _same_decision(sides: Sides, what: str, call: Call) -> None:
    full, folded = _outcome(call, sides.full.state), _outcome(call, sides.folded.state)
    is_on_attempt = what.startswith(("kill", "abort"))
    if full != folded and (is_on_attempt, full, folded) not in _NOT_TOLD_APART:
        raise Difference(f"I9: to {what}: by every fact {str(full)[:600]}, folded {str(folded)[:600]}")


# Of what was forgotten it is not told apart whether it ever was: never committed or dropped; never opened, fenced or ended.
_NOT_TOLD_APART = {
    (False, NotFoundError, RefusedError),
    (True, RefusedError, AttemptEndedError),
    (True, FencedError, AttemptEndedError),
}


def _outcome(call: Call, state: CatalogState) -> Any:
    try:
        decided = call(state)
    except HoldfastError as error:
        return type(error)
    if not isinstance(decided, Decision):
        return decided
    return frozenset(decided.facts), frozenset(decided.keys.items()), decided.result


def _decisions(full: References) -> Iterator[tuple[str, Call]]:
    state = full.state
    for job_id, job in state.jobs.items():
        for n in range(1, job.last_checkpoint_id + 3):
            yield from _on_checkpoint(state, Ref(job_id, CheckpointId(n)))
        yield from _on_job(state, job)
        yield from _on_owners(full, job)
        for token in (*job.attempts, NEW):
            yield from _on_attempt(job_id, token)
        for token, attempt in job.open_attempts.items():
            if attempt.opened.checkpoint_id is not None:
                for i, call in enumerate(_commits(full, job_id, token)):
                    yield f"commit {token} of {job_id}, content {i}", call


def _on_checkpoint(state: CatalogState, ref: Ref) -> Iterator[tuple[str, Call]]:
    yield f"read {ref}", lambda s: checkpoints.open_reading(s, ref, NEW)
    yield f"drop {ref}", lambda s: checkpoints.drop(s, ref, "x")
    yield f"hold {ref}", lambda s: checkpoints.hold(s, ref, "keep", None)
    yield f"release the hold on {ref}", lambda s: checkpoints.unhold(s, ref, "keep")
    yield f"take a savepoint of {ref}", lambda s: savepoints.open_savepoint(s, ref, NEW, "new")
    yield f"dispose of {ref}", lambda s: savepoints.dispose(s, ref, deletes_now=False)
    yield f"dispose at once of {ref}", lambda s: savepoints.dispose(s, ref, deletes_now=True)
    for job_id, job in state.jobs.items():
        for epoch in (job.epoch, job.epoch - 1):
            yield f"open on {ref} in {job_id}", lambda s, j=job_id, e=epoch: checkpoints.open_checkpoint(s, j, e, NEW, ref)
        for claim in (False, True):
            yield f"start {job_id} at {ref}", lambda s, j=job_id, c=claim: jobs.start(s, j, ref, claim=c)
        yield f"start {job_id} with a copy of {ref}", lambda s, j=job_id: jobs.start(s, j, None, first=NEW, source=ref)


def _on_job(state: CatalogState, job: JobState) -> Iterator[tuple[str, Call]]:
    of, name, dropping = job.job_id, job.name, OnEnd(drop={"finished"})
    yield f"open on nothing in {of}", lambda s: checkpoints.open_checkpoint(s, of, job.epoch, NEW, None)
    yield f"start {of} from nothing", lambda s: jobs.start(s, of, None)
    yield f"start {of} where it is", lambda s: jobs.start(s, of, s.job(of).begin)
    yield f"look whether {of} can go on", lambda s: s.job(of).begin is None or s.checkpoint(s.job(of).begin).live
    yield f"end {of}", lambda s: jobs.end_job(s, of, job.epoch, Outcome.FINISHED, None, dropping)
    yield f"end {of} in an old epoch", lambda s: jobs.end_job(s, of, job.epoch - 1, Outcome.FINISHED, None, dropping)
    yield f"register {name} again", lambda s: jobs.register(s, JobId("new"), name, 2)
    live = [Ref(of, n) for n in job.live][:1]
    for savepoint in job.savepoints:
        for ref in live:
            yield f"name {savepoint} again", lambda s, r=ref, n=savepoint: savepoints.open_savepoint(s, r, NEW, n)


def _on_owners(full: References, job: JobState) -> Iterator[tuple[str, Call]]:
    of = job.job_id
    for name in (*job.owner_names, "new"):
        yield f"own {name}", lambda s, n=name: owners.open_owner(s, of, n, NEW)
        yield f"release owner {name}", lambda s, n=name: owners.release_owner(s, of, n)
    for name, token in job.owner_names.items():
        known = [(row.file_id, row.path) for row in full.files.values() if row.attempt == token]
        known.append((paths.file_id(token, "new", 0), paths.owned_file(of, name, token, "new")))
        for file_id, path in known:
            file = OwnedFile(name="n", file_id=file_id, path=path, size_bytes=1, sha256="")
            yield f"release {file_id}", lambda s, n=name, x=file: owners.release_files(s, of, n, [x])


def _on_attempt(job_id: JobId, token: AttemptToken) -> Iterator[tuple[str, Call]]:
    yield f"kill {token}", lambda s: checkpoints.end_attempt(s, job_id, token, Status.KILLED, "x")
    yield f"abort {token} for another", lambda s: checkpoints.end_attempt(s, job_id, token, Status.ABORTED, "x", (), NEW)


def _commits(full: References, job_id: JobId, token: AttemptToken) -> Iterator[Call]:
    """Commits of an open attempt: everything carried, half of it, something new; and a file of an owner, whatever has become of that."""
    opened = full.state.job(job_id).attempts[token].opened
    number, parent = opened.checkpoint_id, full.state.job(job_id).attempts[token].parent
    assert number is not None
    carried: list[Chunk] = []
    if parent is not None:
        row = full.state.checkpoint(parent)
        carried = [_chunk(h) for h in full.content(parent.job_id, row.fact.seq, row.line) if h.role is not Role.MANIFEST]
    inherited = frozenset(chunk.identity for chunk in carried)
    new = _of_file(paths.file_id(token, 9, 9), Scope.SHARED, "n")
    own = StoredFile(file_id=new.file_id, path="x", size_bytes=1, sha256="", scope=Scope.SHARED)
    place = paths.manifest_path(job_id, number)
    manifest = StoredFile(file_id=paths.manifest_file_id(token), path=place, size_bytes=1, sha256="", scope=Scope.EXCLUSIVE)

    def commit(content: Iterable[Chunk], files: tuple[StoredFile, ...], policy: Retention, owned: tuple[StoredFile, ...] = ()) -> Call:
        request = CommitRequest(
            attempt=token, content=tuple(content), states=(), inherited=inherited, files=files, acks=(), manifest=manifest, progress=None,
            retention=policy, owned=owned, next_attempt=NEW,
        )  # fmt: skip
        return lambda s: checkpoints.commit_checkpoint(s, job_id, request)

    for policy in RETENTIONS:
        yield commit(carried, (), policy)
        yield commit(carried[::2], (), policy)
        yield commit([*carried, new], (own,), policy)
        yield commit([new], (own,), policy)
    for row_of in (row for row in full.files.values() if row.scope is Scope.TASKOWNED and row.job_id == job_id):
        chunk = _of_file(row_of.file_id, Scope.TASKOWNED, row_of.owner or "")
        stored = StoredFile(
            file_id=row_of.file_id, path=row_of.path, size_bytes=1, sha256="", scope=Scope.TASKOWNED, owner=row_of.owner,
        )  # fmt: skip
        yield commit([*(c for c in carried if c.file_id != row_of.file_id), chunk], (), KeepAll(), (stored,))


def _of_file(file_id: str, scope: Scope, state: str) -> Chunk:
    return Chunk(
        operator="main", state=state, file_id=file_id, scope=scope, role=Role.BASE, layer=0, offset_bytes=0, length_bytes=1, sha256="",
    )  # fmt: skip


def _chunk(handle: f.HandleAdded) -> Chunk:
    return Chunk(
        operator=handle.operator, state=handle.state, file_id=handle.file_id, scope=handle.scope, role=handle.role, layer=handle.layer,
        offset_bytes=handle.offset_bytes, length_bytes=handle.length_bytes, sha256=handle.sha256, rows=handle.rows,
        subtask=handle.subtask, key_group_from=handle.key_group_from, key_group_to=handle.key_group_to, name=handle.name,
        inline=handle.inline,
    )  # fmt: skip
