"""How a coordinator comes to its job, which is registered if it is new. Nothing is registered for a call that cannot succeed."""

import unicodedata

from holdfast.catalog import lifecycle, paths
from holdfast.catalog.clock import Environment
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.state import CatalogState
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import DEFAULT_MAX_PARALLELISM, JobId, KeepAll, KeepLast


def register_job(
    transactor: Transactor, environment: Environment, name: str, max_parallelism: int | None, *, must_exist: bool = False
) -> JobId:
    """The id of the job of this name; a new job gets `max_parallelism` key groups (None: 128), an old one keeps its own.

    Raises:
        UsageError: the name or `max_parallelism` cannot be one.
        NotFoundError: there is no job of this name, and it must exist.
        RefusedError: the job has another max_parallelism than the one asked for.
    """
    _check(name, max_parallelism)

    def decide(state: CatalogState) -> lifecycle.Transaction:
        if name in state.names:  # another process registered it while this one was about to
            return lifecycle.Transaction([], {})
        return lifecycle.register(state, fresh_id, name, DEFAULT_MAX_PARALLELISM if max_parallelism is None else max_parallelism)

    if not transactor.look(lambda state: name in state.names):
        if must_exist:
            transactor.look(lambda state: state.job_named(name))
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


def _check(name: object, max_parallelism: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not name or name != unicodedata.normalize("NFC", name.strip()):
        msg = f"{name!r} cannot be the name of a job: give printable characters (in Unicode's form NFC), and no space at either end"
        raise UsageError(msg)
    if max_parallelism is not None and (isinstance(max_parallelism, bool) or not isinstance(max_parallelism, int)):
        msg = f"job {name!r} cannot have max_parallelism={max_parallelism!r}: give a number"
        raise UsageError(msg)
