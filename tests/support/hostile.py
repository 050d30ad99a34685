"""Input that is made to harm: values for any place, mutations of what is whole, and a place in which harm is seen."""

import copy
import hashlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from holdfast.catalog import manifest as m
from holdfast.catalog.errors import HoldfastError

CASE_LIMIT_S = 60
GROWTH_LIMIT_BYTES = 1_500_000_000
MODULE = "holdfast_canary"  # importable, and nobody's business

Draw = Any


class TooLongError(BaseException):
    """A case that did not end."""


class Sandbox:
    """A directory whose `inside` a case may use. What is beside it was not there to be written, read or run."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.inside = directory, directory / "inside"
        self.inside.mkdir(parents=True)
        self.canary = directory / "canary"
        (directory / f"{MODULE}.py").write_text(
            f"open({str(directory / 'imported')!r}, 'w')\ndef run(*_, **__): open({str(self.canary)!r}, 'w')\n"
        )
        self._there = self._listing()

    @property
    def values(self) -> list[Any]:
        """For any place of any input."""
        copied = f"COPY (SELECT 1) TO '{self.canary}'"
        return [
            *(None, True, 0, -1, 1.5, 2**31, 2**63, -(2**63), 10**30, "", " ", "NaN", [], {}, [None], {"a": 1}),
            *("x" * 100_000, "\ud800", "\x00", "a\x00b", "\x1b[31m", "a\nb", "\u202eevil", "null", "ü", "%41", "~root", "CON"),
            *("..", ".", "/", "/etc/passwd", "../../canary", "data/../../canary", "data//x", f"file://{self.canary}", str(self.canary)),
            *(f"'); {copied}; --", f'"); {copied}; --', f"decimal(1,0) AS a); {copied}; SELECT (1", "decimal(99,99)", "decimal(10,-2)"),
            *("a') OR reflect('java.lang.Runtime', 'getRuntime') IN ('", "${spark.driver.host}", "`x`", "*", "pickle", "parquet"),
            {"type": "udt", "class": "x", "pyClass": f"{MODULE}.run", "sqlType": "integer", "serializedClass": ""},
            {"type": "struct", "fields": []},
        ]

    def harm(self) -> list[str]:
        """What came to be outside, or was run."""
        return sorted(self._listing() ^ self._there)

    def _listing(self) -> set[str]:
        return {name for name in os.listdir(self.directory) if name not in ("inside", "__pycache__")}


@contextmanager
def watched(sandbox: Sandbox) -> Iterator[None]:
    """Many cases: nothing is run or written outside, and not too much memory is taken."""
    sys.path.insert(0, str(sandbox.directory))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
    finally:
        sys.path.remove(str(sandbox.directory))
        sys.modules.pop(MODULE, None)
    assert not sandbox.harm(), f"outside of its place came to be: {sandbox.harm()}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < GROWTH_LIMIT_BYTES, f"{grown} bytes of memory were taken"


@contextmanager
def refused(*kinds: type[HoldfastError]) -> Iterator[None]:
    """An error of these kinds is a right outcome, and so is none; anything else, or no end, is not."""

    def too_long(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, CASE_LIMIT_S)
    try:
        yield
    except kinds as error:
        str(error).encode("utf-8", "surrogatepass")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def values(sandbox: Sandbox) -> st.SearchStrategy[Any]:
    """What is known to harm, and anything else that JSON can say."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
    anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))
    return st.sampled_from(sandbox.values) | anything


def mutated(draw: Draw, whole: Any, sandbox: Sandbox) -> Any:
    """The same value with some of its places changed, taken out, or doubled."""
    changed = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        places = [*_places(changed)]
        if not places:
            return draw(values(sandbox))
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["set", "set", "set", "drop", "double"]))
        if how == "drop":
            del holder[key]
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = draw(values(sandbox))
    return changed


def mutated_bytes(draw: Draw, whole: bytes) -> bytes:
    """The same bytes with some changed, lost or added."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "double", "zero", "add"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "double":
                data[at:at] = data[at : at + 40]
            case "zero":
                data[at : at + 40] = bytes(len(data[at : at + 40]))
            case _:
                data += draw(st.binary(max_size=40))
    return bytes(data)


def sealed_manifest(header: Any, rows: list[dict[str, Any]], *, text: bytes | None = None) -> bytes:
    """A `_metadata` with a valid digest and any content. Raises what Arrow says of rows that no column can hold."""
    table = pa.Table.from_pylist(rows, schema=m.CHUNKS)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, m.CHUNKS, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        told = json.dumps(header).encode() if text is None else text
        writer.add_key_value_metadata({b"holdfast": told, b"holdfast-digest": m._DIGEST_MARK + m._ZEROS})
    return resealed(sink.getvalue())


def resealed(data: bytes) -> bytes:
    """The same bytes with the digest that they have, where there is a place for it."""
    at = m._digest_offset(data)
    if at is None:
        return data
    plain = data[:at] + m._ZEROS + data[at + 64 :]
    return data[:at] + hashlib.sha256(plain).hexdigest().encode() + data[at + 64 :]


def opened_manifest(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and rows of a whole manifest."""
    table = pq.read_table(io.BytesIO(data))
    return json.loads(table.schema.metadata[b"holdfast"]), table.replace_schema_metadata(None).to_pylist()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in lists and mappings, as (holder, key)."""
    keys = range(len(value)) if isinstance(value, list) else [*value] if isinstance(value, dict) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
