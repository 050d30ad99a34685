"""What a failed write is told as: an error that names the state and the cause, and says what to do; nothing of it is acknowledged."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

import holdfast
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import Status
from holdfast.writers import engine_errors
from holdfast.writers.engine_errors import explained, is_of_spark
from holdfast.writers.parquet import few_files
from tests.support.scenes import BIG, resume
from tests.support.world import World, write_states

WHAT, ROOT = "writing state 's' of checkpoint 3 of job 'flights'", "/data/catalog"


class FakeSparkError(Exception):
    """As Spark's: told by its module."""

    __module__ = "pyspark.errors.exceptions.captured"


class PythonException(FakeSparkError):
    __module__ = "pyspark.errors.exceptions.captured"


class AnalysisException(FakeSparkError):
    __module__ = "pyspark.errors.exceptions.captured"


class NumberFormatException(FakeSparkError):
    __module__ = "pyspark.errors.exceptions.captured"


WORKER = 'Traceback (most recent call last):\n  File "/opt/pyspark.zip/pyspark/worker.py", line 9, in main\n    process()\n'
OURS = '  File "/opt/site-packages/holdfast/writers/stores/writer.py", line 9, in wait\n    self.cancel()\n'
THEIRS = '  File "/home/jobs/directories.py", line 9, in fit\n    go()\n'


# ---- texts -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "Traceback\nModuleNotFoundError: No module named 'pyarrow'",
            holdfast.EngineSetupError,
            "No module named 'pyarrow'.*PYSPARK_PYTHON",
        ),
        ('java.io.IOException: Cannot run program "python9": error=13, Permission denied', holdfast.EngineSetupError, "PYSPARK_PYTHON"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has 3.9", holdfast.EngineSetupError, "one Python 3"),
        ("java.lang.ClassNotFoundException: org.apache.hadoop.fs.s3a.S3AFileSystem", holdfast.EngineSetupError, "s3a.*spark.jars"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta", holdfast.EngineSetupError, "configure_spark_with_delta_pip"),
        ("Caused by: java.io.IOException: No space left on device\n\tat java.base", holdfast.StorageFullError, "a disk is full.*Make room"),
        ("OSError: [Errno 122] Disk quota exceeded: '/x'", holdfast.StorageFullError, "a disk is full"),
        (f"OSError: [Errno 30] Read-only file system: '{ROOT}/jobs'", holdfast.ReadOnlyError, f"{ROOT}/jobs.*Mount it for writing"),
        (f"java.io.IOException: Mkdirs failed to create file:{ROOT}/jobs/x", holdfast.ReadOnlyError, "the account that Spark's executors"),
    ],
)
def test_an_error_of_a_task_says_what_to_do(text: str, kind: type[Exception], said: str) -> None:
    told = explained(FakeSparkError(f"Job aborted\n{text}"), WHAT, ROOT)
    assert type(told) is kind
    assert str(told).startswith(f"{WHAT}, in {ROOT}, failed and had no effect: ")
    assert re.search(said, str(told), re.DOTALL), str(told)


@pytest.mark.parametrize(
    "error",
    [
        FakeSparkError("java.io.FileNotFoundException: /other/input.csv (Permission denied)"),
        PermissionError(errno.EACCES, "Permission denied", "/other/input"),
        OSError(errno.EIO, "Input/output error"),
        ValueError("No space left on device, says a function of the user's"),
        NumberFormatException("[CAST_INVALID_INPUT] The value 'No space left on device' cannot be cast to INT"),
        PythonException(f"{WORKER}{THEIRS}ModuleNotFoundError: No module named 'sklearn'"),
        PythonException(f"{WORKER}{THEIRS}ValueError: ClassNotFoundException"),
        PythonException(f"{WORKER}{THEIRS}OSError: [Errno 28] No space left on device"),
        FakeSparkError(f"Job aborted: org.apache.spark.api.python.PythonException: {WORKER}{THEIRS}KeyError: 'Cannot run program'"),
        PythonException(f"{WORKER}{OURS}{THEIRS}ModuleNotFoundError: No module named 'sklearn'"),
        holdfast.RetryError("the ledger: No space left on device"),
    ],
    ids=repr,
)
def test_what_has_another_meaning_comes_out_as_it_is(error: Exception) -> None:
    assert explained(error, WHAT, ROOT) is error


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (f"{WORKER}ModuleNotFoundError: No module named 'holdfast'", holdfast.EngineSetupError, "lacks the module 'holdfast': install it"),
        (f"{WORKER}{OURS}ModuleNotFoundError: No module named 'rocksdict'", holdfast.EngineSetupError, "lacks the module 'rocksdict'"),
        (f"{WORKER}{THEIRS}{OURS}OSError: [Errno 28] No space left on device", holdfast.StorageFullError, "a disk is full"),
        (f"{WORKER}{OURS}holdfast.catalog.errors.AddressError: /x is no directory on host h", holdfast.AddressError, "no effect: /x is no"),
        *(
            (f"{WORKER}{OURS}{module}.StorageFullError: a, in /x: full", holdfast.StorageFullError, "no effect: a, in /x: full$")
            for module in ("holdfast", "holdfast.catalog.errors")
        ),
    ],
)
def test_a_python_failure_in_our_frames_or_at_its_start_says_what_to_do(text: str, kind: type[Exception], said: str) -> None:
    told = explained(PythonException(text), WHAT, ROOT)
    assert type(told) is kind
    assert re.search(said, str(told)), str(told)


def test_an_upload_of_directories_in_a_task_may_be_tolerated() -> None:
    """Unless its own error says that the call is wrong."""
    for ours in (OURS, OURS.replace("writer.py", "canonical.py"), OURS.replace("stores/writer", "spark/streamed")):
        assert is_of_spark(PythonException(f"{WORKER}{THEIRS}{ours}OSError: gone"))
    for module in ("holdfast", "holdfast.catalog.errors"):  # as older executors say it
        assert is_of_spark(PythonException(f"{WORKER}{THEIRS}{OURS}{module}.StorageFullError: full"))
        assert not is_of_spark(PythonException(f"{WORKER}{THEIRS}{OURS}{module}.UsageError: no subtask"))
    assert not is_of_spark(PythonException(f"{WORKER}{THEIRS}OSError: gone"))


def test_a_frame_is_ours_by_its_folder() -> None:
    """Of what runs in tasks: a file that is added, moved or renamed there is ours as well. What a user's function calls there is not."""
    package = Path(engine_errors.__file__).parent
    for file in package.rglob("*.py"):
        name = file.relative_to(package)
        frame = f'File "/opt/site-packages/holdfast/writers/{name}", line 9, in wait'
        assert is_of_spark(PythonException(f"{WORKER}{frame}\nTypeError: no")) == (name.parts[0] in {"spark", "stores"}), name


def test_a_failure_of_the_users_own_functions_is_none_of_sparks() -> None:
    """Only what a job may tolerate is Spark's own: a task that was lost, an upload that failed in it."""
    assert is_of_spark(FakeSparkError("Job aborted due to stage failure: executor lost"))
    assert is_of_spark(PythonException('File "holdfast/writers/spark/streamed.py", line 90\nOSError: gone'))
    assert not is_of_spark(PythonException('File "theirs.py", line 1\nKeyError: 1'))
    assert not is_of_spark(FakeSparkError("Job aborted: org.apache.spark.api.python.PythonException: KeyError: 1"))
    assert not is_of_spark(AnalysisException("no such column"))
    assert not is_of_spark(OSError("gone"))


def test_an_error_whose_text_cannot_be_had_comes_out_as_it_is() -> None:
    """Of a JVM that is gone, whom its error would have to ask."""

    class Silent(FakeSparkError):
        __module__ = "py4j.protocol"

        def __str__(self) -> str:
            raise ConnectionError

    error = Silent()
    assert explained(error, WHAT, ROOT) is error
    assert is_of_spark(error)


# ---- the driver's own storage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (
            errno.ENOSPC,
            holdfast.StorageFullError,
            "writing state 'model' of checkpoint 1 of job 'flights', in .*: a disk is full .*Make room",
        ),
        (errno.EROFS, holdfast.ReadOnlyError, "writing state 'model' of checkpoint 1 .*a process may not write there.*Mount it"),
    ],
)
@pytest.mark.parametrize("of", ["state", "manifest"])
def test_a_full_disk_and_a_read_only_root_are_told_with_the_remedy(number, kind, said, of: str) -> None:
    """The attempt is aborted."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()

    def on_call(call: int, verb: str, path: str) -> None:
        if verb == "create" and path.endswith("_metadata") == (of == "manifest"):
            raise OSError(number, os.strerror(number), f"{world.objects.address}/{path}")

    said = said.replace("writing state 'model'", "the commit") if of == "manifest" else said
    with pytest.raises(kind, match=said) as raised, coordinator.checkpoint() as writer:
        process.arm(on_call=on_call)
        write_states(writer, {"model": BIG})
    process.arm()
    assert isinstance(raised.value.__cause__, OSError)
    assert world.job().attempts[writer.attempt].status is Status.ABORTED
    assert not world.job().checkpoints
    resume(world)


# ---- tasks of Spark ------------------------------------------------------------------------------------------------------------


def bare_python(path: Path) -> str:
    """An interpreter that has no packages."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("upload", ["native", pytest.param("streamed", marks=pytest.mark.slow)])
def test_executors_with_the_wrong_python_are_told_with_the_remedy(spark, catalog, tmp_path: Path, monkeypatch, upload) -> None:
    """Spark notes the interpreter when a session starts; here is a session that was started with another. Of few files the driver needs
    no executor's Python: here none are few."""
    monkeypatch.setattr(few_files, "HERE_FILES", -1)
    right = spark.sparkContext.pythonExec
    with catalog.coordinate("flights", upload=upload) as job:
        with job.checkpoint() as cp:
            cp.write_bytes("offsets", b"1")
        for python, said in ((bare_python(tmp_path / "python"), "No module named"), (str(tmp_path / "none"), "Cannot run program")):
            monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
            with pytest.raises(holdfast.EngineSetupError, match=rf"writing state 's' of checkpoint \d .*{said}.*PYSPARK_PYTHON") as raised:
                with job.checkpoint() as cp:
                    cp.write("s", spark.range(10), key=["id"])
            assert raised.value.__cause__ is not None
        monkeypatch.setattr(spark.sparkContext, "pythonExec", right)
        with job.checkpoint() as cp:
            cp.write("s", spark.range(10), key=["id"])
        monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
        with pytest.raises(holdfast.EngineSetupError, match="reading state 's', in .*Cannot run program.*PYSPARK_PYTHON"):
            job.latest().read(spark, "s")
        assert [row[:2] for row in catalog.duckdb().execute("SELECT status, count(*) FROM attempts GROUP BY ALL ORDER BY 1").fetchall()] == [
            ("aborted", 2), ("committed", 2), ("open", 1),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class FullStorage(LocalStorage):
    """A disk that has no room for what tasks write."""

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self.root}/{path}")
        yield

    def make_durable(self, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self.root}/{path}")


def test_a_host_without_the_root_is_told_and_a_wrong_value_is_no_full_disk(spark, catalog, tmp_path: Path) -> None:
    """Both were tolerated, or worse: the task made the root on its own disk, and the checkpoint was committed."""
    with catalog.coordinate("flights", upload="streamed", tolerated_failures=1) as job:
        storage, job._line.storage = job._line.storage, LocalStorage(tmp_path / "unmounted")
        with pytest.raises(holdfast.AddressError, match="no effect: .*unmounted is not a directory on host"), job.checkpoint() as cp:
            cp.write("s", spark.range(10), key=["id"])
        assert not (tmp_path / "unmounted").exists()
        job._line.storage = storage
        wrong = spark.range(2).selectExpr("id", "CAST(concat('No space left on device', id) AS INT) AS x")
        with pytest.raises(Exception, match="CAST_INVALID_INPUT") as raised, job.checkpoint() as cp:
            cp.write("s", wrong, key=["id"])
        assert not isinstance(raised.value, holdfast.HoldfastError)


@pytest.mark.parametrize("upload", ["native", pytest.param("streamed", marks=pytest.mark.slow)])
def test_a_full_disk_in_a_task_is_told_with_the_remedy(spark, catalog, upload) -> None:
    """It may be tolerated."""
    with catalog.coordinate("flights", upload=upload, tolerated_failures=1) as job:
        storage, job._line.storage = job._line.storage, FullStorage(Path(catalog.address))
        with job.checkpoint() as cp:
            cp.write("s", spark.range(10), key=["id"])
        assert cp.result is None
        assert isinstance(cp.failure, holdfast.StorageFullError)
        assert "a disk is full (OSError: [Errno 28] No space left on device: '" in str(cp.failure)
        assert "holdfast vacuum" in str(cp.failure)
        job._line.storage = storage
        with job.checkpoint() as cp:
            cp.write("s", spark.range(10), key=["id"])
        assert cp.result is not None
