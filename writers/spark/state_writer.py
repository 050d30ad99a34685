"""Which upload vehicle a job uses, by name, and what it can write. Spark is imported only when a DataFrame is written."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import Ack, ChainLimit, StateInfo
from holdfast.writers.increments import ParentState, Written
from holdfast.writers.upload import UploadContext, Vehicle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UploadBy = Literal["native", "streamed"]


class StateWriter(Protocol):
    """Brings the state of a DataFrame into the catalog and says what it wrote.

    Each call may make `increments.CALLS` of the attempt's write calls, from the context's on. `parent` is what the pinned parent has of
    the state; None: nothing.
    """

    def write(self, df: "DataFrame", context: UploadContext) -> tuple[list[Ack], StateInfo]:
        """Every row once, digested and durable; the acks of exactly the files that hold them, and the state's description."""

    def write_changed_groups(self, df: "DataFrame", context: UploadContext, parent: ParentState | None, limit: ChainLimit) -> Written:
        """As `write`, but of the key groups whose rows are the parent's, refer to the parent's chunks."""

    def write_changes(
        self,
        upserts: "DataFrame | None",
        deletes: "DataFrame | None",
        context: UploadContext,
        parent: ParentState | None,
        limit: ChainLimit,
    ) -> Written | None:
        """The parent's state with these changes, as a change set above it, or as a new base. None: there is no state, and none becomes."""


@dataclass(frozen=True, slots=True)
class SparkStateWriter:
    """By one of the two vehicles; increments, which are small, always by streams."""

    upload: UploadBy
    environment: Environment = field(default_factory=SystemEnvironment)

    def write(self, df: "DataFrame", context: UploadContext) -> tuple[list[Ack], StateInfo]:
        from holdfast.writers.spark.file_jobs import state_info
        from holdfast.writers.spark.frames import require_frames

        require_frames(context, df=df)
        acks = self._vehicle().write(df, context)
        return acks, state_info(df, context, acks)

    def write_changed_groups(self, df: "DataFrame", context: UploadContext, parent: ParentState | None, limit: ChainLimit) -> Written:
        from holdfast.writers.spark.changed_groups import GroupWriter
        from holdfast.writers.spark.frames import require_frames

        require_frames(context, df=df)
        return GroupWriter(self._vehicle(), self.environment).write(df, context, parent, limit)

    def write_changes(
        self,
        upserts: "DataFrame | None",
        deletes: "DataFrame | None",
        context: UploadContext,
        parent: ParentState | None,
        limit: ChainLimit,
    ) -> Written | None:
        from holdfast.writers.spark.change_sets import ChangeWriter
        from holdfast.writers.spark.frames import require_frames

        require_frames(context, upserts=upserts, deletes=deletes)
        return ChangeWriter(self._vehicle(), self.environment).write(upserts, deletes, context, parent, limit)

    def _vehicle(self) -> Vehicle:
        from holdfast.writers.spark.native import NativeVehicle
        from holdfast.writers.spark.streamed import StreamedVehicle

        return NativeVehicle(self.environment) if self.upload == "native" else StreamedVehicle(self.environment)


def state_writer(upload: UploadBy) -> StateWriter:
    """The writer of this name. Raises UsageError for another name."""
    if upload not in ("native", "streamed"):
        msg = f"upload={upload!r} is no way to upload: give 'native' or 'streamed'"
        raise UsageError(msg)
    return SparkStateWriter(upload)
