"""Places where a process of the demo stops, says that it is there, and waits to be killed.

They sit in the ports (a storage that is passed in, the DataFrame that is written), so that the product's own code knows nothing of them.
A place is armed by a file that the parent makes; reaching it makes another.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.catalog.paths import MANIFEST_NAME
from holdfast.catalog.storage import PassingStorage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UPLOAD = "upload"
COMMIT = "commit"
DELETION = "deletion"
FAR_AWAY_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKill:
    """Where to kill the driver, and in which week: during a deletion in that one or later, for a vacuum takes its time."""

    place: str
    week: int


KILLS = (PlannedKill(place=UPLOAD, week=9), PlannedKill(place=COMMIT, week=22), PlannedKill(place=DELETION, week=37))


@dataclass(frozen=True, slots=True)
class Stops:
    """The places of one demo, as files of a directory that all its processes see. Picklable."""

    directory: Path

    def arm(self, place: str) -> None:
        """From here on, a thread that comes to this place stays there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._file(place, "armed").touch()

    def disarm(self, place: str) -> None:
        self._file(place, "armed").unlink(missing_ok=True)

    def is_reached(self, place: str) -> bool:
        return self._file(place, "reached").exists()

    def here(self, place: str) -> None:
        """Pass, or if the place is armed: say so and wait to be killed."""
        if self._file(place, "armed").exists():
            self._file(place, "reached").touch()
            time.sleep(FAR_AWAY_S)

    def _file(self, place: str, what: str) -> Path:
        return self.directory / f"{place}.{what}"


def stopping_midway(df: "DataFrame", stops: Stops) -> "DataFrame":
    """The same rows, with a stop in the tasks: after the first rows of a partition, which Spark's writer then has in a file half done."""

    def pass_on(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            stops.here(UPLOAD)
            yield batch.slice(half)

    return df.mapInArrow(pass_on, df.schema)


@dataclass(frozen=True, slots=True)
class StoppingStorage(PassingStorage):
    """Stops once a manifest is written (its commit comes next), and between two deletions."""

    stops: Stops

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        if path.endswith(f"/{MANIFEST_NAME}"):
            self.stops.here(COMMIT)

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        errors: dict[str, OSError] = {}
        for path in paths:
            errors |= self.inner.delete_many([path])
            self.stops.here(DELETION)
        return errors
