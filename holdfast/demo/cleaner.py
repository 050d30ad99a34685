"""The vacuum, in a process of its own, alongside the job all the time. It needs no Java and asks no permission."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.catalog.errors import NotFoundError
from holdfast.demo.driver import open_stoppable
from holdfast.demo.places import Places, tell
from holdfast.facade import Catalog
from holdfast.opening import open_catalog

ENOUGH = "enough"  # a file of the demo's directory: the parent asks the cleaner to end
PAUSE_S = 3.0
LOOK_EVERY_S = 0.1


def main() -> None:
    """Run as `python -m holdfast.demo.cleaner`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    places = Places(parser.parse_args().directory)
    parent = os.getppid()

    def is_wanted() -> bool:
        return os.getppid() == parent and not (places.root / ENOUGH).exists()

    if wait_for_catalog(places, is_wanted):
        with open_stoppable(places.catalog, places.stops) as catalog:
            while is_wanted():
                vacuum_once(catalog)
                pause(is_wanted)


def wait_for_catalog(places: Places, is_wanted: Callable[[], bool]) -> bool:
    """Whether the job has made its catalog while this process was wanted."""
    while is_wanted():
        try:
            open_catalog(places.catalog).close()
        except NotFoundError:
            pause(is_wanted)
        else:
            return True
    return False


def pause(is_wanted: Callable[[], bool]) -> None:
    """Between two runs; over at once where no other is wanted."""
    until = time.monotonic() + PAUSE_S
    while is_wanted() and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)


def vacuum_once(catalog: Catalog) -> None:
    """One vacuum, reported if it found anything."""
    report = catalog.vacuum()
    if report.deleted_files:
        tell("vacuumed", files=report.deleted_files, size_bytes=report.deleted_bytes, taken_over=len(report.plan.condemned))


if __name__ == "__main__":
    main()
