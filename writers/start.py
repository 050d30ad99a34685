"""What a coordinator begins with: its head, nothing, a rollback, a savepoint, or a checkpoint of another job or catalog.

A job's own checkpoint, and one that is forked, is a beginning that the job's line refers to. Everything else is a source that is copied
whole, into a first checkpoint that is committed before the coordinator is handed out: then nothing needs the source any more.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from holdfast.catalog import paths
from holdfast.catalog.errors import AddressError, DamagedFileError, NotFoundError, RefusedError, UsageError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.manifest_store import load_manifest
from holdfast.catalog.rules import decision
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import CheckpointId
from holdfast.writers.checkpoint import Checkpoint, open_committed
from holdfast.writers.savepoints.writer import savepoint_at

Start = int | str | os.PathLike[str] | Checkpoint  # "head", "nothing", a number, a checkpoint, or the path of one or of a savepoint
Mode = Literal["fork", "no-claim", "claim"]
Find = Callable[[CatalogState], Ref | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMapping:
    """Which states of a source come, and under which names.

    `states` are those that the program has (None: whatever there is); a state of the source that is not among them is refused, unless
    it is named in `allow_non_restored`. `renamed` says old name -> new name. A state that only the program has starts empty.
    What was renamed or left before may be named again: a program is restarted with the arguments that it was restored with.

    Raises:
        UsageError: one of them is not what it must be.
    """

    states: Collection[str] | None = None
    allow_non_restored: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, given in (("states", self.states), ("allow_non_restored", self.allow_non_restored)):
            if (given is not None or name != "states") and (isinstance(given, str) or not _are_names(given)):
                msg = f"{name}={given!r} is not a collection of names: pass a list of them"
                raise UsageError(msg)
        if not _is_renaming(self.renamed):
            msg = f"renamed={self.renamed!r} does not map names: give {{old name: new name}}"
            raise UsageError(msg)

    def names_in(self, source: Checkpoint, *, copies: bool = True) -> dict[str, str]:
        """Old name -> new name of every state that comes.

        Raises:
            RefusedError: a state would be lost; a state to be renamed is under neither name, or is not copied; two would get one name.
        """
        there = source.states
        for old, new in self.renamed.items():
            if old not in there and new not in there:
                msg = f"{source!r} has no state {old!r} that could be renamed to {new!r}; it has: {', '.join(there) or 'none'}"
                raise RefusedError(msg)
            if old in there and not copies:
                msg = (
                    f"state {old!r} of {source!r} cannot be renamed to {new!r} where the files are shared under their names: start from a "
                    "savepoint of it, or from another job's checkpoint with mode='no-claim'"
                )
                raise RefusedError(msg)
        names = {old: self.renamed.get(old, old) for old in there if old not in self.allow_non_restored}
        lost = [old for old, new in names.items() if self.states is not None and new not in self.states]
        if lost:
            msg = (
                f"{source!r} has state {lost[0]!r}, which the program does not have: rename it (renamed={{{lost[0]!r}: ...}}), "
                f"or give it up by name (allow_non_restored=[{lost[0]!r}])"
            )
            raise RefusedError(msg)
        if len({*names.values()}) < len(names):
            msg = f"{source!r}: two states would get one name: {names}"
            raise RefusedError(msg)
        return names


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoint:
    """`find` says which checkpoint the line continues from, decided against the state that the start is committed on.

    A `source` is copied whole; then `find` only says what is pinned meanwhile.
    """

    find: Find = lambda _: None
    source: Checkpoint | None = None
    mapping: StateMapping = field(default_factory=StateMapping)
    claim: bool = False
    max_parallelism: int | None = None  # what another job or catalog was written with


def resolve_start(
    start: Start, mode: Mode | None, mapping: StateMapping, name: str, storage: Storage, transactor: Transactor
) -> StartPoint:
    """What `coordinate(name, start=..., mode=...)` begins with.

    Raises:
        AddressError: a path that is no checkpoint's and no savepoint's directory.
        NotFoundError: there is no such checkpoint.
        RefusedError: the mode does not fit the start; the message says which does.
    """
    if mode not in (None, "fork", "no-claim", "claim"):
        msg = f"mode={mode!r} is not a mode: pass 'fork', 'no-claim' or 'claim'"
        raise UsageError(msg)
    if isinstance(start, bool) or not isinstance(start, int | str | os.PathLike | Checkpoint):
        msg = f"job {name!r} cannot start from {start!r}: give 'head', 'nothing', a checkpoint, its number or path, or a savepoint's path"
        raise UsageError(msg)
    if isinstance(start, Checkpoint):
        start = start.path
    if isinstance(start, int):
        ref = transactor.look(lambda state: Ref(state.job_named(name).job_id, CheckpointId(start)))
        if transactor.look(lambda state: state.checkpoint(ref)).fact.is_savepoint:
            return _of_this_catalog(ref, mode, mapping, name, storage, transactor)
    if start in ("head", "nothing") or isinstance(start, int):
        if mode is not None:
            msg = f"mode={mode!r} needs a checkpoint of another job: pass it as start, by its path or as catalog.checkpoint(job, n)"
            raise RefusedError(msg)
        return StartPoint(find=_own(start, name), mapping=mapping)
    try:
        address = paths.parse_checkpoint_directory(start)
    except AddressError:
        return _copied(_savepoint(os.fspath(start)), mode, mapping)
    if os.path.realpath(open_storage(address.root).address) != os.path.realpath(storage.address):
        return _copied(open_manifest_at(address), mode, mapping)
    return _of_this_catalog(Ref(address.job_id, address.checkpoint_id), mode, mapping, name, storage, transactor)


def open_manifest_at(address: paths.CheckpointAddress) -> Checkpoint:
    """A checkpoint by its manifest alone, which must be in its own place. Raises DamagedFileError."""
    storage = open_storage(address.root)
    path = paths.manifest_path(address.job_id, address.checkpoint_id)
    manifest = load_manifest(storage, path)
    if manifest.path != path:
        msg = (
            f"{path} in {storage.address} holds the manifest of checkpoint {manifest.checkpoint_id} of job {manifest.job_id}: it was "
            "copied or moved there; read it where it belongs"
        )
        raise DamagedFileError(msg)
    return Checkpoint(manifest, storage)


def _own(start: Start, name: str) -> Find:
    def find(state: CatalogState) -> Ref | None:
        if start == "nothing":
            return None
        job = state.job_named(name)
        return head_to_go_on_from(state, job) if start == "head" else Ref(job.job_id, CheckpointId(int(start)))  # type: ignore[arg-type]

    return find


def head_to_go_on_from(state: CatalogState, job: JobState) -> Ref | None:
    """What the job continues from. Raises RefusedError if that was dropped behind its back: a job never silently begins again."""
    ways = f"coordinate {job.name!r} with start='nothing' to begin again, or start from a live checkpoint or a savepoint"
    if job.begin is None and job.claimed_by is not None:
        msg = (
            f"job {job.name!r} was claimed by job {state.job(job.claimed_by).name!r}, whose retention has dropped its head: "
            f"coordinate that one, or {ways}"
        )
        raise RefusedError(msg)
    if job.begin is not None and not state.checkpoint(job.begin).live:
        msg = (
            f"job {job.name!r} was to continue from checkpoint {job.begin.checkpoint_id} of job {state.job(job.begin.job_id).name!r}, "
            f"which was dropped before this job had committed one of its own: {ways}"
        )
        raise RefusedError(msg)
    return job.begin


def _of_this_catalog(ref: Ref, mode: Mode | None, mapping: StateMapping, name: str, storage: Storage, transactor: Transactor) -> StartPoint:
    owner, row = transactor.look(lambda state: (state.job(ref.job_id), state.checkpoint(ref)))
    transactor.look(lambda state: decision.require_live(state, ref, "begin with"))  # before a job is registered for it
    source = partial(live_source, storage, transactor, ref, row.fact)
    if row.fact.is_savepoint:
        return replace(_copied(source(), mode, mapping), find=lambda _: ref)
    if owner.name == name:
        if mode is not None:
            msg = f"checkpoint {ref.checkpoint_id} is of job {name!r} itself: leave mode={mode!r} out to roll back to it"
            raise RefusedError(msg)
        return StartPoint(find=lambda _: ref, mapping=mapping)
    if mode is None:
        msg = (
            f"checkpoint {ref.checkpoint_id} is of job {owner.name!r}, not of {name!r}: say how to start from it, with mode='fork' (shares "
            "its files), 'no-claim' (copies them) or 'claim' (takes the job over)"
        )
        raise RefusedError(msg)
    if mode == "no-claim":
        return replace(_copied(source(), mode, mapping), find=lambda _: ref)
    mapping.names_in(source(), copies=False)
    return StartPoint(find=lambda _: ref, mapping=mapping, claim=mode == "claim", max_parallelism=owner.registered.max_parallelism)


def live_source(storage: Storage, transactor: Transactor, ref: Ref, fact: CheckpointCommitted) -> Checkpoint:
    """Raises RefusedError, not of damage, where the checkpoint was dropped and cleaned up meanwhile."""
    try:
        return open_committed(storage, fact)
    except DamagedFileError:
        transactor.look(lambda state: decision.require_live(state, ref, "start from"))
        raise


def _copied(source: Checkpoint, mode: Mode | None, mapping: StateMapping) -> StartPoint:
    if mode in ("fork", "claim"):
        msg = f"mode={mode!r} is only for a checkpoint of another job of this catalog; {source!r} is copied: leave the mode out"
        raise RefusedError(msg)
    _require_there(source, mapping.names_in(source))
    return StartPoint(source=source, mapping=mapping, max_parallelism=source.manifest.max_parallelism)


def _require_there(source: Checkpoint, states: Collection[str]) -> None:
    """Raises DamagedFileError, before a job is registered, where a file of these states is missing or has another size (half a copy)."""
    of_states = {chunk.file_id for chunk in source.manifest.chunks if chunk.state in states and chunk.inline is None}
    for file_id in of_states:
        file = source.manifest.files[file_id]
        try:
            found = source.storage.size(file.path)
        except FileNotFoundError:
            found = None
        if found != file.size_bytes:
            what = "is missing" if found is None else f"has {found} bytes, not {file.size_bytes}"
            msg = f"{file.path} of {source!r} {what}: nothing was begun. Copy it again as a whole, or start from another"
            raise DamagedFileError(msg)


def _savepoint(path: str) -> Checkpoint:
    try:
        return savepoint_at(path)
    except NotFoundError as error:
        number = f" (start={path})" if path.isdecimal() else ""
        msg = (
            f"{path!r} is neither the directory of a checkpoint (<catalog>/{paths.JOBS}/<job id>/chk-<n>) nor of a savepoint: give one of "
            f"them, or the number of a checkpoint or savepoint as an int{number}; the view checkpoints has the numbers, by name too"
        )
        raise AddressError(msg) from error


def _is_renaming(given: object) -> bool:
    return isinstance(given, Mapping) and _are_names([*given, *given.values()])


def _are_names(given: object) -> bool:
    return isinstance(given, Collection) and all(isinstance(name, str) for name in given)
