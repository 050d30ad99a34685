"""Where the processes of one demo find things, and how they report to the parent what they do."""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.demo.stops import Stops

LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Places:
    """The demo's directory. The catalog in it is an ordinary catalog; everything else may be thrown away."""

    root: Path

    @property
    def catalog(self) -> Path:
        return self.root / "catalog"

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def scratch(self) -> Path:
        """What Spark needs for itself."""
        return self.root / "scratch"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def stops(self) -> Stops:
        return Stops(self.root / "stops")

    def turn(self, number: int) -> Path:
        """A file by which the parent says that the driver of this number is to go on."""
        return self.root / f"turn-{number}"


def wait_for(file: Path, parent: int) -> bool:
    """Wait until this file is there; whether it came while the parent lived."""
    while not file.exists():
        if os.getppid() != parent:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def tell(event: str, **values: Any) -> None:
    """One line of JSON for the parent, flushed: what was reported survives a kill."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()
