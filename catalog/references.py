"""Which file is in use: every file and handle of a catalog, folded from the whole ledger alongside its lifecycle state. Pure.

What cleanup may take is decided by it in memory (`compaction/garbage.py`), and so is what a fold keeps (`folding.py`).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.state import CatalogState, in_order
from holdfast.catalog.types import AttemptToken, FileId, JobId, Scope, Status


class FileStatus(StrEnum):
    PRESENT = "present"
    CONDEMNED = "condemned"
    GONE = "gone"


Line = tuple[JobId, AttemptToken | None]  # a job's main line, or one savepoint of it by its attempt


@dataclass(slots=True)
class References:
    """Every file and handle of a catalog, along with its lifecycle state."""

    state: CatalogState = field(default_factory=CatalogState)
    files: dict[FileId, f.FileWritten] = field(default_factory=dict)
    status: dict[FileId, FileStatus] = field(default_factory=dict)
    handles: dict[FileId, list[f.HandleAdded]] = field(default_factory=lambda: defaultdict(list))
    released: set[FileId] = field(default_factory=set)  # task-owned ones, one by one
    ends: dict[tuple[JobId, FileId, int, int], int] = field(default_factory=dict)  # (job, file, offset, from_seq) -> to_seq

    @classmethod
    def of(cls, facts: Iterable[f.Fact], *, handles_of: str | None = None) -> "References":
        """Folds a scan of the whole ledger."""
        references = cls(CatalogState(handles_of=handles_of))
        references.apply(in_order(facts))
        return references

    def apply(self, facts: Iterable[f.Fact]) -> None:
        """Folds facts in, in the order of each job's `seq`."""
        facts = list(facts)
        self.state.apply(facts)
        for fact in facts:
            if (apply := _APPLY.get(type(fact))) is not None:
                apply(self, fact)

    def to_seq(self, handle: f.HandleAdded) -> int | None:
        """Where a handle's interval ends; None while it is open."""
        if handle.to_seq is not None:
            return handle.to_seq
        return self.ends.get((handle.job_id, handle.file_id, handle.offset_bytes, handle.from_seq))

    def content(self, job_id: JobId, seq: int, savepoint: AttemptToken | None = None) -> list[f.HandleAdded]:
        """The handles of a line whose interval contains `seq`, the manifest's included."""
        return [
            handle
            for handles in self.handles.values()
            for handle in handles
            if handle.job_id == job_id and handle.savepoint == savepoint and contains(handle.from_seq, self.to_seq(handle), [seq])
        ]

    def present_paths(self) -> set[str]:
        """The paths of all file rows that are not gone."""
        return {row.path for file_id, row in self.files.items() if self.status[file_id] is not FileStatus.GONE}

    def is_owned(self, row: f.FileWritten) -> bool:
        """Whether the file is an owner's that has not released it."""
        if row.scope is not Scope.TASKOWNED or row.file_id in self.released:
            return False
        job = self.state.jobs.get(row.job_id)
        owner = job.attempts.get(row.attempt) if job else None
        return owner is None or owner.status is not Status.RELEASED

    def kept_seqs(self) -> dict[Line, list[int]]:
        """For each line, the seqs of its live or pinned checkpoints, ascending."""
        kept: dict[Line, set[int]] = defaultdict(set)
        rows = [row for job in self.state.jobs.values() for row in job.live.values()]
        rows += [self.state.checkpoint(ref) for ref in self.state.pinned()]
        for row in rows:
            kept[row.fact.job_id, row.line].add(row.fact.seq)
        return {line: sorted(seqs) for line, seqs in kept.items()}

    def unreferenced(self) -> Iterator[f.FileWritten]:
        """The cleanup query of the design, section 3: files that no interval with a live or pinned checkpoint refers to.

        A task-owned file is among them only if it or its owner was released; one that is condemned or gone never.
        """
        kept = self.kept_seqs()
        for file_id, row in self.files.items():
            if self.status[file_id] is FileStatus.PRESENT and not self.is_owned(row) and not self._is_in_use(file_id, kept):
                yield row

    def condemned(self) -> Iterator[f.FileWritten]:
        """Files that some run condemned and none has called gone."""
        return (row for file_id, row in self.files.items() if self.status[file_id] is FileStatus.CONDEMNED)

    def _is_in_use(self, file_id: FileId, kept: dict[Line, list[int]]) -> bool:
        handles = self.handles.get(file_id, ())
        return any(contains(h.from_seq, self.to_seq(h), kept.get((h.job_id, h.savepoint), [])) for h in handles)


def contains(from_seq: int, to_seq: int | None, kept: list[int]) -> bool:
    """Whether one of the ascending seqs lies in [from_seq, to_seq)."""
    at = bisect_left(kept, from_seq)
    return at < len(kept) and (to_seq is None or kept[at] < to_seq)


def _apply_handle(references: References, fact: f.HandleAdded) -> None:
    references.handles[fact.file_id].append(fact)


def _apply_file(references: References, fact: f.FileWritten) -> None:
    references.files[fact.file_id] = fact
    references.status.setdefault(fact.file_id, FileStatus.PRESENT)


def _apply_end(references: References, fact: f.HandleEnded) -> None:
    references.ends[fact.job_id, fact.file_id, fact.offset_bytes, fact.from_seq] = fact.to_seq


def _apply_release(references: References, fact: f.Released) -> None:
    references.released.add(fact.file_id)


def _apply_condemned(references: References, fact: f.Condemned) -> None:
    if references.status.get(fact.file_id) is not FileStatus.GONE:
        references.status[fact.file_id] = FileStatus.CONDEMNED


def _apply_gone(references: References, fact: f.Gone) -> None:
    references.status[fact.file_id] = FileStatus.GONE


_APPLY: Mapping[type[f.Fact], Callable[[References, Any], None]] = {
    f.HandleAdded: _apply_handle,
    f.FileWritten: _apply_file,
    f.HandleEnded: _apply_end,
    f.Released: _apply_release,
    f.Condemned: _apply_condemned,
    f.Gone: _apply_gone,
}
