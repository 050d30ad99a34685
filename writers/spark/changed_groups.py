"""`mode="changed-groups"`: only the key groups whose rows differ from the parent's are written, as a new base of exactly these groups."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import CorruptionError, RefusedError, UsageError
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.types import Ack, ChainLimit, Chunk, Role, Scope
from holdfast.writers.parquet.report import FileReport, acks_for, milliseconds, state_info
from holdfast.writers.spark.chain_limit import too_many_groups
from holdfast.writers.spark.change_sets import NAMED_KEYS, is_plain
from holdfast.writers.spark.file_jobs import collect_reports, report_schema, require_all_rows
from holdfast.writers.spark.frames import has_columns_of, keyed, with_word_names
from holdfast.writers.spark.group_digests import GroupDigest, changed_groups, decode, encode, runs, total
from holdfast.writers.spark.row_digests import digested, group_digests, refuse_nested, require_same_rows
from holdfast.writers.spark.session import settings
from holdfast.writers.spark.sort_time import timed_sort
from holdfast.writers.spark.streamed import ACTION_SETTINGS, ROW_GROUP_BYTES, upload_of_task, upload_tables
from holdfast.writers.upload import ParentState, UploadContext, Uploader, WrittenState, chunks_of, in_full, on_parent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

ROWS_HERE, BYTES_HERE = 500_000, 16 * 1024 * 1024  # compressed: changed groups up to this size are sorted and uploaded by the driver
# For digests over a cache, whose plan is made already: elsewhere these would be the settings of the user's own joins as well.
# What the groups come to is few rows, which one task adds up: a sixth of the time is spent on the shuffle that Spark would plan.
ONE_SHUFFLE = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
# A tenth of the time is spent on a call for each row, without which rows of many columns would make a method too large to compile.
ONE_LOOP, COLUMNS_IN_A_LOOP = {"spark.sql.codegen.splitConsumeFuncByOperator": "false"}, 16
FILE_ROWS = 1_000_000  # beyond that, about as many are sent to one task, and into one file


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """Writes states by their changed groups; by the uploader where that is all of them."""

    uploader: Uploader
    environment: Environment

    def write(self, df: "DataFrame", context: UploadContext, parent: ParentState | None, limit: ChainLimit) -> WrittenState:
        """The state of the DataFrame, of which only the key groups are written whose rows differ from the parent's.

        All are, where the parent has nothing to compare with or the limit would be passed. The plan runs once for the digests and,
        unless nothing differs, once more.
        Raises:
            RefusedError: there is no key.
            UsageError: no digests can be taken of the DataFrame, it cannot be a state, a key was found twice, or it gave other rows when it
                ran again.
            CorruptionError: the files are not the whole of what Spark wrote.
        """
        _require_key(context)
        frame = keyed(df, context)
        refuse_nested(df, context)
        started = self.environment.monotonic_s()
        with settings(df.sparkSession, _settings_of_digests(df)):
            digests = group_digests(frame)
        digest_ms = milliseconds(started, self.environment)
        if parent is not None and parent.info.group_digests is not None and _is_comparable(df, context, parent):
            changed = changed_groups(decode(parent.info.group_digests, parent.max_parallelism), digests)
            if not changed:
                nothing = _with_digest_time(acks_for([], context, upload_ms=0), digest_ms)
                return WrittenState(acks=nothing, info=parent.info, content=parent.chunks)
            if not too_many_groups(parent, changed, digests, limit):
                acks = _with_digest_time(self._write_groups(frame, changed, digests, context, parent), digest_ms)
                info = replace(state_info(df, context, acks), rows=total(digests.values()).rows, group_digests=encode(digests))
                return on_parent(parent, acks, info)
        observed, observation = digested(df)
        acks = _with_digest_time(self.uploader.write(observed, context), digest_ms)
        require_same_rows(observation, digests.values(), context)
        return in_full(acks, replace(state_info(df, context, acks), group_digests=encode(digests)))

    def _write_groups(
        self, frame: "DataFrame", changed: Sequence[int], digests: Mapping[int, GroupDigest], context: UploadContext, parent: ParentState
    ) -> list[Ack]:
        """Upload the rows of the changed groups, in row groups that span no other; groups without rows are chunks without a file."""
        filled = [group for group in changed if group in digests]
        expected = [digests[group] for group in filled]
        starts = np.array([run.start for run in runs(changed)], np.int32)
        started = self.environment.monotonic_s()
        uploaded = _Uploaded()
        if filled:
            within = frame.filter(f"{KEY_GROUP_COLUMN} IN ({', '.join(map(str, filled))})")
            if _is_small(total(expected).rows, parent):
                uploaded = self._upload_from_here(within, starts, context)
            else:
                uploaded = self._upload_from_tasks(_placed(within, filled, expected), starts, context)
            assert uploaded.observation is not None
            require_same_rows(uploaded.observation, expected, context)
            require_all_rows(uploaded.reports, uploaded.observation, context)
        acks = acks_for(uploaded.reports, context, upload_ms=milliseconds(started, self.environment), sort_ms=uploaded.sort_ms)
        empty = (_empty_chunk(run, context) for run in runs(group for group in changed if group not in digests))
        acks = [replace(acks[0], chunks=(*acks[0].chunks, *empty)), *acks[1:]]
        _require_exact(acks, changed, context)
        return acks

    def _upload_from_here(self, frame: "DataFrame", starts: Any, context: UploadContext) -> "_Uploaded":
        """One file of few rows: to sort them in this process costs less than a shuffle takes to start."""
        rows, observation = digested(frame)
        with settings(frame.sparkSession, ACTION_SETTINGS):
            table = with_word_names(rows).toArrow().rename_columns(frame.columns)
        if is_plain(frame, context.key_columns):
            _require_unique(table, context)
        started = self.environment.monotonic_s()
        table = table.sort_by(KEY_GROUP_COLUMN)
        sort_ms = milliseconds(started, self.environment)
        report = upload_tables(_row_groups(iter(table.to_batches()), starts), "driver", context, self.environment)
        return _Uploaded([] if report is None else [report], observation, sort_ms)

    def _upload_from_tasks(self, frame: "DataFrame", starts: Any, context: UploadContext) -> "_Uploaded":
        """A file of each partition."""
        rows, observation = digested(frame)
        upload = partial(_upload, context, self.environment, frame.columns, starts)
        with settings(frame.sparkSession, ACTION_SETTINGS), timed_sort(frame.sparkSession, context, self.environment) as sort:
            reports = collect_reports(with_word_names(rows).mapInArrow(upload, report_schema()))
        return _Uploaded(reports, observation, sort.ms)


@dataclass(frozen=True, slots=True)
class _Uploaded:
    """The files, and what Spark observed of the rows in the action that read them; None: there were no rows to read."""

    reports: Sequence[FileReport] = ()
    observation: "Observation | None" = None
    sort_ms: int | None = None


def _settings_of_digests(df: "DataFrame") -> Mapping[str, str]:
    if not df.is_cached:
        return {}
    return ONE_SHUFFLE | ONE_LOOP if len(df.columns) <= COLUMNS_IN_A_LOOP else ONE_SHUFFLE


def _require_key(context: UploadContext) -> None:
    if not context.key_columns:
        msg = (
            f"state {context.state!r} cannot be written by mode='changed-groups' without a key: it is not key-group aware "
            "(is_key_group_aware is false), and all its rows are of one group. Give key=[...], unique columns, or write it with mode='full'"
        )
        raise RefusedError(msg)


def _require_unique(rows: pa.Table, context: UploadContext) -> None:
    """Raises UsageError, which names some, if rows that are all of their groups have a key twice."""
    keys = rows.select([*context.key_columns]).rename_columns([f"k{i}" for i in range(len(context.key_columns))])
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    if counted.num_rows == rows.num_rows:
        return
    twice = counted.filter(pc.field("count_all") > 1)
    columns = [twice["count_all"], *(twice[name] for name in keys.column_names)]
    found = zip(*(column.slice(0, NAMED_KEYS).to_pylist() for column in columns), strict=True)
    named = "; ".join(f"{_key_text(values, context)} ({times} times)" for times, *values in found)
    msg = (
        f"state {context.state!r}: mode='changed-groups' needs a key that is unique, and these appear more than once: {named}"
        f"{', and more' if twice.num_rows > NAMED_KEYS else ''}; nothing was acknowledged: give columns that tell rows apart"
    )
    raise UsageError(msg)


def _key_text(values: Sequence[object], context: UploadContext) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(context.key_columns, values, strict=True))


def _is_small(rows: int, parent: ParentState) -> bool:
    """Whether this process can hold so many rows, if they are like the parent's."""
    row_bytes = parent.info.total_bytes / max(1, parent.info.rows or 0)
    return rows <= ROWS_HERE and rows * row_bytes <= BYTES_HERE


def _is_comparable(df: "DataFrame", context: UploadContext, parent: ParentState) -> bool:
    info = parent.info
    return (
        info.key_columns == context.key_columns
        and parent.max_parallelism == context.max_parallelism
        and info.schema is not None
        and has_columns_of(df, info.schema)
    )


def _with_digest_time(acks: Sequence[Ack], digest_ms: int) -> tuple[Ack, ...]:
    """With the time that the digests of the groups took, told once."""
    first = acks[0].metrics
    return replace(acks[0], metrics=replace(first, digest_ms=first.digest_ms + digest_ms)), *acks[1:]


def _empty_chunk(run: range, context: UploadContext) -> Chunk:
    """Says that these groups have no rows any more. SHARED: its interval lasts until a later checkpoint does without it."""
    return context.chunk(
        file_id=paths.file_id(context.attempt, context.call, f"empty_{run.start}"),
        scope=Scope.SHARED,
        role=Role.BASE,
        layer=context.layer,
        length_bytes=0,
        sha256=sha256(b"").hexdigest(),
        rows=0,
        key_group_from=run.start,
        key_group_to=run.stop - 1,
        inline=b"",
    )


def _require_exact(acks: Iterable[Ack], changed: Sequence[int], context: UploadContext) -> None:
    """Raises CorruptionError if a chunk would hide a group that was not written: its rows would be lost."""
    of_run = {group: run for run in runs(changed) for group in run}
    for chunk in chunks_of(acks):
        if chunk.role is Role.FOOTER:
            continue
        low, high = chunk.key_group_from, chunk.key_group_to
        if low is None or high is None or low not in of_run or high not in of_run[low]:
            msg = (
                f"{context.label}: a row group of file {chunk.file_id} says that it "
                f"has key groups {low} to {high}, and not all of these were written: nothing was acknowledged; write with mode='full'"
            )
            raise CorruptionError(msg)


def _placed(frame: "DataFrame", groups: Sequence[int], digests: Sequence[GroupDigest]) -> "DataFrame":
    """The rows in partitions of about FILE_ROWS, none of which shares a group with another, sorted by group.

    How many rows each group has is known: unlike `repartitionByRange`, this needs no sample, for which the plan would run again.
    """
    from pyspark.sql import functions

    before = np.cumsum([0, *(digest.rows for digest in digests[:-1])])
    partition_of = before // FILE_ROWS
    firsts = [groups[i] for i in range(1, len(groups)) if partition_of[i] != partition_of[i - 1]]
    whens = " ".join(f"WHEN {KEY_GROUP_COLUMN} < {first} THEN {n}" for n, first in enumerate(firsts))
    number = functions.expr(f"CASE {whens} ELSE {len(firsts)} END" if firsts else "0")
    return frame.repartitionById(len(firsts) + 1, number).sortWithinPartitions(KEY_GROUP_COLUMN)


# ---- files, in a task or here --------------------------------------------------------------------------------------------------------


def _upload(
    context: UploadContext, environment: Environment, columns: list[str], starts: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One file of the task's rows, durable before its report is sent to the driver; no file without rows."""
    filled = (batch.rename_columns(columns) for batch in batches if batch.num_rows)
    yield from upload_of_task(_row_groups(filled, starts), context, environment)


def _row_groups(batches: Iterator[pa.RecordBatch], starts: Any) -> Iterator[pa.Table]:
    """Rows that come sorted by group, as tables that end where a run of groups ends, or where they are large enough."""
    held: list[pa.RecordBatch] = []
    held_run, held_bytes = -1, 0
    for run, piece in (found for batch in batches for found in _pieces(batch, starts)):
        if held and (run != held_run or held_bytes >= ROW_GROUP_BYTES):
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
        held.append(piece)
        held_run, held_bytes = run, held_bytes + piece.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _pieces(batch: pa.RecordBatch, starts: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch in slices of one run each, with the run's number."""
    numbers = np.searchsorted(starts, batch.column(batch.num_columns - 1).to_numpy(), side="right") - 1
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
    for start, end in pairwise(edges):
        yield int(numbers[start]), batch.slice(start, end - start)
