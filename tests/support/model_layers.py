"""The states of the model: a few keys in two key groups, written as bases and change sets, and read back by the layers' rule.

What a state is worth is said twice, and the two are compared: as a plain dict, when it is written; and as what the handles of the
ledger give, read by `catalog/layers.py`. Which chunks a write leaves is decided by `writers/upload.py`.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.catalog.layers import base_layers, is_seen_whole, seen_groups
from holdfast.catalog.types import (
    Ack,
    AttemptToken,
    ChainLimit,
    CheckpointId,
    CheckpointMetrics,
    Chunk,
    FileId,
    Identity,
    Role,
    Scope,
    StateInfo,
)
from holdfast.writers.spark.chain_limit import too_many_changes
from holdfast.writers.upload import ParentState, on_parent

GROUPS = 2  # key groups of each job; key k is in group k % GROUPS
KEYS = range(4)
CHAIN = ChainLimit(change_sets=2, share_of_base=1e9)
SPACE = 40  # bytes of a file for the chunks of one state

Value = Mapping[int, int]  # key -> what was written last
INFO = StateInfo(operator="main", state="s", format="parquet")


@dataclass(frozen=True, slots=True)
class Layered:
    """A state as one checkpoint has it: its chunks, and what they are worth together."""

    chunks: tuple[Chunk, ...]
    value: Value


class Sheets:
    """What every chunk holds, and where new values come from. A file's bytes are its name, so that its rows are known by that."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.rows: dict[Identity, Value] = {}
        self._values = 0
        self._read_before: dict[frozenset[int], tuple[Sequence[Any], Value]] = {}

    def write(self, state: str, parent: Layered | None, file_id: FileId, number: int, scope: Scope) -> Layered:
        """The state with something new in it, as number so and so of a file: in full, or as an increment on the parent's."""
        file = _File(self, state, file_id, number * SPACE, scope, _next_layer(parent))
        roll = self.random.random()
        if parent is None or scope is Scope.EXCLUSIVE or roll < 0.35:
            return self._full(file, self._some())
        return self._changes(file, parent) if roll < 0.8 else self._group(file, parent)

    def small(self, state: str, parent: Layered | None, file_id: FileId) -> Layered:
        """The state in full, inline: it has no file."""
        value = self._some()
        chunk = _File(self, state, file_id, 0, Scope.SHARED, _next_layer(parent)).chunk(Role.BASE, value, inline=b"x")
        return Layered((chunk,), value)

    def copies(self, states: Mapping[str, Layered], file_id: FileId) -> dict[str, Layered]:
        """The same states in a file of a savepoint."""
        return {
            state: Layered((_File(self, state, file_id, i * SPACE, Scope.EXCLUSIVE, 0).chunk(Role.BASE, of.value),), of.value)
            for i, (state, of) in enumerate(states.items())
        }

    def whole(self, chunk: Chunk) -> None:
        """A file that says one thing, which no other says."""
        value = self._new()
        self.rows[chunk.identity] = {len(KEYS) + value: value}

    def read(self, handles: Iterable[Any]) -> dict[str, Value]:
        """Every state that these handles (or chunks) are, by the layers' rule."""
        states = defaultdict(list)
        for handle in handles:
            if handle.role is not Role.MANIFEST:
                states[handle.state].append(handle)
        return {state: self._read(chunks) for state, chunks in states.items()}

    def _read(self, chunks: Sequence[Any]) -> Value:
        """Most states of a checkpoint are its parent's, by the same handles: read once. The handles are kept, so that ids stay theirs."""
        key = frozenset(map(id, chunks))
        if key not in self._read_before:
            self._read_before[key] = (chunks, self._merged(chunks))
        return self._read_before[key][1]

    def _merged(self, chunks: Sequence[Any]) -> Value:
        base, value = base_layers(chunks, GROUPS), dict[int, int]()
        for chunk in sorted(chunks, key=lambda chunk: chunk.layer):
            seen = range(GROUPS) if is_seen_whole(chunk, base) else {group for groups in seen_groups(chunk, base) for group in groups}
            for key, new in self.rows[chunk.file_id, chunk.offset_bytes].items():
                if key % GROUPS not in seen:
                    continue
                if chunk.role is Role.DELETES:
                    value.pop(key, None)
                else:
                    value[key] = new
        return value

    def _full(self, file: "_File", value: Value) -> Layered:
        """One chunk for all, or one for each key group: a part of the file can then go on without the other."""
        if file.scope is Scope.EXCLUSIVE or self.random.random() < 0.4:
            return Layered((file.chunk(Role.BASE, value),), value)
        return Layered(tuple(file.chunk(Role.BASE, _of(value, group), group) for group in range(GROUPS)), value)

    def _changes(self, file: "_File", parent: Layered) -> Layered:
        keys = self.random.sample(KEYS, self.random.choice((1, 2, 2, 3)))
        cut = self.random.randint(0, len(keys))
        upserts, deletes = {key: self._new() for key in keys[:cut]}, dict.fromkeys(keys[cut:], 0)
        value = {key: row for key, row in parent.value.items() if key not in deletes} | upserts
        chunks = [file.chunk(role, rows) for role, rows in ((Role.UPSERTS, upserts), (Role.DELETES, deletes)) if rows]
        if too_many_changes(_parent_state(parent), chunks, CHAIN):
            return self._full(file, value)
        return Layered(file.on(parent, chunks), value)

    def _group(self, file: "_File", parent: Layered) -> Layered:
        """A new base of one key group; of one that is empty now, no more than that it is."""
        group = self.random.randrange(GROUPS)
        rows = _of(self._some(), group)
        chunk = file.chunk(Role.BASE, rows, group, inline=None if rows else b"")
        return Layered(file.on(parent, [chunk]), rows | {key: row for key, row in parent.value.items() if key % GROUPS != group})

    def _some(self) -> dict[int, int]:
        return {key: self._new() for key in self.random.sample(KEYS, self.random.randint(1, len(KEYS)))}

    def _new(self) -> int:
        self._values += 1
        return self._values


@dataclass(slots=True)
class _File:
    """A file that is being written: where the next chunk of a state goes."""

    sheets: Sheets
    state: str
    file_id: FileId
    offset_bytes: int
    scope: Scope
    layer: int

    def chunk(self, role: Role, rows: Value, group: int | None = None, inline: bytes | None = None) -> Chunk:
        # Inline chunks have ids of their own: a handle with a file's id would keep the file.
        file_id = self.file_id if inline is None else FileId(f"{self.file_id}i")
        chunk = Chunk(
            operator="main", state=self.state, file_id=file_id, scope=self.scope, role=role, layer=self.layer,
            offset_bytes=self.offset_bytes, length_bytes=10, sha256="", key_group_from=group, key_group_to=group, inline=inline,
        )  # fmt: skip
        self.offset_bytes += 10
        self.sheets.rows[chunk.identity] = rows
        return chunk

    def on(self, parent: Layered, chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
        ack = Ack(
            checkpoint_id=CheckpointId(0), attempt=AttemptToken(""), operator="main", state=self.state, subtask=None, files=(),
            chunks=tuple(chunks), metrics=CheckpointMetrics(),
        )  # fmt: skip
        return on_parent(_parent_state(parent), [ack], INFO).content


def _of(value: Value, group: int) -> dict[int, int]:
    return {key: row for key, row in value.items() if key % GROUPS == group}


def _next_layer(parent: Layered | None) -> int:
    """The parent's highest layer of the state plus 1 (design, section 3)."""
    return max((chunk.layer for chunk in parent.chunks), default=-1) + 1 if parent else 0


def _parent_state(parent: Layered) -> ParentState:
    return ParentState(max_parallelism=GROUPS, info=INFO, chunks=parent.chunks, files={})
