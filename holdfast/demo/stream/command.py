"""`holdfast demo --streaming`: runs the story of the stream, and says on one screen what happened."""

from collections.abc import Iterator
from pathlib import Path

from holdfast import report
from holdfast.demo.command import PACKAGES, finish, require_installed, told
from holdfast.demo.flights import WEEKS
from holdfast.demo.stream.story import Death, StreamResult, find_problems, run_stream_demo


def run(directory: Path, *, as_json: bool, seed: int | None) -> int:
    """Run the demo and print its result; 0 if everything is as promised, else 1. The catalog stays in `directory`.

    Raises:
        UsageError: what the demo needs is not installed; nothing was written.
        RetryError: a process of the demo failed by itself; its log is kept.
    """
    require_installed((*PACKAGES, "rocksdict"))
    with told() as show:
        show(0, WEEKS)
        result = run_stream_demo(directory, seed=seed, progress=lambda batch, what: show(batch, WEEKS, what))
    problems = find_problems(result)
    return finish(directory, problems, result.as_json() if as_json else lines(result, problems))


def lines(result: StreamResult, problems: list[str]) -> Iterator[str]:
    """What happened, for people."""
    took, size = sum(result.seconds.values()), report.bytes_text
    yield f"{result.flights:,} flights of 2013 as a stream of {result.batches} micro-batches, with state in RocksDB inside the executors:"
    yield f"a checkpoint for each, in {took:.0f} s"
    yield ""
    yield f"Killed with SIGKILL at random (--seed {result.seed} plans the same again); where the next step had its stores from:"
    yield from (f"  {_death_text(death)}" for death in result.deaths)
    yield (
        f"All steps together: {size(result.local_bytes)} from local copies, {size(result.cached_bytes)} from caches, "
        f"{size(result.remote_bytes)} from the catalog"
    )
    yield ""
    yield f"{len(result.committed_batches)} checkpoints of together {size(result.total_bytes)} wrote {size(result.new_bytes)}"
    steps = max(1, result.acks)
    yield (
        f"A store stood still for {result.sync_ms / steps:.0f} ms, and was uploaded alongside in {result.upload_ms / steps:.0f} ms (means)"
    )
    yield (
        f"Vacuum deleted {report.counted(result.vacuumed_files, 'file')}, alongside the stream and after it; scrub "
        f"{report.counted(result.orphans, 'file')} of killed attempts"
    )
    yield ""
    yield "The stores, row by row, against one batch run over all flights:"
    for state in result.compared:
        yield f"  {state['state']:<14}{state['rows']:>6,} rows, {state['differences'] or 'no'} differences"
    yield ""
    yield "All is as promised." if not problems else "NOT as promised:"
    yield from (f"  {problem}" for problem in problems)


def _death_text(death: Death) -> str:
    size = report.bytes_text
    return (
        f"{death.victim:<8} in batch {death.batch:>2}, continued with batch {death.next_batch}: {size(death.local_bytes)} local, "
        f"{size(death.cached_bytes)} cached, {size(death.remote_bytes)} of the catalog"
    )
