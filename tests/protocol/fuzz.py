"""Hostile input for everything that takes some: `make fuzz` runs it at length, the fast suite for some seconds.

Each target takes one piece of input, whole but for some mutations, with every digest that its writer could give it. The outcome is a
right answer or an error of Holdfast's of the right class: no other exception, no hang, no file outside of where it may be, no code run.
"""

import argparse
import base64
import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import holdfast
from holdfast.catalog import paths, schema
from holdfast.catalog.errors import (
    AddressError,
    AlreadyExistsError,
    CorruptionError,
    DamagedFileError,
    DamagedLedgerError,
    FormatError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from holdfast.catalog.facts import KINDS
from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.marker import Marker, read_marker
from holdfast.catalog.state_schema import for_engine, parse_schema
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.types import Ack, CheckpointMetrics, Chunk, Role, Scope, StoredFile
from holdfast.writers.local.blob_cache import BlobCache
from holdfast.writers.local.local_state import LocalShare, LocalState
from holdfast.writers.spark import group_digests
from holdfast.writers.stores.ack_codec import decode_ack, sealed
from tests.golden import make
from tests.support.hostile import (
    Draw,
    Sandbox,
    mutated,
    mutated_bytes,
    opened_manifest,
    refused,
    resealed,
    sealed_manifest,
    values,
    watched,
)

GOLDEN = make.GOLDEN / "format-1" / "savepoint"
TOKEN = "0123456789abcdef"

Target = Callable[[Sandbox, Draw], None]


def manifests(sandbox: Sandbox, draw: Draw) -> None:
    """A savepoint whose manifest says anything, with a valid digest; it is opened and every state read."""
    whole = (GOLDEN / "_metadata").read_bytes()
    header, rows = opened_manifest(whole)
    try:
        match draw(st.sampled_from(["header", "schema", "rows", "bytes", "raw", "text"])):
            case "header":
                data = sealed_manifest(mutated(draw, header, sandbox), rows)
            case "schema":
                info = draw(st.sampled_from([info for info in header["states"] if info["schema"]]))
                info["schema"] = json.dumps(mutated(draw, json.loads(info["schema"]), sandbox))
                data = sealed_manifest(header, rows)
            case "rows":
                data = sealed_manifest(header, mutated(draw, rows, sandbox))
            case "bytes":
                data = resealed(mutated_bytes(draw, whole))
            case "raw":
                data = mutated_bytes(draw, whole)
            case _:
                texts = [b"", b"[]", b"null", b"[" * 100_000, b'{"a":' * 5_000, b"\xff", b'{"format":1e999}', b"1" * 5_000]
                data = sealed_manifest(header, rows, text=draw(st.sampled_from(texts)))
    except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError):
        return  # no column of a file can hold it
    place = sandbox.inside / "savepoint"
    if not place.exists():
        shutil.copytree(GOLDEN, place)
    (place / "_metadata").write_bytes(data)
    with refused(CorruptionError, FormatError, NotFoundError):
        _use(holdfast.open_savepoint(place), sandbox)


def _use(savepoint: holdfast.Checkpoint, sandbox: Sandbox) -> None:
    repr((savepoint, savepoint.progress, savepoint.properties, savepoint.path))
    for info in savepoint.manifest.states:
        with refused(CorruptionError, FormatError, NotFoundError):
            match info.format:
                case "parquet":
                    savepoint.duckdb(info.state).fetchall()
                case "bytes":
                    savepoint.read_bytes(info.state)
                case "files":
                    [savepoint.read_file(info.state, file.name) for file in savepoint.owned_files(info.state)]
                case _:
                    shutil.rmtree(sandbox.inside / "restored", ignore_errors=True)
                    savepoint.restore_directory(info.state, sandbox.inside / "restored")


SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {}},
        {"name": "b", "type": {"type": "array", "elementType": "decimal(9,2)", "containsNull": True}, "nullable": True, "metadata": {}},
        {"name": "c", "type": {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True}, "nullable": False},
        {"name": "d", "type": {"type": "struct", "fields": [{"name": "x", "type": "interval day to second"}]}, "metadata": {"note": "n"}},
    ],
}


def schemas(sandbox: Sandbox, draw: Draw) -> None:
    """What the grammar takes, Spark's parser takes too, and as types of DuckDB's it is one SELECT."""
    import duckdb
    from pyspark.sql.types import StructType

    from holdfast.catalog.types import StateInfo
    from holdfast.catalog.views.duckdb_engine import query
    from holdfast.writers.parquet.duckdb_read import state_sql
    from holdfast.writers.parquet.plan import plan_reading

    text = json.dumps(mutated(draw, SCHEMA, sandbox))
    try:
        found = parse_schema(text)
    except ValueError:
        return
    StructType.fromJson(for_engine(text))
    if found.names and "_key_group" not in found.names:
        info = StateInfo(operator="main", state="s", format="parquet", schema=text)
        with refused(FormatError, CorruptionError), duckdb.connect() as connection:
            assert query(connection, state_sql(str(sandbox.inside), info, plan_reading([], {}, 1))).fetchall() == []


def acknowledgements(sandbox: Sandbox, draw: Draw) -> None:
    """An acknowledgement of a task, with a valid digest; if it is taken, it names files of its own attempt and no others."""
    path = f"jobs/j-00000001/shared/1-{TOKEN}-0_0_a-0.bin"
    file = StoredFile(file_id=f"{TOKEN}-0-0", path=path, size_bytes=1, sha256="0" * 64, scope=Scope.SHARED)
    same = {"operator": "main", "state": "rocks", "subtask": 0, "role": Role.FILE, "layer": 0, "offset_bytes": 0, "length_bytes": 1}
    chunk = Chunk(**same, file_id=file.file_id, scope=Scope.SHARED, sha256=file.sha256, name="1.sst")
    ack = Ack(
        checkpoint_id=1,
        attempt=TOKEN,
        operator="main",
        state="rocks",
        subtask=0,
        files=(file,),
        chunks=(chunk,),
        metrics=CheckpointMetrics(),
    )
    plain = json.loads(json.dumps(asdict(ack)))
    data = draw(
        st.sampled_from(
            [
                lambda: sealed(json.dumps(mutated(draw, plain, sandbox)).encode()),
                lambda: mutated_bytes(draw, sealed(json.dumps(plain).encode())),
                lambda: sealed(draw(st.sampled_from([b"", b"[]", b"[" * 100_000, b"\xff", b"1" * 5_000]))),
                lambda: draw(values(sandbox)),
            ]
        )
    )()
    with refused(UsageError):
        taken = decode_ack(data)
        assert all(paths.attempt_of(file.path) == taken.attempt for file in taken.files)


PACKED = [zlib.compress(data) for data in (b"", bytes(28), bytes(84), bytes(28 * 40_000), bytes(10_000_000), b"\x01" * 28, b"\xff" * 56)]


def digests(sandbox: Sandbox, draw: Draw) -> None:
    """Digests of key groups: never more than there are groups."""
    packed = draw(st.sampled_from(PACKED))
    text = base64.b64encode(draw(st.sampled_from([packed, mutated_bytes(draw, packed)]))).decode()
    given_ = draw(st.sampled_from([text, text[:-1], "%", "ü", "====", ""]))
    with refused(DamagedFileError):
        assert all(0 <= group < 8 for group in group_digests.decode(given_, 8))


def markers(sandbox: Sandbox, draw: Draw) -> None:
    """`holdfast.json` with anything in it: its ledger is in the catalog's own directory."""
    of_format_1 = {"catalog_id": "c0ffee", "format_version": 1, "ledger": "ledger"}
    whole = draw(st.sampled_from([of_format_1, json.loads(Marker(catalog_id="c0ffee").data)]))
    plain = json.dumps(mutated(draw, whole, sandbox)).encode()
    data = draw(st.sampled_from([plain, mutated_bytes(draw, plain), b"[" * 100_000, b"1" * 5_000]))
    place = sandbox.inside / "marked"
    place.mkdir(exist_ok=True)
    (place / "holdfast.json").write_bytes(data)
    with refused(CorruptionError, FormatError):
        assert paths.is_ledger(read_marker(open_storage(place)).ledger)


def facts(sandbox: Sandbox, draw: Draw) -> None:
    """Rows of the ledger's table: each is a fact, whole, or there is an error that says which is not."""
    kind = draw(st.sampled_from([*KINDS, "later"]))
    row: dict[str, Any] = dict.fromkeys(schema.SCHEMA.names)
    row |= {"kind": kind, "operation_id": "op", "at": 0, "by": "me"}
    for field in schema._FIELDS.get(kind, ()):
        numbers = pa.types.is_integer(schema.SCHEMA.field(field).type)
        row[field] = draw(
            st.none() | (st.integers(-1, 5) if numbers else st.sampled_from(["base", "SHARED", "open", "checkpoint", "x", ""]))
        )
    try:
        table = pa.Table.from_pylist([row], schema=schema.SCHEMA)
    except (pa.ArrowException, TypeError, ValueError):
        return
    with refused(DamagedLedgerError, FormatError):
        assert [fact.kind for fact in schema.from_table(table)] == [kind]
        assert kind in KINDS


def names(sandbox: Sandbox, draw: Draw) -> None:
    """Jobs, states, savepoints, owners, holds, notes, reasons and progress of any text: taken whole, or refused before anything is done."""
    given_ = draw(values(sandbox))
    with _catalog(sandbox) as catalog:
        _named(catalog, given_, draw)
        with catalog.duckdb() as connection:
            told = connection.execute("SELECT count(*), max(progress::JSON->>'$.a') FROM checkpoints").fetchone()
            assert told is not None
            assert told[0] >= 1


def _named(catalog: holdfast.Catalog, given_: Any, draw: Draw) -> None:
    with refused(UsageError):
        match draw(st.sampled_from(["job", "state", "savepoint", "owner", "hold", "note", "reason", "progress"])):
            case "job":
                catalog.coordinate(given_).close()
            case "state":
                with catalog.coordinate("j") as job, job.checkpoint() as checkpoint:
                    checkpoint.write_bytes(given_, b"x")
                with catalog.checkpoint("j") as head:
                    assert head.read_bytes(given_) == b"x"
            case "savepoint":
                catalog.savepoint("j", given_)
            case "owner":
                catalog.own("j", given_)
            case "hold":
                catalog.hold("j", _head(catalog), given_)
            case "note":
                catalog.hold("j", _head(catalog), f"hold {draw(st.integers(0, 10**9))}", given_)
            case "reason":
                catalog.drop("j", 1, given_)
            case _:
                with catalog.coordinate("j") as job, job.checkpoint(given_) as checkpoint:
                    checkpoint.write_bytes("s", b"x")


def _head(catalog: holdfast.Catalog) -> int:
    with catalog.checkpoint("j") as head:
        return head.checkpoint_id


def _catalog(sandbox: Sandbox) -> holdfast.Catalog:
    place = sandbox.inside / "catalog"
    is_new = not place.exists()
    catalog = holdfast.open(place, create=True)
    if is_new:
        with catalog.coordinate("j") as job, job.checkpoint({"a": 1}) as checkpoint:
            checkpoint.write_bytes("s", b"x")
    return catalog


def addresses(sandbox: Sandbox, draw: Draw) -> None:
    """Addresses of catalogs, checkpoints and savepoints, and key groups: nothing is made by asking."""
    texts = [value for value in sandbox.values if isinstance(value, str)]
    address = draw(st.sampled_from(texts) | st.text(max_size=30))
    below = f"{sandbox.inside}/{address}"
    paths.parse(address)
    match draw(st.sampled_from(["open", "manifest", "savepoint", "groups"])):
        case "open":
            with refused(AddressError, NotFoundError):
                holdfast.open(below)
        case "manifest":
            with refused(AddressError, DamagedFileError):
                holdfast.open_manifest(f"{below}/jobs/{address}/chk-1")
        case "savepoint":
            with refused(AddressError, NotFoundError, DamagedFileError):
                holdfast.open_savepoint(below)
        case _:
            with refused(UsageError):
                groups_of(draw(values(sandbox)), draw(values(sandbox)), draw(values(sandbox)))


def local_files(sandbox: Sandbox, draw: Draw) -> None:
    """What lies in a working directory and in its cache is anybody's: right bytes come out, or none."""
    right = b"right"
    digest = hashlib.sha256(right).hexdigest()
    place = sandbox.inside / "working"
    shutil.rmtree(place, ignore_errors=True)
    share = LocalShare(catalog_id="c", job_id="j-00000001", operator="main", state="s", subtask=0)
    found_at = LocalState._place(place, share) / f"1-{TOKEN}" / digest
    for entry in (place / digest, found_at / "1.sst"):
        entry.parent.mkdir(parents=True, exist_ok=True)
        match draw(st.sampled_from(["right", "wrong", "directory", "link", "dangling", "none"])):
            case "right":
                entry.write_bytes(right)
            case "wrong":
                entry.write_bytes(mutated_bytes(draw, right))
            case "directory":
                (entry / "x").mkdir(parents=True)
            case "link":
                entry.symlink_to(sandbox.directory)
            case "dangling":
                entry.symlink_to(sandbox.canary)
    name = draw(st.sampled_from(["1.sst", *(value for value in sandbox.values if isinstance(value, str))]))
    with refused(UsageError):
        local = LocalState(place).find(share, name, len(right), digest)
        assert local is None or local.read_bytes() == right
    assert BlobCache(place, 10**6).get(digest, len(right), lambda stream: stream.write(right)).read_bytes() == right


def ledgers(sandbox: Sandbox, draw: Draw) -> None:
    """A byte of any file of a ledger, its Delta checkpoint too: an error that says so, or the right answer."""
    source = sandbox.inside / "source"
    if not source.exists():
        with holdfast.open(source, create=True) as catalog, catalog.coordinate("j", retention=holdfast.KeepAll()) as job:
            for n in range(24):
                with job.checkpoint({"n": n}) as checkpoint:
                    checkpoint.write_bytes("s", b"%d" % n)
    place = sandbox.inside / "copied"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    files = sorted(path for path in (place / "ledger").rglob("*") if path.is_file())
    hit = draw(st.sampled_from(files))
    data = hit.read_bytes()
    if hit.suffix == ".json" and draw(st.booleans()):
        try:
            lines = [json.loads(line) for line in data.splitlines()]
            hit.write_bytes("\n".join(json.dumps(line) for line in mutated(draw, lines, sandbox)).encode())
        except ValueError:
            return
    else:
        hit.write_bytes(mutated_bytes(draw, data))
    with refused(CorruptionError, FormatError, NotFoundError, RefusedError, AlreadyExistsError), holdfast.open(place) as catalog:
        with catalog.checkpoint("j") as head:
            number = head.checkpoint_id
            assert head.progress == {"n": number - 1}, f"checkpoint {number} has the progress {head.progress}"
        catalog.vacuum(dry_run=True)
        catalog.verify()


TARGETS: dict[str, Target] = {
    each.__name__: each for each in (manifests, schemas, acknowledgements, digests, markers, facts, names, addresses, local_files, ledgers)
}


COSTLY = {"manifests": 5, "names": 20, "ledgers": 20}  # a piece of these takes so many times as long as one of the others


def fuzz(name: str, directory: Path, examples: int, seed_: int) -> int:
    """Run a target on so many pieces of input, fewer of the costly; how many. Raises what must not have happened, with what it takes."""
    sandbox, target, count = Sandbox(directory), TARGETS[name], max(1, examples // COSTLY.get(name, 1))
    phases = [Phase.generate] if name in COSTLY else [Phase.generate, Phase.shrink]

    @seed(seed_)
    @settings(max_examples=count, phases=phases, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(st.data())
    def run(data: st.DataObject) -> None:
        target(sandbox, data.draw)

    with watched(sandbox):
        run()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=[*TARGETS], help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--examples", type=int, default=2_000, help="of each target")
    parser.add_argument("--seed", type=int, default=None, help="a new one if not given")
    arguments = parser.parse_args()
    seed_ = Random().getrandbits(31) if arguments.seed is None else arguments.seed
    print(f"seed {seed_}", flush=True)
    for name in arguments.targets:
        directory = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
        count = fuzz(name, directory, arguments.examples, seed_)
        shutil.rmtree(directory)
        print(f"{name}: {count} pieces of input", flush=True)


if __name__ == "__main__":
    main()
