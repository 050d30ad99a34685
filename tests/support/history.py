"""A small history of two jobs, told transaction by transaction, and short ways to write its facts."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from holdfast.catalog import facts as f
from holdfast.catalog.schema import Operation, to_table
from holdfast.catalog.types import Purpose, Role, Scope, Status

J, K = "flights-1a2b3c4d", "ports-5e6f7a8b"
# For Spark on so small a ledger: Delta's default replays the log in 50 tasks, for every scan of every view, and
# compiling takes longer than running.
SMALL_LEDGER = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
}
T0 = datetime(2013, 1, 1, tzinfo=UTC)


def minute(n: int) -> datetime:
    return T0 + timedelta(minutes=n)


def opened(seq, attempt, checkpoint_id, parent, *, job=J, purpose=Purpose.CHECKPOINT, epoch=1, parent_job=J, name=None, note=None):
    return f.AttemptOpened(
        job_id=job, seq=seq, attempt=attempt, checkpoint_id=checkpoint_id, purpose=purpose, epoch=epoch,
        parent_job_id=parent_job if parent else None, parent_checkpoint_id=parent, name=name, note=note,
    )  # fmt: skip


def ended(seq, attempt, status=Status.COMMITTED, reason=None, *, job=J):
    return f.AttemptEnded(job_id=job, seq=seq, attempt=attempt, status=status, reason=reason)


def committed(seq, attempt, checkpoint_id, parent, *, job=J, is_savepoint=False, name=None):
    return f.CheckpointCommitted(
        job_id=job, seq=seq, checkpoint_id=checkpoint_id, attempt=attempt, is_savepoint=is_savepoint, is_self_contained=is_savepoint,
        name=name,
        parent_job_id=job if parent else None, parent_checkpoint_id=parent, is_incremental=parent is not None, is_key_group_aware=True,
        parallelism=2, handles=3, new_handles=2, total_bytes=300, new_bytes=200, progress='{"day": 1}', path=f"chk-{checkpoint_id}",
        sha256="5a", size_bytes=9,
    )  # fmt: skip


def handle(seq, file_id, *, job=J, offset=0, scope=Scope.SHARED, role=Role.BASE, state="per_route", savepoint=None, inline=None):
    return f.HandleAdded(
        job_id=job, seq=seq, savepoint=savepoint, operator="" if role is Role.MANIFEST else "main", state=state, subtask=None,
        key_group_from=0, key_group_to=127, scope=scope, layer=0, role=role, name=None, file_id=file_id, offset_bytes=offset,
        length_bytes=10, sha256="5a", rows=1, from_seq=seq, to_seq=seq + 1 if scope is Scope.EXCLUSIVE else None, inline=inline,
    )  # fmt: skip


def manifest(seq, file_id, *, job=J, savepoint=None):
    return handle(seq, file_id, job=job, scope=Scope.EXCLUSIVE, role=Role.MANIFEST, state="", savepoint=savepoint)


def end(seq, file_id, from_seq, offset=0, *, job=J):
    return f.HandleEnded(job_id=job, seq=seq, file_id=file_id, offset_bytes=offset, from_seq=from_seq, to_seq=seq)


def file(seq, file_id, *, job=J, scope=Scope.SHARED, owner=None):
    return f.FileWritten(
        job_id=job, seq=seq, file_id=file_id, attempt=file_id.split("-")[0], path=f"jobs/{job}/{file_id}", size_bytes=100, sha256="5a",
        scope=scope, owner=owner,
    )  # fmt: skip


def history() -> list[tuple[int, list[f.Fact]]]:
    """(minute, facts of one transaction). Two jobs; K was forked from J's checkpoint 2."""
    exclusive = Scope.EXCLUSIVE
    return [
        (1, [f.JobRegistered(job_id=J, seq=1, job="flights", max_parallelism=128)]),
        (2, [f.Started(job_id=J, seq=2, epoch=1, parent_job_id=None, parent_checkpoint_id=None), opened(2, "a1", 1, None)]),
        (3, [
            committed(3, "a1", 1, None), ended(3, "a1"), opened(3, "a2", 2, 1),
            file(3, "a1-m", scope=exclusive), manifest(3, "a1-m"), file(3, "a1-0"), handle(3, "a1-0"), handle(3, "a1-0", offset=10),
            handle(3, "a1-i", scope=exclusive, state="offsets", inline=b"\x00\x01"),
            f.StateCommitted(job_id=J, seq=3, checkpoint_id=1, operator="main", state="per_route", format="parquet",
                             key_columns='["origin"]', schema="{}", layers=1, rows=2, total_bytes=20),
            f.Acknowledged(job_id=J, seq=3, checkpoint_id=1, operator="main", state="per_route", subtask=0, bytes_written=20,
                           bytes_reused=0, rows=2, upload_ms=7, digest_ms=3, sort_ms=None, sync_ms=5),
        ]),
        # Checkpoint 2 keeps one chunk of a1-0, ends the other, and drops checkpoint 1.
        (4, [
            committed(4, "a2", 2, 1), ended(4, "a2"), f.Dropped(job_id=J, seq=4, checkpoint_id=1, reason="KeepLast(1)"),
            opened(4, "a3", 3, 2), file(4, "a2-m", scope=exclusive), manifest(4, "a2-m"),
            file(4, "a2-0"), handle(4, "a2-0"), end(4, "a1-0", from_seq=3, offset=10),
        ]),
        (5, [f.Held(job_id=J, seq=5, checkpoint_id=2, hold="audit", note=None)]),
        (6, [
            f.Unheld(job_id=J, seq=6, checkpoint_id=2, hold="audit"),
            f.Held(job_id=J, seq=6, checkpoint_id=2, hold="legal", note="case 7"),
        ]),
        (7, [f.Held(job_id=J, seq=7, checkpoint_id=2, hold="audit", note="again")]),
        # o6 owns files: 0 was never referred to, 1 is, 2 is and was released, 3 was released before anything referred to it.
        (8, [
            opened(8, "s4", 4, 2, purpose=Purpose.SAVEPOINT, epoch=None),
            opened(8, "o6", None, None, purpose=Purpose.OWNER, epoch=None, name="wal", note="host:1:2"),
        ]),
        (9, [
            committed(9, "s4", 4, 2, is_savepoint=True, name="before-upgrade"), ended(9, "s4"),
            file(9, "s4-m", scope=exclusive), manifest(9, "s4-m", savepoint="s4"),
            file(9, "s4-0", scope=exclusive), handle(9, "s4-0", scope=exclusive, savepoint="s4"),
        ]),
        # Checkpoint 3 rewrites the state; a rollback to 2 follows, and aborts the attempt that was next.
        (10, [
            committed(10, "a3", 3, 2), ended(10, "a3"), opened(10, "a5", 5, 3), file(10, "a3-m", scope=exclusive), manifest(10, "a3-m"),
            file(10, "a3-0"), handle(10, "a3-0"), end(10, "a1-0", from_seq=3), end(10, "a2-0", from_seq=4),
            file(10, "o6-1", scope=Scope.TASKOWNED, owner="wal"), handle(10, "o6-1", scope=Scope.TASKOWNED, role=Role.FILE),
            file(10, "o6-2", scope=Scope.TASKOWNED, owner="wal"), handle(10, "o6-2", scope=Scope.TASKOWNED, role=Role.FILE),
        ]),
        (11, [
            f.Started(job_id=J, seq=11, epoch=2, parent_job_id=J, parent_checkpoint_id=2),
            ended(11, "a5", Status.ABORTED, "epoch 2 started"), file(11, "a5-0"), file(11, "a5-1"), file(11, "o6-0", scope=Scope.TASKOWNED, owner="wal"),
            file(11, "o6-3", scope=Scope.TASKOWNED, owner="wal"), f.Released(job_id=J, seq=11, attempt="o6", file_id="o6-2"),
            f.Released(job_id=J, seq=11, attempt="o6", file_id="o6-3"),
        ]),
        (12, [f.JobRegistered(job_id=K, seq=1, job="ports", max_parallelism=64)]),
        (13, [f.Started(job_id=K, seq=2, epoch=1, parent_job_id=J, parent_checkpoint_id=2), opened(2, "b1", 1, 2, job=K)]),
        (14, [
            committed(3, "b1", 1, None, job=K), ended(3, "b1", job=K), file(3, "b1-m", job=K, scope=exclusive), manifest(3, "b1-m", job=K),
            handle(3, "a1-0", job=K),
        ]),
        (15, [f.Started(job_id=K, seq=4, epoch=2, parent_job_id=J, parent_checkpoint_id=2)]),
        (20, [f.Condemned(job_id=J, file_id="a1-m", run_id="r1"), f.Condemned(job_id=J, file_id="a5-0", run_id="r1")]),
        (21, [f.Condemned(job_id=J, file_id="a1-m", run_id="r2"), f.Gone(job_id=J, file_id="a1-m", run_id="r1"),
              f.Gone(job_id=J, file_id="a1-m", run_id="r2")]),
        (22, [f.RunEnded(run_id="r1", what="vacuum", started_at=minute(20), ended_at=minute(22), outcome="done", figures="{}")]),
    ]  # fmt: skip


def transactions() -> list[pa.Table]:
    return [to_table(facts, Operation(operation_id=f"op{n}", at=minute(n), by="ann@host")) for n, facts in history()]
