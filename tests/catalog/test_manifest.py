"""The manifest: what goes in comes out, and no byte of it can be changed, lost or added without notice."""

import hashlib
import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.catalog import manifest as m
from holdfast.catalog.errors import DamagedFileError, FormatError
from holdfast.catalog.manifest import Manifest, decode, encode
from holdfast.catalog.state import Ref
from holdfast.catalog.types import AttemptToken, Chunk, FileId, Role, Scope, StateInfo, StoredFile

PATH = "jobs/flights-00000001/chk-7/_metadata"
TOKEN = AttemptToken("0123456789abcdef")
SCHEMA = json.dumps({"type": "struct", "fields": [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in ("a", "b")]})


def chunk(i: int, **changes) -> Chunk:
    fields = {
        "operator": "main",
        "state": f"state {i % 3}",
        "file_id": FileId(f"{TOKEN}-{i}-0"),
        "scope": Scope.SHARED,
        "role": Role.BASE,
        "layer": i % 2,
        "offset_bytes": 8 * i,
        "length_bytes": 100 + i,
        "sha256": hashlib.sha256(str(i).encode()).hexdigest(),
        "rows": i,
    }
    return Chunk(**{**fields, **changes})


def stored(c: Chunk) -> StoredFile:
    path = f"jobs/flights-00000001/shared/7-{c.file_id}.parquet"
    return StoredFile(file_id=c.file_id, path=path, size_bytes=10_000_000, sha256=c.sha256, scope=c.scope)


def state(name: str, **changes) -> StateInfo:
    return StateInfo(**{"operator": "main", "state": name, "format": "parquet", "rows": 5, "total_bytes": 9, **changes})


def manifest(chunks: tuple[Chunk, ...], **changes) -> Manifest:
    fields = {
        "job_id": "flights-00000001",
        "job": "flights ✈",
        "max_parallelism": 128,
        "checkpoint_id": 7,
        "attempt": TOKEN,
        "parent": Ref("flights-00000001", 6),
        "created_at": datetime(2013, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "progress": {"week": 3, "names": ["é", None]},
        "states": (
            *(state(f"state {i}", key_columns=("a", "b"), schema=SCHEMA) for i in range(3)),
            state("small", format="bytes"),
            state("rocks", format="directory"),
        ),
        "chunks": chunks,
        "files": {c.file_id: stored(c) for c in chunks if c.inline is None},
    }
    return Manifest(**{**fields, **changes})


def inline(data: bytes, **changes) -> Chunk:
    sha256 = hashlib.sha256(data).hexdigest()
    return chunk(
        9, **{"state": "small", "rows": None, "inline": data, "length_bytes": len(data), "offset_bytes": 0, "sha256": sha256, **changes}
    )


INLINE = inline(b"\x00\xff", scope=Scope.EXCLUSIVE)
EVERY_FIELD = chunk(4, state="rocks", subtask=3, key_group_from=0, key_group_to=63, name="000012.sst", role=Role.FILE)
ODD = "a'b\"c\\d \u2708"
SMALL = manifest((chunk(1), EVERY_FIELD, INLINE))


@pytest.mark.parametrize(
    "given",
    [
        SMALL,
        manifest((), states=(), progress=None, parent=None),
        manifest((INLINE,)),
        manifest((chunk(1, state=ODD), chunk(2, state=ODD)), states=(state(ODD, schema=SCHEMA),)),
    ],
    ids=["every field", "empty", "inline only", "odd names"],
)
def test_what_goes_in_comes_out(given: Manifest) -> None:
    assert decode(encode(given), PATH) == given


def test_it_is_plain_parquet_for_everybody() -> None:
    table = pq.read_table(pa.BufferReader(encode(SMALL)))
    assert table.column("path").to_pylist()[0] == stored(SMALL.chunks[0]).path
    assert table.schema.names == m.CHUNKS.names


def test_chunks_of_a_state_come_lower_layers_first() -> None:
    given = manifest((chunk(3, layer=2), chunk(0, layer=0), chunk(6, layer=1)))
    assert [c.layer for c in given.chunks_of(given.states[0])] == [0, 1, 2]


def test_a_name_or_an_inline_state_may_hold_the_mark_of_the_digest() -> None:
    """A user keeps a manifest as small state, say. The mark then stands in the file more than once, in statistics too."""
    mark = b"holdfast-sha256:" + b"0" * 64
    data = mark + encode(SMALL)
    given = manifest((inline(data),), progress={"x": mark.decode()}, job=mark.decode())
    assert decode(encode(given), PATH) == given


def test_every_single_changed_byte_is_detected() -> None:
    data = encode(SMALL)
    for at in range(len(data)):
        for flip in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            with pytest.raises(DamagedFileError, match=PATH):
                decode(bytes(damaged), PATH)


def test_every_truncation_is_detected() -> None:
    data = encode(SMALL)
    for length in range(len(data)):
        for cut in (data[:length], data[len(data) - length :]):
            with pytest.raises(DamagedFileError, match=PATH):
                decode(cut, PATH)


def test_every_missing_byte_is_detected() -> None:
    data = encode(SMALL)
    for at in range(len(data)):
        with pytest.raises(DamagedFileError, match=PATH):
            decode(data[:at] + data[at + 1 :], PATH)


def test_every_added_byte_is_detected() -> None:
    data = encode(SMALL)
    for at in range(len(data) + 1):
        for added in (b"\x00", b"0", data[at : at + 1] or b"1"):
            with pytest.raises(DamagedFileError, match=PATH):
                decode(data[:at] + added + data[at:], PATH)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"{}", b"holdfast-sha256:" + b"0" * 64, b"holdfast-sha256:"])
def test_what_never_was_a_manifest_is_called_damaged(data: bytes) -> None:
    with pytest.raises(DamagedFileError, match=PATH):
        decode(data, PATH)


def test_a_manifest_of_a_newer_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "MANIFEST_FORMAT", 2)
    data = encode(SMALL)
    monkeypatch.undo()
    with pytest.raises(FormatError, match=f"{PATH} has manifest format 2, this version reads up to 1"):
        decode(data, PATH)


def test_a_large_manifest_stays_small_and_whole() -> None:
    """50,000 chunks in columns: some MB, where JSON takes 15."""
    given = manifest(tuple(chunk(i) for i in range(50_000)))
    data = encode(given)
    assert len(data) < 4_500_000
    assert decode(data, PATH) == given
