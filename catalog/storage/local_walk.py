"""The way from a root down to one of its directories, by descriptors that are held open: for whatever writes, deletes or syncs.

No link is followed below the root: a directory that was replaced by a link would take files, and deletions, out of the catalog. (The root
itself may be a link: that is how its owner names it.) And what is written, linked and synced lies in the very directories that were opened,
whatever is mounted over them meanwhile.
"""

import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.catalog.errors import AddressError, NotDurableError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_UNSEEN = "it was removed, or this host does not see the catalog's file system. Mount it on every host of the session at the same path"


@dataclass(slots=True)
class Way:
    """The root's descriptor, and those of the directories below it as far as they exist; `is_whole` if that is all of them."""

    root: Path
    held: list[int]
    names: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        return len(self.held) == len(self.names) + 1

    @property
    def last(self) -> int:
        return self.held[-1]

    def lead_to(self, names: Sequence[str], *, make: bool = False) -> None:
        """Go to another directory: what both ways have in common is not opened again. See `descend`."""
        common = 0
        while common < min(len(self.held) - 1, len(names)) and self.names[common] == names[common]:
            common += 1
        while len(self.held) > common + 1:
            os.close(self.held.pop())
        self.names = names
        for depth in range(common, len(names)):
            descriptor = self._open_below(depth, make=make)
            if descriptor is None:
                return
            self.held.append(descriptor)

    def reached(self) -> str:
        """The path of the deepest directory that is open."""
        return "/".join(self.names[: len(self.held) - 1])

    def sync_last(self) -> None:
        sync(self.last, self._place(len(self.held) - 1))

    def sync_all(self) -> None:
        """From the deepest directory up to the root."""
        for depth in range(len(self.held) - 1, -1, -1):
            sync(self.held[depth], self._place(depth))

    def _open_below(self, depth: int, *, make: bool) -> int | None:
        """The next directory of the way, made if it is asked for; None where there is none."""
        parent, name = self.last, self.names[depth]
        while True:
            try:
                return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            except FileNotFoundError:
                if not make:
                    return None
                try:
                    os.mkdir(name, dir_fd=parent)
                except FileExistsError:
                    pass  # another task makes it too
                except OSError as error:
                    error.filename = str(self._place(depth + 1))
                    raise
            except OSError as error:
                place = self._place(depth + 1)
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    error.filename = str(place)
                    raise
                _refuse_link(parent, name, place)
                if make:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from error
                return None

    def _place(self, depth: int) -> Path:
        return self.root.joinpath(*self.names[:depth])


@contextmanager
def descend(root: Path, names: Sequence[str] = (), *, make: bool = False) -> Iterator[Way]:
    """Open the directories of these names, one in the other, as far as they exist; with `make`, all of them, made where they are missing.

    Raises:
        AddressError: the root is not there, and is never made; or a link stands in the place of a directory.
        FileExistsError: with `make`, an object stands in the place of a directory.
    """
    way = Way(root, [_open_root(root)])
    try:
        way.lead_to(names, make=make)
        yield way
    finally:
        for descriptor in way.held:
            os.close(descriptor)


def require_directory(root: Path) -> None:
    """Raises AddressError where the root is not a directory that this process can see."""
    os.close(_open_root(root))


def sync(descriptor: int, place: Path) -> None:
    """Make what is open durable. Raises NotDurableError, after which nothing that was to be kept by it may be believed."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise not_durable(place, error) from error


def sync_way_up(directory: Path, *, at_least: int) -> None:
    """Sync the directories above this one into which its name, and theirs, are written; never beyond its file system.

    So many must be synced; those further up were not made here, and where they may not be read, that is left to the process that made them.
    """
    device = directory.stat().st_dev
    for depth, parent in enumerate(directory.parents):
        try:
            if parent.stat().st_dev != device:
                return
            descriptor = os.open(parent, _DIRECTORY)
        except PermissionError:
            if depth < at_least:
                raise
            return
        try:
            sync(descriptor, parent)
        finally:
            os.close(descriptor)


def not_durable(place: Path | str, error: OSError, remedy: str = "then write again in a new attempt") -> NotDurableError:
    """The error of a failed sync, on this host, with the number of the system's."""
    msg = (
        f"{type(error).__name__}: {error}: {place} could not be made durable on host {socket.gethostname()}, and nothing of it was "
        "acknowledged. The system reports such a failure only once, and would report success for a second try of the same file: examine "
        f"the disk (dmesg), {remedy}"
    )
    told = NotDurableError(msg)
    told.errno = error.errno
    return told


def _open_root(root: Path) -> int:
    try:
        return os.open(root, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{root} is not a directory on host {socket.gethostname()}: {_UNSEEN}, then write again; nothing was written here"
        raise AddressError(msg) from error


def _refuse_link(parent: int, name: str, place: Path) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        msg = (
            f"{place} is a link on host {socket.gethostname()}, and nothing is written, synced or deleted through links below a catalog's "
            "root: put the directory itself in its place (the root as a whole may be a link, or a mount)"
        )
        raise AddressError(msg)
