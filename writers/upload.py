"""The upload protocol: `(DataFrame, context) -> acks`. Vehicles: `spark.native`, `spark.streamed`; `bytes_state` for small state.

Every file is digested and durable before the ack that names it exists; completeness is judged by rows, never by the number of acks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import AttemptToken, CheckpointMetaData, JobId, Role

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.catalog.types import Ack

__all__ = ["KEY_GROUP_COLUMN", "SAVEPOINT_ROW_GROUP_BYTES", "UploadContext", "Vehicle"]

SAVEPOINT_ROW_GROUP_BYTES = 4 * 1024 * 1024  # in memory: a savepoint is read by key group, and a row group is the least that is read


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadContext:
    """What one write call of one attempt takes with it to the tasks. Picklable.

    `call` numbers the write calls of the attempt from 0: together with the attempt's token it names what the call writes,
    and `file_id` of the i-th file (in the order of paths) is `<attempt>-<call>-<i>`.
    `directory`, relative to `storage`, is where all files of the call go; None: the job's own place for them.
    """

    storage: Storage
    job_id: JobId
    attempt: AttemptToken
    metadata: CheckpointMetaData
    call: int
    operator: str
    state: str
    layer: int
    key_columns: tuple[str, ...]
    max_parallelism: int
    role: Role = Role.BASE
    directory: str | None = None


class Vehicle(Protocol):
    """A way to bring a DataFrame's rows into the catalog, as the full state of one operator and name or as a part of a change set."""

    def write(self, df: "DataFrame", context: UploadContext) -> "list[Ack]":
        """Upload every row once, with its key group in `_key_group`; returns the acks of exactly the winning files.

        Each row group is a chunk; what follows the last one of several is a chunk too, of role FOOTER.
        Of a savepoint with key columns the rows lie by key group, in small row groups, so that few are read for few groups.
        Runs the DataFrame's plan once. Nothing is returned unless the rows in the files equal an independent count of the same action.
        """
