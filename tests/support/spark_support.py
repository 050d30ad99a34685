"""One small Spark session for all tests of a process: two cores, three tries per task, Delta, no UI."""

import os
import sys
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.catalog.storage.local import LocalStorage, make_root
from holdfast.catalog.types import AttemptToken, CheckpointId, CheckpointMetaData, JobId, Role
from holdfast.demo.sessions import YOUNG_JVM
from holdfast.writers.parquet import few_files
from holdfast.writers.spark import chain_limit, gathered
from holdfast.writers.upload import UploadContext
from tests.support.places import ROOT

JOB = JobId("flights-1a2b3c4d")
ATTEMPT = AttemptToken("0123456789abcdef")


def build_session(master: str, more=None):
    """A session for tests. Workers need this interpreter, and the tests' own modules for what they unpickle."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.master(master).appName("holdfast-tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": YOUNG_JVM,
        "spark.executor.extraJavaOptions": YOUNG_JVM,
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": "/nonexistent/warehouse",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **(more or {}),
    }.items():
        builder = builder.config(name, value)
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def spark():
    session = build_session("local[2,3]")
    yield session
    session.stop()


@pytest.fixture
def keeps_change_sets(monkeypatch):
    """However small the state is, no base is written in place of a change set."""
    monkeypatch.setattr(chain_limit, "BASE_BYTES", -1)


LIMITS_OF_THE_DRIVER = (
    (few_files, "HERE_FILES"),
    (chain_limit, "BASE_BYTES"),
    (gathered, "ROWS_AT_ONCE"),
    (gathered, "BROUGHT_BYTES"),
    (gathered, "BROUGHT_BYTES_OF_MANY"),
)


@pytest.fixture
def by_executors(monkeypatch):
    """However little there is, executors do it."""
    for module, name in LIMITS_OF_THE_DRIVER:
        monkeypatch.setattr(module, name, -1)


@contextmanager
def session_settings(spark, values):
    """Settings of a user's session, taken back at the end."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def new_storage(root: Path) -> LocalStorage:
    """The storage of a root that is made."""
    make_root(str(root))
    return LocalStorage(root)


def context_for(
    storage: LocalStorage, *, key=("id",), call=0, layer=0, max_parallelism=128, role=Role.BASE, is_savepoint=False, directory=None
) -> UploadContext:
    return UploadContext(
        storage=storage,
        job_id=JOB,
        attempt=ATTEMPT,
        metadata=CheckpointMetaData(checkpoint_id=CheckpointId(7), timestamp=datetime(2013, 1, 2, tzinfo=UTC), is_savepoint=is_savepoint),
        call=call,
        operator="main",
        state="per_aircraft",
        layer=layer,
        key_columns=tuple(key),
        max_parallelism=max_parallelism,
        role=role,
        directory=directory,
    )


def file_rows(acks):
    """The `files` argument of `read_state`, as the ledger's file rows would give it."""
    return {file.file_id: (file.path, file.size_bytes, file.sha256) for ack in acks for file in ack.files}


def row_texts(df) -> Counter:
    """Every row as text, exact where Python's equality is not: NaN, -0.0, maps, times beyond its range."""
    from pyspark.sql import functions

    texts = df.select(
        functions.to_json(functions.struct(*["`" + name.replace("`", "``") + "`" for name in df.columns]), {"ignoreNullFields": "false"})
    )
    return Counter(row[0] for row in texts.collect())
