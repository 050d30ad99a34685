"""Which upload vehicle a job uses, by name. Spark is imported only when a DataFrame is written."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import Ack, StateInfo
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UploadBy = Literal["native", "streamed"]


class StateWriter(Protocol):
    """Brings the full state of a DataFrame into the catalog and says what it wrote."""

    def write(self, df: "DataFrame", context: UploadContext) -> tuple[list[Ack], StateInfo]:
        """Every row once, digested and durable; the acks of exactly the files that hold them, and the state's description."""


@dataclass(frozen=True, slots=True)
class SparkStateWriter:
    """By one of the two vehicles."""

    upload: UploadBy

    def write(self, df: "DataFrame", context: UploadContext) -> tuple[list[Ack], StateInfo]:
        from holdfast.writers.spark_files import state_info
        from holdfast.writers.spark_native import NativeVehicle
        from holdfast.writers.spark_streamed import StreamedVehicle

        vehicle = NativeVehicle() if self.upload == "native" else StreamedVehicle()
        acks = vehicle.write(df, context)
        return acks, state_info(df, context, acks)


def state_writer(upload: UploadBy) -> StateWriter:
    """The writer of this name. Raises UsageError for another name."""
    if upload not in ("native", "streamed"):
        msg = f"upload={upload!r} is no way to upload: give 'native' or 'streamed'"
        raise UsageError(msg)
    return SparkStateWriter(upload)
