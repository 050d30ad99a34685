"""What a process holds: the same as if it had folded every fact, and nothing of jobs that it does not work for."""

import gc
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import holdfast
from holdfast.catalog.errors import HoldfastError, NotFoundError
from holdfast.catalog.facts import KINDS, Dropped
from holdfast.catalog.held_jobs import KEPT_JOBS
from holdfast.catalog.ledger import Ledger, LedgerConflictError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.rules import checkpoints, jobs, owners, savepoints
from holdfast.catalog.rules.decision import Decision, job_key
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import CatalogState, CheckpointRow, JobState, Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, KeepAll, KeepLast, OnEnd, Outcome, Scope, Status
from tests.support import model_steps
from tests.support.faults import Faults
from tests.support.faulty_ledger import FaultyLedger
from tests.support.model_world import JOBS
from tests.support.model_world import World as ModelWorld
from tests.support.two_jobs import Decide, Jobs, ref, request_of
from tests.support.world import World

J, K, L = JobId("jets-00000001"), JobId("kites-00000002"), JobId("larks-00000003")
KINDS_OF_FACTS = tuple(KINDS.values())


# ---- the same as all facts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_held_job_is_what_folding_every_fact_gives(seed: int) -> None:
    """Along random histories of the model, of processes that began at any time, and have replayed what came since."""
    model, every = ModelWorld(seed, folds=False), CatalogState(handles_of="*")
    processes = [Transactor(MemoryLedger(model.log), model.environment, works_for=job) for job in (*JOBS, None)]
    for step in range(60):
        model_steps.step(model)
        every = CatalogState(handles_of="*")
        every.apply(fact for commit in model.log.commits for fact in commit.facts)
        if step == 30:
            processes += [Transactor(MemoryLedger(model.log), model.environment, works_for=job) for job in (*JOBS, None)]
        if model.log.version < processes[0].ledger.version:  # a loss of power; these are of processes that died in it
            return
        for process in processes:
            _require_same(process, every)


def _require_same(process: Transactor, every: CatalogState) -> None:
    for job_id, job in every.jobs.items():
        held = process.look(lambda state, j=job_id: state.job(j))  # type: ignore[misc]
        handles = job.open_handles if job_id == process._works_for else {}
        for name in job.__dataclass_fields__:
            assert getattr(held, name) == (handles if name == "open_handles" else getattr(job, name)), name
        claimed = process.look(lambda state, j=job_id: [other.job_id for other in state.claimed_by(j)])  # type: ignore[misc]
        assert claimed == [other.job_id for other in every.jobs.values() if other.claimed_by == job_id]
    whole = process.look(lambda state: state.whole())
    assert (whole.jobs.keys(), whole.names, whole.pinned()) == (every.jobs.keys(), every.names, every.pinned())
    assert process.look(lambda state: state.pinned()) == every.pinned()


def test_a_claim_is_known_however_the_claimer_starts_after_it() -> None:
    """From nothing, from another job, and after the claimed job's own start: the claim lasts until the claimed job is its own again."""
    scene = Jobs()
    scene.job(J, 2), scene.job(L, 1), scene.job(K)
    seen = []
    for begin, claim in ((ref(J, 2), True), (None, False), (ref(L, 1), False), (ref(L, 1), True), (None, False)):
        scene.start(K, begin, claim=claim)
        seen.append([job.job_id for job in scene.held(K).claimed_by(K)])
    scene.start(J, ref(J, 2))
    assert seen == [[J], [J], [J], [J, L], [J, L]]
    assert [job.job_id for job in scene.held(K).claimed_by(K)] == [L]
    assert scene.held(J).claimed_by(J) == []


def test_a_name_is_found_without_its_job_being_held() -> None:
    scene = Jobs()
    scene.job(J), scene.job(K)
    held = scene.held(K)
    assert held.job_named("jets").job_id == J
    assert held.find_named("larks") is None
    with pytest.raises(NotFoundError, match="it has: jets, kites"):
        held.job_named("larks")
    held.forget()
    assert not held.jobs
    assert not held.names


# ---- what is held -----------------------------------------------------------------------------------------------------


def test_a_process_of_a_job_holds_that_and_what_it_has_claimed() -> None:
    scene = Jobs()
    scene.job(J, 2), scene.job(L, 2), scene.job(K)
    process = Transactor(MemoryLedger(scene.log), scene.environment, works_for=K)
    process.run(lambda state: jobs.start(state, K, ref(J, 2), claim=True))
    assert {*process.known().jobs} == {J, K}
    process.look(lambda state: [*state.ancestry(ref(L, 2))])
    assert {*process.known().jobs} == {J, K}
    scene.start(J, ref(J, 2))
    process.look(lambda state: None)
    assert {*process.known().jobs} == {K}


def test_a_process_of_no_job_holds_the_last_few_that_it_was_asked_for() -> None:
    scene, asked = Jobs(), [JobId(f"job-{n:08x}") for n in range(KEPT_JOBS + 4)]
    for job in asked:
        scene.say(lambda state, j=job: jobs.register(state, j, str(j), 8))  # type: ignore[misc]
    process = Transactor(MemoryLedger(scene.log), scene.environment)
    for job in (*asked, asked[4], asked[0]):
        process.look(lambda state, j=job: state.job(j))  # type: ignore[misc]
    assert {*process.known().jobs} == {asked[0], asked[4], *asked[6:]}


# ---- decisions that read another job ------------------------------------------------------------------------------------


def _claimed(scene: Jobs) -> int:
    """K has claimed J and has two checkpoints of its own; its epoch."""
    scene.job(J, 3), scene.job(L, 1), scene.job(K)
    epoch = scene.start(K, ref(J, 3), claim=True)
    scene.commit(K, ref(J, 3)), scene.commit(K, ref(K, 1))
    return epoch


def _forked(scene: Jobs) -> int:
    """K's first attempt is open on J's last checkpoint; its epoch."""
    scene.job(J, 3), scene.job(L, 1), scene.job(K)
    return scene.start(K, ref(J, 3))


def _own(scene: Jobs) -> int:
    scene.job(J, 3), scene.job(L, 1), scene.job(K, 3)
    return scene.whole().job(K).epoch


def _committing(parent: Any, retention: Any = KeepAll()) -> Callable[[Jobs, int], Decide]:
    def made(scene: Jobs, epoch: int) -> Decide:
        request = request_of(scene.open(K, parent), retention, next_attempt=scene.token())
        return lambda state: checkpoints.commit_checkpoint(state, K, request)

    return made


def _again_on_a_fork(scene: Jobs, epoch: int) -> Decide:
    opened, again = scene.open(K, ref(J, 3)), scene.token()
    return lambda state: checkpoints.end_attempt(state, K, opened.attempt, Status.ABORTED, None, (), again)


def _savepoint(scene: Jobs, epoch: int, *, outside: bool = False) -> tuple[AttemptToken, Decide]:
    token = scene.token()
    opened = scene.say(lambda state: savepoints.open_savepoint(state, ref(K, 3), token, "s"))
    request = request_of(opened, scope=Scope.EXCLUSIVE)
    return token, lambda state: savepoints.commit_savepoint(state, ref(K, 3), request, is_outside=outside)


def _disposing(*, outside: bool) -> Callable[[Jobs, int], Decide]:
    def made(scene: Jobs, epoch: int) -> Decide:
        number = scene.say(_savepoint(scene, epoch, outside=outside)[1]).checkpoint_id
        return lambda state: savepoints.dispose(state, ref(K, number), deletes_now=outside)

    return made


def _unholding(scene: Jobs, epoch: int) -> Decide:
    scene.say(lambda state: checkpoints.hold(state, ref(K, 1), "h", None))
    return lambda state: checkpoints.unhold(state, ref(K, 1), "h")


def _owned(then: Callable[[CatalogState], Decision]) -> Callable[[Jobs, int], Decide]:
    def made(scene: Jobs, epoch: int) -> Decide:
        token = scene.token()
        scene.say(lambda state: owners.open_owner(state, K, "wal", token))
        return then

    return made


T = AttemptToken(f"{77:016x}")
DROPS = OnEnd(drop=frozenset({Outcome.FINISHED}))
# What K decides, by the rule that decides it: the state of things before, and the decision.
DECISIONS: dict[str, tuple[Callable[..., Decision], Callable[[Jobs], int], Callable[[Jobs, int], Decide]]] = {
    "register": (jobs.register, _own, lambda s, e: lambda state: jobs.register(state, JobId("m-00000004"), "m", 8)),
    "start own": (jobs.start, _own, lambda s, e: lambda state: jobs.start(state, K, ref(K, 3))),
    "start forking": (jobs.start, _own, lambda s, e: lambda state: jobs.start(state, K, ref(J, 2), first=T)),
    "start claiming": (jobs.start, _own, lambda s, e: lambda state: jobs.start(state, K, ref(J, 2), claim=True, first=T)),
    "start copying": (jobs.start, _own, lambda s, e: lambda state: jobs.start(state, K, ref(K, 3), first=T, source=ref(J, 2))),
    "start of a claimer": (jobs.start, _claimed, lambda s, e: lambda state: jobs.start(state, K, ref(K, 2))),
    "start of a claimer from nothing": (jobs.start, _claimed, lambda s, e: lambda state: jobs.start(state, K, None)),
    "start of a claimer elsewhere": (jobs.start, _claimed, lambda s, e: lambda state: jobs.start(state, K, ref(L, 1), claim=True)),
    "end": (jobs.end_job, _own, lambda s, e: lambda state: jobs.end_job(state, K, e, Outcome.FINISHED, None, OnEnd())),
    "end of a claimer": (jobs.end_job, _claimed, lambda s, e: lambda state: jobs.end_job(state, K, e, Outcome.FINISHED, None, OnEnd())),
    "end and drop": (jobs.end_job, _claimed, lambda s, e: lambda state: jobs.end_job(state, K, e, Outcome.FINISHED, None, DROPS)),
    "open": (checkpoints.open_checkpoint, _own, lambda s, e: lambda state: checkpoints.open_checkpoint(state, K, e, T, ref(K, 3))),
    "open a fork": (
        checkpoints.open_checkpoint,
        _forked,
        lambda s, e: lambda state: checkpoints.open_checkpoint(state, K, e, T, ref(J, 3)),
    ),
    "read": (checkpoints.open_reading, _own, lambda s, e: lambda state: checkpoints.open_reading(state, ref(K, 3), T)),
    "commit": (checkpoints.commit_checkpoint, _own, _committing(ref(K, 3), KeepLast(1))),
    "commit a fork": (checkpoints.commit_checkpoint, _forked, _committing(ref(J, 3), KeepLast(1))),
    "commit of a claimer that drops all": (checkpoints.commit_checkpoint, _claimed, _committing(ref(K, 2), KeepLast(1))),
    "commit of a claimer that drops some": (checkpoints.commit_checkpoint, _claimed, _committing(ref(K, 2), KeepLast(4))),
    "commit of a claimer that drops none": (checkpoints.commit_checkpoint, _claimed, _committing(ref(K, 2), KeepLast(9))),
    "commit of a claimer that keeps all": (checkpoints.commit_checkpoint, _claimed, _committing(ref(K, 2))),
    "abort of a fork": (checkpoints.end_attempt, _forked, _again_on_a_fork),
    "drop": (checkpoints.drop, _own, lambda s, e: lambda state: checkpoints.drop(state, ref(K, 1), "r", e)),
    "hold": (checkpoints.hold, _own, lambda s, e: lambda state: checkpoints.hold(state, ref(K, 1), "h", None)),
    "unhold": (checkpoints.unhold, _own, _unholding),
    "savepoint": (savepoints.open_savepoint, _own, lambda s, e: lambda state: savepoints.open_savepoint(state, ref(K, 3), T, "s")),
    "commit a savepoint": (savepoints.commit_savepoint, _own, lambda s, e: _savepoint(s, e)[1]),
    "dispose": (savepoints.dispose, _own, _disposing(outside=False)),
    "dispose outside": (savepoints.dispose, _own, _disposing(outside=True)),
    "own": (owners.open_owner, _own, lambda s, e: lambda state: owners.open_owner(state, K, "wal", T)),
    "release": (owners.release_owner, _own, _owned(lambda state: owners.release_owner(state, K, "wal"))),
    "release files": (owners.release_files, _own, _owned(lambda state: owners.release_files(state, K, "wal", []))),
}

# What others do meanwhile; where it is refused, it has not happened.
RIVALS: dict[str, Callable[[Jobs], Any]] = {
    "J drops 2": lambda s: s.say(lambda state: checkpoints.drop(state, ref(J, 2), "rival")),
    "J drops 3": lambda s: s.say(lambda state: checkpoints.drop(state, ref(J, 3), "rival")),
    "J starts": lambda s: s.start(J, ref(J, 3)),
    "J starts from nothing": lambda s: s.start(J, None),
    "J commits and drops": lambda s: s.commit(J, ref(J, 3), KeepLast(1)),
    "J is ended and dropped": lambda s: s.say(
        lambda state: jobs.end_job(state, J, state.job(J).epoch, Outcome.FINISHED, None, DROPS)
    ),
    "J holds 1": lambda s: s.say(lambda state: checkpoints.hold(state, ref(J, 1), "rival", None)),
    "J holds 2": lambda s: s.say(lambda state: checkpoints.hold(state, ref(J, 2), "rival", None)),
    "J is read": lambda s: s.say(lambda state: checkpoints.open_reading(state, ref(J, 2), s.token())),
    "L claims J": lambda s: s.start(L, ref(J, 3), claim=True),
    "L claims K": lambda s: s.start(L, ref(K, 2), claim=True),
    "L forks J": lambda s: s.start(L, ref(J, 3)),
    "L reads K's savepoint": lambda s: s.say(
        lambda state: jobs.start(state, L, ref(L, 1), first=s.token(), source=ref(K, 4))
    ),
    "another takes the name": lambda s: s.say(lambda state: jobs.register(state, JobId("m-00000009"), "m", 8)),
    "L starts": lambda s: s.start(L, ref(L, 1)),
    "L drops 1": lambda s: (s.commit(L, ref(L, 1)), s.say(lambda state: checkpoints.drop(state, ref(L, 1), "rival"))),
}  # fmt: skip


def _rules(module: ModuleType) -> set[Callable[..., Decision]]:
    """The public functions of a module that decide from the state."""
    functions = [each for name, each in inspect.getmembers(module, inspect.isfunction) if not name.startswith("_")]
    own = [each for each in functions if each.__module__ == module.__name__]
    return {each for each in own if inspect.signature(each).return_annotation is Decision}


def test_the_matrix_has_every_rule() -> None:
    rules = _rules(jobs) | _rules(checkpoints) | _rules(savepoints) | _rules(owners)
    assert rules == {rule for rule, _, _ in DECISIONS.values()}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("decision", DECISIONS)
def test_what_others_do_meanwhile_conflicts_or_changes_nothing(decision: str, rival: str) -> None:
    """A decision that has read another job carries its key, or does not need it: had it been made after the rival, it were the same."""
    _, before, made = DECISIONS[decision]
    scene = Jobs()
    decide = made(scene, before(scene))
    process = MemoryLedger(scene.log)
    decided = decide(scene.held(K))
    try:
        RIVALS[rival](scene)
    except HoldfastError:
        return
    try:
        afterwards: Decision | None = decide(scene.held(K))
    except HoldfastError:
        afterwards = None
    try:
        operation = Operation(operation_id="op", at=scene.environment.now(), by="tester")
        process.append(decided.facts, keys=decided.keys, operation=operation)
    except LedgerConflictError:
        return
    assert afterwards is not None
    assert [*afterwards.facts] == [*decided.facts]


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_over_held_jobs_is_that_over_all_facts(decision: str) -> None:
    _, before, made = DECISIONS[decision]
    scene = Jobs()
    decide = made(scene, before(scene))
    held, whole = decide(scene.held(K)), decide(scene.whole())
    assert ([*held.facts], held.keys, held.result) == ([*whole.facts], whole.keys, whole.result)


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_commit_names_each_job_that_it_says_something_of(decision: str) -> None:
    """By its keys: a process of that job reads no other commits."""
    _, before, made = DECISIONS[decision]
    scene = Jobs()
    decided = made(scene, before(scene))(scene.held(K))
    assert {job_key(fact.job_id) for fact in decided.facts} <= decided.keys.keys()


def test_a_commit_of_a_claimer_walks_no_further_than_it_keeps() -> None:
    """However long its line is, and though the claimed job still has checkpoints that it may drop."""
    scene, walked = Jobs(), Counter[int]()

    class Counted(dict[CheckpointId, CheckpointRow]):
        def __getitem__(self, number: CheckpointId) -> CheckpointRow:
            walked[number] += 1
            return super().__getitem__(number)

    _claimed(scene)
    for number in range(2, 40):
        scene.commit(K, ref(K, number))
    request = request_of(scene.open(K, ref(K, 40)), KeepLast(3))
    state = scene.whole()
    state.job(K).checkpoints = Counted(state.job(K).checkpoints)
    decided = checkpoints.commit_checkpoint(state, K, request)
    assert {fact.checkpoint_id for fact in decided.facts if isinstance(fact, Dropped) and fact.job_id == J} == {1, 2, 3}
    assert {*walked} == {40, 39}


# ---- beside a thousand other jobs ----------------------------------------------------------------------------------------


def _crowd(ledger: Ledger, commits: int) -> None:
    """As many jobs, each with a checkpoint, in one commit each."""
    pattern = Jobs()
    pattern.job(J, 1)
    facts = [fact for commit in pattern.log.commits for fact in commit.facts]
    for n in range(commits):
        job = JobId(f"crowd-{n}-{n:08x}")
        own = [replace(fact, job_id=job, **({"job": f"crowd {n}"} if fact.kind == "job" else {})) for fact in facts]  # type: ignore[type-var]
        operation = Operation(operation_id=f"crowd-{n}", at=pattern.environment.now(), by="tester")
        ledger.append(own, keys={job_key(job): 1}, operation=operation)
        ledger.refresh()


def _of_others(root: object, own: str) -> Counter[str]:
    """By type: what can be reached from an object and says that it is of another job. The log in memory is everybody's, and left out."""
    found, seen, todo = Counter[str](), set[int](), [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType | MemoryLog):
            continue
        seen.add(id(thing))
        job_id = getattr(thing, "job_id", own)
        if isinstance(thing, (JobState, Ref, *KINDS_OF_FACTS)) and job_id != own:
            found[type(thing).__name__] += 1
        todo += gc.get_referents(thing)
    return found


def test_beside_a_thousand_jobs_a_coordinator_has_no_object_of_another() -> None:
    """Though it has looked for its name, been told of all their commits, and read one of them."""
    scene = Jobs()
    scene.job(K, 1)
    process = Transactor(MemoryLedger(scene.log), scene.environment, works_for=K)
    process.look(lambda state: state.job_named("kites"))
    _crowd(MemoryLedger(scene.log), 1000)
    process.look(lambda state: [*state.ancestry(ref(JobId("crowd-7-00000007"), 1))])
    process.run(lambda state: jobs.start(state, K, ref(K, 1)))
    assert not _of_others(process, K)
    assert _of_others(scene.whole(), K)["JobState"] == 1000  # what would be found


def test_the_commits_of_other_jobs_are_passed_over_unread() -> None:
    """1,000 of them: their entries in the log say whose they are."""
    scene, faults = Jobs(), Faults()
    scene.job(K, 1)
    process = Transactor(FaultyLedger(MemoryLedger(scene.log), faults), scene.environment, works_for=K)
    process.look(lambda state: state.job(K))
    _crowd(MemoryLedger(scene.log), 1000)
    faults.log.clear()
    process.run(lambda state: jobs.start(state, K, ref(K, 1)))
    assert scene.log.version > 1000
    assert {verb for verb, _ in faults.log} == {"append", "refresh", "make_durable"}


@pytest.mark.parametrize("mode", ["fork", "claim", "no-claim"])
def test_a_start_from_another_job_reads_it_once(mode: Any) -> None:
    process = World().process()
    process.checkpoint(process.coordinate(), {"a": b"1"})
    flights = process.ref(1).job_id
    process.arm()
    other = process.coordinate_from(1, "other", mode)
    assert process.faults.log.count(("scan", flights)) == 1
    assert {*other._transactor.known().jobs} == ({flights, other.job_id} if mode == "claim" else {other.job_id})


@pytest.mark.slow
def test_a_coordinator_needs_no_data_file_of_other_jobs(tmp_path: Path) -> None:
    """While it is idle, others commit 1,000 times. Whoever read one of their files would find it damaged: it commits, reads, starts again."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate("kites") as job:
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", b"1")
            _crowd(DeltaLedger.open(tmp_path / "catalog" / "ledger"), 1000)
            for file in (tmp_path / "catalog" / "ledger").glob("*-crowd-*.parquet"):
                file.write_bytes(bytes(file.stat().st_size))
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", b"2")
            latest = job.latest()
            assert latest is not None
            assert latest.read_bytes("offsets") == b"2"
            assert not _of_others(job, job.job_id)
    with holdfast.open(tmp_path / "catalog") as catalog, catalog.coordinate("kites") as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"3")
