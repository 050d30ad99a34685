"""Scrub: list a prefix of storage first, then read a ledger snapshot; what ended attempts left and no file row names is an orphan.

The order makes it safe alongside writers (I3, I4): an object that was listed has an attempt that was opened before, so a snapshot that is
read after the listing knows it. What that snapshot says is made durable before a file is deleted because of it (I7). Foreign objects are
reported and never touched, and what people copied or renamed is foreign. One well-formed token that the ledger never knew stops the scrub
before any deletion: the ledger was probably restored from a backup, and the "orphans" may be the newer state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedFileError, ForeignTokensError
from holdfast.catalog.manifest import attempt_in
from holdfast.catalog.storage import Storage, StoredObject
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken
from holdfast.compaction.orphans import OrphanRule, Past, Verdict, nothing_forgotten
from holdfast.compaction.queries import Queries
from holdfast.compaction.runs import MaintenanceRun

SHOWN = 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPlan:
    """What a scrub found. `directories` are empty and of ended attempts; `unknown` carry tokens that the ledger never knew."""

    orphans: tuple[StoredObject, ...]
    directories: tuple[str, ...]
    foreign: tuple[StoredObject, ...]
    unknown: tuple[StoredObject, ...]
    in_flight: tuple[StoredObject, ...]
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
    objects, directories = list(storage.list("")), list(storage.empty_directories(""))
    rule, version = transactor.look(lambda state: (OrphanRule.over(state, set()), transactor.ledger.version))
    rule.present, rule.past = queries.present_paths(at_least=version), past()
    return plan_scrub(objects, directories, rule, storage)


def plan_scrub(objects: Sequence[StoredObject], directories: Sequence[str], rule: OrphanRule, storage: Storage | None = None) -> ScrubPlan:
    """Judge a listing by a snapshot of the ledger that was read after it; with storage, also by what is in a manifest."""
    found: dict[Verdict, list[StoredObject]] = {verdict: [] for verdict in Verdict}
    for stored in objects:
        verdict = rule.judge(stored.path)
        if verdict is Verdict.ORPHAN and storage is not None:
            verdict = _by_content(stored.path, storage, rule)
        found[verdict].append(stored)
    return ScrubPlan(
        orphans=tuple(found[Verdict.ORPHAN]),
        directories=_directories_to_empty(found, directories, rule),
        foreign=tuple(found[Verdict.FOREIGN]),
        unknown=tuple(found[Verdict.UNKNOWN_TOKEN]),
        in_flight=tuple(found[Verdict.IN_FLIGHT]),
        known_objects=len(found[Verdict.KNOWN]),
    )


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


def _directories_to_empty(found: Mapping[Verdict, Sequence[StoredObject]], empty: Sequence[str], rule: OrphanRule) -> tuple[str, ...]:
    """The directories of ended attempts that hold nothing once the orphans are deleted, deepest first."""
    staying = {d for verdict, objects in found.items() if verdict is not Verdict.ORPHAN for stored in objects for d in _way_up(stored.path)}
    emptied = {d for stored in found[Verdict.ORPHAN] for d in _way_up(stored.path)}
    left = {d for d in emptied.union(empty) - staying if rule.judge(d) is Verdict.ORPHAN}
    left -= {d for other in set(empty) - left for d in _way_up(other)}  # a stranger's empty directory stays, and so does what it is in
    return tuple(sorted(left, key=lambda d: (-d.count("/"), d)))


def _way_up(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def require_known_tokens(plan: ScrubPlan) -> None:
    """Raises ForeignTokensError if storage holds what attempts wrote that the ledger never knew."""
    if plan.unknown:
        shown = ", ".join(stored.path for stored in plan.unknown[:SHOWN])
        msg = (
            f"{len(plan.unknown)} files carry attempt tokens that the ledger never knew (such as {shown}): "
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
    deleted: list[StoredObject] = []
    failed: list[str] = []
    if plan.orphans or plan.directories:
        transactor.settle()
    for done, orphan in enumerate(plan.orphans, 1):
        try:
            storage.delete(orphan.path)
            deleted.append(orphan)
        except OSError as error:
            failed.append(f"{orphan.path}: {error}")
        if progress is not None:
            progress(done, len(plan.orphans))
    failed_files = len(failed)
    for directory in plan.directories:
        try:
            storage.remove_empty_directory(directory)
        except OSError as error:
            failed.append(f"{directory}: {error}")
    size_bytes = sum(stored.size_bytes for stored in deleted)
    figures = {
        "deleted_files": len(deleted),
        "deleted_bytes": size_bytes,
        "failed_files": failed_files,
        "foreign_files": len(plan.foreign),
    }
    transactor.append([run.ended(environment, "incomplete" if failed else "done", figures)])
    return ScrubReport(plan=plan, deleted_files=len(deleted), deleted_bytes=size_bytes, failed=tuple(failed))
