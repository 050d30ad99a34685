"""A scrub's listing on disk, and what it remembers of what it leaves: the same as by lists in memory, in bounded memory."""

import contextlib
import errno
import os
import random
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import report
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.schema import FactColumns
from holdfast.catalog.storage import PassingStorage, StoredDirectory, StoredObject
from holdfast.catalog.storage.local import LocalStorage
from holdfast.compaction import listing, runs, scrub
from holdfast.compaction.listing import Stored, kept
from holdfast.compaction.orphans import KnownPaths, OrphanRule, Verdict, past_of
from holdfast.compaction.scrub import SAMPLED, plan_scrub
from tests.support.front_door import LARGE
from tests.support.history import opened

STRANGE = ["plain", "with\nlines\r\nand\ttabs", "größe-文件-🪁", "a" * 255, "\udcff\udc80 not of UTF-8", "\x01\x7f", '"quoted" \\ '.strip()]


def objects(count: int) -> list[Stored]:
    return [StoredObject(path=f"jobs/j/{STRANGE[n % len(STRANGE)]}/{n}", size_bytes=n << 33) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 17])
def test_a_listing_gives_what_was_walked_in_its_order_and_again(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    walked = [found for stored in objects(count) for found in (stored, StoredDirectory(path=os.path.dirname(stored.path)))]
    with kept(iter(walked)) as listed:
        assert [*listed] == [*listed] == walked


def test_the_walk_is_over_when_the_block_begins_and_the_file_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged was listed before the ledger is read."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = []

    def walk() -> Iterator[Stored]:
        yield from objects(5)
        ended.append(True)

    with kept(walk()) as listed:
        assert ended
        assert len([*listed]) == 5
    assert [*tmp_path.iterdir()] == []


def test_a_walk_that_fails_ends_the_listing_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def walk() -> Iterator[Stored]:
        yield from objects(5)
        raise PermissionError(errno.EACCES, "of the catalog")

    with pytest.raises(PermissionError, match="of the catalog"), kept(walk()):
        raise AssertionError("never begun")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_no_room_for_a_listing_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: contextlib.nullcontext(full))
        with pytest.raises(holdfast.WorkingDirectoryError, match="No space left on device.*make room there, or set TMPDIR"):
            with kept(objects(5)):
                raise AssertionError("never begun")


# ---- what a ledger knows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_an_attempt_of_the_past_is_found_by_its_token_and_no_other_is(count: int) -> None:
    tokens = [f"{n:016x}" for n in range(1, 2 * count, 2)]
    openings = {token: opened(n, token, n, None) for n, token in enumerate(tokens)}

    class Told(MemoryHistory):
        def ended_attempts(self, upto: int) -> FactColumns:
            return FactColumns.of([*openings.values()])

    past = past_of(MemoryLedger(MemoryLog()), Told(MemoryTold()))
    assert {token: found for n in range(2 * count + 2) if (found := past(token := f"{n:016x}"))} == openings
    assert past("no token") is past("") is None


def test_known_paths_have_every_path_that_the_ledger_has(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("größe ☃", retention=holdfast.KeepLast(1)) as job:
        for _ in range(2):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("model", LARGE)
    catalog.vacuum()
    with catalog.duckdb() as connection:
        rows = connection.execute("SELECT path, status FROM files").fetchall()
        strange = connection.execute(
            f"SELECT {KnownPaths.HASH_IN_SQL} FROM (SELECT unnest(?) AS path) ORDER BY 1", [STRANGE[:4]]
        ).fetchall()
    present = catalog._queries.present_paths(at_least=0)
    assert {status for _, status in rows} == {"present", "gone"}
    assert [(path in present) for path, _ in rows] == [status != "gone" for _, status in rows]
    known = KnownPaths(number for (number,) in strange)
    assert [path in known for path in STRANGE] == [True] * 4 + [False] * (len(STRANGE) - 4)
    assert 7 not in known
    assert "x" not in KnownPaths(())


# ---- what a plan remembers ------------------------------------------------------------------------------------------


LETTERS = dict(zip("kofiu", (Verdict.KNOWN, Verdict.ORPHAN, Verdict.FOREIGN, Verdict.IN_FLIGHT, Verdict.UNKNOWN_TOKEN), strict=True))


class ByName:
    """Judges by the letter that a name begins with: (k)nown, (o)rphan, (f)oreign, (i)n flight, (u)nknown; directories are orphans or foreign."""

    def judge(self, path: str) -> Verdict:
        return LETTERS[path.rpartition("/")[2][0]]


def plan(walked: Iterable[Stored]) -> scrub.ScrubPlan:
    rule: OrphanRule = ByName()  # type: ignore[assignment]
    return plan_scrub(walked, rule)


def test_of_what_stays_a_plan_has_counts_and_a_bounded_sample() -> None:
    many = [StoredObject(path=f"{letter}{n:05}", size_bytes=1) for n in range(SAMPLED + 7, 0, -1) for letter in "kofiu"]
    found = plan(many)
    assert found.known_objects == found.foreign.count == found.in_flight.count == found.unknown.count == SAMPLED + 7
    for sample in (found.foreign, found.in_flight, found.unknown):
        assert len(sample.shown) == SAMPLED
        assert [o.path for o in sample.shown] == sorted(o.path for o in sample.shown)
    assert [o.path for o in found.orphans] == sorted(o.path for o in many if o.path[0] == "o")
    with pytest.raises(holdfast.ForeignTokensError, match=f"^{SAMPLED + 7} files carry attempt tokens"):
        scrub.require_known_tokens(found)


def test_a_report_says_how_many_more_there_are_and_who_names_them() -> None:
    def lines(count: int) -> list[str]:
        found = plan(StoredObject(path=f"f{n:05}", size_bytes=1) for n in range(count))
        return [*report.scrub_lines(scrub.ScrubReport(plan=found, deleted_files=0, deleted_bytes=0, failed=()), dry_run=False)]

    assert lines(20)[-1] == "  f00019  1 B"
    assert lines(21)[-1] == "  and 1 more (--json names all)"
    assert lines(SAMPLED + 5)[1:3] == ["known 0, in flight 0, foreign 1005, unknown 0", "foreign, never touched:"]
    assert lines(SAMPLED + 5)[-1] == "  and 985 more (--json names 1,000)"


def emptied(tree: dict, at: str = "") -> set[str]:
    """The directories that only orphans and such directories are in, by the plain definition. A tree: names of directories to theirs."""
    found: set[str] = set()
    for name, below in tree.items():
        if below is not None:
            found |= emptied(below, f"{at}{name}/")
            everything = [(f"{at}{name}/{other}", inner) for other, inner in below.items()]
            leaves = all(path in found if inner is not None else path.rpartition("/")[2][0] == "o" for path, inner in everything)
            if name[0] == "o" and leaves:
                found.add(f"{at}{name}")
    return found


def make(tree: dict, place: Path) -> None:
    place.mkdir(exist_ok=True)
    for name, below in tree.items():
        (place / name).touch() if below is None else make(below, place / name)


def grown(choice: random.Random, depth: int = 0) -> dict:
    """A tree of names, most of them orphans, so that directories are emptied at every depth."""
    return {
        f"{choice.choice('ooooof')}{n}": grown(choice, depth + 1) if depth < 4 and choice.random() < 0.6 else None
        for n in range(choice.randrange(4))
    }


@pytest.mark.parametrize("seed", range(40))
def test_the_directories_to_be_removed_are_those_that_only_orphans_are_in(tmp_path: Path, seed: int) -> None:
    tree = {f"o{n}": grown(random.Random(seed * 10 + n)) for n in range(4)}
    make(tree, tmp_path)
    storage = LocalStorage(tmp_path)
    found = plan(storage.walk(""))
    assert set(found.directories) == emptied(tree)
    assert [d.count("/") for d in found.directories] == sorted((d.count("/") for d in found.directories), reverse=True)
    assert storage.delete_many([o.path for o in found.orphans]) == storage.remove_empty_directories(found.directories) == {}
    assert not any((tmp_path / d).exists() for d in found.directories)
    again = plan(storage.walk(""))
    assert (again.orphans, again.directories, again.foreign.count) == ((), (), found.foreign.count)


# ---- a scrub as a whole -----------------------------------------------------------------------------------------------


def left_by_a_dead_attempt(catalog: holdfast.Catalog, count: int) -> list[str]:
    """Files that an aborted attempt has no rows of."""
    with pytest.raises(ZeroDivisionError), catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
        raise ZeroDivisionError
    below = f"jobs/{job.job_id}/shared/{checkpoint.checkpoint_id}-{checkpoint.attempt}"
    (Path(catalog.address) / f"{below}-0").mkdir(parents=True)
    names = [f"{below}-0/part-{n}" for n in range(count)]
    for name in names:
        (Path(catalog.address) / name).write_bytes(b"12")
    return names


def test_a_scrub_walks_storage_once_and_deletes_in_batches(catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BATCH", 4)
    names = left_by_a_dead_attempt(catalog, 10)
    calls: list[object] = []

    class Recording(PassingStorage):
        def walk(self, prefix):
            calls.append(("walk", prefix))
            return self.inner.walk(prefix)

        def list(self, prefix):
            raise AssertionError("a second walk")

        def delete_many(self, paths):
            calls.append(("delete", len(paths)))
            return self.inner.delete_many(paths)

    monkeypatch.setattr(catalog, "_storage", Recording(catalog._storage))
    told: list[tuple[int, int]] = []
    done = catalog.scrub(progress=lambda now, of: told.append((now, of)))
    assert calls == [("walk", ""), ("delete", 4), ("delete", 4), ("delete", 2)]
    assert told == [(4, 10), (8, 10), (10, 10)]
    assert (done.deleted_files, done.deleted_bytes, done.failed) == (10, 20, ())
    assert not (Path(catalog.address) / names[0]).parent.exists()


def test_a_scrub_keeps_no_listing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 objects that stay, a page of 500 is in memory, and 1,000 as a sample."""
    monkeypatch.setattr(listing, "PAGE", 500)

    def walk() -> Iterator[Stored]:
        return (StoredObject(path=f"f/k{n:0200}", size_bytes=n) for n in range(10_000))

    tracemalloc.start()
    with kept(walk()) as listed:
        found = plan(listed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.known_objects == 10_000
    assert peak < 1_000_000, "a list of them takes 3 MB"
