"""A history of the model: what happens next, the operators who interfere, and the end at which everything is cleaned up."""

from holdfast.catalog.errors import HoldfastError
from holdfast.catalog.held_jobs import HeldJobs
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.types import OnEnd, Outcome, Status
from tests.support import model_owners
from tests.support.faults import Crash
from tests.support.model_actors import Coordinator, Reader, Savepoint
from tests.support.model_owners import Owner
from tests.support.model_upkeep import Folder, Scrub, Upkeep, Vacuum
from tests.support.model_world import JOBS, World
from tests.support.world import drop_or_dispose


def remembered(w: World) -> CatalogState:
    """What an operator sees: the newest state, or an old one."""
    return (w.operator.fresh() if w.random.random() < 0.6 else w.operator.known()).whole()


def kill(w: World) -> None:
    """A wrong guess as often as a right one."""
    state = remembered(w)
    tokens = [(job_id, token) for job_id, job in state.jobs.items() for token in job.open_attempts if token not in job.owners]
    if tokens:
        job, token = w.random.choice(tokens)
        w.story.append(f"kill {token}")
        w.killed.add(token)
        w.operator.run(lambda state: checkpoints.end_attempt(state, job, token, Status.KILLED, "operator"))


def drop(w: World) -> None:
    live = [Ref(job_id, n) for job_id, job in remembered(w).jobs.items() for n in job.live]
    if live:
        ref = w.random.choice(live)
        w.operator.run(lambda state: drop_or_dispose(state, ref, "operator"))
        w.story.append(f"drop {ref.checkpoint_id} of {ref.job_id[0]}")


def hold(w: World) -> None:
    state = remembered(w)
    held = [(Ref(job_id, n), name) for job_id, job in state.jobs.items() for n, name in sorted(job.holds)]
    if held and w.random.random() < 0.6:
        ref, name = w.random.choice(held)
        w.operator.run(lambda state: checkpoints.unhold(state, ref, name))
    elif live := [Ref(job_id, n) for job_id, job in state.jobs.items() for n in job.live]:
        ref = w.random.choice(live)
        w.operator.run(lambda state: checkpoints.hold(state, ref, "keep", None))
        w.story.append(f"hold {ref.checkpoint_id} of {ref.job_id[0]}")


def release(w: World) -> None:
    """An operator takes a task for gone for good."""
    owners = [(job, owner) for job in remembered(w).jobs.values() for owner in job.owners.values()]
    if owners:
        job, owner = w.random.choice(owners)
        model_owners.release_owner(w, w.operator, job.job_id, owner.opened.name, owner.opened.attempt)


def end_job(w: World) -> None:
    """The program is done, for an operator: perhaps its checkpoints go."""
    job = w.random.choice(JOBS)
    epoch, policy = remembered(w).job(job).epoch, OnEnd(drop=w.random.choice(({"finished"}, frozenset())))
    w.operator.run(lambda state: jobs.end_job(state, job, epoch, Outcome.FINISHED, None, policy))
    w.story.append(f"{job[0]} has ended{', and its checkpoints go' if policy.drop else ''}")


def forget(w: World) -> None:
    """A process forgets what a fold would leave out."""
    actors = [actor for actor in w.actors if hasattr(actor, "transactor")]
    memory = w.random.choice([w.operator, w.maintainer, *(actor.transactor for actor in actors)])
    held = memory.known()
    assert isinstance(held, HeldJobs)
    held.prune()
    w.story.append("a process forgets")


def operate(w: World) -> None:
    """An operator does something, from a memory that may be old, and may be refused."""
    try:
        w.random.choice((kill, kill, kill, drop, drop, drop, drop, hold, hold, hold, release, release, end_job))(w)
    except HoldfastError:
        pass
    except Crash:
        w.operator = w.transactor()


STARTS = (
    *(lambda w: Coordinator(w, w.random.choice((JOBS[0], JOBS[0], JOBS[1]))),) * 5,
    *(Vacuum,) * 3,
    *(Scrub,) * 2,
    *(Reader,) * 2,
    *(Savepoint,) * 2,
    *(Owner,) * 2,
)


def step(w: World) -> None:
    """One thing happens."""
    roll = w.random.random()
    if w.stormy and w.unsynced and roll < 0.3:
        w.actors.append(Vacuum(w))
        w.run(w.actors[-1])
        return
    if w.folds and w.unsynced and roll < 0.04:
        folder = Folder(w)  # of what a power loss may take back
        w.actors.append(folder)
        while folder in w.actors and len(folder.todo) > 2:
            w.run(folder)
        return
    if roll < 0.09 or not w.actors:
        w.actors.append(w.random.choice((*STARTS, *(Folder,) * 3, *(Upkeep,) * 4) if w.folds else STARTS)(w))
    elif roll < 0.16:
        operate(w)
    elif roll < 0.21:
        w.deliver()
    elif w.folds and roll < 0.23:
        forget(w)
    elif w.power_fails():
        w.lose_power()
    else:
        w.run(w.random.choice(w.actors[-6:]))
        return
    w.check_files()


def quiesce(w: World) -> None:
    """Everything ends, everything late lands, cleanup runs: storage is exactly what the kept checkpoints need."""
    w.calm = True
    w.actors.clear()
    while w.in_flight:
        w.deliver()
    w.check_files()
    w.operator = w.transactor()
    model_owners.end(w, w.operator.fresh().whole())
    for token, opened in list(w.record.open.items()):
        w.operator.run(lambda state, o=opened, t=token: checkpoints.end_attempt(state, o.job_id, t, Status.KILLED, "the end"))
    for process in (Vacuum(w), Scrub(w)):
        while process.step():
            pass
    w.check_end()
