"""States of the tests that are directories of embedded stores: written by the real uploads, from a process and from tasks; read by the
real reader."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.catalog.environment import Environment
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import StateInfo
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.stores.reader import directory_reader
from tests.support.invariants import told_of_files

Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Stores:
    """What each subtask's store has, by the names of its files; and who uploads it.

    Of `missing` subtasks the tasks do their work, and their acknowledgements never come.
    """

    shares: tuple[Files, ...]
    in_tasks: bool = False
    missing: frozenset[int] = frozenset()

    @property
    def told(self) -> bytes:
        """As `read_states` has it."""
        return told_of_files((subtask, name, data) for subtask, files in enumerate(self.shares) for name, data in files.items())


def taking(files: Files) -> Callable[[str], None]:
    """The function that takes a snapshot of a store with these files."""

    def take(to: str) -> None:
        for name, data in files.items():
            place = Path(to) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    return take


def write_stores(writer: CheckpointWriter, state: str, stores: Stores) -> None:
    """Write all subtasks. The task of the first is tried three times: its second acknowledgement is late, its third is never told."""
    if not stores.in_tasks:
        for subtask, files in enumerate(stores.shares):
            writer.write_directory(state, taking(files), subtask=subtask, subtasks=len(stores.shares))
        return
    tasks = writer.directories(state, subtasks=len(stores.shares))
    acks = [tasks.write(taking(files), subtask=subtask).ack() for subtask, files in enumerate(stores.shares)]
    writer.acknowledge(state, [ack for subtask, ack in enumerate(acks) if subtask not in stores.missing])
    tries = [tasks.write(taking(stores.shares[0]), subtask=0).ack() for _ in range(2)]
    if 0 not in stores.missing:
        writer.acknowledge(state, tries[:1])


def read_stores(manifest: Manifest, info: StateInfo, storage: Storage, environment: Environment) -> bytes:
    """A state as `read_states` has it, restored subtask by subtask as programs do it."""
    reader = directory_reader(manifest, info, storage, environment)
    found: list[tuple[int, str, bytes]] = []
    for subtask in range(reader.subtasks):
        with tempfile.TemporaryDirectory() as place:
            to = Path(place) / "store"
            reader.restore(to, subtask=subtask)
            found += [(subtask, path.relative_to(to).as_posix(), path.read_bytes()) for path in to.rglob("*") if path.is_file()]
    return told_of_files(found)
