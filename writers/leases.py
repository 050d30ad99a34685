"""What a reader of a pinned checkpoint was given: DataFrames are lazy, and one that is run after its pin has ended must say so.

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


class Lease:
    """One reader's share in a pin. It ends once: by `end`, or with its catalog object."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._lent: list[tuple[weakref.ref[DataFrame], str]] = []
        self.is_open = True

    def lend(self, frame: "DataFrame", what: str) -> None:
        """Remember a DataFrame that is to be run under the pin."""
        self._lent.append((weakref.ref(frame), what))

    def end(self) -> None:
        """Let go of the pin; no harm if repeated."""
        if self.is_open:
            self.expire()
            self._release()

    def expire(self) -> None:
        """The pin is gone: what was lent and is still there refuses to run, unless it was cached."""
        self.is_open = False
        for reference, what in self._lent:
            frame = reference()
            if frame is not None and not frame.is_cached:
                _expire(frame, what)
        self._lent.clear()


def _expire(frame: "DataFrame", what: str) -> None:
    for name in _INSIDES:
        if name in vars(frame):
            setattr(frame, name, _Expired(what))


class _Expired:
    """Stands where a DataFrame keeps its plan."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        msg = (
            f"the DataFrame of {self._what} outlives its pin: the checkpoint was closed, and its files may be deleted at any time. Use it "
            "within the `with` block of the checkpoint or catalog, or cache or write it there"
        )
        raise RefusedError(msg)
