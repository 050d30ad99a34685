"""What a reader of a checkpoint was given: DataFrames are lazy, and one that is run when nothing keeps its files any more must say so.

Files that nobody pins may go at any time, and then Spark tells of a missing file and not why. A DataFrame that was derived from a lent one,
or a temporary view of it, is Spark's own and unknown here: of it Spark's error, which names the file, is all there is. A relation of DuckDB
is an object of C++, whatever is derived from it: there DuckDB tells of the missing file.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from holdfast.catalog.errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INSIDES = ("_jdf", "_plan")  # what a DataFrame does anything with: beside a JVM, and over Spark Connect


CLOSED = (
    "outlives its pin: the checkpoint was closed, and its files may be deleted at any time. Use it within the `with` block of the "
    "checkpoint or catalog, or cache or write it there"
)
DROPPED = (
    "outlives its checkpoint: the job has committed since, and its retention has dropped it, so that its files may be deleted at any time. "
    "Read from job.latest() again after each commit, or cache or write it before"
)


class Loans:
    """DataFrames that run while the files of one checkpoint are there."""

    def __init__(self) -> None:
        self._lent: list[tuple[weakref.ref[DataFrame], str]] = []

    def __bool__(self) -> bool:
        """Whether any of them is left."""
        self._lent = [(reference, what) for reference, what in self._lent if reference() is not None]
        return bool(self._lent)

    def lend(self, frame: "DataFrame", what: str) -> None:
        """Remember a DataFrame that is to be run while the files are there."""
        self._lent.append((weakref.ref(frame), what))

    def recall(self, why: str) -> None:
        """The files may go: what was lent and is still there refuses to run, unless it was cached. `why`, of the DataFrame."""
        for reference, what in self._lent:
            frame = reference()
            if frame is not None and not frame.is_cached:
                _expire(frame, f"the DataFrame of {what} {why}")
        self._lent.clear()


class Lease(Loans):
    """One reader's share in a pin. It ends once: by `end`, or with its catalog object."""

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self._release = release
        self.is_open = True

    def __bool__(self) -> bool:
        return True

    def end(self) -> None:
        """Let go of the pin; no harm if repeated."""
        if self.is_open:
            self.expire()
            self._release()

    def expire(self) -> None:
        """The pin is gone."""
        self.is_open = False
        self.recall(CLOSED)


def _expire(frame: "DataFrame", msg: str) -> None:
    for name in _INSIDES:
        if name in vars(frame):
            setattr(frame, name, _Expired(msg))


class _Expired:
    """Stands where a DataFrame keeps its plan."""

    def __init__(self, msg: str) -> None:
        self._msg = msg

    def __getattr__(self, name: str) -> NoReturn:
        raise RefusedError(self._msg)
