"""Scrub: list a prefix of storage first, then read a ledger snapshot; what ended attempts left and no file row names is an orphan.

The order makes it safe alongside writers (I3, I4): an object that was listed has an attempt that was opened before, so a snapshot that is
read after the listing knows it. What that snapshot says is made durable before a file is deleted because of it (I7). Foreign objects are
reported and never touched, and what people copied or renamed is foreign. One well-formed token that the ledger never knew stops the scrub
before any deletion: the ledger was probably restored from a backup, and the "orphans" may be the newer state.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedFileError, ForeignTokensError
from holdfast.catalog.manifest import attempt_in
from holdfast.catalog.storage import Storage, StoredDirectory, StoredObject
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken
from holdfast.compaction.listing import Stored, kept
from holdfast.compaction.orphans import OrphanRule, Past, Verdict, nothing_forgotten
from holdfast.compaction.queries import Queries
from holdfast.compaction.runs import MaintenanceRun, Progress, batches, reasons

SAMPLED = 1000  # objects of each other verdict that a plan names
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Objects that a scrub leaves: how many there are, and at most SAMPLED of them, in the order of their paths."""

    count: int = 0
    shown: tuple[StoredObject, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPlan:
    """What a scrub found. `directories` are empty and of ended attempts; `unknown` carry tokens that the ledger never knew."""

    orphans: tuple[StoredObject, ...]
    directories: tuple[str, ...]
    foreign: Sample
    unknown: Sample
    in_flight: Sample
    known_objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What a scrub did. `failed` names files and directories whose removal was not confirmed: the next scrub takes them up."""

    plan: ScrubPlan
    deleted_files: int
    deleted_bytes: int
    failed: tuple[str, ...]


def survey(transactor: Transactor, storage: Storage, queries: Queries, past: Callable[[], Past] = lambda: nothing_forgotten) -> ScrubPlan:
    """What a scrub would do now. The order of the readings is the safety of it: storage, attempts, paths, and then the past.

    An attempt that is opened after the listing has nothing in it; one that ends between the last two readings counts as open. `past`
    gives what the ledger, read anew, and its history say of attempts that are forgotten.
    """
    with kept(storage.walk("")) as listed:
        rule, version = transactor.look(lambda state: (OrphanRule.over(state, ()), transactor.ledger.version))
        rule.present, rule.past = queries.present_paths(at_least=version), past()
        return plan_scrub(listed, rule, storage)


def plan_scrub(listed: Iterable[Stored], rule: OrphanRule, storage: Storage | None = None) -> ScrubPlan:
    """Judge a listing, in the order of a walk, by a snapshot of the ledger that was read after it; with storage, also by what is in a
    manifest. Of the listing only orphans, and directories to be removed, are kept."""
    left = {verdict: _Left() for verdict in Verdict}
    orphans: list[StoredObject] = []
    directories: list[str] = []
    occupied = _Occupied()
    for stored in listed:
        verdict = rule.judge(stored.path)
        if isinstance(stored, StoredDirectory):
            if verdict is Verdict.ORPHAN and not occupied.has(stored.path):
                directories.append(stored.path)
            else:
                occupied.by(stored.path)
            continue
        if verdict is Verdict.ORPHAN and storage is not None:
            verdict = _by_content(stored.path, storage, rule)
        if verdict is Verdict.ORPHAN:
            orphans.append(stored)
        else:
            left[verdict].add(stored)
            occupied.by(stored.path)
    return ScrubPlan(
        orphans=tuple(sorted(orphans, key=_path)),
        directories=tuple(sorted(directories, key=lambda d: (-d.count("/"), d))),
        foreign=left[Verdict.FOREIGN].sample(),
        unknown=left[Verdict.UNKNOWN_TOKEN].sample(),
        in_flight=left[Verdict.IN_FLIGHT].sample(),
        known_objects=left[Verdict.KNOWN].count,
    )


@dataclass(slots=True)
class _Left:
    """What stays of one verdict."""

    count: int = 0
    shown: list[StoredObject] = field(default_factory=list)

    def add(self, stored: StoredObject) -> None:
        self.count += 1
        if len(self.shown) < SAMPLED:
            self.shown.append(stored)

    def sample(self) -> Sample:
        return Sample(count=self.count, shown=tuple(sorted(self.shown, key=_path)))


@dataclass(slots=True)
class _Occupied:
    """Of the directories on the way down to where a walk is, those in which something stays: it comes back to no others."""

    directories: list[str] = field(default_factory=list)

    def by(self, path: str) -> None:
        """Something stays here."""
        directory = paths.parent(path)
        if directory and not self.has(directory):
            self.directories.append(directory)

    def has(self, directory: str) -> bool:
        while self.directories and not f"{directory}/".startswith(f"{self.directories[-1]}/"):
            self.directories.pop()
        return bool(self.directories) and self.directories[-1] == directory


def _path(stored: StoredObject) -> str:
    return stored.path


def _by_content(orphan: str, storage: Storage, rule: OrphanRule) -> Verdict:
    """The verdict on an orphan, once a manifest was asked whose it is: `chk-<n>` has no token.

    A restored ledger gives n again; and people copy and rename such a directory, whose manifest then names another checkpoint.
    """
    parsed = paths.parse(orphan)
    if not isinstance(parsed, paths.ChkPath):
        return Verdict.ORPHAN
    try:
        token = AttemptToken(attempt_in(storage.read(orphan), orphan))
    except (FileNotFoundError, DamagedFileError):
        return Verdict.ORPHAN  # gone meanwhile, or never whole: nobody's state
    return rule.judge_manifest(parsed, token)


def require_known_tokens(plan: ScrubPlan) -> None:
    """Raises ForeignTokensError if storage holds what attempts wrote that the ledger never knew."""
    if plan.unknown.count:
        shown = ", ".join(stored.path for stored in plan.unknown.shown[:SHOWN])
        msg = (
            f"{plan.unknown.count} files carry attempt tokens that the ledger never knew (such as {shown}): "
            "the ledger was probably restored from a backup, and these may be its newer state. Nothing was deleted. "
            "Restore the newer ledger, or move these files away, then scrub again"
        )
        raise ForeignTokensError(msg)


def run_scrub(
    plan: ScrubPlan, transactor: Transactor, storage: Storage, environment: Environment, progress: Progress | None = None
) -> ScrubReport:
    """Delete the orphans of a plan. Safe to interrupt anywhere; stops before any deletion at unknown tokens."""
    require_known_tokens(plan)
    run = MaintenanceRun.begin("scrub", environment)
    deleted_files = deleted_bytes = done = 0
    failed: list[str] = []
    if plan.orphans or plan.directories:
        transactor.settle()
    for batch in batches(plan.orphans):
        errors = storage.delete_many([orphan.path for orphan in batch])
        gone = [orphan for orphan in batch if orphan.path not in errors]
        deleted_files, deleted_bytes, done = deleted_files + len(gone), deleted_bytes + sum(o.size_bytes for o in gone), done + len(batch)
        failed += reasons(errors)
        if progress is not None:
            progress(done, len(plan.orphans))
    failed_files = len(failed)
    for batch_of in batches(plan.directories):
        failed += reasons(storage.remove_empty_directories(batch_of))
    figures = {
        "deleted_files": deleted_files,
        "deleted_bytes": deleted_bytes,
        "failed_files": failed_files,
        "foreign_files": plan.foreign.count,
    }
    transactor.append([run.ended(environment, "incomplete" if failed else "done", figures)])
    return ScrubReport(plan=plan, deleted_files=deleted_files, deleted_bytes=deleted_bytes, failed=tuple(failed))
