"""Local copies of what a task wrote, so that a restart on the same volume reads nothing of the remote store (FLIP-198, FLINK-5053).

    <directory>/<job>/<operator>-<state>-<subtask>-<digest>/<checkpoint id>-<attempt token>/<sha256>/<name>
    <directory>/.staging/<random>/                            entries that are not whole yet

Never a source of truth: a copy is used only where its bytes, digested at that moment, are those that the checkpoint tells. So nothing here
is synced, anything may be deleted at any moment by anybody, and whatever goes wrong means "not found" or "not kept", never an error.
The digest is a part of the path, because stores use names again for other bytes: what is not what its path says is damaged, and removed.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.paths import slug
from holdfast.catalog.storage import Digest
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId
from holdfast.writers.local.disk import STAGING, Copy, LocalFiles, Tally, expect, look_at, require_inside

_ENTRY = re.compile(r"([0-9]{1,18})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShare:
    """Whose copies: one subtask's share of one state."""

    catalog_id: str
    job_id: JobId
    operator: str
    state: str
    subtask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSlot(LocalShare):
    """Which entry: what one attempt wrote of that share. Wherever a share is asked for, a slot of it will do."""

    checkpoint_id: CheckpointId
    attempt: AttemptToken


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFigures:
    """What local copies were worth, since the process opened them."""

    kept_files: int = 0
    kept_bytes: int = 0
    copied_bytes: int = 0  # the part of those kept that was copied, because the snapshot is on another volume
    given_up: int = 0  # snapshots that were not kept: a full disk, a read-only volume, a directory that was deleted meanwhile
    hits: int = 0
    misses: int = 0
    damaged: int = 0  # copies that had other bytes, and were removed
    bytes_from_local: int = 0  # those of the hits


class LocalState:
    """The local copies below one directory, which is this object's own. Safe in threads.

    Without a directory (local recovery is off) nothing is kept and nothing found.
    """

    def __init__(self, directory: Path | None, *, environment: Environment | None = None, files: LocalFiles | None = None) -> None:
        self._directory = directory
        self._environment = environment or SystemEnvironment()
        self._files = files or LocalFiles()
        self._tally = Tally(LocalFigures())
        if directory is not None:
            self._files.discard(directory / STAGING)  # left by a process that died meanwhile

    @property
    def figures(self) -> LocalFigures:
        return self._tally.now

    def keep(self, slot: LocalSlot, source: Path, files: Mapping[str, tuple[int, str]]) -> None:
        """Keep the named files (name -> size in bytes, SHA-256) of a snapshot's directory: by hard link, across volumes by copy.

        They appear as one entry or not at all; a second call for one slot replaces the first. The store must not write to them any more.
        Where that cannot be done it is silently given up, and counted: a checkpoint does not depend on it.
        Raises UsageError for a name that leads out of the directory, or a digest that is none.
        """
        expected = {name: expect(name, *told) for name, told in files.items()}
        for name in expected:
            require_inside(name)
        if self._directory is None:
            return
        staged = self._directory / STAGING / self._environment.new_id()
        try:
            copied_bytes = sum(self._stage(source / name, staged / told.sha256 / name, told) for name, told in expected.items())
            self._publish(staged, self._place(self._directory, slot) / f"{slot.checkpoint_id}-{slot.attempt}")
        except OSError:
            self._files.discard(staged)
            self._tally.add(given_up=1)
            return
        kept_bytes = sum(told.size_bytes for told in expected.values())
        self._tally.add(kept_files=len(expected), kept_bytes=kept_bytes, copied_bytes=copied_bytes)

    def find(self, share: LocalShare, name: str, size_bytes: int, sha256: str) -> Path | None:
        """A copy of this file, kept of any checkpoint of this share, whose bytes were digested now; None if there is none.

        It may be gone by the time it is used; then there is none. Link it only where nobody will write to it: a program that changes it
        changes every link. A file with other bytes that stands there instead is removed.
        Raises UsageError for a name that leads out of the directory, or a digest that is none.
        """
        expected = expect(name, size_bytes, sha256)
        require_inside(name)
        if self._directory is None:
            return None
        place = self._place(self._directory, share)
        for entry in self._entries(place):
            path = place / entry / sha256 / name
            found = look_at(self._files, path, expected)
            if found is Copy.HOLDS:
                self._tally.add(hits=1, bytes_from_local=size_bytes)
                return path
            self._tally.add(damaged=int(found is Copy.DAMAGED))
        self._tally.add(misses=1)
        return None

    def retain(self, share: LocalShare, checkpoint_ids: Collection[int]) -> None:
        """Remove every entry of this share but those of these checkpoints, as far as that can be done."""
        if self._directory is None:
            return
        place = self._place(self._directory, share)
        for name in self._names(place):
            entry = _ENTRY.fullmatch(name)
            if entry is None or int(entry[1]) not in checkpoint_ids:
                self._files.discard(place / name)

    def _stage(self, source: Path, target: Path, told: Digest) -> int:
        """Link or copy one file; the bytes that were copied."""
        if self._files.size(source) != told.size_bytes:
            msg = f"{source} is not what was written"  # and would never be found
            raise OSError(msg)
        self._files.make_directory(target.parent)
        return 0 if self._files.link_or_copy(source, target) else told.size_bytes

    def _publish(self, staged: Path, entry: Path) -> None:
        self._files.make_directory(entry.parent)
        try:
            self._files.rename(staged, entry)
        except OSError:  # one is there: a task's earlier try wrote for the same attempt
            self._files.discard(entry)
            self._files.rename(staged, entry)

    def _entries(self, place: Path) -> list[str]:
        """Whole entries, the newest checkpoint first: it has most of what is asked for."""
        entries = [(int(entry[1]), entry[0]) for name in self._names(place) if (entry := _ENTRY.fullmatch(name))]
        return [name for _, name in sorted(entries, reverse=True)]

    def _names(self, place: Path) -> list[str]:
        try:
            return self._files.names(place)
        except OSError:  # not readable: nothing is found
            return []

    @staticmethod
    def _place(directory: Path, share: LocalShare) -> Path:
        """The directory of a share: readable, and its own by the digest, for names of states are any text."""
        fields = [share.catalog_id, share.job_id, share.operator, share.state, share.subtask]
        own = hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
        return directory / slug(share.job_id) / f"{slug(share.operator)}-{slug(share.state)}-{share.subtask}-{own}"
