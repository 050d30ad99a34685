"""What `job.checkpoint(...)` returns: a block that `with` opens and ends, and that says so when it is used as the writer itself."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import NoReturn

from holdfast.catalog.errors import UsageError
from holdfast.writers.checkpoint_writer import CheckpointWriter

OUTCOMES = ("result", "failure")  # which a writer has once its block has ended


class CheckpointBlock(AbstractContextManager[CheckpointWriter]):
    """The writer of one checkpoint, between `with` and the end of its block."""

    def __init__(self, block: AbstractContextManager[CheckpointWriter], job: str) -> None:
        self._block, self._job = block, job

    def __enter__(self) -> CheckpointWriter:
        return self._block.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and (name in OUTCOMES or hasattr(CheckpointWriter, name)):
            msg = (
                f"a checkpoint of job {self._job} is written in a block, and nothing was begun: with job.checkpoint() as checkpoint: "
                f"checkpoint.{name}..."
            )
            raise UsageError(msg)
        msg = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(msg)
