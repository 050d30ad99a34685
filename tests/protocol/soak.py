"""Real processes, killed at random: `python -m tests.protocol.soak --rounds 1000` (or `make soak ROUNDS=1000`).

In each round a writer and a vacuum work on one catalog until SIGKILL takes them, at moments of their own. Then every invariant is checked
over the whole history and against what the writer was told; and after a new start, a vacuum and a scrub nothing is left that no
checkpoint needs. A seed repeats the choices, though not the machine's timing.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from holdfast.opening import open_catalog
from tests.protocol.soak_workers import coordinate, expected_states, told_by, vacuum_until_killed, write_until_killed
from tests.support.invariants import Acknowledgement, assert_catalog_sound, assert_clean, evidence_of, with_acknowledged

ROUNDS_PER_CATALOG = 3  # checking folds the whole history at every version: it must stay short
LONGEST_LIFE_S = 0.4
EARLY_DEATHS = 0.2  # of the writers die before their first checkpoint, perhaps in the middle of their start
PATIENCE_S = 60.0


@dataclass(slots=True)
class Tally:
    """What the rounds saw."""

    rounds: int = 0
    acknowledged: int = 0
    vacuumed_files: int = 0
    orphans: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.acknowledged} checkpoints acknowledged, none lost; the killed left {self.vacuumed_files} files "
            f"to vacuum and {self.orphans} to scrub, and nothing after that"
        )


def soak(rounds: int, seed: int, directory: Path, *, verbose: bool = False) -> Tally:
    """Raises AssertionError, with the seed and the catalog's place, at the first broken promise."""
    # Forked from a server that has everything imported: a process costs milliseconds and not a second.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.protocol.soak_workers"])
    tally = Tally()
    for n in range(rounds):
        place = directory / f"catalog-{n // ROUNDS_PER_CATALOG}"
        try:
            run_round(context, place, Random(seed * 1_000_003 + n), tally)
        except BaseException as error:
            error.add_note(f"in round {n} with --seed {seed}; the catalog is in {place}")
            raise
        if (n + 1) % ROUNDS_PER_CATALOG == 0:
            shutil.rmtree(place)
        if verbose:
            print(f"round {n + 1}: {tally}", flush=True)
    return tally


def run_round(context: ForkServerContext, place: Path, random: Random, tally: Tally) -> None:
    """Let both work, kill both, and look."""
    place.mkdir(parents=True, exist_ok=True)
    root, acks = place / "root", place / "acks"
    told_before = len(told_by(acks))
    writer = context.Process(target=write_until_killed, args=(root, acks, random.getrandbits(32)), daemon=True)
    vacuum = context.Process(target=vacuum_until_killed, args=(root,), daemon=True)
    writer.start()
    vacuum.start()
    try:
        if random.random() >= EARLY_DEATHS:
            wait_for_more(acks, told_before, writer)
        lives = sorted([(random.uniform(0, LONGEST_LIFE_S), writer.name), (random.uniform(0, LONGEST_LIFE_S), vacuum.name)])
        slept = 0.0
        for life_s, name in lives:
            time.sleep(life_s - slept)
            slept = life_s
            kill(writer if name == writer.name else vacuum)
    finally:
        for process in (writer, vacuum):
            process.kill()
            process.join()
    check(root, acks, tally)
    tally.rounds += 1
    tally.acknowledged += len(told_by(acks)) - told_before


def kill(process: BaseProcess) -> None:
    """SIGKILL. It must have been alive: these processes end in no other way."""
    assert process.is_alive(), f"{process.name} ended by itself with code {process.exitcode}"
    process.kill()
    process.join()


def wait_for_more(acks: Path, told_before: int, writer: BaseProcess) -> None:
    """Until the writer has told of a checkpoint of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while len(told_by(acks)) == told_before:
        assert writer.is_alive(), f"the writer ended by itself with code {writer.exitcode}"
        assert time.monotonic() < deadline, f"no checkpoint in {PATIENCE_S} s"
        time.sleep(0.01)


def check(root: Path, acks: Path, tally: Tally) -> None:
    """Nothing that was told is lost; and what the killed left goes, all of it, with a vacuum and a scrub."""
    acknowledged = [
        Acknowledgement(job_id=job_id, checkpoint_id=number, states=expected_states(origin)) for job_id, number, origin in told_by(acks)
    ]
    with open_catalog(root, create=True) as catalog:
        coordinate(root, keep=3).close()  # a new start ends the attempts of the killed
        tally.vacuumed_files += catalog.vacuum().deleted_files
        tally.orphans += catalog.scrub().deleted_files
        assert_catalog_sound(with_acknowledged(evidence_of(catalog), acknowledged))
        assert_clean(catalog)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="of the random choices; a new one if not given")
    arguments = parser.parse_args()
    seed = Random().getrandbits(31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    tally = soak(arguments.rounds, seed, directory, verbose=sys.stdout.isatty())
    shutil.rmtree(directory)
    print(tally)


if __name__ == "__main__":
    main()
