"""Which batch of which query is written, passed over and refused; no Spark is needed to say so."""

from contextlib import contextmanager

import pytest

import holdfast


class Session:
    def __init__(self, query_id):
        self.sparkContext = self  # its context, as far as it is asked
        self.getLocalProperty = {"sql.streaming.queryId": query_id}.get


class Batch:
    def __init__(self, query_id):
        self.sparkSession = Session(query_id)


class Latest:
    def __init__(self, checkpoint_id, progress):
        self.job, self.checkpoint_id, self.progress = "events", checkpoint_id, progress


class Job:
    """Says what it has committed, and commits."""

    tolerated_failures = 0

    def __init__(self, *progress):
        self.committed = [*progress]

    def latest(self):
        return Latest(len(self.committed), self.committed[-1]) if self.committed else None

    def past_progress(self):
        return [progress for progress in reversed(self.committed) if progress is not None]

    @contextmanager
    def checkpoint(self, progress):
        yield self
        self.committed.append(progress)


def after(batch_id, query_id="q"):
    return {"batch_id": batch_id, "query_id": query_id}


def run(job, batch_id, query_id="q"):
    """The batches that `update` was called with."""
    seen = []
    holdfast.foreach_batch(job, lambda checkpoint, batch, number: seen.append(number))(Batch(query_id), batch_id)
    return seen


@pytest.mark.parametrize("before", [(), (None,), (after(6, "other"),), ({"batch_id": 6},)], ids=["nothing", "none", "another's", "older"])
def test_the_first_batch_of_a_query_is_written_on_any_state(before):
    job = Job(*before)
    assert run(job, 0) == [0]
    assert job.committed[len(before) :] == [after(0)]


def test_a_batch_is_written_after_the_one_before_it_and_only_once():
    """Passed over when it comes again."""
    job = Job(after(3))
    assert [run(job, n) for n in (3, 4, 4, 2)] == [[], [4], [], []]
    assert job.committed == [after(3), after(4)]


@pytest.mark.parametrize(
    ("before", "has"),
    [
        ((), "the job has no checkpoint"),
        ((None,), "checkpoint 1 of job 'events' has none of its batches"),
        ((after(6, "other"),), "checkpoint 1 of job 'events' has none of its batches"),
        (({"batch_id": 6},), "checkpoint 1 of job 'events' has none of its batches"),
        ((after(5),), "checkpoint 1 of job 'events' has its batches up to 5"),
    ],
    ids=["catalog lost", "by hand", "another query", "older", "rolled back"],
)
def test_a_batch_whose_forerunners_are_not_in_the_state_is_refused(before, has):
    """And told how to go on. A job that was rolled back, or lost, under a checkpointLocation that had gone on used to lose the batches
    between without a word."""
    job = Job(*before)
    with pytest.raises(holdfast.RefusedError, match=f"batch 7 of the streaming query q cannot be written: {has}") as refused:
        run(job, 7)
    assert job.committed == [*before]
    assert '{"batch_id": 6, "query_id": "q"}' in str(refused.value)
    job.committed.append(after(6))
    assert run(job, 7) == [7]


@pytest.mark.parametrize("others", [None, {"day": 1}, after(0, "other")], ids=["none", "by hand", "another's"])
def test_the_first_batch_is_not_written_twice_after_anothers_checkpoint(others):
    """Batch 0 was committed, Spark's own commit was lost, and the batch came again on a head that does not tell of it."""
    job = Job(after(0), others)
    with pytest.raises(holdfast.RefusedError, match="batch 0 of the streaming query q cannot be written: checkpoint 2 .* up to 0"):
        run(job, 0)
    assert job.committed == [after(0), others]
    job.committed.append(after(0))  # as the message says
    assert [run(job, n) for n in (0, 1)] == [[], [1]]


def test_a_state_that_is_said_to_have_no_batch_takes_the_first_one():
    job = Job(after(0), {"day": 1}, after(-1))
    assert run(job, 0) == [0]


@pytest.mark.parametrize("given", [{}, {"batch_id": None}, {"batch_id": "3"}, {"batch_id": True}], ids=repr)
def test_a_progress_of_the_query_without_the_number_of_a_batch_is_told(given):
    job = Job({"query_id": "q", **given})
    with pytest.raises(holdfast.RefusedError, match="checkpoint 1 of job 'events' has a progress .* is not the number of a batch"):
        run(job, 4)


def test_a_coordinator_tells_the_progress_of_its_whole_line(tmp_path):
    """And of the job that it forked. Dropped checkpoints too, and none of a branch that was rolled back."""
    with holdfast.open(tmp_path, create=True) as catalog:
        with catalog.coordinate("a", retention=holdfast.KeepLast(1)) as job:
            assert [*job.past_progress()] == []
            for progress in ({"n": 1}, None, {"n": 3}):
                with job.checkpoint(progress):
                    pass
            assert [*job.past_progress()] == [{"n": 3}, {"n": 1}]
        with catalog.coordinate("b", start=catalog.checkpoint("a"), mode="fork") as job:
            with job.checkpoint({"n": 4}):
                pass
            assert [*job.past_progress()] == [{"n": 4}, {"n": 3}, {"n": 1}]
        with catalog.coordinate("a", start="nothing") as job:
            assert [*job.past_progress()] == []


@pytest.mark.parametrize(("job", "update"), [(None, print), (Job(), None), (print, Job())])
def test_what_is_no_job_or_no_function_is_refused_at_once(job, update):
    with pytest.raises(holdfast.UsageError, match="is not a job and a function"):
        holdfast.foreach_batch(job, update)


def test_an_update_that_fails_commits_nothing():
    """Its batch is written when it comes again."""
    job = Job()

    def fail(checkpoint, batch, batch_id):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        holdfast.foreach_batch(job, fail)(Batch("q"), 0)
    assert job.committed == []
    assert run(job, 0) == [0]


def test_on_a_client_of_spark_connect_it_is_refused_at_once(monkeypatch):
    """Its server would run the function in a process of its own, to which Spark cannot send it: that error says nothing of the cause."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(holdfast.UsageError, match="not available on Spark Connect.* Run the query in a classic session"):
        holdfast.foreach_batch(Job(), print)
