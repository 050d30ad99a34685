"""Layers of a state: which chunks, and which key groups of them, are seen (design, sections 1 and 3). Pure.

A state is its base and the change sets above it. In each key group the highest base chunk hides every lower chunk, whatever its role:
so a checkpoint may write a new base of a few groups only, with exact ranges, and refer to the rest. A base chunk without rows (inline,
empty) says that its groups are empty. Of the change sets that are left, the higher layer wins, key by key; a delete is a tombstone.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.catalog.types import Chunk, Role

CHANGES = frozenset({Role.UPSERTS, Role.DELETES})

Layers = npt.NDArray[np.int32]


def base_layers(chunks: Sequence[Chunk], max_parallelism: int) -> Layers:
    """The layer of the base of each key group; -1 for a group that has none, whose change sets stand alone."""
    found = np.full(max_parallelism, -1, np.int32)
    for chunk in chunks:
        if chunk.role is Role.BASE:
            groups = found[_groups(chunk, max_parallelism)]
            np.maximum(groups, chunk.layer, out=groups)
    return found


def only(base: Layers, key_groups: range) -> Layers:
    """The same for a reader of these key groups only: in all others everything is hidden."""
    masked = np.full_like(base, np.iinfo(np.int32).max)
    wanted = slice(key_groups.start, key_groups.stop)
    masked[wanted] = base[wanted]
    return masked


def seen_groups(chunk: Chunk, base: Layers) -> list[range]:
    """The key groups of a chunk that no higher base hides, as ranges in ascending order; empty if it is not seen at all."""
    within = _groups(chunk, len(base))
    return _ranges(np.flatnonzero(base[within] <= chunk.layer) + within.start)


def seen_at(layer: int, base: Layers) -> list[range]:
    """The key groups in which no base lies above this layer, as ranges in ascending order."""
    return _ranges(np.flatnonzero(base <= layer))


def is_seen_whole(chunk: Chunk, base: Layers) -> bool:
    """Whether no higher base hides any of its key groups."""
    return bool((base[_groups(chunk, len(base))] <= chunk.layer).all())


def seen_chunks(chunks: Sequence[Chunk], max_parallelism: int) -> list[Chunk]:
    """The chunks of a state without those that are hidden whole; a footer stays while a chunk of its file does."""
    base = base_layers(chunks, max_parallelism)
    seen = [chunk for chunk in chunks if chunk.role is not Role.FOOTER and seen_groups(chunk, base)]
    files = {chunk.file_id for chunk in seen}
    kept = {chunk.identity for chunk in seen}
    return [chunk for chunk in chunks if chunk.identity in kept or (chunk.role is Role.FOOTER and chunk.file_id in files)]


def count_change_sets(chunks: Sequence[Chunk]) -> int:
    """How many change sets lie above the base."""
    return len({chunk.layer for chunk in chunks if chunk.role in CHANGES})


def _ranges(groups: npt.NDArray[np.intp]) -> list[range]:
    """Ascending numbers as ranges without gaps."""
    if not len(groups):
        return []
    breaks = np.flatnonzero(np.diff(groups) > 1)
    firsts, lasts = [groups[0], *groups[breaks + 1]], [*groups[breaks], groups[-1]]
    return [range(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def _groups(chunk: Chunk, max_parallelism: int) -> slice:
    """A chunk that does not say may hold any group."""
    if chunk.key_group_from is None or chunk.key_group_to is None:
        return slice(0, max_parallelism)
    return slice(chunk.key_group_from, chunk.key_group_to + 1)
