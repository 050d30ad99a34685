"""`commit_handles`: 1 % of 100,000 handles changed. The commit writes what changed and nothing else; the manifest lists all.

`rows`: handle and end rows of the commit, of all handles. `time`: the ledger's commit, against that of a checkpoint of 1,000 handles of
which all 1,000 changed. Writing the manifest, which has every handle, is timed beside it.
"""

from dataclasses import replace
from pathlib import Path

from benchmarks.commit import Job, chunk_of
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell
from holdfast.catalog import paths
from holdfast.catalog.facts import HandleAdded, HandleEnded
from holdfast.catalog.manifest import Manifest, encode
from holdfast.catalog.types import CheckpointId, Chunk, FileId, Format, Role, Scope, StateInfo, StoredFile

HANDLES, SMALL = 100_000, 1_000
CHANGED = HANDLES // 100
ROUNDS = 15
ROWS_AT_MOST, TIME_AT_MOST = 0.02, 2


def run(scratch: Path, handles: int = HANDLES, small: int = SMALL, rounds: int = ROUNDS) -> list[Result]:
    """`rows` and `time`."""
    changed = handles // 100
    tell("commit_handles: writing the first checkpoints")
    large, little = _Sized(scratch / "large", handles), _Sized(scratch / "little", small)
    sides = {"large": lambda _: large.commit(changed), "little": lambda _: little.commit(small)}
    for side in sides.values():
        side(0)
    taken = interleave(sides, rounds, what="commit_handles")
    rows = sum(isinstance(fact, HandleAdded | HandleEnded) and getattr(fact, "role", None) is not Role.MANIFEST for fact in large.job.facts)
    manifest_s = [seconds(lambda: encode(large.manifest())) for _ in range(3)]
    figures = {"large": spread(taken["large"], "ms"), "little": spread(taken["little"], "ms"), "manifest": spread(manifest_s, "ms")}
    return [
        Result(
            benchmark="commit_handles",
            measures="rows",
            ratio=round(rows / handles, 4),
            at_most=ROWS_AT_MOST,
            figures={"handles": handles, "changed": changed, "handle_and_end_rows": rows},
        ),
        Result(
            benchmark="commit_handles", measures="time", ratio=ratio(taken["large"], taken["little"]), at_most=TIME_AT_MOST, figures=figures
        ),
    ]


class _Sized:
    """A job whose checkpoints have so many handles, a file for each."""

    def __init__(self, directory: Path, handles: int) -> None:
        self.job = Job.start(directory)
        self.chunks: dict[int, Chunk] = {}
        self.files: dict[FileId, StoredFile] = {}
        self.handles, self._next = handles, 0
        self.commit(handles)

    def commit(self, changed: int) -> float:
        """The seconds of a commit in which so many of the chunks are new; the request is ready before."""
        attempt, number = self.job.attempt, CheckpointId(self.job.number)
        before = frozenset(chunk.identity for chunk in self.chunks.values())
        new = []
        for i in range(changed):
            at = self._next % self.handles
            self._next += 1
            file = StoredFile(
                file_id=paths.file_id(attempt, 0, i),
                path=paths.streamed_file(self.job.job_id, number, attempt, 0, i),
                size_bytes=1_000_000,
                sha256=f"{i:064x}",
                scope=Scope.SHARED,
            )
            self.chunks[at], self.files[file.file_id] = chunk_of("aircraft", file, 100, range(at % 128, at % 128 + 1)), file
            new.append(file)
        used = {chunk.file_id for chunk in self.chunks.values()}
        self.files = {file_id: file for file_id, file in self.files.items() if file_id in used}
        request = replace(
            self.job.request(),
            content=tuple(self.chunks.values()),
            states=(StateInfo(operator="main", state="aircraft", format=Format.PARQUET, key_columns=("tailnum",)),),
            inherited=before,
            files=tuple(new),
            acks=(),
        )
        return self.job.commit_request(request)

    def manifest(self) -> Manifest:
        return Manifest(
            job_id=self.job.job_id,
            job="flights",
            max_parallelism=128,
            checkpoint_id=CheckpointId(self.job.number),
            attempt=self.job.attempt,
            parent=None,
            created_at=self.job.environment.now(),
            progress=None,
            states=(),
            chunks=tuple(self.chunks.values()),
            files=self.files,
        )
