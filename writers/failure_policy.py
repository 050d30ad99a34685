"""How long a checkpoint may take, and how many in a row may fail. Clocks decide here when to be impatient, and never what is safe.

An attempt whose time is over is ended in the ledger though the block that writes it still runs: by an alarm in a thread of its own, or
by the block's next step, whichever comes first. From there it can never be committed, and pins nothing.
"""

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.catalog.arguments import is_whole
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import (
    AttemptEndedError,
    FencedError,
    HoldfastError,
    RetryError,
    TooManyFailuresError,
    UnknownOutcomeError,
    UsageError,
)
from holdfast.catalog.types import CheckpointId, JobId
from holdfast.writers.engine_errors import is_of_spark


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What `catalog.coordinate` was given. Raises UsageError for what is no time or no number."""

    timeout_s: float | None = None
    tolerated_failures: int = 0

    def __post_init__(self) -> None:
        given: object = self.timeout_s  # a program without types gives anything
        if given is not None and not ((is_whole(given) or isinstance(given, float)) and 0 < given < math.inf):
            msg = f"checkpoint_timeout_s={self.timeout_s!r} is not a time: pass seconds above 0, or None for no limit"
            raise UsageError(msg)
        if not is_whole(self.tolerated_failures, 0):
            msg = f"tolerated_failures={self.tolerated_failures!r} is not a number of checkpoints that may fail in a row: pass 0 or more"
            raise UsageError(msg)


class AttemptWatch:
    """Watches over one attempt while its block runs. `end(reason)` ends it in the ledger, `ask()` raises unless it is open there.

    Both raise AttemptEndedError or FencedError where somebody else has ended it.
    """

    def __init__(self, *, timeout_s: float | None, environment: Environment, end: Callable[[str], None], ask: Callable[[], None]) -> None:
        self._timeout_s, self._environment, self._end, self._ask = timeout_s, environment, end, ask
        self._until_s = None if timeout_s is None else environment.monotonic_s() + timeout_s
        self._lock = threading.RLock()
        self._is_over = False  # ended, by whomever, or not watched over any more
        self._call_off: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._set_alarm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """From here nothing is ended on account of time. Waits for an end that is on its way."""
        with self._lock:
            self._is_over = True
            self._call_off()

    def require_open(self) -> None:
        """Pass, while the time is not over. Asks the ledger only if it is. Raises AttemptEndedError, FencedError."""
        if self._until_s is not None and self._environment.monotonic_s() >= self._until_s:
            self._expire()
        if self._is_over:
            self._ask()

    def told(self, error: Exception) -> Exception:
        """What a failed step of the attempt raises: its end, if it has been ended, because cleaners may then take files under a write."""
        if isinstance(error, RetryError | AttemptEndedError | FencedError):  # these come from the ledger, which knows
            return error
        try:
            self._ask()
        except (AttemptEndedError, FencedError) as ended:
            return ended
        except Exception:  # noqa: BLE001 - the ledger cannot be asked either: the first error is the one to raise
            return error
        return error

    def _set_alarm(self) -> None:
        if self._timeout_s is not None:
            self._call_off = self._environment.alarm(self._timeout_s, self._ring)

    def _ring(self) -> None:
        """In the alarm's thread, where no caller gets an error: the block's next step meets it again, and so does the next alarm."""
        try:
            self._expire()
        except HoldfastError:
            with self._lock:
                if not self._is_over:
                    self._set_alarm()

    def _expire(self) -> None:
        with self._lock:
            if self._is_over:
                return
            with suppress(AttemptEndedError, FencedError):
                self._end(f"expired: not committed within {self._timeout_s:g} s")
            self._is_over = True


class FailureCount:
    """Counts the checkpoints of a job that failed in a row."""

    def __init__(self, tolerated: int, job_id: JobId) -> None:
        self.tolerated, self._job_id, self._count = tolerated, job_id, 0

    def end(self) -> None:
        """A checkpoint did not fail."""
        self._count = 0

    def tolerates(self, error: Exception, checkpoint_id: CheckpointId) -> bool:
        """Whether the job continues after this failure of a checkpoint, which is counted. Raises TooManyFailuresError."""
        if not self.tolerated or not _is_tolerable(error):
            return False
        self._count += 1
        if self._count > self.tolerated:
            msg = (
                f"the last {self._count} checkpoints of job {self._job_id} failed, and {self.tolerated} in a row are tolerated; the last "
                f"one, {checkpoint_id}, by {type(error).__name__}: {error}. What was committed before stays: fix the cause, then continue"
            )
            raise TooManyFailuresError(msg) from error
        return True


def _is_tolerable(error: Exception) -> bool:
    """An end, a lost race, or a failure of storage or of an upload.

    Not what says that the job must stop (fenced), that the call or the set-up is wrong, that bytes are wrong, or that nobody knows
    what happened.
    """
    if isinstance(error, HoldfastError):
        return isinstance(error, RetryError | AttemptEndedError) and not isinstance(error, UnknownOutcomeError)
    return isinstance(error, OSError) or is_of_spark(error)
