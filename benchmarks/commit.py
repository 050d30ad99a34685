"""`commit`: what a checkpoint's commit to the ledger costs, and how that grows with the number of commits.

Ours is the transaction that a coordinator runs (`checkpoints.commit_checkpoint` through a `Transactor` on a `DeltaLedger`): decide,
write, commit, find the own operation, make it durable. Each checkpoint replaces two states of two files each, retention drops
the oldest, and the next attempt is opened, as in a job that goes on. Neither state files nor a manifest are written.

The floor is the least that puts the same rows into a Delta table durably: the ready Arrow table as one Parquet file, with a column
only where there is a value and the options of the ledger's own writer; a commit with no key, on a long-lived handle; the refresh; the
same four syncs.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.transaction import AddAction

from benchmarks.harness import Result, interleave, ratio, seconds, spread
from holdfast.catalog import paths
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.facts import CheckpointCommitted, Fact
from holdfast.catalog.ledger import Ledger, delta_entry, delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_data import DICTIONARY_FROM_ROWS, PRUNING_COLUMNS
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.ledger.delta_table import CONFIGURATION
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.schema import SCHEMA, Operation, to_table
from holdfast.catalog.state import CatalogState
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import (
    Ack,
    AttemptToken,
    CheckpointId,
    CheckpointMetrics,
    Chunk,
    Format,
    Identity,
    JobId,
    KeepLast,
    Role,
    Scope,
    StateInfo,
    StoredFile,
)
from holdfast.compaction.fold import run_fold
from holdfast.compaction.queries import SqlQueries
from holdfast.compaction.upkeep import is_due
from holdfast.compaction.vacuum import plan_vacuum, run_vacuum

COMMITS = 2_000  # with upkeep, about every hundred, as a coordinator has it
WARM_UP = 50
BUDGET_S = 240  # fewer commits would say less about growth
EDGE = 100  # growth compares this many commits at each end
AT_MOST, GROWTH_AT_MOST = 1.3, 1.2

STATES = ("per_aircraft", "per_route")
FILES_PER_STATE = 2
SCHEMA_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (
                ("tailnum", "string"),
                ("flights", "long"),
                ("distance", "long"),
                ("mean_delay", "double"),
                ("last", "string"),
            )
        ],
    }
)


def run(scratch: Path, commits: int = COMMITS, warm_up: int = WARM_UP, edge: int = EDGE) -> list[Result]:
    """`p50` over all commits, and `growth` from the first `edge` of them to the last."""
    _take_turns(scratch / "warm-up", warm_up)
    ours, floor = _take_turns(scratch / "measured", commits)
    hashing = _hashing(scratch / "measured" / "ledger", edge)
    first, last = ours[:edge], ours[-edge:]
    p50 = Result(
        benchmark="commit",
        measures="p50",
        ratio=ratio(ours, floor),
        at_most=AT_MOST,
        figures={"holdfast": spread(ours, "ms"), "floor": spread(floor, "ms"), "hashing": spread(hashing, "ms")},
    )
    growth = Result(
        benchmark="commit",
        measures="growth",
        ratio=ratio(last, first),
        at_most=GROWTH_AT_MOST,
        figures={
            "commits": len(ours),
            "first": spread(first, "ms"),
            "last": spread(last, "ms"),
            "floor_first": spread(floor[:edge], "ms"),
            "floor_last": spread(floor[-edge:], "ms"),
        },
    )
    return [p50, growth]


def _hashing(ledger: Path, commits: int) -> list[float]:
    """The seconds that the digests of each of the last commits take, which the floor has none of: of its data file and of its entry."""
    log = ledger / "_delta_log"
    taken = []
    for version in delta_log.commit_versions(log)[-commits:]:
        entry = (log / delta_log.commit_name(version)).read_bytes()
        actions = [next(iter(json.loads(line).items())) for line in entry.splitlines()[1:]]
        data = (ledger / actions[0][1]["path"]).read_bytes()
        taken.append(seconds(lambda: (hashlib.sha256(data).hexdigest(), delta_entry.digest_of(version, 0, "o", actions))))  # noqa: B023
    return taken


def _take_turns(directory: Path, commits: int) -> tuple[list[float], list[float]]:
    job, floor = Job.start(directory / "ledger"), Floor.create(directory / "floor")
    keeper = Keeper.of(directory)
    sides = {"holdfast": lambda n: keeper.after(job, job.commit(n)), "floor": lambda _: floor.commit(job.facts)}
    taken = interleave(sides, commits, what="commit", within_s=BUDGET_S)
    return taken["holdfast"], taken["floor"]


@dataclass(slots=True)
class Keeper:
    """The upkeep that a coordinator runs by itself, apart from the commit that makes it due: the vacuum's facts (there are no files to delete,
    and no manifests to hold against it), the fold, the tidying up of ledger and history."""

    root: Path
    taken: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> "Keeper":
        DeltaHistory.make(root / "history", HISTORY_SCHEMA, catalog_id="benchmark")
        return cls(root)

    def after(self, job: "Job", commit_s: float) -> float:
        ledger = job.transactor.ledger
        if is_due(ledger.version, ledger.folded_to):
            self.taken.append(seconds(self.run))
        return commit_s

    def run(self) -> None:
        environment, address = SystemEnvironment(), str(self.root / "ledger")
        plan = plan_vacuum(SqlQueries.at(address).garbage())
        run_vacuum(plan, Transactor(DeltaLedger.open(address), environment), open_storage(str(self.root)), environment)
        ledger, history = DeltaLedger.open(address), DeltaHistory.of(self.root / "history", "ledger")
        run_fold(ledger, history, environment)
        ledger.refresh()
        ledger.tidy(history.told_to)
        history.tidy()


@dataclass(slots=True)
class Job:
    """A job's coordinator, as far as the ledger sees it."""

    transactor: Transactor
    environment: SystemEnvironment
    job_id: JobId
    attempt: AttemptToken
    parent: tuple[Chunk, ...] = ()
    number: int = 1
    facts: Sequence[Fact] = field(default_factory=list)  # of the last commit

    @classmethod
    def start(cls, directory: Path) -> "Job":
        return cls.on(DeltaLedger.create(directory, catalog_id=SystemEnvironment().new_id()), "flights")

    @classmethod
    def on(cls, ledger: Ledger, name: str) -> "Job":
        environment = SystemEnvironment()
        transactor = Transactor(ledger, environment)
        job_id, token = paths.new_job_id(name, environment.new_id()), AttemptToken(environment.new_id())
        transactor.run(lambda state: jobs.register(state, job_id, name, 128))
        transactor.work_for(job_id)
        epoch: int = transactor.run(lambda state: jobs.start(state, job_id, None))
        transactor.run(lambda state: checkpoints.open_checkpoint(state, job_id, epoch, token, None))
        return cls(transactor, environment, job_id, token)

    def commit(self, _: int) -> float:
        """The seconds of one checkpoint's commit. Its request, which the writers make, is ready before."""
        return self.commit_request(self.request())

    def commit_request(self, request: CommitRequest) -> float:
        """The seconds of the commit of this request, after which the next one may be made."""

        def decide(state: CatalogState) -> Decision:
            transaction = checkpoints.commit_checkpoint(state, self.job_id, request)
            self.facts = transaction.facts
            return transaction

        taken = seconds(lambda: self.transactor.run(decide))
        assert isinstance(self.facts[0], CheckpointCommitted)
        assert request.next_attempt is not None
        self.attempt, self.parent, self.number = request.next_attempt, request.content, self.number + 1
        return taken

    def request(self) -> CommitRequest:
        """What the next checkpoint's commit would say, of a few states of a few files."""
        acks = tuple(self._ack(call, state) for call, state in enumerate(STATES))
        content = tuple(chunk for ack in acks for chunk in ack.chunks)
        inherited: frozenset[Identity] = frozenset(chunk.identity for chunk in self.parent)
        return CommitRequest(
            attempt=self.attempt,
            content=content,
            states=tuple(_info(ack) for ack in acks),
            inherited=inherited,
            files=tuple(file for ack in acks for file in ack.files),
            acks=acks,
            manifest=StoredFile(
                file_id=paths.manifest_file_id(self.attempt),
                path=paths.manifest_path(self.job_id, CheckpointId(self.number)),
                size_bytes=12_345,
                sha256=self._digest(),
                scope=Scope.EXCLUSIVE,
            ),
            progress={"week": self.number},
            retention=KeepLast(3),
            next_attempt=AttemptToken(self.environment.new_id()),
        )

    def _ack(self, call: int, state: str) -> Ack:
        directory = paths.native_directory(self.job_id, CheckpointId(self.number), self.attempt, call)
        files = tuple(
            StoredFile(
                file_id=paths.file_id(self.attempt, call, i),
                path=f"{directory}/part-{i:05d}-{self._digest()[:36]}-c000.snappy.parquet",
                size_bytes=1_000_000 + 1_000 * self.number + i,
                sha256=self._digest(),
                scope=Scope.SHARED,
            )
            for i in range(FILES_PER_STATE)
        )
        return Ack(
            checkpoint_id=CheckpointId(self.number),
            attempt=self.attempt,
            operator="main",
            state=state,
            subtask=None,
            files=files,
            chunks=tuple(chunk_of(state, file, 20_000, range(128)) for file in files),
            metrics=CheckpointMetrics(bytes_written=sum(file.size_bytes for file in files), rows=40_000, upload_ms=310, digest_ms=12),
        )

    def _digest(self) -> str:
        return "".join(self.environment.new_id() for _ in range(4))


@dataclass(slots=True)
class Floor:
    """The same rows into a table of their own by the fewest calls that are durable."""

    directory: Path
    table: DeltaTable
    commits: int = 0

    @classmethod
    def create(cls, directory: Path) -> "Floor":
        directory.mkdir(parents=True)
        return cls(directory, DeltaTable.create(directory, SCHEMA, configuration=CONFIGURATION, raise_if_key_not_exists=False))

    def commit(self, facts: Sequence[Fact], writer: str = "part") -> float:
        """The seconds of one commit of these facts, whose Arrow table is ready before. Each writer to one table has a name of its own."""
        environment = SystemEnvironment()
        rows = to_table(facts, Operation.new(environment))
        filled = [name for name in rows.column_names if rows[name].null_count < rows.num_rows]
        narrow, schema = rows.select(filled), self.table.schema()
        self.commits += 1
        return seconds(lambda: self._commit(narrow, schema, f"{writer}-{self.commits:08d}.parquet"))

    def _commit(self, rows: pa.Table, schema: object, name: str) -> None:
        path = self.directory / name
        sink = pa.BufferOutputStream()
        # As the ledger writes them: dictionaries, statistics of every column and Arrow's schema would make a floor that can be undercut.
        pq.write_table(
            rows,
            sink,
            compression="snappy",
            store_schema=False,
            use_dictionary=rows.num_rows >= DICTIONARY_FROM_ROWS,
            write_statistics=list(PRUNING_COLUMNS),
        )
        with path.open("xb") as stream:
            stream.write(sink.getvalue())
            stream.flush()
            os.fsync(stream.fileno())
        _sync(self.directory)
        self.table.create_write_transaction(
            [AddAction(name, path.stat().st_size, {}, 0, True, json.dumps({"numRecords": rows.num_rows}))],
            mode="append",
            schema=schema,  # type: ignore[arg-type]  # deltalake's own Schema
            partition_by=[],
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
        self.table.update_incremental()
        log = self.directory / "_delta_log"
        _sync(log / f"{self.table.version():020d}.json")
        _sync(log)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def chunk_of(state: str, file: StoredFile, rows: int, key_groups: range) -> Chunk:
    """The one chunk of a file."""
    return Chunk(
        operator="main",
        state=state,
        file_id=file.file_id,
        scope=file.scope,
        role=Role.BASE,
        layer=0,
        offset_bytes=0,
        length_bytes=file.size_bytes,
        sha256=file.sha256,
        rows=rows,
        key_group_from=key_groups.start,
        key_group_to=key_groups.stop - 1,
    )


def _info(ack: Ack) -> StateInfo:
    return StateInfo(
        operator=ack.operator,
        state=ack.state,
        format=Format.PARQUET,
        key_columns=("tailnum",),
        schema=SCHEMA_JSON,
        rows=ack.metrics.rows,
        total_bytes=ack.metrics.bytes_written,
    )
