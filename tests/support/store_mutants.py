"""The rules of directories of embedded stores, and the real code with each left out (see `mutants.py`)."""

import types
from contextlib import AbstractContextManager
from dataclasses import replace

from holdfast.catalog.types import Ack, Chunk, StoredFile
from holdfast.writers.stores import shares as store_shares
from holdfast.writers.stores import writer as store_writer
from holdfast.writers.stores.by_subtask import BySubtask
from holdfast.writers.stores.shares import DirectoryShares
from holdfast.writers.stores.writer import DirectoryWriter, Share
from holdfast.writers.upload import WrittenState, chunks_of
from tests.support.mutants import Mutant, replaced


def _by_name_and_size() -> AbstractContextManager[None]:
    upload = DirectoryWriter._upload

    def mutant(writer: DirectoryWriter, file, known, share: Share, label: str):  # type: ignore[no-untyped-def]
        if file.is_immutable and known is not None and known[1].size_bytes == file.size_bytes:
            return store_writer._Uploaded(known[0], None)
        return upload(writer, file, known, share, label)

    return replaced(DirectoryWriter, "_upload", mutant)


def _of_any_subtask() -> AbstractContextManager[None]:
    def mutant(parent: BySubtask, share: Share) -> dict[str, tuple[Chunk, StoredFile]]:
        found = [(store_writer._chunk(chunk, share), file) for subtask in parent for chunk, file in parent[subtask]]
        return {chunk.name: (chunk, file) for chunk, file in found if chunk.name is not None and file is not None}

    return replaced(store_writer, "_known", mutant)


def _missing_carried() -> AbstractContextManager[None]:
    """As if a subtask that said nothing had what the parent has of it."""
    finish = DirectoryShares.finish

    def mutant(shares: DirectoryShares) -> WrittenState:
        there, silent = shares.subtasks, set(range(shares.subtasks or 0)) - shares._acks.keys()
        if not shares._acks or not silent:
            return finish(shares)
        stand_in = next(iter(shares._acks.values()))
        for subtask in silent:
            carried = tuple(chunk for chunk, _ in shares.writer.parent[subtask])
            shares._acks[subtask] = replace(stand_in, subtask=subtask, files=(), chunks=carried)
        assert there is not None
        with replaced(store_shares, "_require_all_groups", lambda acks, max_parallelism, what: None):
            return finish(shares)

    return replaced(DirectoryShares, "finish", mutant)


def _all_tries_count() -> AbstractContextManager[None]:
    finish = DirectoryShares.finish

    def mutant(shares: DirectoryShares) -> WrittenState:
        written = finish(shares)
        return replace(written, content=(*written.content, *chunks_of(shares._late)))

    return replaced(DirectoryShares, "finish", mutant)


def _losers_forgotten() -> AbstractContextManager[None]:
    arrived = DirectoryShares._arrived

    def mutant(shares: DirectoryShares, ack: Ack) -> None:
        arrived(shares, ack)
        shares._late.clear()

    return replaced(DirectoryShares, "_arrived", mutant)


OF_STORES: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "reuse_needs_the_digest": Mutant(
            "a file of the parent's name and size is referred to only if its bytes are the same", _by_name_and_size
        ),
        "reuse_within_a_subtask": Mutant("a subtask refers to its own files of the parent", _of_any_subtask),
        "every_share_arrives": Mutant("a checkpoint without one of the shares is not committed", _missing_carried),
        "one_try_counts": Mutant("of two tries of a task, the checkpoint has the files of one", _all_tries_count),
    }
)

# What no history shows: the catalog is sound without it, and a scrub takes what a vacuum would have.
UNSEEN: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "losers_are_garbage": Mutant("the files of the other try become file rows, which a vacuum finds", _losers_forgotten),
    }
)
