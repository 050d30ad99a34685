"""The lifecycle decisions as a table: facts in, facts or a refusal out, no ledger and no storage.

A small history is built by the decisions themselves: what each says is folded in, and the next is asked.
"""

from dataclasses import replace

import pytest

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.errors import AlreadyExistsError, AttemptEndedError, FencedError, NotFoundError, RefusedError
from holdfast.catalog.references import References
from holdfast.catalog.rules import checkpoints, decision, jobs
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.rules.handles import handle_changes
from holdfast.catalog.rules.retention import retired
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import (
    AttemptToken,
    CheckpointId,
    Chunk,
    FileId,
    JobId,
    KeepAll,
    KeepLast,
    Purpose,
    Retention,
    Role,
    Scope,
    StateInfo,
    Status,
    StoredFile,
    by_identity,
)
from holdfast.compaction.garbage import find_garbage

JOB, OTHER = JobId("flights-00000001"), JobId("trains-00000002")


def token(n: int) -> AttemptToken:
    return AttemptToken(f"{n:016x}")


def chunk(name: str, scope: Scope = Scope.SHARED, offset: int = 0, layer: int = 0) -> Chunk:
    return Chunk(
        operator="main",
        state=name[0],
        file_id=FileId(name),
        scope=scope,
        role=Role.BASE,
        layer=layer,
        offset_bytes=offset,
        length_bytes=10,
        sha256="0" * 64,
    )


class History:
    """One job's ledger in memory. `commit("a", "b")` commits a checkpoint of exactly these files; upper-case ones are EXCLUSIVE."""

    def __init__(self) -> None:
        self.references = References()
        self.tokens = 100
        self.say(jobs.register(self.state, JOB, "flights", 128))
        self.epoch = self.say(jobs.start(self.state, JOB, None))

    @property
    def state(self) -> CatalogState:
        return self.references.state

    @property
    def job(self) -> JobState:
        return self.state.jobs[JOB]

    def say(self, transaction: Decision):
        self.references.apply(transaction.facts)
        self.state.handles_of = "*"
        return transaction.result

    def new_token(self) -> AttemptToken:
        self.tokens += 1
        return token(self.tokens)

    def open(self, parent: int | None = None) -> AttemptToken:
        attempt = self.new_token()
        ref = None if parent is None else Ref(JOB, CheckpointId(parent))
        self.say(checkpoints.open_checkpoint(self.state, JOB, self.epoch, attempt, ref))
        return attempt

    def request(self, attempt: AttemptToken, *names: str, retention: Retention = KeepAll()) -> CommitRequest:
        content = tuple(chunk(name, Scope.EXCLUSIVE if name.isupper() else Scope.SHARED) for name in names)
        number = self.job.attempts[attempt].opened.checkpoint_id if attempt in self.job.attempts else 0
        new = [c for c in content if c.file_id not in self.references.files]
        opened = self.job.attempts.get(attempt)
        of_parent = self.content(opened.parent.checkpoint_id) if opened and opened.parent else set()
        return CommitRequest(
            attempt=attempt,
            content=content,
            states=(StateInfo(operator="main", state="a", format="bytes"),),
            inherited=frozenset([*(c.identity for c in content if c not in new), *((FileId(name), 0) for name in of_parent)]),
            files=tuple(
                StoredFile(file_id=c.file_id, path=f"path/{c.file_id}", size_bytes=10, sha256="0" * 64, scope=c.scope) for c in new
            ),
            acks=(),
            manifest=StoredFile(
                file_id=paths.manifest_file_id(attempt), path=f"chk-{number}", size_bytes=1, sha256="1" * 64, scope=Scope.EXCLUSIVE
            ),
            progress=None,
            retention=retention,
        )

    def commit(self, *names: str, parent: int | None = None, retention: Retention = KeepAll(), attempt: AttemptToken | None = None) -> int:
        attempt = attempt or self.open(parent)
        committed = self.say(checkpoints.commit_checkpoint(self.state, JOB, self.request(attempt, *names, retention=retention)))
        return int(committed.checkpoint_id)

    def content(self, number: int) -> set[str]:
        seq = self.job.checkpoints[CheckpointId(number)].fact.seq
        return {str(handle.file_id) for handle in self.references.content(JOB, seq) if handle.role is not Role.MANIFEST}

    def live(self) -> set[int]:
        return {int(n) for n in self.job.live}

    def garbage(self) -> set[str]:
        return {str(file.file_id) for file in find_garbage(self.references).unreferenced if "metadata" not in file.file_id}

    def rollback(self, number: int | None) -> None:
        ref = None if number is None else Ref(JOB, CheckpointId(number))
        self.epoch = self.say(jobs.start(self.state, JOB, ref))


@pytest.fixture
def history() -> History:
    return History()


def ref(number: int, job: JobId = JOB) -> Ref:
    return Ref(job, CheckpointId(number))


# ---- registering and starting ---------------------------------------------------------------------------------------


def test_registering_carries_the_job_and_its_name_as_keys() -> None:
    transaction = jobs.register(CatalogState(), JOB, "flights", 128)
    assert transaction.keys == {f"holdfast/job/{JOB}": 1, "holdfast/name/flights": 1}


def test_one_name_never_gets_two_jobs(history: History) -> None:
    with pytest.raises(AlreadyExistsError, match=rf"already has a job named 'flights' \({JOB}\): coordinate it, or choose another name"):
        jobs.register(history.state, OTHER, "flights", 128)


@pytest.mark.parametrize("parallelism", [0, -1, 32_769])
def test_a_job_needs_a_possible_max_parallelism(history: History, parallelism: int) -> None:
    with pytest.raises(RefusedError, match=f"'trains' cannot have max_parallelism={parallelism}: give 1 to 32768"):
        jobs.register(history.state, OTHER, "trains", parallelism)


@pytest.mark.parametrize("parallelism", [1, 32_768])
def test_the_limits_of_max_parallelism_are_allowed(history: History, parallelism: int) -> None:
    assert jobs.register(history.state, OTHER, "trains", parallelism).result == OTHER


def test_a_start_ends_the_attempts_of_older_epochs_and_no_others(history: History) -> None:
    history.commit("a")
    ours = history.open(1)
    history.say(checkpoints.open_reading(history.state, ref(1), token(7)))
    history.rollback(1)
    assert history.job.attempts[ours].status is Status.KILLED
    assert history.job.attempts[ours].reason == "epoch 2 started"
    assert history.job.attempts[token(7)].status is Status.OPEN


def test_a_job_that_nobody_registered_has_no_start(history: History) -> None:
    with pytest.raises(NotFoundError, match=f"the ledger has no job {OTHER}"):
        jobs.start(history.state, OTHER, None)


# ---- refusals -------------------------------------------------------------------------------------------------------


def history_with_a_dropped_checkpoint() -> History:
    """1 is dropped, 2 is held by "audit" and "legal", 3 is live, 4 the head."""
    history = History()
    history.commit("a")
    for n, name in ((2, "b"), (3, "c"), (4, "d")):
        history.commit(name, parent=n - 1)
    history.say(checkpoints.drop(history.state, ref(1), "test"))
    for name in ("legal", "audit"):
        history.say(checkpoints.hold(history.state, ref(2), name, None))
    return history


REFUSALS = {
    "starting from a dropped one": (
        lambda h: jobs.start(h.state, JOB, ref(1)),
        RefusedError,
        r"cannot begin with checkpoint 1 of job 'flights': it was dropped; live ones: 2, 3, 4",
    ),
    "starting from none": (
        lambda h: jobs.start(h.state, JOB, ref(9)),
        NotFoundError,
        r"'flights' has no committed checkpoint 9; live ones: 2, 3, 4",
    ),
    "building on a dropped one": (
        lambda h: checkpoints.open_checkpoint(h.state, JOB, 1, token(1), ref(1)),
        RefusedError,
        r"cannot build on checkpoint 1 .* it was dropped; live ones: 2, 3, 4",
    ),
    "building in an old epoch": (
        lambda h: h.rollback(4) or checkpoints.open_checkpoint(h.state, JOB, 1, token(1), ref(4)),
        FencedError,
        r"epoch 1 cannot open a checkpoint of job 'flights': epoch 2 has started since; stop this process",
    ),
    "reading a dropped one": (
        lambda h: checkpoints.open_reading(h.state, ref(1), token(1)),
        RefusedError,
        r"cannot read checkpoint 1 of job 'flights': it was dropped; live ones: 2, 3, 4",
    ),
    "dropping twice": (lambda h: checkpoints.drop(h.state, ref(1), "x"), RefusedError, r"cannot drop checkpoint 1 .* it was dropped"),
    "dropping what is held": (
        lambda h: checkpoints.drop(h.state, ref(2), "x"),
        RefusedError,
        r"checkpoint 2 of job 'flights' is held by audit, legal: unhold it first",
    ),
    "dropping the head": (
        lambda h: checkpoints.drop(h.state, ref(4), "x"),
        RefusedError,
        r"checkpoint 4 is the head of job 'flights', .* it can be dropped after another is committed",
    ),
    "dropping what never was": (lambda h: checkpoints.drop(h.state, ref(9), "x"), NotFoundError, r"no committed checkpoint 9"),
    "dropping in an old epoch": (
        lambda h: h.rollback(4) or checkpoints.drop(h.state, ref(3), "x", epoch=1),
        FencedError,
        r"epoch 1 cannot drop a checkpoint of job 'flights': epoch 2 has started since; stop this process",
    ),
    "holding a dropped one": (lambda h: checkpoints.hold(h.state, ref(1), "x", None), RefusedError, r"cannot hold checkpoint 1 .* dropped"),
    "holding twice by one name": (
        lambda h: checkpoints.hold(h.state, ref(2), "audit", None),
        AlreadyExistsError,
        r"checkpoint 2 of job 'flights' already has a hold named 'audit': choose another name",
    ),
    "ending no hold": (
        lambda h: checkpoints.unhold(h.state, ref(3), "audit"),
        RefusedError,
        r"checkpoint 3 of job 'flights' has no hold named 'audit'; its job's holds: 'audit' on 2, 'legal' on 2",
    ),
    "committing what was never opened": (
        lambda h: h.commit("x", attempt=token(1)),
        RefusedError,
        r"'flights' never opened attempt 0000000000000001",
    ),
    "killing what was never opened": (
        lambda h: checkpoints.end_attempt(h.state, JOB, token(1), Status.KILLED, None),
        RefusedError,
        r"never opened attempt 0000000000000001",
    ),
}


@pytest.mark.parametrize(("ask", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refused(ask, error, message: str) -> None:
    """Each message names the id, what is wrong, and what may be done instead; a retry later in time would say the same."""
    history = history_with_a_dropped_checkpoint()
    with pytest.raises(error, match=message):
        ask(history)


@pytest.mark.parametrize("status", [Status.ABORTED, Status.KILLED, Status.RELEASED])
def test_an_attempt_ends_once(history: History, status: Status) -> None:
    attempt = history.open()
    history.say(checkpoints.end_attempt(history.state, JOB, attempt, status, "a reason"))
    for ask in (
        lambda: history.commit("a", attempt=attempt),
        lambda: checkpoints.end_attempt(history.state, JOB, attempt, Status.KILLED, None),
    ):
        with pytest.raises(
            AttemptEndedError, match=rf"checkpoint 1 of job 'flights': its attempt {attempt} is already {status} \(a reason\)"
        ):
            ask()


def test_a_committed_attempt_can_neither_commit_nor_be_killed(history: History) -> None:
    attempt = history.open()
    history.commit("a", attempt=attempt)
    with pytest.raises(AttemptEndedError, match="already committed; begin another"):
        history.commit("a", attempt=attempt)
    with pytest.raises(AttemptEndedError, match="cannot end checkpoint 1 .* already committed"):
        checkpoints.end_attempt(history.state, JOB, attempt, Status.KILLED, None)


def test_the_commit_of_an_older_epoch_is_fenced(history: History) -> None:
    attempt = history.open()
    history.rollback(None)
    with pytest.raises(FencedError, match=r"cannot commit checkpoint 1 of job 'flights': epoch 2 fenced epoch 1; stop this process"):
        history.commit("a", attempt=attempt)


def test_a_commit_refers_to_its_own_files_and_its_parents_only(history: History) -> None:
    """I2: a file that is merely remembered, of a checkpoint that nothing pins, may be condemned at this moment."""
    history.commit("a")
    attempt = history.open()
    request = replace(history.request(attempt, "a"), inherited=frozenset())
    with pytest.raises(RefusedError, match="refers to file a, neither its own nor of its pinned parent"):
        checkpoints.commit_checkpoint(history.state, JOB, request)


def test_a_commit_must_be_above_every_committed_one(history: History) -> None:
    low, high = history.open(), history.open()
    history.commit("b", attempt=high)
    history.job.open_attempts[low] = history.job.attempts[low]
    history.job.attempts[low].status = Status.OPEN  # as if the commit of the higher one had not aborted it
    with pytest.raises(AttemptEndedError, match="checkpoint 1 of job 'flights' is not above 2"):
        history.commit("a", attempt=low)


# ---- what a commit says ---------------------------------------------------------------------------------------------


def test_a_commit_opens_the_next_attempt_on_itself(history: History) -> None:
    attempt = history.open()
    request = replace(history.request(attempt, "a"), next_attempt=token(5))
    history.say(checkpoints.commit_checkpoint(history.state, JOB, request))
    opened = history.job.open_attempts[token(5)].opened
    assert (opened.checkpoint_id, opened.parent_checkpoint_id, opened.epoch, opened.purpose) == (2, 1, 1, Purpose.CHECKPOINT)


def test_a_commit_aborts_older_checkpoint_attempts_alone(history: History) -> None:
    """It leaves newer ones and readers."""
    history.commit("a")
    low, middle, high = history.open(1), history.open(1), history.open(1)
    history.say(checkpoints.open_reading(history.state, ref(1), token(7)))
    history.commit("b", attempt=middle)
    status = {t: a.status for t, a in history.job.attempts.items()}
    assert (status[low], status[middle], status[high], status[token(7)]) == (Status.ABORTED, Status.COMMITTED, Status.OPEN, Status.OPEN)


def test_an_abort_gives_the_files_that_arrived_rows_without_handles(history: History) -> None:
    attempt = history.open()
    file = StoredFile(file_id=FileId("a"), path="path/a", size_bytes=1, sha256="0" * 64, scope=Scope.SHARED)
    history.say(checkpoints.end_attempt(history.state, JOB, attempt, Status.ABORTED, None, [file]))
    assert history.garbage() == {"a"}


def test_every_lifecycle_transaction_carries_its_job_at_the_next_seq(history: History) -> None:
    history.commit("a")
    seq = history.job.seq + 1
    key = {decision.job_key(JOB): seq}
    for transaction in (
        jobs.start(history.state, JOB, ref(1)),
        checkpoints.open_checkpoint(history.state, JOB, 1, token(1), ref(1)),
        checkpoints.open_reading(history.state, ref(1), token(1)),
        checkpoints.hold(history.state, ref(1), "x", None),
    ):
        assert transaction.keys == key
        assert {fact.seq for fact in transaction.facts} == {seq}  # type: ignore[union-attr]


def test_what_reads_another_job_touches_its_key(history: History) -> None:
    history.commit("a")
    history.say(jobs.register(history.state, OTHER, "trains", 1))
    history.say(jobs.start(history.state, OTHER, None))
    for transaction in (
        jobs.start(history.state, OTHER, ref(1)),
        checkpoints.open_checkpoint(history.state, OTHER, 1, token(1), ref(1)),
    ):
        assert transaction.keys == {decision.job_key(OTHER): 3, decision.job_key(JOB): history.job.seq}


# ---- the commit rule ------------------------------------------------------------------------------------------------


def changes(content: str, open_names: str) -> tuple[set[str], set[str]]:
    """Ended and added, for T and C as words of one-letter files; upper-case ones are EXCLUSIVE."""
    chunks = [chunk(n, Scope.EXCLUSIVE if n.isupper() else Scope.SHARED) for n in content]
    ends, added = handle_changes(JOB, 9, by_identity(chunks), {(FileId(n), 0): 3 for n in open_names})
    assert all((end.from_seq, end.to_seq) == (3, 9) for end in ends)
    assert all(handle.to_seq == (10 if handle.scope is Scope.EXCLUSIVE else None) for handle in added)
    return {str(end.file_id) for end in ends}, {str(handle.file_id) for handle in added}


@pytest.mark.parametrize(
    ("content", "open_names", "ended", "added"),
    [
        ("", "", "", ""),
        ("ab", "", "", "ab"),
        ("ab", "ab", "", ""),
        ("abc", "ab", "", "c"),
        ("ac", "ab", "b", "c"),
        ("", "ab", "ab", ""),
        ("cd", "ab", "ab", "cd"),
        ("aX", "a", "", "X"),
        ("X", "", "", "X"),
    ],
)
def test_a_commit_ends_what_it_lost_and_adds_what_is_new(content: str, open_names: str, ended: str, added: str) -> None:
    assert changes(content, open_names) == (set(ended), set(added))


def test_membership_is_by_chunk_and_not_by_file_or_layer() -> None:
    open_handles = {(FileId("a"), 0): 3, (FileId("a"), 8): 3}
    ends, added = handle_changes(JOB, 9, by_identity([chunk("a", offset=8, layer=5), chunk("a", offset=16)]), open_handles)
    assert [(end.file_id, end.offset_bytes) for end in ends] == [("a", 0)]
    assert [(handle.file_id, handle.offset_bytes) for handle in added] == [("a", 16)]


def test_a_chunk_that_is_named_twice_gets_one_handle() -> None:
    _, added = handle_changes(JOB, 9, by_identity([chunk("a"), chunk("a")]), {})
    assert len(added) == 1


def test_what_changed_is_enough_to_look_at_unless_the_counts_do_not_add_up() -> None:
    content, open_handles = by_identity([chunk("a"), chunk("c")]), {(FileId("a"), 0): 3, (FileId("b"), 0): 3}
    everything = handle_changes(JOB, 9, content, open_handles)
    assert handle_changes(JOB, 9, content, open_handles, [(FileId("b"), 0), (FileId("c"), 0)]) == everything
    assert handle_changes(JOB, 9, content, open_handles, [(FileId("c"), 0)]) == everything, "the change of b was kept from it"


def test_on_the_straight_line_a_commit_costs_the_change(history: History) -> None:
    history.commit("a", "b", "X")
    attempt = history.open(1)
    transaction = checkpoints.commit_checkpoint(history.state, JOB, history.request(attempt, "a", "c", "X"))
    handles = {fact.file_id for fact in transaction.facts if isinstance(fact, f.HandleAdded) and fact.role is not Role.MANIFEST}
    assert handles == {"c", "X"}, "carrying an EXCLUSIVE chunk writes another handle"
    assert {fact.file_id for fact in transaction.facts if isinstance(fact, f.HandleEnded)} == {"b"}
    history.say(transaction)
    assert (history.content(1), history.content(2)) == ({"a", "b", "X"}, {"a", "c", "X"})


def test_after_a_rollback_contents_are_those_of_their_lines(history: History) -> None:
    """Three lines from 1. C is what is open, whichever line opened it: compared with its parent, 3 would swallow "b" of the line of 2."""
    history.commit("a")
    history.commit("a", "b", parent=1)
    history.rollback(1)
    history.commit("a", "c", parent=1)
    history.rollback(2)
    history.commit("a", "b", "d", parent=2)
    history.rollback(1)
    history.commit("a", parent=1)
    assert [history.content(n) for n in range(1, 6)] == [{"a"}, {"a", "b"}, {"a", "c"}, {"a", "b", "d"}, {"a"}]
    assert history.garbage() == set()


def test_overlapping_attempts_have_their_parents_content_and_their_own(history: History) -> None:
    history.commit("a")
    low, high = history.open(1), history.open(1)
    history.commit("a", "b", attempt=low)
    history.commit("c", attempt=high)
    assert [history.content(n) for n in (1, 2, 3)] == [{"a"}, {"a", "b"}, {"c"}]


def test_a_start_from_nothing_ends_open_intervals_with_its_first_commit(history: History) -> None:
    history.commit("a", "b")
    history.rollback(None)
    history.commit("c")
    assert (history.content(1), history.content(2)) == ({"a", "b"}, {"c"})
    assert history.job.open_handles.keys() == {("c", 0)}


# ---- retention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "live"), [(1, {5}), (2, {4, 5}), (3, {3, 4, 5}), (9, {1, 2, 3, 4, 5})])
def test_keep_last_keeps_the_newest_of_the_line(keep: int, live: set[int]) -> None:
    history = History()
    history.commit("a")
    for n in range(2, 6):
        history.commit("a", parent=n - 1, retention=KeepLast(keep))
    assert history.live() == live


def test_keep_all_drops_nothing(history: History) -> None:
    for n in range(1, 5):
        history.commit("a", parent=n - 1 or None, retention=KeepAll())
    assert history.live() == {1, 2, 3, 4}


def test_keep_last_counts_the_ancestry_and_not_ids(history: History) -> None:
    """1 - 2 - 3, then back to 1 and on with 4: of the line 1 - 4 two are kept, and the abandoned 2 and 3, younger than 1, stay for now."""
    history.commit("a")
    history.commit("a", parent=1)
    history.commit("a", parent=2)
    history.rollback(1)
    history.commit("a", parent=1, retention=KeepLast(2))
    assert history.live() == {1, 2, 3, 4}


def test_what_a_rollback_left_goes_when_enough_of_the_line_are_younger(history: History) -> None:
    history.commit("a")
    history.commit("a", parent=1)
    history.commit("a", parent=2)
    history.rollback(1)
    history.commit("a", parent=1, retention=KeepLast(2))
    history.commit("a", parent=4, retention=KeepLast(2))
    assert history.live() == {4, 5}


def test_keep_last_1_after_a_rollback_keeps_the_new_head_only(history: History) -> None:
    history.commit("a")
    history.commit("a", parent=1)
    history.rollback(1)
    history.commit("a", parent=1, retention=KeepLast(1))
    assert history.live() == {3}


def test_dropped_ancestors_do_not_count(history: History) -> None:
    for n in range(1, 5):
        history.commit("a", parent=n - 1 or None)
    history.say(checkpoints.drop(history.state, ref(3), "test"))
    history.commit("a", parent=4, retention=KeepLast(3))
    assert history.live() == {2, 4, 5}


def test_retention_spares_what_is_held_until_the_commit_after_the_hold(history: History) -> None:
    history.commit("a")
    history.say(checkpoints.hold(history.state, ref(1), "audit", "until May"))
    history.commit("a", parent=1, retention=KeepLast(1))
    history.commit("a", parent=2, retention=KeepLast(1))
    assert history.live() == {1, 3}
    history.say(checkpoints.unhold(history.state, ref(1), "audit"))
    history.commit("a", parent=3, retention=KeepLast(1))
    assert history.live() == {4}


def test_a_second_hold_keeps_when_the_first_ends(history: History) -> None:
    history.commit("a")
    history.commit("a", parent=1)
    for name in ("one", "two"):
        history.say(checkpoints.hold(history.state, ref(1), name, None))
    history.say(checkpoints.unhold(history.state, ref(1), "one"))
    with pytest.raises(RefusedError, match="is held by two: unhold it first"):
        checkpoints.drop(history.state, ref(1), "x")


def test_retention_spares_savepoints(history: History) -> None:
    history.commit("a")
    row = history.job.checkpoints[CheckpointId(1)]
    row.fact = replace(row.fact, is_savepoint=True)
    assert retired(history.job, CheckpointId(2), None, 99, KeepLast(1)) == []


def test_a_savepoint_started_from_is_none_of_keep_lasts_checkpoints(history: History) -> None:
    for n in range(4):
        history.commit("a", parent=n or None)
    row = history.job.checkpoints[CheckpointId(2)]
    row.fact = replace(row.fact, is_savepoint=True)
    assert retired(history.job, CheckpointId(5), CheckpointId(4), 99, KeepLast(3)) == [1]
    assert retired(history.job, CheckpointId(5), CheckpointId(4), 99, KeepLast(4)) == []


@pytest.mark.parametrize("count", [0, -1])
def test_keep_last_of_none_is_no_retention(count: int) -> None:
    with pytest.raises(ValueError, match=r"is not a retention policy"):
        KeepLast(count)


# ---- the head and the pins ------------------------------------------------------------------------------------------


def test_the_head_is_what_the_start_began_with_then_the_last_commit(history: History) -> None:
    heads = [history.job.head]
    for act in (
        lambda: history.commit("a"),
        lambda: history.commit("a", parent=1),
        lambda: history.rollback(1),
        lambda: history.commit("a", parent=1),
        lambda: history.rollback(None),
    ):
        act()
        heads.append(history.job.head)
    assert heads == [None, 1, 2, 1, 3, None]


def test_after_a_rollback_the_old_head_may_be_dropped_and_the_new_may_not(history: History) -> None:
    history.commit("a")
    history.commit("a", parent=1)
    history.rollback(1)
    history.say(checkpoints.drop(history.state, ref(2), "test"))
    with pytest.raises(RefusedError, match="checkpoint 1 is the head"):
        checkpoints.drop(history.state, ref(1), "test")


def test_what_an_open_attempt_builds_on_is_no_garbage_until_it_ends(history: History) -> None:
    history.commit("a", "B")
    reading = token(7)
    history.say(checkpoints.open_reading(history.state, ref(1), reading))
    history.commit("c", parent=1, retention=KeepLast(1))
    assert (history.live(), history.garbage()) == ({2}, set())
    history.say(checkpoints.end_attempt(history.state, JOB, reading, Status.RELEASED, None))
    assert history.garbage() == {"a", "B"}


def test_a_file_between_two_kept_checkpoints_is_garbage_once_its_own_go(history: History) -> None:
    """1 has a, 2 has a and b, 3 has c; with 2 dropped b goes, and a stays for 1."""
    history.commit("a")
    history.commit("a", "b", parent=1)
    history.commit("c", parent=2)
    assert history.garbage() == set()
    history.say(checkpoints.drop(history.state, ref(2), "test"))
    assert history.garbage() == {"b"}
    history.say(checkpoints.drop(history.state, ref(1), "test"))
    assert history.garbage() == {"a", "b"}
