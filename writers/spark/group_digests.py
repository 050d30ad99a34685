"""Digests of key groups: what tells whether a group's rows are the same as the parent's, without reading the parent. Pure.

A group's digest is the count of its rows, and the sum (modulo 2^64) and xor of a 64-bit hash of each: the same in any order of the rows.
Xor alone cancels a row that appears twice; both alone do not see how many there are. A state keeps those of its groups that have rows
as text (`StateInfo.group_digests`): base 64 of zlib of packed little-endian rows (group int32, rows int64, sum int64, xor int64),
ascending by group.
"""

import base64
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from holdfast.catalog.errors import DamagedFileError

_ROW = np.dtype([("group", "<i4"), ("rows", "<i8"), ("sum", "<i8"), ("xor", "<i8")])


class GroupDigest(NamedTuple):
    """Of one key group; sum and xor as signed 64-bit numbers."""

    rows: int
    sum: int
    xor: int


def encode(digests: Mapping[int, GroupDigest]) -> str:
    """The text that a manifest keeps."""
    rows = np.array([(group, *digest) for group, digest in sorted(digests.items())], _ROW)
    return base64.b64encode(zlib.compress(rows.tobytes())).decode("ascii")


def decode(text: str, max_parallelism: int) -> dict[int, GroupDigest]:
    """What `encode` was given, of a job with so many key groups. Raises DamagedFileError for anything else; never inflates to more."""
    most = max_parallelism * _ROW.itemsize
    inflater = zlib.decompressobj()
    try:
        packed = inflater.decompress(base64.b64decode(text, validate=True), most + 1)
        rows = np.frombuffer(packed, _ROW) if inflater.eof else None
    except (ValueError, zlib.error):
        rows = None
    groups = [] if rows is None else rows["group"].tolist()
    if rows is None or groups != sorted({*groups}) or (groups and not 0 <= groups[0] <= groups[-1] < max_parallelism):
        msg = (
            f"the digests of a state's key groups are not those of {max_parallelism} groups: its manifest is not genuine. Write "
            "the state in full by another mode, or continue from another checkpoint"
        )
        raise DamagedFileError(msg)
    return {group: GroupDigest(*digest) for group, *digest in rows.tolist()}


def changed_groups(old: Mapping[int, GroupDigest], new: Mapping[int, GroupDigest]) -> list[int]:
    """The groups whose rows differ, ascending: those that came, those that went, those that changed."""
    return sorted(group for group in old.keys() | new.keys() if old.get(group) != new.get(group))


def total(digests: Iterable[GroupDigest]) -> GroupDigest:
    """The digest of the rows of all these groups together."""
    rows = added = mixed = 0
    for digest in digests:
        rows, added, mixed = rows + digest.rows, added + digest.sum, mixed ^ digest.xor
    return GroupDigest(rows, signed(added), mixed)


def signed(number: int) -> int:
    """The number modulo 2^64, as a signed 64-bit number."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def runs(groups: Iterable[int]) -> list[range]:
    """Ascending groups as contiguous ranges, as few as there can be."""
    found: list[range] = []
    for group in groups:
        if found and found[-1].stop == group:
            found[-1] = range(found[-1].start, group + 1)
        else:
            found.append(range(group, group + 1))
    return found
