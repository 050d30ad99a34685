"""Run by test_cluster: both uploaders and a verified reading, with executors in processes of their own. Prints what it found as JSON."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa

from holdfast.catalog.errors import DamagedFileError
from holdfast.writers.parquet.report import state_info
from holdfast.writers.spark.native import NativeUploader
from holdfast.writers.spark.read import read_state
from holdfast.writers.spark.streamed import StreamedUploader
from holdfast.writers.upload import Uploader, chunks_of
from tests.support.spark_support import build_session, context_for, file_rows, new_storage, row_texts


def process_id(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pylist([{"pid": os.getppid(), "n": batch.num_rows}])


def die_once(marker, batches):
    """Take the whole executor's Python down, once."""
    for batch in batches:
        if not marker.exists():
            marker.touch()
            os._exit(1)
        yield batch


def run(root: Path) -> dict[str, object]:
    spark = build_session("local-cluster[2,1,1024]")
    storage = new_storage(root)
    found: dict[str, object] = {}
    uploaders: list[Uploader] = [NativeUploader(), StreamedUploader()]
    for call, uploader in enumerate(uploaders):
        expected = spark.range(0, 10_000, 1, 6)
        df = expected.mapInArrow(partial(die_once, root.parent / f"died-{call}"), "id bigint")
        context = context_for(storage, call=call)
        acks = uploader.write(df, context)
        info = state_info(df, context, acks)
        kept = read_state(spark, storage, info, chunks_of(acks), file_rows(acks), max_parallelism=128)
        found[type(uploader).__name__] = {"rows": info.rows, "equal": row_texts(kept) == row_texts(expected)}
    place = storage.root / acks[0].files[0].path
    place.write_bytes(place.read_bytes()[:-1])
    try:
        read_state(spark, storage, info, chunks_of(acks), file_rows(acks), max_parallelism=128)
    except DamagedFileError as error:
        found["damage"] = str(error)
    found["executors"] = len({row.pid for row in spark.range(0, 100, 1, 8).mapInArrow(process_id, "pid bigint, n bigint").collect()})
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
