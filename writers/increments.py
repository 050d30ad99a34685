"""What an increment is made of and when it is too much: pure decisions, which know nothing of Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.catalog.layers import CHANGES, Layers, base_layers, count_change_sets, seen_chunks
from holdfast.catalog.types import Ack, ChainLimit, Chunk, FileId, Role, StateInfo, StoredFile
from holdfast.writers.spark.group_digests import GroupDigest

CALLS = 3  # that one write may make of an attempt's write calls, from its context's on
MOST_CHUNKS = 10_000  # above the base of one state, however small they are: each is a row of every manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentState:
    """What the pinned parent has of a state, whose job has so many key groups."""

    max_parallelism: int
    info: StateInfo
    chunks: tuple[Chunk, ...]
    files: Mapping[FileId, StoredFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a write made of a state: its description and all of its chunks, carried ones included. Acks name what was uploaded for it.

    An ack may name files of which no chunk is left: they become file rows without handles.
    """

    acks: tuple[Ack, ...]
    info: StateInfo
    content: tuple[Chunk, ...]


def in_full(acks: Iterable[Ack], info: StateInfo) -> Written:
    """A state that is all of its acks and nothing else."""
    acks = tuple(acks)
    return Written(acks=acks, info=info, content=chunks_of(acks))


def on_parent(parent: ParentState, acks: Iterable[Ack], info: StateInfo) -> Written:
    """A state that is its acks in layers above what they leave to be seen of the parent's."""
    acks = tuple(acks)
    new = chunks_of(acks)
    content = (*parent.chunks, *new)
    if any(chunk.role is Role.BASE for chunk in new):  # nothing else hides anything
        content = tuple(seen_chunks(content, parent.max_parallelism))
    layers = len({chunk.layer for chunk in content})
    return Written(acks=acks, info=replace(info, layers=layers, total_bytes=bytes_of(content)), content=content)


def chunks_of(acks: Iterable[Ack]) -> tuple[Chunk, ...]:
    """The chunks that the acks name, in their order."""
    return tuple(chunk for ack in acks for chunk in ack.chunks)


def bytes_of(chunks: Iterable[Chunk]) -> int:
    """The bytes of the chunks together."""
    return sum(chunk.length_bytes for chunk in chunks)


def without_chunks(ack: Ack) -> Ack:
    """The ack of an upload of which nothing is used: its files are known, so that cleanup finds them by query."""
    return replace(ack, chunks=())


def with_reused(acks: Sequence[Ack], reused_bytes: int) -> tuple[Ack, ...]:
    """The acks of one state, which say how many bytes the state did not have to write: the first does, where tasks did not tell."""
    if sum(ack.metrics.bytes_reused for ack in acks) == reused_bytes:
        return tuple(acks)
    return tuple(replace(ack, metrics=replace(ack.metrics, bytes_reused=0 if i else reused_bytes)) for i, ack in enumerate(acks))


def too_many_changes(parent: ParentState, changes: Iterable[Chunk], limit: ChainLimit) -> bool:
    """Whether the state would go beyond the limit with one change set more, of these chunks."""
    chunks = (*parent.chunks, *changes)
    above = [chunk for chunk in chunks if chunk.role in CHANGES]
    base_bytes = bytes_of(chunk for chunk in chunks if chunk.role is Role.BASE)
    return count_change_sets(above) > limit.change_sets or bytes_of(above) > limit.share_of_base * base_bytes or len(above) > MOST_CHUNKS


def too_many_groups(parent: ParentState, changed: Sequence[int], digests: Mapping[int, GroupDigest], limit: ChainLimit) -> bool:
    """Whether a new base of the changed groups alone would go beyond the limit, or is most of the state anyway."""
    rows = sum(digest.rows for digest in digests.values())
    changed_rows = sum(digests[group].rows for group in changed if group in digests)
    base = base_layers(parent.chunks, parent.max_parallelism)
    base[list(changed)] = max((chunk.layer for chunk in parent.chunks), default=-1) + 1
    kept = [(chunk, share) for chunk in parent.chunks if chunk.role is Role.BASE and (share := _seen_share(chunk, base)) > 0]
    kept_bytes = sum(chunk.length_bytes for chunk, _ in kept)
    hidden_bytes = sum((1 - share) * chunk.length_bytes for chunk, share in kept)
    layers = {chunk.layer for chunk, _ in kept}
    above = [chunk for chunk, _ in kept if chunk.layer > min(layers)]
    return (
        len(layers) > limit.change_sets
        or changed_rows > limit.share_of_base * rows
        or hidden_bytes > limit.share_of_base * kept_bytes
        or len(above) + len(changed) > MOST_CHUNKS
    )


def _seen_share(chunk: Chunk, base: Layers) -> float:
    """The share of a chunk's key groups that no higher base hides: about that of its bytes, for hashes spread evenly."""
    first = chunk.key_group_from or 0
    last = len(base) - 1 if chunk.key_group_to is None else chunk.key_group_to
    return float((base[first : last + 1] <= chunk.layer).mean())
