"""An executable model of the protocol over the project's own decisions: random histories, checked after every step.

python -m tests.protocol.model                        the rules as written: no violation in N histories
python -m tests.protocol.model --mutants              each rule left out: the first violation found
python -m tests.protocol.model --mutant NAME          that one, with the history that shows it
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

from holdfast.compaction import runs
from tests.support import model_steps
from tests.support.fold_mutants import OF_STEPS
from tests.support.model_world import Violation, World
from tests.support.mutants import MUTANTS, replaced

STEPS = 100
CHUNK = 500  # histories that one worker takes at a time
RULES = {**MUTANTS, **OF_STEPS}


@dataclass(frozen=True, slots=True)
class Found:
    """The first violation of a search, and the history that shows it."""

    seed: int
    violation: str
    story: tuple[str, ...]


def history(seed: int, steps: int = STEPS, *, rest: bool = True, folds: bool | None = None) -> World:
    """The end of one history, cleaned up unless it shall not rest. Odd ones fold, unless it is said. Raises Violation."""
    world = World(seed, folds=folds)
    try:
        for _ in range(steps):
            model_steps.step(world)
        if rest:
            model_steps.quiesce(world)
    except Violation as violation:
        violation.story = tuple(world.story)  # type: ignore[attr-defined]
        raise
    return world


def explore(histories: int, *, first_seed: int = 0, steps: int = STEPS, mutant: str | None = None) -> Found | None:
    """The first violation in as many histories, if there is one. Without a step of folding all of them fold; without another rule none
    does, for a folder that meets what is wrong only refuses to fold."""
    folds = None if mutant is None else mutant in OF_STEPS
    with RULES[mutant].without() if mutant else nullcontext(), replaced(runs, "BATCH", 2):  # more calls to run between
        for seed in range(first_seed, first_seed + histories):
            try:
                history(seed, steps, folds=folds)
            except Violation as violation:
                return Found(seed, str(violation), violation.story)  # type: ignore[attr-defined]
            except Exception as error:
                error.add_note(f"in the history of seed {seed}")
                raise
    return None


def explore_in_parallel(histories: int, first_seed: int, steps: int) -> Found | None:
    """As `explore`, on every core. A violation is that of the lowest seed."""
    firsts = range(first_seed, first_seed + histories, CHUNK)
    counts = [min(CHUNK, first_seed + histories - first) for first in firsts]
    began, shown = time.monotonic(), 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, found in enumerate(pool.map(_explore, counts, firsts, [steps] * len(counts)), 1):
            if found is not None:
                pool.shutdown(cancel_futures=True)
                return found
            if sys.stderr.isatty() or done * 10 // len(counts) > shown:
                shown = done * 10 // len(counts)
                rate = sum(counts[:done]) / (time.monotonic() - began)
                print(f"  {sum(counts[:done])} of {histories} histories, {rate:.0f}/s", file=sys.stderr, flush=True)
    return None


def _explore(histories: int, first_seed: int, steps: int) -> Found | None:
    return explore(histories, first_seed=first_seed, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--mutant", choices=sorted(RULES))
    args = parser.parse_args()
    if args.mutants:
        missed = 0
        for name, mutant in RULES.items():
            found = explore(args.histories, first_seed=args.first_seed, steps=args.steps, mutant=name)
            missed += found is None
            print(
                f"{name:32s} {f'seed {found.seed}: {found.violation}' if found else 'NOT CAUGHT'}  (the rule: {mutant.meaning})", flush=True
            )
        sys.exit(missed > 0)
    if args.mutant:
        found = explore(args.histories, first_seed=args.first_seed, steps=args.steps, mutant=args.mutant)
    else:
        found = explore_in_parallel(args.histories, args.first_seed, args.steps)
    if found:
        print(*found.story, f"seed {found.seed}: {found.violation}", sep="\n")
    else:
        print(f"no violation in {args.histories} histories of {args.steps} steps")
    sys.exit(bool(found) != bool(args.mutant))


if __name__ == "__main__":
    main()
