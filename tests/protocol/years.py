"""A catalog lives through years: `python -m tests.protocol.years` (or `make years`).

First at the ports, in memory: ten jobs, with all that coordinators, operators, readers and maintenance do, and deaths at any call. Then for
real: a process for each job and one that cleans, on a directory, killed at random, by a clock that makes a year of it. At the end the
catalog opens, commits, answers and cleans as on its first day, and `catalog.at` shows any of its days.

A seed repeats the first part call by call, and the choices of the second, though not the machine's timing.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.protocol import years_real, years_simulated

SIMULATED, CHECKPOINTS = 500_000, 20_000
WINDOWS, DAYS = 50, 30  # how often a life is judged, and how many of its days are looked at
ROUNDS = 9  # of what is timed on the first and on the last day


def simulate(checkpoints: int, seed: int, windows: int = WINDOWS, tell: Callable[[str], None] = lambda _: None) -> years_simulated.Tally:
    """At the ports. Raises AssertionError, with what repeats it."""
    try:
        return years_simulated.simulate(checkpoints, seed, windows, tell)
    except BaseException as error:
        error.add_note(f"again with: python -m tests.protocol.years --simulated {checkpoints} --checkpoints 0 --seed {seed}")
        raise


def live(
    checkpoints: int, seed: int, directory: Path, days: int = DAYS, rounds: int = ROUNDS, tell: Callable[[str], None] = lambda _: None
) -> years_real.Tally:
    """For real. Raises AssertionError, with the choices that repeat it and the place of the catalog."""
    try:
        return years_real.live(checkpoints, seed, directory, days, rounds, tell)
    except BaseException as error:
        error.add_note(f"the catalog is in {directory}; --simulated 0 --checkpoints {checkpoints} --seed {seed} makes the same choices")
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=int, default=SIMULATED, help="checkpoints at the ports")
    parser.add_argument("--checkpoints", type=int, default=CHECKPOINTS, help="checkpoints for real")
    parser.add_argument("--seed", type=int, default=None, help="of the random choices; a new one if not given")
    arguments = parser.parse_args()
    seed = Random().getrandbits(31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    if arguments.simulated:
        print(simulate(arguments.simulated, seed, tell=_tell), flush=True)
    if arguments.checkpoints:
        directory = Path(tempfile.mkdtemp(prefix="holdfast-years-"))
        print(live(arguments.checkpoints, seed, directory, tell=_tell), flush=True)
        shutil.rmtree(directory)


def _tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
