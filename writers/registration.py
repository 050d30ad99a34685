"""How a coordinator comes to its job, which is registered if it is new. Nothing is registered for a call that cannot succeed."""

import unicodedata

from holdfast.catalog import paths
from holdfast.catalog.arguments import is_whole
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.key_groups import default_max_parallelism
from holdfast.catalog.rules import decision, jobs
from holdfast.catalog.state import CatalogState
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import ChainLimit, JobId, KeepAll, KeepLast, OnEnd
from holdfast.writers.spark.session import session_parallelism


def register_job(
    transactor: Transactor,
    environment: Environment,
    name: str,
    max_parallelism: int | None,
    *,
    of_source: int | None = None,
    must_exist: bool = False,
) -> JobId:
    """The id of the job of this name; a new job gets `max_parallelism` key groups, an old one keeps its own.

    None: as many as what it starts from has (`of_source`), else by Flink's rule for the parallelism of the active Spark session.
    Raises:
        UsageError: the name or `max_parallelism` cannot be one.
        NotFoundError: there is no job of this name, and it must exist.
        RefusedError: the job, or what it starts from, has another max_parallelism than the one asked for.
    """
    _check(name, max_parallelism)
    if of_source is not None and max_parallelism not in (None, of_source):
        msg = (
            f"what job {name!r} starts from has max_parallelism={of_source}, not {max_parallelism}: leave the argument out, or rewrite a "
            f"savepoint of it with holdfast.rekey(savepoint, max_parallelism={max_parallelism})"
        )
        raise RefusedError(msg)

    def decide(state: CatalogState) -> decision.Decision:
        if state.find_named(name) is not None:  # another process registered it while this one was about to
            return decision.Decision([], {})
        return jobs.register(state, fresh_id, name, groups)

    wanted = of_source if max_parallelism is None else max_parallelism
    groups = default_max_parallelism(session_parallelism()) if wanted is None else wanted
    if transactor.look(lambda state: state.find_named(name)) is None:
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


def require_policies(retention: object, on_end: object, chain: object) -> None:
    """Raises UsageError for a wrong policy, which would silently keep or drop other checkpoints than was meant."""
    if not isinstance(retention, KeepLast | KeepAll):
        msg = f"retention={retention!r} is not a retention policy: pass KeepLast(n) or KeepAll()"
        raise UsageError(msg)
    if not isinstance(on_end, OnEnd):
        msg = f"on_end={on_end!r} is not a policy for the end of a job: pass OnEnd(drop={{Outcome.FINISHED}}), for example"
        raise UsageError(msg)
    if not isinstance(chain, ChainLimit):
        msg = f"chain={chain!r} is not a limit of chains: pass ChainLimit(change_sets=..., share_of_base=...)"
        raise UsageError(msg)


def _check(name: object, max_parallelism: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not name or name != unicodedata.normalize("NFC", name.strip()):
        msg = f"{name!r} cannot be the name of a job: give printable characters (in Unicode's form NFC), and no space at either end"
        raise UsageError(msg)
    if max_parallelism is not None and not is_whole(max_parallelism):
        msg = f"job {name!r} cannot have max_parallelism={max_parallelism!r}: give a number"
        raise UsageError(msg)
