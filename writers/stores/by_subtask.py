"""What a state of directories has, taken along to tasks: each unpacks what its own subtask has, and nothing of the others'.

A writer and a reader travel whole to every task. As objects, the files of 1,000 subtasks cost each of 1,000 tasks more than a second.
"""

import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from holdfast.catalog.types import Chunk, FileId, StoredFile

Entry = tuple[Chunk, StoredFile | None]  # None: the chunk is inline


class BySubtask:
    """Chunks and their files by subtask, in the order given. Pickled, each subtask is a text of its own, unpacked when it is asked for."""

    __slots__ = ("_entries",)

    def __init__(self, entries: "Mapping[int | None, bytes | tuple[Entry, ...]]") -> None:
        self._entries = dict(entries)

    @classmethod
    def of(cls, chunks: Iterable[Chunk], files: Mapping[FileId, StoredFile]) -> "BySubtask":
        """Raises KeyError for a chunk that has no file and is not inline."""
        found: dict[int | None, list[Entry]] = defaultdict(list)
        for chunk in chunks:
            found[chunk.subtask].append((chunk, None if chunk.inline is not None else files[chunk.file_id]))
        return cls({subtask: tuple(entries) for subtask, entries in found.items()})

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int | None]:
        return iter(list(self._entries))

    def __getitem__(self, subtask: int | None) -> tuple[Entry, ...]:
        """What this subtask has; empty if there is no such."""
        found = self._entries.get(subtask, ())
        if isinstance(found, bytes):
            found = self._entries[subtask] = cast("tuple[Entry, ...]", pickle.loads(found))
        return found

    @property
    def unpacked(self) -> Collection[int | None]:
        """The subtasks whose chunks are objects in this process."""
        return [subtask for subtask, entries in self._entries.items() if not isinstance(entries, bytes)]

    def __reduce__(self) -> tuple[object, ...]:
        packed = {s: entries if isinstance(entries, bytes) else pickle.dumps(entries) for s, entries in self._entries.items()}
        return BySubtask, (packed,)
