"""Run by test_sick_executors: an executor in a mount namespace of its own, which sees at the catalog's path what a sick host sees.

The executor's JVM is started through a wrapper, within `unshare -m`; from then on `nsenter` mounts over the root what it shall see. Prints a
line of JSON for each sickness and way of uploading: the error, and what of the catalog changed. No write succeeds on a sick host.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast.demo.sessions import link_spark_home
from holdfast.writers.spark import changed_groups as groups_writer
from tests.support.front_door import LARGE, ask
from tests.support.invariants import assert_catalog_sound
from tests.support.spark_support import LIMITS_OF_THE_DRIVER, build_session

WRAPPER = """#!/bin/sh
case "$*" in
*CoarseGrainedExecutorBackend*) echo $$ >> {pids}; exec unshare -m {java} "$@" ;;
esac
exec {java} "$@"
"""


class Host:
    """The executor's view of the root, `<directory>/mount/catalog`."""

    def __init__(self, directory: Path) -> None:
        self.pids = directory / "pids"
        self.root = directory / "mount" / "catalog"
        self.other, self.target = directory / "other", directory / "target"
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else Path(str(shutil.which("java"))).resolve()
        wrapper = directory / "java" / "bin" / "java"
        wrapper.parent.mkdir(parents=True)
        wrapper.write_text(WRAPPER.format(pids=self.pids, java=java))
        wrapper.chmod(0o755)
        os.environ["JAVA_HOME"] = str(directory / "java")

    def see(self, sickness: str) -> None:
        commands = {
            "missing": ["mount -t tmpfs none {root.parent}"],
            "empty": ["mount -t tmpfs none {root}"],
            "another-catalog": ["mount --bind {other} {root}"],
            "empty-target": ["mount -t tmpfs none {target}"],
            "read-only": ["mount --bind {root} {root}", "mount -o remount,bind,ro {root}"],
        }[sickness]
        for command in commands:
            self._run(command.format(root=self.root, other=self.other, target=self.target))

    def heal(self, sickness: str) -> None:
        hidden = {"missing": self.root.parent, "empty-target": self.target}.get(sickness, self.root)
        self._run(f"umount -l {hidden}")

    def _run(self, command: str) -> None:
        for pid in self.pids.read_text().split():
            subprocess.run(["nsenter", "-t", pid, "-m", *command.split()], check=True)


# ---- ways of uploading ----------------------------------------------------------------------------------------------------------


def rows(spark: Any) -> Any:
    return spark.range(0, 100, 1, 2).selectExpr("id AS k", "id AS v")


def whole(upload: Any, spark: Any, catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("j", upload=upload) as job, job.checkpoint() as cp:
        cp.write("x", rows(spark).selectExpr("k", "v + 1 AS v"), key=["k"])


def changed_groups(spark: Any, catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write("x", rows(spark).selectExpr("k", "if(k < 9, -1, v) AS v"), key=["k"], mode="changed-groups")


def change_set(spark: Any, catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write_changes("x", upserts=rows(spark).selectExpr("k", "-v AS v"), key=["k"])


def upload_in_task(writer: holdfast.DirectoryWriter, snapshot: str, batches: Any) -> Any:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"ack": [writer.write(snapshot, subtask=0).ack()]})


def directories(spark: Any, catalog: holdfast.Catalog) -> None:
    snapshot = Path(catalog.address).parent.parent / "snapshot"
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        upload = partial(upload_in_task, cp.directories("rocks", subtasks=1), str(snapshot))
        cp.acknowledge("rocks", [bytes(row.ack) for row in spark.range(0, 1, 1, 1).mapInArrow(upload, "ack binary").collect()])


def own_in_task(owner: holdfast.Owner, batches: Any) -> Any:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [owner.write("wal", LARGE).path]})


def owned(spark: Any, catalog: holdfast.Catalog) -> None:
    spark.range(0, 1, 1, 1).mapInArrow(partial(own_in_task, catalog.own("j", "log")), "path string").collect()


def source(spark: Any, catalog: holdfast.Catalog) -> None:
    rows(spark).write.format("holdfast").mode("overwrite").options(job="j", state="x", key="k").save(catalog.address)


def savepoint(outside: bool, spark: Any, catalog: holdfast.Catalog) -> None:
    target = Path(catalog.address).parent.parent / "target" if outside else None
    catalog.savepoint("j", f"s {os.urandom(4).hex()}", target=target, spark=spark, upload="streamed")


WAYS: dict[str, Callable[[Any, holdfast.Catalog], None]] = {
    "native": partial(whole, "native"),
    "streamed": partial(whole, "streamed"),
    "changed groups": changed_groups,
    "change set": change_set,
    "directories": directories,
    "owner": owned,
    "format": source,
    "savepoint": partial(savepoint, False),
    "savepoint outside": partial(savepoint, True),
}
# All ways by the worst sickness, and the main ones by the others. A savepoint's target has no marker: there the driver's look holds.
TRIED = {
    "empty": [way for way in WAYS if way != "savepoint outside"],
    "empty-target": ["savepoint outside"],
    "missing": ["streamed", "directories", "native"],  # the last makes the root by itself
    "another-catalog": ["native", "streamed", "directories", "format"],
    "read-only": ["native", "streamed"],
}


def tried(way: str, spark: Any, catalog: holdfast.Catalog) -> dict[str, Any]:
    try:
        WAYS[way](spark, catalog)
    except Exception as error:
        return {"error": type(error).__name__, "is_ours": isinstance(error, holdfast.HoldfastError), "said": str(error)[:20_000]}
    return {"error": None, "is_ours": False, "said": ""}


def main(directory: Path) -> None:
    host = Host(directory)
    host.root.parent.mkdir()
    host.target.mkdir()
    (directory / "snapshot").mkdir()
    (directory / "snapshot" / "1.sst").write_bytes(LARGE)
    holdfast.open(host.other, create=True).close()
    os.environ["SPARK_HOME"] = str(link_spark_home(directory))
    spark = build_session("local-cluster[1,2,1024]", {"spark.local.dir": str(directory / "local")})
    spark.dataSource.register(holdfast.HoldfastDataSource)
    groups_writer.ROWS_HERE = 0  # by tasks, however few
    for module, name in LIMITS_OF_THE_DRIVER:
        setattr(module, name, -1)
    with holdfast.open(host.root, create=True) as catalog:
        with catalog.coordinate("j") as job, job.checkpoint() as cp:
            cp.write("x", rows(spark), key=["k"], mode="changed-groups")
        for sickness, ways in TRIED.items():
            host.see(sickness)
            for way in ways:
                found = tried(way, spark, catalog)
                committed = ask(catalog, "SELECT count(*) FROM checkpoints")[0][0]
                print(json.dumps({"sickness": sickness, "way": way, **found, "committed": committed}), flush=True)
            host.heal(sickness)
        assert catalog.checkpoint("j").read(spark, "x").filter("k = v").count() == 100
        catalog.close()
        for way in ("native", "streamed", "changed groups", "change set", "directories", "format"):
            WAYS[way](spark, catalog)
        catalog.vacuum()
        catalog.scrub()
        assert catalog.verify().damages == ()
        assert_catalog_sound(catalog)
    # Spark's own writer asks nobody: what it leaves in its call's directory is all that gets to another catalog.
    others = [path.relative_to(host.other).as_posix() for path in host.other.rglob("*") if path.is_file()]
    strangers = [path for path in others if path.startswith("jobs/") and not re.search(r"/shared/\d+-\w{16}-\d+/", path)]
    print(json.dumps({"healthy again": True, "strangers": strangers}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
