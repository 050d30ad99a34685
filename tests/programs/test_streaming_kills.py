"""A streaming query whose driver, with all that it started, is killed at random until the stream ends: as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random

import pytest

import holdfast
from tests.programs.streaming_program import BATCH, STREAM
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.places import ROOT

pytestmark = pytest.mark.slow  # each life starts a JVM; tests/front_door/test_streaming.py shows the same within one session
MOST_LIVES = 40
ROWS_IN_A_FILE = 20


def put(directory: Path, files: int, random: Random) -> None:
    """One file is one batch: their order is that of their times."""
    (directory / "in").mkdir()
    ids = count()
    for n in range(files):
        rows = [{"id": next(ids), "key": f"k{random.randrange(12)}", "amount": random.randrange(-50, 100)} for _ in range(ROWS_IN_A_FILE)]
        place = directory / "in" / f"{n:03}.json"
        place.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        os.utime(place, (1_000_000_000 + n, 1_000_000_000 + n))


def live(directory: Path, death: str) -> bool:
    """One life of the driver; whether it was killed."""
    with (directory / "log").open("a") as log:
        done = subprocess.run(
            [sys.executable, "-m", "tests.programs.streaming_program", str(directory), *death.split()],
            cwd=ROOT,
            stderr=log,
            stdout=log,
            start_new_session=True,
            timeout=300,
            check=False,
        )
    assert done.returncode in (0, -signal.SIGKILL), f"{death}: {(directory / 'log').read_text()[-3000:]}"
    return done.returncode != 0


def batches_of(directory: Path) -> list[int]:
    """Those that Spark has ended. Mostly one for each file; but a driver that dies after Spark noted a file of its source, and before it
    noted the batch, leaves that file to the next batch, which then has two.
    """
    return sorted(int(log.name) for log in (directory / "offsets" / "commits").iterdir() if log.name.isdecimal())


def check(directory: Path, files: int) -> None:
    """Every batch is one checkpoint, every file is in one batch, whole and once, the state is the batch run's, and what the dead left can be
    cleaned."""
    batches = batches_of(directory)
    assert batches == [*range(len(batches))]
    with holdfast.open(directory / "catalog") as catalog:
        with catalog.duckdb() as connection:
            found = connection.execute("select progress from checkpoints where job = $1 order by checkpoint_id", [STREAM]).fetchall()
        assert [json.loads(text)["batch_id"] for (text,) in found] == batches
        streamed, batch = catalog.checkpoint(STREAM), catalog.checkpoint(BATCH)
        assert sorted(streamed.duckdb("totals").fetchall()) == sorted(batch.duckdb("totals").fetchall())
        rows = streamed.duckdb("rows").fetchall()
        assert sorted(row[:3] for row in rows) == sorted(batch.duckdb("rows").fetchall())
        assert sorted({row[3] for row in rows}) == batches
        batch_of_file = sorted({(row[0] // ROWS_IN_A_FILE, row[3]) for row in rows})
        assert [file for file, _ in batch_of_file] == [*range(files)]
        assert [batch_id for _, batch_id in batch_of_file] == sorted(batch_id for _, batch_id in batch_of_file)
        streamed.close()
        batch.close()
        catalog.vacuum()
        catalog.scrub()
        assert_catalog_sound(catalog)
        assert_clean(catalog)


def test_a_batch_that_we_committed_and_spark_did_not_is_not_applied_again(tmp_path: Path) -> None:
    """The driver was killed between the two commits."""
    put(tmp_path, 2, Random(5))
    assert live(tmp_path, "told 1")
    assert not live(tmp_path, "")
    assert batches_of(tmp_path) == [0, 1]
    check(tmp_path, 2)


def deaths(random: Random) -> Iterator[str]:
    yield "file 20"  # within the first batches, so that there is one
    while True:
        yield random.choice(
            [
                f"file {random.randint(1, 80)}",
                f"told {random.randint(1, 2)}",
                f"later {random.randint(1, 2)} {random.randint(0, 400)}",
            ]
        )


def test_a_driver_killed_at_random_leaves_what_a_batch_run_makes(tmp_path: Path) -> None:
    """It is killed until the stream ends."""
    seed = int(os.environ.get("HOLDFAST_SEED", Random().getrandbits(31)))
    print(f"HOLDFAST_SEED={seed}")
    random = Random(seed)
    files = 8
    put(tmp_path, files, random)
    killed = 0
    for death in islice(deaths(random), MOST_LIVES):
        was_killed = live(tmp_path, death)
        print(f"{death}: {'killed' if was_killed else 'ended'}")
        killed += was_killed
        if not was_killed:
            break
    assert killed
    assert not live(tmp_path, "")
    check(tmp_path, files)
