"""Owners of files as a table: what opens, refers to, releases and ends them, and what of theirs is garbage when."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.errors import AlreadyExistsError, NotFoundError, RefusedError
from holdfast.catalog.rules import checkpoints, jobs, owned_files, owners
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import Ref
from holdfast.catalog.types import (
    AttemptToken,
    CheckpointId,
    Chunk,
    JobId,
    KeepAll,
    KeepLast,
    OnEnd,
    Outcome,
    OwnedFile,
    Purpose,
    Retention,
    Role,
    Scope,
    Status,
)
from holdfast.compaction.orphans import OrphanRule, Verdict
from tests.catalog.test_checkpoint_rules import JOB, History, ref

SHA = "0" * 64


class Owners(History):
    """The history of one job with owners. `own("wal")` opens one; files are numbered."""

    def own(self, name: str = "wal") -> AttemptToken:
        return AttemptToken(self.say(owners.open_owner(self.state, JOB, name, self.new_token(), "host:1:2")).attempt)

    def release(self, name: str, *files: OwnedFile) -> Sequence[f.Fact]:
        transaction = owners.release_files(self.state, JOB, name, files)
        self.say(transaction)
        return transaction.facts

    def end(self, name: str) -> Sequence[f.Fact]:
        transaction = owners.release_owner(self.state, JOB, name)
        self.say(transaction)
        return transaction.facts

    def decide(self, *files: OwnedFile, parent: int | None = None, retention: Retention = KeepAll(), attempt: AttemptToken | None = None,
               owner: str = "wal") -> Decision:  # fmt: skip
        attempt = attempt or self.open(parent)
        request = self.request(attempt, retention=retention)
        fresh = [file for file in files if (file.file_id, 0) not in request.inherited]
        chunks = tuple(chunk_of(file, owner) for file in files)
        request = replace(request, content=chunks, owned=tuple(owned_files.stored(owner, fresh)))
        return checkpoints.commit_checkpoint(self.state, JOB, request)

    def refer(
        self, *files: OwnedFile, parent: int | None = None, retention: Retention = KeepAll(), attempt: AttemptToken | None = None
    ) -> int:
        return int(self.say(self.decide(*files, parent=parent, retention=retention, attempt=attempt)).checkpoint_id)


def file_of(token: AttemptToken, number: int = 1, owner: str = "wal") -> OwnedFile:
    fresh = f"{number:016x}"
    path = paths.owned_file(JOB, owner, token, fresh)
    return OwnedFile(name=f"log-{number}", file_id=paths.file_id(token, fresh, 0), path=path, size_bytes=10, sha256=SHA)


def chunk_of(file: OwnedFile, owner: str = "wal") -> Chunk:
    return Chunk(
        operator="main", state=owner, file_id=file.file_id, scope=Scope.TASKOWNED, role=Role.FILE, layer=0, offset_bytes=0,
        length_bytes=file.size_bytes, sha256=file.sha256, name=file.name,
    )  # fmt: skip


@pytest.fixture
def history() -> Owners:
    return Owners()


def kinds(facts: Sequence[f.Fact]) -> list[str]:
    return [fact.kind for fact in facts]


# ---- opening --------------------------------------------------------------------------------------------------------


def test_an_owner_is_an_attempt_without_epoch_parent_and_checkpoint(history: Owners) -> None:
    opened = history.job.attempts[history.own()].opened
    assert (opened.purpose, opened.name, opened.note) == (Purpose.OWNER, "wal", "host:1:2")
    assert (opened.epoch, opened.checkpoint_id, opened.parent_job_id, opened.parent_checkpoint_id) == (None, None, None, None)


def test_an_open_owner_is_gone_on_with_by_its_name(history: Owners) -> None:
    token = history.own()
    transaction = owners.open_owner(history.state, JOB, "wal", history.new_token())
    assert (list(transaction.facts), transaction.result.attempt) == ([], token)


def test_the_name_of_a_released_owner_never_comes_back(history: Owners) -> None:
    token = history.own()
    history.end("wal")
    with pytest.raises(
        AlreadyExistsError, match=rf"had an owner named 'wal' \(attempt {token}\), which was released: a name is never used again"
    ):
        history.own()


def test_an_owner_may_have_the_name_of_a_savepoint(history: Owners) -> None:
    history.own("same")
    assert (history.job.savepoints, list(history.job.owner_names)) == ({}, ["same"])


def test_a_start_of_a_coordinator_spares_owners(history: Owners) -> None:
    token = history.own()
    history.rollback(None)
    assert history.job.attempts[token].status is Status.OPEN
    assert history.refer(file_of(token)) == 1


def test_the_end_of_the_job_spares_owners(history: Owners) -> None:
    token = history.own()
    ended = jobs.end_job(history.state, JOB, history.epoch, Outcome.FINISHED, None, OnEnd(drop={"finished"}))
    history.say(ended)
    assert token in history.job.owners


@pytest.mark.parametrize("status", [Status.KILLED, Status.ABORTED, Status.RELEASED])
def test_nothing_but_its_release_ends_an_owner(history: Owners, status: Status) -> None:
    token = history.own()
    with pytest.raises(RefusedError, match=r"the owner 'wal' .* release it, catalog.release\('flights', 'wal'\) or `holdfast release`"):
        checkpoints.end_attempt(history.state, JOB, token, status, None)


# ---- referring ------------------------------------------------------------------------------------------------------


def test_the_first_reference_gives_a_file_its_row_under_its_owner_s_token(history: Owners) -> None:
    token = history.own()
    file = file_of(token)
    facts = history.decide(file).facts
    (row,) = [fact for fact in facts if isinstance(fact, f.FileWritten) and fact.scope is Scope.TASKOWNED]
    assert (row.file_id, row.attempt, row.path, row.owner) == (file.file_id, token, file.path, "wal")
    (handle,) = [fact for fact in facts if isinstance(fact, f.HandleAdded) and fact.file_id == file.file_id]
    assert (handle.scope, handle.role, handle.name, handle.to_seq) == (Scope.TASKOWNED, Role.FILE, "log-1", None)


def test_a_file_has_one_row_however_often_it_is_referred_to_anew(history: Owners) -> None:
    token = history.own()
    file = file_of(token)
    history.refer(file)
    history.refer(file, parent=None)
    history.release("wal", file)
    assert [str(row.file_id) for row in history.references.files.values() if row.scope is Scope.TASKOWNED] == [file.file_id]


def test_a_checkpoint_that_refers_to_an_owner_is_not_called_full(history: Owners) -> None:
    (committed, *_) = history.decide(file_of(history.own())).facts
    assert isinstance(committed, f.CheckpointCommitted)
    assert committed.is_incremental


def test_a_released_file_cannot_be_referred_to_anew(history: Owners) -> None:
    token = history.own()
    file, attempt = file_of(token), history.open()
    history.release("wal", file)
    with pytest.raises(
        RefusedError,
        match=rf"checkpoint 1 of job 'flights' cannot refer to file 'log-1' \({file.file_id}\) of owner 'wal': it was released",
    ):
        history.refer(file, attempt=attempt)


def test_no_file_of_an_owner_that_has_ended_can_be_referred_to(history: Owners) -> None:
    token = history.own()
    history.end("wal")
    with pytest.raises(RefusedError, match="of owner 'wal': it was released meanwhile"):
        history.refer(file_of(token))


def test_what_no_owner_of_the_job_has_written_cannot_be_referred_to(history: Owners) -> None:
    with pytest.raises(RefusedError, match="the job never had that owner"):
        history.refer(file_of(history.new_token()))


def test_a_released_file_of_the_pinned_parent_is_carried(history: Owners) -> None:
    file = file_of(history.own())
    first = history.refer(file)
    history.release("wal", file)
    second = history.refer(file, parent=first, retention=KeepLast(1))
    assert history.content(second) == {file.file_id}
    assert not history.garbage()


def test_an_open_handle_of_a_left_branch_stands_for_no_unreleased_file(history: Owners) -> None:
    """Checkpoint 2 refers to the file; a rollback leaves it, it is dropped, and the file released: garbage, though its interval is open
    until the next commit. That commit must not take it up again."""
    file = file_of(history.own())
    first = history.refer()
    second = history.refer(file, parent=first)
    history.rollback(first)
    history.say(checkpoints.drop(history.state, ref(second), "test"))
    history.release("wal", file)
    assert history.garbage() == {file.file_id}
    assert (file.file_id, 0) in history.job.open_handles
    with pytest.raises(RefusedError, match="it was released meanwhile"):
        history.refer(file, parent=first)


# ---- releasing ------------------------------------------------------------------------------------------------------


def test_a_file_that_was_never_referred_to_gets_its_row_at_its_release(history: Owners) -> None:
    file = file_of(history.own())
    assert kinds(history.release("wal", file)) == ["file", "release"]
    assert history.garbage() == {file.file_id}


def test_releasing_again_says_nothing(history: Owners) -> None:
    token = history.own()
    one, two = file_of(token, 1), file_of(token, 2)
    history.release("wal", one)
    assert kinds(history.release("wal", one, two, two)) == ["file", "release"]
    assert history.release("wal", one, two) == []
    history.end("wal")
    assert history.release("wal", file_of(token, 3)) == []
    assert history.end("wal") == []


def test_an_empty_list_releases_nothing(history: Owners) -> None:
    history.own()
    assert history.release("wal") == []
    assert history.job.owners


def test_an_owner_releases_its_own_files_only(history: Owners) -> None:
    history.own("wal")
    other = file_of(history.own("other"), owner="other")
    with pytest.raises(RefusedError, match=r"file 'log-1' \(jobs/.*\) was not written by owner 'wal'"):
        history.release("wal", other)


def test_a_place_that_is_not_the_owner_s_is_not_released(history: Owners) -> None:
    """Its row would have a vacuum delete what the place holds."""
    file = replace(file_of(history.own()), path=f"jobs/{JOB}/shared/1-{history.new_token()}-0/part-0.parquet")
    with pytest.raises(RefusedError, match="was not written by owner 'wal'"):
        history.release("wal", file)


def test_an_owner_that_never_was_cannot_be_released(history: Owners) -> None:
    history.own("wal")
    for release in (lambda: history.end("wall"), lambda: history.release("wall")):
        with pytest.raises(NotFoundError, match="job 'flights' never had an owner named 'wall'; open ones: 'wal'"):
            release()


# ---- garbage --------------------------------------------------------------------------------------------------------


def test_a_file_goes_when_it_is_released_and_no_live_checkpoint_has_it(history: Owners) -> None:
    file = file_of(history.own())
    first = history.refer(file)
    second = history.refer(parent=first, retention=KeepLast(1))
    assert history.live() == {second}
    assert history.garbage() == set(), "dropped with its checkpoint, but not released"
    history.release("wal", file)
    assert history.garbage() == {file.file_id}


def test_a_released_file_stays_while_a_live_or_pinned_checkpoint_has_it(history: Owners) -> None:
    file = file_of(history.own())
    first = history.refer(file)
    history.release("wal", file)
    assert history.garbage() == set()
    reader = history.new_token()
    history.say(checkpoints.open_reading(history.state, ref(first), reader))
    history.refer(parent=first, retention=KeepLast(1))
    assert history.garbage() == set()
    history.say(checkpoints.end_attempt(history.state, JOB, reader, Status.RELEASED, None))
    assert history.garbage() == {file.file_id}


def test_the_end_of_an_owner_releases_all_of_its_files(history: Owners) -> None:
    token = history.own()
    one, two = file_of(token, 1), file_of(token, 2)
    first = history.refer(one, two)
    history.refer(one, parent=first, retention=KeepLast(1))
    assert history.garbage() == set()
    history.end("wal")
    assert history.garbage() == {two.file_id}


def test_another_job_s_handle_keeps_a_released_file(history: Owners) -> None:
    """A fork shares an owner's file by a handle of its own, and cannot release it."""
    file = file_of(history.own())
    first = history.refer(file)
    other = JobId("other-00000009")
    history.say(jobs.register(history.state, other, "other", 128))
    attempt = history.new_token()
    history.say(jobs.start(history.state, other, Ref(JOB, CheckpointId(first)), first=attempt))
    request = history.request(attempt)
    request = replace(request, content=(chunk_of(file),), inherited=frozenset({(file.file_id, 0)}))
    history.say(checkpoints.commit_checkpoint(history.state, other, request))
    history.refer(parent=first, retention=KeepLast(1))
    history.end("wal")
    assert history.garbage() == set()
    with pytest.raises(NotFoundError, match="job 'other' never had an owner named 'wal'"):
        owners.release_files(history.state, other, "wal", [file])


def test_scrub_spares_what_an_open_owner_writes(history: Owners) -> None:
    """Once the owner has ended, what is left without a row is taken."""
    token = history.own()
    known, unknown = file_of(token, 1), file_of(token, 2)
    history.refer(known)

    def verdicts() -> list[Verdict]:
        rule = OrphanRule.over(history.state, history.references.present_paths())
        return [rule.judge(file.path) for file in (known, unknown)]

    assert verdicts() == [Verdict.KNOWN, Verdict.IN_FLIGHT]
    history.end("wal")
    assert verdicts() == [Verdict.KNOWN, Verdict.ORPHAN]


# ---- the folded state -----------------------------------------------------------------------------------------------


def test_the_state_forgets_the_files_of_an_owner_that_has_ended(history: Owners) -> None:
    token = history.own()
    one, two = file_of(token, 1), file_of(token, 2)
    history.refer(one)
    history.release("wal", two)
    assert (history.job.owners[token].rows, history.job.owners[token].released) == ({one.file_id}, {two.file_id})
    history.end("wal")
    assert history.job.owners == {}
