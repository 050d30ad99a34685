"""How a coordinator comes to its job: registered if it is new, and the checkpoint that it begins with."""

import os
import unicodedata
from collections.abc import Callable

from holdfast.catalog import lifecycle, paths
from holdfast.catalog.clock import Environment
from holdfast.catalog.errors import NotFoundError, RefusedError, UsageError
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage_local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import DEFAULT_MAX_PARALLELISM, CheckpointId, JobId, KeepAll, KeepLast

Start = int | str | os.PathLike[str]  # "head", "nothing", a number, or the path of a `chk-<n>` directory


def register_job(transactor: Transactor, environment: Environment, name: str, max_parallelism: int | None, start: Start = "head") -> JobId:
    """The id of the job of this name; a new job gets `max_parallelism` key groups (None: 128), an old one keeps its own.

    Nothing is registered for a call that cannot succeed: a name, once there, never comes back.
    Raises:
        UsageError: the name, `max_parallelism` or `start` cannot be one.
        NotFoundError: a new job cannot start from a checkpoint.
        RefusedError: the job has another max_parallelism than the one asked for.
    """
    _check(name, max_parallelism, start)

    def decide(state: CatalogState) -> lifecycle.Transaction:
        if name in state.names:  # another process registered it while this one was about to
            return lifecycle.Transaction([], {})
        return lifecycle.register(state, fresh_id, name, DEFAULT_MAX_PARALLELISM if max_parallelism is None else max_parallelism)

    if not transactor.look(lambda state: name in state.names):
        if start not in ("head", "nothing"):
            msg = f"there is no job {name!r} that could start from {start!r}: give the name of the job that wrote the checkpoint"
            raise NotFoundError(msg)
        fresh_id = paths.new_job_id(name, environment.new_id())
        transactor.run(decide)
    registered = transactor.look(lambda state: state.job_named(name).registered)
    if max_parallelism is not None and registered.max_parallelism != max_parallelism:
        msg = (
            f"job {name!r} has max_parallelism={registered.max_parallelism} and cannot have {max_parallelism}: "
            "its key groups are fixed; leave the argument out, or register another job"
        )
        raise RefusedError(msg)
    return registered.job_id


def require_retention(retention: object) -> None:
    """Raises UsageError for what is none: it would keep everything without a word."""
    if not isinstance(retention, KeepLast | KeepAll):
        msg = f"retention={retention!r} is no retention: give KeepLast(n) or KeepAll()"
        raise UsageError(msg)


def _check(name: object, max_parallelism: object, start: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not name or name != unicodedata.normalize("NFC", name.strip()):
        msg = f"{name!r} cannot be the name of a job: give printable characters (in Unicode's form NFC), and no space at either end"
        raise UsageError(msg)
    if max_parallelism is not None and (isinstance(max_parallelism, bool) or not isinstance(max_parallelism, int)):
        msg = f"job {name!r} cannot have max_parallelism={max_parallelism!r}: give a number"
        raise UsageError(msg)
    if isinstance(start, bool) or not isinstance(start, int | str | os.PathLike):
        msg = (
            f"job {name!r} cannot start from {start!r}: give 'head', 'nothing', a checkpoint's number or the path of its chk-<n> directory"
        )
        raise UsageError(msg)


def begin_with(start: Start, job_id: JobId, storage: Storage) -> Callable[[CatalogState], Ref | None]:
    """Which checkpoint a start begins with, decided against the state that the start is committed on.

    Raises:
        AddressError: a path that is not a checkpoint's directory.
        NotFoundError: a checkpoint of another catalog or job.
    """
    if start == "head":
        return lambda state: state.job(job_id).begin
    if start == "nothing":
        return lambda _: None
    if isinstance(start, int):
        ref = Ref(job_id, CheckpointId(start))
        return lambda _: ref
    address = paths.parse_checkpoint_directory(start)
    if os.path.realpath(open_storage(address.root).address) != os.path.realpath(storage.address):
        msg = f"{os.fspath(start)} is not in the catalog {storage.address}: a job starts from a checkpoint of its own catalog"
        raise NotFoundError(msg)
    if address.job_id != job_id:
        msg = f"{os.fspath(start)} is a checkpoint of job {address.job_id}, not of {job_id}: give one of this job"
        raise NotFoundError(msg)
    found = Ref(job_id, address.checkpoint_id)
    return lambda _: found
