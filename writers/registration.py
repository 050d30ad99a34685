"""How a coordinator comes to its job: registered if it is new, and the checkpoint that it begins with."""

import os
from collections.abc import Callable

from holdfast.catalog import lifecycle, paths
from holdfast.catalog.clock import Environment
from holdfast.catalog.errors import NotFoundError, RefusedError
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage_local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import DEFAULT_MAX_PARALLELISM, CheckpointId, JobId

Start = int | str | os.PathLike[str]  # "head", "nothing", a number, or the path of a `chk-<n>` directory


def register_job(transactor: Transactor, environment: Environment, name: str, max_parallelism: int | None) -> JobId:
    """The id of the job of this name; a new job gets `max_parallelism` key groups (None: 128), an old one keeps its own.

    Raises:
        RefusedError: the name is none, or the job has another max_parallelism than the one asked for.
    """
    if not name or not name.isprintable():
        msg = f"{name!r} cannot be the name of a job: give a name of printable characters"
        raise RefusedError(msg)

    def decide(state: CatalogState) -> lifecycle.Transaction:
        if name in state.names:  # another process registered it while this one was about to
            return lifecycle.Transaction([], {})
        return lifecycle.register(state, fresh_id, name, DEFAULT_MAX_PARALLELISM if max_parallelism is None else max_parallelism)

    if name not in transactor.fresh().names:
        fresh_id = paths.new_job_id(name, environment.new_id())
        transactor.run(decide)
    registered = transactor.known().job_named(name).registered
    if max_parallelism is not None and registered.max_parallelism != max_parallelism:
        msg = (
            f"job {name!r} has max_parallelism={registered.max_parallelism} and cannot have {max_parallelism}: "
            "its key groups are fixed; leave the argument out, or register another job"
        )
        raise RefusedError(msg)
    return registered.job_id


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
    if open_storage(address.root).address != storage.address:
        msg = f"{os.fspath(start)} is not in the catalog {storage.address}: a job starts from a checkpoint of its own catalog"
        raise NotFoundError(msg)
    if address.job_id != job_id:
        msg = f"{os.fspath(start)} is a checkpoint of job {address.job_id}, not of {job_id}: give one of this job"
        raise NotFoundError(msg)
    found = Ref(job_id, address.checkpoint_id)
    return lambda _: found
