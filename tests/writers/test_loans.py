"""DataFrames of `latest()` after later commits: refused as soon as nothing keeps their files, by their own words and not Spark's."""

import pytest

import holdfast
from holdfast.writers.pins import DROPPED, Loans


class Plan:
    pass


class Frame:
    """As much of a DataFrame as a loan touches."""

    def __init__(self, is_cached=False):
        self._jdf, self.is_cached = Plan(), is_cached

    def run(self):
        return self._jdf.anything


def lent(job, **how):
    """A DataFrame, as `latest().read` would have given it."""
    frame = Frame(**how)
    job.latest()._loans.lend(frame, "state 's' of checkpoint 1 of job 'j'")
    return frame


def write(job):
    with job.checkpoint() as checkpoint:
        checkpoint.write_bytes("b", b"1")


def is_refused(frame):
    try:
        frame.run()
    except holdfast.RefusedError as error:
        assert "the DataFrame of state 's' of checkpoint 1 of job 'j' outlives its checkpoint" in str(error)
        return True
    except AttributeError:  # a Plan has nothing
        return False


def test_a_frame_is_refused_only_when_a_commit_drops_its_checkpoint(catalog):
    with catalog.coordinate("j", retention=holdfast.KeepLast(2)) as job:
        write(job)
        frame, cached = lent(job), lent(job, is_cached=True)
        write(job)
        assert not is_refused(frame), "it is still live"
        write(job)
        assert is_refused(frame)
        assert not is_refused(cached)


@pytest.mark.parametrize("keep", ["pin", "hold"])
def test_a_frame_of_a_dropped_checkpoint_that_is_pinned_or_held_still_runs(catalog, keep):
    with catalog.coordinate("j", retention=holdfast.KeepLast(1)) as job:
        write(job)
        frame = lent(job)
        pinned = catalog.checkpoint("j") if keep == "pin" else catalog.hold("j", 1, "mine")
        write(job)
        write(job)
        assert not is_refused(frame)
        pinned.close() if keep == "pin" else catalog.unhold("j", 1, "mine")
        write(job)
        assert is_refused(frame)


def test_loans_forget_frames_that_are_gone():
    loans = Loans()
    frame = Frame()
    loans.lend(frame, "it")
    assert loans
    del frame
    assert not loans
    loans.recall(DROPPED)
