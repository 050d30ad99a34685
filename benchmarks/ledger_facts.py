"""A large ledger for `garbage` and `garbage_10m`: the history of several jobs, made by the column and not by the fact.

Each job commits checkpoint after checkpoint. A commit writes a manifest and files of several chunks; each chunk lives for some commits
and is then ended, the chunks of a checkpoint's exclusive file at birth. Retention keeps the newest checkpoints, a few older ones are
held, the attempt of the next one is open. A vacuum has taken what was garbage up to some time ago and was stopped in its last run.
The table is laid out as a ledger in use: a large file for each job, as a fold leaves them, and the newest commits one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.schema import SCHEMA, Operation

Ints = npt.NDArray[np.int64]
Text = Any  # a pyarrow string array, or one string for all rows

SEED = 20130101
NEVER = np.iinfo(np.int64).max
FIRST_SEQ = 4  # registered, started and opened before it
CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the history. Handles and files count the manifest of each checkpoint."""

    jobs: int = 20
    checkpoints: int = 1_000  # of each job
    handles: int = 50  # of each checkpoint
    files: int = 10
    kept: int = 20  # by retention, of each job
    held: int = 3
    vacuumed: int = 950  # garbage of this many checkpoints of each job is condemned; of a few less it is gone
    small_files: int = 100  # of the table; a large one for each job

    @property
    def references(self) -> int:
        return self.jobs * self.checkpoints * self.handles


def write_ledger(directory: Path, size: Size) -> None:
    """Make a ledger with this history at the directory. In memory is one job at a time, in columns."""
    ledger = DeltaLedger.create(directory, catalog_id="0" * 16)
    newest = []
    for job in range(size.jobs):
        facts = _in_commit_order(list(_History(size, job).facts()))
        tail = size.small_files * facts.num_rows // (size.jobs * size.checkpoints)  # as many rows as so many commits have, of all jobs
        _add(ledger, facts.slice(0, facts.num_rows - tail), f"job-{job}")
        newest.append(facts.take(np.arange(facts.num_rows - tail, facts.num_rows)))  # a slice would keep all of it
    for n, share in enumerate(_shares(_in_commit_order(newest), size.small_files)):
        _add(ledger, share, f"share-{n}")


def _add(ledger: DeltaLedger, rows: pa.Table, operation_id: str) -> None:
    ledger.add(rows, keys={}, operation=Operation(operation_id=operation_id, at=datetime.now(UTC), by="benchmark"))
    ledger.refresh()


def _shares(facts: pa.Table, count: int) -> Iterator[pa.Table]:
    edges = np.linspace(0, facts.num_rows, count + 1).astype(int)
    for low, high in pairwise(edges):
        yield facts.slice(low, high - low)


def _in_commit_order(tables: list[pa.Table]) -> pa.Table:
    facts = pa.concat_tables(tables, promote_options="default")
    order = pc.sort_indices(facts, sort_keys=[("seq", "ascending", "at_end"), ("job_id", "ascending", "at_end")])
    return facts.take(order).select([name for name in SCHEMA.names if name in facts.column_names])


class _History:
    """The columns of every kind of fact of one job. A `c...` array has an element for each checkpoint, `f...` file, `h...` handle."""

    def __init__(self, size: Size, job: int) -> None:
        self.size, self.random = size, np.random.default_rng([SEED, job])
        self.job = f"job-{job}-{job:08x}"
        self.c_number = np.arange(1, size.checkpoints + 1)
        self.c_seq = self.c_number - 1 + FIRST_SEQ
        self.c_token = self._hex(size.checkpoints, 8)
        self._lay_files(size.checkpoints)
        self._lay_handles(size.checkpoints)

    def _lay_files(self, commits: int) -> None:
        """File 0 of each checkpoint is its manifest, file 1 is exclusive, the others are shared: eight of each native write."""
        of, self.f_call = np.repeat(np.arange(commits), self.size.files), np.tile(np.arange(self.size.files), commits)
        self.f_commit = pa.array(of)
        self.f_seq = self.c_seq[of]
        tokens, numbers = self.c_token.take(self.f_commit), _texts(self.c_number[of])
        self.f_id = _joined([tokens, "-", _texts(self.f_call), "-0"])
        below, call, fresh = f"jobs/{self.job}", _texts(2 + self.f_call // 8), self._hex(len(of), 8)
        manifest = _joined([f"{below}/chk-", numbers, "/_metadata"])
        exclusive = _joined([f"{below}/exclusive/", numbers, "-", tokens, "-1-0.bytes"])
        shared = _joined([f"{below}/shared/", numbers, "-", tokens, "-", call, "/part-", _texts(self.f_call), "-", fresh, ".parquet"])
        self.f_path = pc.if_else(pa.array(self.f_call == 0), manifest, pc.if_else(pa.array(self.f_call == 1), exclusive, shared))

    def _lay_handles(self, commits: int) -> None:
        """Handle 0 is of the manifest, the others are dealt out to the other files. Most chunks live for some commits, a few for hundreds."""
        count = commits * self.size.handles
        of, nth = np.repeat(np.arange(commits), self.size.handles), np.tile(np.arange(self.size.handles), commits)
        call = np.where(nth == 0, 0, 1 + (nth - 1) % (self.size.files - 1))
        self.h_file = of * self.size.files + call
        self.h_offset = np.where(nth == 0, 0, (nth - 1) // (self.size.files - 1)) * CHUNK_BYTES
        self.h_exclusive = call <= 1
        self.h_from = self.c_seq[of]
        life = self.random.geometric(np.where(self.random.random(count) < 0.02, 0.005, 0.2))
        last = FIRST_SEQ + self.size.checkpoints - 1
        ends = np.where(self.h_exclusive, self.h_from + 1, self.h_from + life)
        self.h_to = np.where((ends > last) & ~self.h_exclusive, NEVER, ends)

    def facts(self) -> Iterator[pa.Table]:
        yield _rows(1, kind="job", job_id=self.job, job=self.job, seq=1, max_parallelism=128)
        yield from self._attempts()
        yield from self._checkpoints()
        yield from self._references()
        yield from self._vacuums()

    def _attempts(self) -> Iterator[pa.Table]:
        n = self.c_number
        opened = {"kind": "attempt_opened", "purpose": "checkpoint", "epoch": 1}
        parent = pa.array(n - 1, mask=n == 1)
        yield _rows(
            len(n), **opened, job_id=self.job, seq=self.c_seq - 1, attempt=self.c_token, checkpoint_id=n,
            parent_job_id=self.job, parent_checkpoint_id=parent,
        )  # fmt: skip
        yield _rows(len(n), kind="attempt_ended", job_id=self.job, seq=self.c_seq, attempt=self.c_token, status="committed")
        last = self.size.checkpoints
        yield _rows(
            1, **opened, job_id=self.job, seq=last - 1 + FIRST_SEQ, attempt=self._hex(1, 8), checkpoint_id=last + 1,
            parent_job_id=self.job, parent_checkpoint_id=last,
        )  # fmt: skip

    def _checkpoints(self) -> Iterator[pa.Table]:
        size, n = self.size, self.c_number
        yield _rows(
            len(n), kind="checkpoint", job_id=self.job, seq=self.c_seq, checkpoint_id=n, attempt=self.c_token, is_savepoint=False,
            handles=4 * size.handles, new_handles=size.handles, path=self.f_path.filter(pa.array(self.f_call == 0)),
            sha256=self._hex(len(n), 32),
        )  # fmt: skip
        held_ids = np.linspace(size.vacuumed + 1, size.checkpoints - size.kept, size.held).astype(int)
        held = np.isin(n, held_ids)
        dropped = (n <= size.checkpoints - size.kept) & ~held
        yield _rows(
            int(dropped.sum()), kind="drop", job_id=self.job, seq=self.c_seq[dropped] + size.kept,
            checkpoint_id=n[dropped], reason=f"KeepLast({size.kept})",
        )  # fmt: skip
        yield _rows(int(held.sum()), kind="hold", job_id=self.job, seq=self.c_seq[held] + 1, checkpoint_id=n[held], hold="audit")

    def _references(self) -> Iterator[pa.Table]:
        shared = ~self.h_exclusive
        ended = shared & (self.h_to < NEVER)
        ids = self.f_id.take(pa.array(self.h_file))
        scope = pa.array(["SHARED", "EXCLUSIVE"]).take(pa.array(self.h_exclusive.astype(int)))
        yield _rows(
            len(self.h_from), kind="handle", job_id=self.job, seq=self.h_from, file_id=ids, offset_bytes=self.h_offset, from_seq=self.h_from,
            to_seq=pa.array(self.h_to, mask=shared), operator="main", state="per_aircraft", scope=scope, role="base", layer=0,
            key_group_from=0, key_group_to=127, length_bytes=CHUNK_BYTES, rows=1_000, sha256=self._hex(len(self.h_from), 32),
        )  # fmt: skip
        yield _rows(
            int(ended.sum()), kind="handle_end", job_id=self.job, seq=self.h_to[ended], file_id=ids.filter(ended),
            offset_bytes=self.h_offset[ended], from_seq=self.h_from[ended], to_seq=self.h_to[ended],
        )  # fmt: skip
        scope = pa.array(["EXCLUSIVE", "SHARED"]).take(pa.array((self.f_call > 1).astype(int)))
        yield _rows(
            len(self.f_seq), kind="file", job_id=self.job, seq=self.f_seq, file_id=self.f_id,
            attempt=self.c_token.take(self.f_commit), path=self.f_path, size_bytes=5 * CHUNK_BYTES, scope=scope,
            sha256=self._hex(len(self.f_seq), 32),
        )  # fmt: skip

    def _vacuums(self) -> Iterator[pa.Table]:
        """A file can go when its last interval has ended below every checkpoint that is kept: all of those lie above `vacuumed`."""
        last = np.zeros(len(self.f_seq), dtype=np.int64)
        np.maximum.at(last, self.h_file, self.h_to)
        for kind, checkpoints in (("condemned", self.size.vacuumed), ("gone", self.size.vacuumed - self.size.held)):
            taken = last <= FIRST_SEQ + checkpoints - 1
            yield _rows(
                int(taken.sum()), kind=kind, job_id=self.job, file_id=self.f_id.filter(taken),
                run_id="0123456789abcdef",
            )  # fmt: skip

    def _hex(self, count: int, size_bytes: int) -> pa.Array:
        """Random digests or tokens, as hex digits."""
        digits = pa.py_buffer(self.random.bytes(count * size_bytes).hex().encode())
        offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(2 * size_bytes))
        return pa.StringArray.from_buffers(count, offsets, digits)


def _joined(parts: list[Text]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _texts(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _rows(count: int, **values: Any) -> pa.Table:
    """Facts of one kind, of the columns that they have."""
    values = {"operation_id": "0" * 16, "at": datetime(2013, 1, 1, tzinfo=UTC), "by": "benchmark@host holdfast", **values}
    columns = {}
    for field in SCHEMA:
        if (value := values.get(field.name)) is not None:
            if isinstance(value, pa.Array | np.ndarray):
                columns[field.name] = (pa.array(value) if isinstance(value, np.ndarray) else value).cast(field.type)
            else:
                columns[field.name] = pa.repeat(pa.scalar(value, field.type), count)
    return pa.table(columns)
