"""The fold (design, section 4b): the fewest rows from which every later decision, and every answer about what is live, follows. Pure.

What is kept is kept as it is, with the operation that wrote it. One kind is new, `folded`: what a job's starts and commits said together.
A handle carries its end itself. All else is history: the second table has every fact ever.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.errors import DamagedLedgerError, FormatError, HoldfastError
from holdfast.catalog.ledger import Row
from holdfast.catalog.lineage import Lineage, is_attempt_kept
from holdfast.catalog.references import FileStatus, References, contains
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import JobState, Ref
from holdfast.catalog.types import FileId, JobId

_OpenHandle = tuple[JobId, FileId, int, int]  # job, file, offset, from_seq


def fold(rows: Sequence[Row], operation: Operation, *, staying: Collection[int] = ()) -> list[Row]:
    """The rows that stand for these, a snapshot of the whole ledger in the order of its scan; `folded` ones are by `operation`.

    Rows at the indices `staying`, of big kinds, are in files that are not written again (`big_files.py`): they are not in the result, and
    what says that they have ended, or are gone, is. Nothing is believed before `require_equal` compared both.
    Raises:
        FormatError: a kind, or a purpose of an attempt, has no rule here: this version does not understand the ledger.
        DamagedLedgerError: a fact is of a job that was never registered.
    """
    staying = frozenset(staying)
    snapshot = _Snapshot(rows, staying)
    kept = []
    for n, row in enumerate(rows):
        if n in staying:
            continue
        fact = RULES[row.fact.kind](snapshot, row.fact)
        if fact is not None:
            kept.append(row if fact is row.fact else Row(fact, row.operation))
    jobs = snapshot.past.state.jobs.values()
    claims: dict[JobId, list[JobId]] = {}  # by what each job says of itself, and not by what its claimer began with
    for job in jobs:
        if job.claimed_by is not None:
            claims.setdefault(job.claimed_by, []).append(job.job_id)
    return kept + [Row(_folded(job, claims.get(job.job_id)), operation) for job in jobs]


def _folded(job: JobState, claims: Sequence[JobId] | None) -> f.Folded:
    return f.Folded(
        job_id=job.job_id,
        seq=job.seq,
        epoch=job.epoch,
        parent_job_id=job.begin.job_id if job.begin else None,
        parent_checkpoint_id=job.begin.checkpoint_id if job.begin else None,
        claimed_by=job.claimed_by,
        checkpoint_id=job.last_checkpoint_id,
        last_committed_id=job.last_committed_id,
        claims=None if claims is None else json.dumps(sorted(claims)),
    )


# ---- what a snapshot says as a whole ---------------------------------------------------------------------------------


class _Snapshot:
    """What all the rows say together, by which each of them is judged."""

    def __init__(self, rows: Sequence[Row], staying: frozenset[int]) -> None:
        facts = [row.fact for row in rows]
        _require_rules(facts)
        self.past = References.of(facts)
        _require_registered(facts, self.past)
        self.lineage = Lineage.of(self.past.state)
        self.seqs = self.past.kept_seqs()
        self.newest: dict[tuple[Any, ...], int] = {}  # the seq of the newest hold of a name, start and end of a job
        for fact in facts:
            if isinstance(fact, f.Held | f.Started | f.JobEnded):
                key = _key(fact)
                self.newest[key] = max(self.newest.get(key, 0), fact.seq)
        self.condemned: set[FileId] = set()  # so far: two vacuums may both have said so
        self.gone: set[FileId] = set()
        self.staying_files: set[FileId] = set()
        self.staying_handles: set[_OpenHandle] = set()
        for n in staying:
            self._stays(facts[n])

    def _stays(self, fact: f.Fact) -> None:
        assert fact.kind in f.BIG_KINDS, f"a row of kind {fact.kind} is written at every fold"
        if isinstance(fact, f.FileWritten):
            self.staying_files.add(fact.file_id)
        elif isinstance(fact, f.HandleAdded) and fact.to_seq is None:
            self.staying_handles.add((fact.job_id, fact.file_id, fact.offset_bytes, fact.from_seq))

    def job(self, job_id: JobId) -> JobState:
        return self.past.state.jobs[job_id]


def _require_rules(facts: Sequence[f.Fact]) -> None:
    if unknown := {fact.kind for fact in facts} - RULES.keys():
        msg = f"facts of kind {', '.join(sorted(unknown))} have no rule of what a fold keeps: nothing was folded; use a newer version"
        raise FormatError(msg)


def _require_registered(facts: Sequence[f.Fact], past: References) -> None:
    """What is of no registered job is passed over by all that decides, and would be lost here in silence."""
    of_none = {None, *past.state.jobs}
    if strangers := {getattr(fact, "job_id", None) for fact in facts} - of_none:
        msg = f"the ledger has facts of a job that was never registered ({min(map(str, strangers))}): restore it from a backup"
        raise DamagedLedgerError(msg)


def _key(fact: f.Held | f.Started | f.JobEnded) -> tuple[Any, ...]:
    return (fact.kind, fact.job_id, fact.checkpoint_id, fact.hold) if isinstance(fact, f.Held) else (fact.kind, fact.job_id)


# ---- a rule for each kind: what is kept of a fact --------------------------------------------------------------------


def _always(_: _Snapshot, fact: f.Fact) -> f.Fact:
    return fact


def _never(_: _Snapshot, __: f.Fact) -> None:
    return None


def _job_ended(snapshot: _Snapshot, fact: f.JobEnded) -> f.Fact | None:
    """The newest, unless the job was started since."""
    started = snapshot.newest.get((f.Started.kind, fact.job_id), 0)
    return fact if fact.seq == snapshot.newest[_key(fact)] > started else None


def _attempt(snapshot: _Snapshot, fact: f.AttemptOpened | f.AttemptEnded) -> f.Fact | None:
    job = snapshot.job(fact.job_id)
    return fact if is_attempt_kept(job.attempts[fact.attempt], job) else None


def _checkpoint(snapshot: _Snapshot, fact: f.CheckpointCommitted) -> f.Fact | None:
    return snapshot.lineage.kept(fact)


def _of_row(snapshot: _Snapshot, fact: f.Dropped) -> f.Fact | None:
    return fact if Ref(fact.job_id, fact.checkpoint_id) in snapshot.lineage.rows else None


def _of_content(snapshot: _Snapshot, fact: f.StateCommitted | f.Acknowledged) -> f.Fact | None:
    return fact if Ref(fact.job_id, fact.checkpoint_id) in snapshot.lineage.content else None


def _handle(snapshot: _Snapshot, fact: f.HandleAdded) -> f.Fact | None:
    """Every open one: the commit rule asks for what is open, wherever the kept checkpoints lie. A closed one carries its end from here."""
    to_seq = snapshot.past.to_seq(fact)
    if to_seq is None:
        return fact
    if not contains(fact.from_seq, to_seq, snapshot.seqs.get((fact.job_id, fact.savepoint), [])):
        return None
    return fact if fact.to_seq is not None else replace(fact, to_seq=to_seq)


def _handle_end(snapshot: _Snapshot, fact: f.HandleEnded) -> f.Fact | None:
    return fact if (fact.job_id, fact.file_id, fact.offset_bytes, fact.from_seq) in snapshot.staying_handles else None


def _file(snapshot: _Snapshot, fact: f.FileWritten) -> f.Fact | None:
    return None if snapshot.past.status[fact.file_id] is FileStatus.GONE else fact


def _released(snapshot: _Snapshot, fact: f.Released) -> f.Fact | None:
    """Of an open owner, also what is gone: a commit that comes late may refer to it again. The end of an owner releases all."""
    return fact if fact.attempt in snapshot.job(fact.job_id).owners else None


def _held(snapshot: _Snapshot, fact: f.Held) -> f.Fact | None:
    is_in_force = (fact.checkpoint_id, fact.hold) in snapshot.job(fact.job_id).holds
    return fact if is_in_force and fact.seq == snapshot.newest[_key(fact)] else None


def _condemned(snapshot: _Snapshot, fact: f.Condemned) -> f.Fact | None:
    """Once, and of no file whose row an earlier fold left out: it is gone."""
    file_id, past = fact.file_id, snapshot.past
    if file_id in snapshot.condemned or file_id not in past.files or past.status[file_id] is not FileStatus.CONDEMNED:
        return None
    snapshot.condemned.add(file_id)
    return fact


def _gone(snapshot: _Snapshot, fact: f.Gone) -> f.Fact | None:
    if fact.file_id not in snapshot.staying_files or fact.file_id in snapshot.gone:
        return None
    snapshot.gone.add(fact.file_id)
    return fact


RULES: Mapping[str, Callable[[_Snapshot, Any], f.Fact | None]] = {
    "job": _always,
    "start": _never,  # `folded` has what the newest said
    "folded": _never,  # another takes its place
    "job_ended": _job_ended,
    "attempt_opened": _attempt,
    "attempt_ended": _attempt,
    "checkpoint": _checkpoint,
    "state": _of_content,
    "handle": _handle,
    "handle_end": _handle_end,
    "file": _file,
    "release": _released,
    "drop": _of_row,
    "hold": _held,
    "unhold": _never,
    "ack": _of_content,
    "condemned": _condemned,
    "gone": _gone,
    "run": _never,
}


# ---- before it is believed -------------------------------------------------------------------------------------------


def require_equal(rows: Sequence[Row], kept: Sequence[Row]) -> None:
    """Raises DamagedLedgerError unless both say the same of what is live, of what is open, and of what is garbage.

    With rows that stay where they are, `kept` has these as well.
    """
    try:
        before, after = (References.of((row.fact for row in each), handles_of="*") for each in (rows, kept))
        changed = [what for what, answer in _ANSWERS.items() if answer(before) != answer(after)]
    except (LookupError, HoldfastError) as error:
        msg = f"a fold of the ledger would leave out what the rest refers to ({error}): nothing was changed. Run `holdfast verify`"
        raise DamagedLedgerError(msg) from error
    if changed:
        msg = f"a fold of the ledger would change {', '.join(changed)}: nothing was changed. Run `holdfast verify`, and report this"
        raise DamagedLedgerError(msg)


def _of_jobs(answer: Callable[[JobState], Any]) -> Callable[[References], Any]:
    return lambda references: {job_id: answer(job) for job_id, job in references.state.jobs.items()}


def _content(references: References) -> set[tuple[Any, ...]]:
    """Every handle in which a live or pinned checkpoint lies."""
    seqs, to_seq = references.kept_seqs(), references.to_seq
    return {
        (h.job_id, h.savepoint, h.file_id, h.offset_bytes, h.from_seq, h.layer)
        for handles in references.handles.values()
        for h in handles
        if contains(h.from_seq, to_seq(h), seqs.get((h.job_id, h.savepoint), []))
    }


_ANSWERS: Mapping[str, Callable[[References], Any]] = {
    "where jobs stand": _of_jobs(lambda job: (job.seq, job.epoch, job.begin, job.last_checkpoint_id, job.last_committed_id)),
    "whose they are, and which names are taken": _of_jobs(lambda job: (job.claimed_by, job.savepoints, job.owner_names)),
    "what is held, and owned": _of_jobs(lambda job: (job.holds, job.owners)),
    "which checkpoints are live": _of_jobs(lambda job: {n: (row.fact.attempt, row.fact.sha256) for n, row in job.live.items()}),
    "which attempts are open": _of_jobs(lambda job: job.open_attempts.keys()),
    "which handles are open": _of_jobs(lambda job: job.open_handles),
    "what is in which checkpoint": _content,
    "which files there are": lambda references: references.present_paths(),
    "which files are unreferenced": lambda references: {row.file_id for row in references.unreferenced()},
    "which files are condemned": lambda references: {row.file_id for row in references.condemned()},
}
