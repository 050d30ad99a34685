"""Which uploader a job uses, by name, and what it can write. Spark is imported only when a DataFrame is written."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import Ack, ChainLimit, StateInfo
from holdfast.writers.upload import ParentState, StateWriter, UploadBy, UploadContext, Uploader, WrittenState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SparkStateWriter:
    """By one of the two uploaders; increments, which are small, always by streams."""

    upload: UploadBy
    environment: Environment = field(default_factory=SystemEnvironment)

    def write(self, df: "DataFrame", context: UploadContext) -> tuple[list[Ack], StateInfo]:
        from holdfast.writers.parquet.report import state_info
        from holdfast.writers.spark.frames import require_frames

        require_frames(context, df=df)
        acks = self._uploader().write(df, context)
        return acks, state_info(df, context, acks)

    def write_changed_groups(self, df: "DataFrame", context: UploadContext, parent: ParentState | None, limit: ChainLimit) -> WrittenState:
        from holdfast.writers.spark.changed_groups import GroupWriter
        from holdfast.writers.spark.frames import require_frames

        require_frames(context, df=df)
        return GroupWriter(self._uploader(), self.environment).write(df, context, parent, limit)

    def write_changes(
        self,
        upserts: "DataFrame | None",
        deletes: "DataFrame | None",
        context: UploadContext,
        parent: ParentState | None,
        limit: ChainLimit,
    ) -> WrittenState | None:
        from holdfast.writers.spark.change_sets import ChangeWriter
        from holdfast.writers.spark.frames import require_frames

        require_frames(context, upserts=upserts, deletes=deletes)
        return ChangeWriter(self._uploader(), self.environment).write(upserts, deletes, context, parent, limit)

    def _uploader(self) -> Uploader:
        from holdfast.writers.spark.native import NativeUploader
        from holdfast.writers.spark.streamed import StreamedUploader

        return NativeUploader(self.environment) if self.upload == "native" else StreamedUploader(self.environment)


def state_writer(upload: UploadBy) -> StateWriter:
    """The writer of this name. Raises UsageError for another name."""
    if upload not in ("native", "streamed"):
        msg = f"upload={upload!r} is not a way to upload: pass 'native' or 'streamed'"
        raise UsageError(msg)
    return SparkStateWriter(upload)
