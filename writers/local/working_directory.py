"""The working directory of a process (FLIP-198): what it keeps on its own disk to restart fast.

    <base>/jm_<id>/ or tm_<id>/     of the driver (jobmanager), or of a process on an executor (taskmanager)
      tmp/                          empty at every start; embedded stores live here
      localState/                   local copies of what tasks wrote (`local_state`)
      blobStorage/                  remote files by their digest (`blob_cache`)
    <base>/.tm_<id>.lock            who has it

Only ever a cache: deleting all of it at any moment changes no result. Nothing here is synced.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from holdfast.catalog import arguments
from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import RefusedError, UsageError, WorkingDirectoryError
from holdfast.writers.local.blob_cache import BlobCache
from holdfast.writers.local.disk import LocalFiles
from holdfast.writers.local.local_state import LocalState
from holdfast.writers.local.lock import LOCK_NAME, DirectoryLock, lock_directory

Base = str | os.PathLike[str]

PREFIXES = {"jobmanager": "jm_", "taskmanager": "tm_"}
SETTING = "HOLDFAST_PROCESS_WORKING_DIR"  # process.working-dir
SETTINGS = {process: f"HOLDFAST_PROCESS_{process.upper()}_WORKING_DIR" for process in PREFIXES}  # process.jobmanager.working-dir, ...
BLOB_LIMIT_BYTES = 10 * 1024**3
NAME_LIMIT_BYTES = 255  # for a file's name, on any usual file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the directories of a process are. Each is in a directory of this process and no other, wherever its base is."""

    path: Path
    tmp: Path
    local_state: Path
    blob_storage: Path

    @property
    def roots(self) -> list[Path]:
        """The directories of the process, one for each base: these are locked."""
        return sorted({self.path, self.tmp.parent, self.local_state.parent, self.blob_storage.parent})


class WorkingDirectory:
    """A process's own directory, locked for it until `close` or its end. What `holdfast.working_directory` gives.

    `path` is the directory, `local_state` and `blob_cache` are what lies in it, `files` is the disk. A forked child does not hold it: its
    `close` does nothing, and it opens one of its own. Not picklable: a task opens its own.
    """

    def __init__(self, places: Places, *, local_recovery: bool, blob_limit_bytes: int, environment: Environment, files: LocalFiles) -> None:
        self.path = places.path
        self._tmp, self.files, self._opener = places.tmp, files, os.getpid()
        self._is_closed = False
        with ExitStack() as opened:
            for root in places.roots:
                opened.callback(_lock(root, files).release)
            self._empty_tmp()
            self.local_state = LocalState(places.local_state if local_recovery else None, environment=environment, files=files)
            self.blob_cache = BlobCache(places.blob_storage, blob_limit_bytes, environment=environment, files=files)
            self._locks = opened.pop_all()

    def __repr__(self) -> str:
        return f"<working directory {self.path}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tmp(self) -> Path:
        """A directory for what this process needs while it lives; made again if somebody has deleted it.

        Raises RefusedError after `close`: another process may have the directory.
        """
        if self._is_closed:
            msg = f"{self!r} is closed, and may be another process's by now: open it again"
            raise RefusedError(msg)
        with _on_disk(self._tmp):
            self.files.make_directory(self._tmp)
        return self._tmp

    def close(self) -> None:
        """An orderly stop: `tmp` goes, `localState` and `blobStorage` stay for the next process with this id. No harm if repeated.

        Close before what lives in `tmp`.
        """
        if os.getpid() == self._opener and not self._is_closed:
            self._is_closed = True
            self.files.discard(self._tmp)
            self._locks.close()

    def _empty_tmp(self) -> None:
        self.files.discard(self._tmp)
        empty = self.tmp
        with _on_disk(empty):
            left = self.files.names(empty)
        if left:
            msg = f"{self._tmp} cannot be emptied, it still has {left[0]!r}: remove it (is it another user's?), or give another base"
            raise WorkingDirectoryError(msg)


def working_directory(
    process: str,
    resource_id: str | None = None,
    *,
    base: Base | None = None,
    local_state: Base | None = None,
    blob_storage: Base | None = None,
    tmp: Base | None = None,
    local_recovery: bool = True,
    blob_limit_bytes: int = BLOB_LIMIT_BYTES,
    settings: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    files: LocalFiles | None = None,
) -> WorkingDirectory:
    """Open the working directory of this process, and make it where it is not there yet. Use it as a context, or close it.

    It is at `<base>/jm_<id>` or `<base>/tm_<id>`.

    Args:
        process: "jobmanager" (the driver) or "taskmanager" (any other).
        resource_id: with the same one, a process that is started again finds what the last one left. None: a fresh id, and nobody finds
            what the process leaves.
        base: the directory of all working directories. None: the setting HOLDFAST_PROCESS_JOBMANAGER_WORKING_DIR or
            HOLDFAST_PROCESS_TASKMANAGER_WORKING_DIR, else HOLDFAST_PROCESS_WORKING_DIR, else the system's temporary directory.
        local_state: another base for the local copies of states alone.
        blob_storage: another base for the cache of remote files alone.
        tmp: another base for temporary files alone. Hard links need `local_state` and `tmp` on one volume.
        local_recovery: False keeps no local state, and finds none.
        blob_limit_bytes: how much the cache of remote files may hold.
        settings: where the settings above are looked up. None: the environment variables.
        environment: the clock and the ids. None: this machine's.
        files: the disk. None: this machine's.

    Raises:
        UsageError: a base is a list or not a path, the id is not a file name, or another argument is not what it must be.
        RefusedError: a live process has this directory; or it, or its lock file, is a symbolic link or another user's.
        WorkingDirectoryError: the disk does not take it: read-only, full, no permission.
    """
    if not _are_options(local_recovery, blob_limit_bytes):
        msg = f"local_recovery={local_recovery!r}, blob_limit_bytes={blob_limit_bytes!r}: give True or False, and a whole number of bytes"
        raise UsageError(msg)
    environment = environment or SystemEnvironment()
    places = plan_places(
        process,
        environment.new_id() if resource_id is None else resource_id,
        base=base,
        elsewhere={"tmp": tmp, "local_state": local_state, "blob_storage": blob_storage},
        settings=os.environ if settings is None else settings,
    )
    return WorkingDirectory(
        places, local_recovery=local_recovery, blob_limit_bytes=blob_limit_bytes, environment=environment, files=files or LocalFiles()
    )


def plan_places(
    process: str, resource_id: str, *, base: Base | None, elsewhere: Mapping[str, Base | None], settings: Mapping[str, str]
) -> Places:
    """Where everything of a process goes. `elsewhere` has the bases of single directories. Raises UsageError."""
    if arguments.text(process, "a kind of process") not in PREFIXES:
        msg = f"{process!r} is not a kind of process: pass 'jobmanager' for the driver, 'taskmanager' for a process that runs tasks"
        raise UsageError(msg)
    own = _own_name(process, resource_id)
    bases = [("base", base), *((name, settings.get(name) or None) for name in (SETTINGS[process], SETTING))]
    common = next((_one_directory(name, given) for name, given in bases if given is not None), None)
    if common is None:
        common = Path(os.path.realpath(tempfile.gettempdir()))
    roots = {name: (common if given is None else _one_directory(name, given)) / own for name, given in elsewhere.items()}
    return Places(
        path=common / own,
        tmp=roots["tmp"] / "tmp",
        local_state=roots["local_state"] / "localState",
        blob_storage=roots["blob_storage"] / "blobStorage",
    )


def _are_options(local_recovery: object, blob_limit_bytes: object) -> bool:
    if not isinstance(local_recovery, bool):  # "false", from a setting, would be true
        return False
    return arguments.is_whole(blob_limit_bytes, 0)


def _own_name(process: str, resource_id: object) -> str:
    """The name of the process's directory. Raises UsageError for an id that cannot be a part of it."""
    plain = isinstance(resource_id, str) and resource_id.isprintable() and resource_id == resource_id.strip()
    name = f"{PREFIXES[process]}{resource_id}"
    if not plain or "/" in name or resource_id in ("", ".", "..") or len(LOCK_NAME.format(name).encode()) > NAME_LIMIT_BYTES:
        msg = f"{resource_id!r} is not the id of a process: pass a file's name, printable and without '/', or None for a fresh one"
        raise UsageError(msg)
    return name


def _one_directory(name: str, given: object) -> Path:
    """One local directory, in full. Raises UsageError for a list of them, or what is no path."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or "," in text or os.pathsep in text:
        msg = (
            f"{name}={given!r} is not one local directory: a process has one base, not a list of them (',' or {os.pathsep!r}), and not a "
            "URL; give the path of a directory on a disk of this machine"
        )
        raise UsageError(msg)
    return Path(arguments.place(os.path.realpath(os.path.expanduser(text))))


def _lock(root: Path, files: LocalFiles) -> DirectoryLock:
    """Make a process's directory, and lock it. Raises RefusedError, WorkingDirectoryError."""
    if root.is_symlink():  # in a temporary directory that all users share, it may lead to what somebody wants us to empty
        msg = f"{root} is a symbolic link, which is not followed: remove it, and give the base that it should lead to"
        raise RefusedError(msg)
    with _on_disk(root):
        files.make_directory(root)
        with suppress(FileNotFoundError):  # somebody has deleted it already: it is made again when it is needed
            if (owner := root.lstat().st_uid) != os.geteuid():
                msg = (
                    f"{root} is a directory of another user ({owner}), who could read and change what is kept there: give another base or "
                    "resource_id, or remove it"
                )
                raise RefusedError(msg)
        return lock_directory(root)


@contextmanager
def _on_disk(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = (
            f"{place} cannot be used as a working directory ({error}): make room and give this user the right to write there, or give "
            f"another base (base=..., {SETTING})"
        )
        raise WorkingDirectoryError(msg) from error
