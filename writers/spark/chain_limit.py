"""When a chain of change sets, or of changed groups, is too much to read. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.catalog.layers import CHANGES, Layers, base_layers, count_change_sets
from holdfast.catalog.types import ChainLimit, Chunk, Role
from holdfast.writers.spark.group_digests import GroupDigest
from holdfast.writers.upload import ParentState, bytes_of

MOST_CHUNKS = 10_000  # above the base of one state, however small they are: each is a row of every manifest
# The driver reads, merges and writes a state of 83 KiB in 10 ms, of 319 KiB in 27, of 817 KiB in 41, of 1.6 MiB in 105; a change set it
# writes in 3. A reader pays for each change set: ten above 83 KiB cost it half a second more than none. So what a base costs above a
# change set is saved by one reading of a chain in ten checkpoints.
BASE_BYTES, BASE_ROWS = 512 * 1024, 50_000


def too_many_changes(parent: ParentState, changes: Iterable[Chunk], limit: ChainLimit) -> bool:
    """Whether the state would go beyond the limit with one change set more, of these chunks."""
    chunks = (*parent.chunks, *changes)
    above = [chunk for chunk in chunks if chunk.role in CHANGES]
    base_bytes = bytes_of(chunk for chunk in chunks if chunk.role is Role.BASE)
    return count_change_sets(above) > limit.change_sets or bytes_of(above) > limit.share_of_base * base_bytes or len(above) > MOST_CHUNKS


def is_base_cheaper(state_bytes: int, rows: int) -> bool:
    """Whether a new base costs no more time than a change set and what its readers pay for it. `rows` are those of the state and of the
    changes."""
    return state_bytes <= BASE_BYTES and rows <= BASE_ROWS


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
