"""What public functions say to arguments of the wrong type or size: an error of Holdfast's own, which nothing was begun before."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast

LONG = "x" * 300
WRONG = {
    "none": None, "number": 100_000, "negative": -1, "huge": 2**70, "true": True, "fraction": 1.5, "bytes": b"x", "empty": "", "list": ["a"],
    "set": {1}, "object": object(), "nul": "a\0b", "surrogate": "a\udc80b", "long": LONG, "lines": "a\nb",
}  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A catalog with a job, two checkpoints and a savepoint; `fresh` gives new places and names."""
    directory = tmp_path_factory.mktemp("arguments")
    (directory / "store").mkdir()
    (directory / "store" / "1.sst").write_bytes(b"1")
    counted = iter(range(10_000))
    with holdfast.open(directory / "catalog", create=True) as catalog, catalog.coordinate("f", retention=holdfast.KeepAll()) as job:
        for _ in range(2):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", b"1")
        savepoint, live = catalog.savepoint("f", "mine"), catalog.checkpoint("f", 1)
        yield SimpleNamespace(
            catalog=catalog,
            job=job,
            savepoint=savepoint,
            checkpoint=live,
            store=directory / "store",
            fresh=lambda: directory / f"n{next(counted)}",
        )


class _EndOfBlockError(Exception):
    """Ends a block that took what it was given."""


@dataclass(frozen=True)
class InBlock:
    """A call of a checkpoint's block: all values are tried in one block, for a refusal leaves nothing behind in it."""

    call: Callable[[Any, Any, Any], Any]


@contextmanager
def arranged(run: Any, given: SimpleNamespace) -> Iterator[Callable[[Any], Any]]:
    """What tries one value."""
    if not isinstance(run, InBlock):
        yield lambda value: run(given, value)
        return
    with suppress(_EndOfBlockError), given.job.checkpoint() as checkpoint:
        yield lambda value: run.call(checkpoint, given, value)
        raise _EndOfBlockError


def own(g: Any, value: Any) -> Any:
    """The value; of what is taken, another each time."""
    return f"{value}{g.fresh().name}" if value is LONG else value


def option(name: str) -> Callable[[Any, Any], Any]:
    return lambda g, v: g.catalog.coordinate(g.fresh().name, **{name: v}).close()


# Each public function and argument, and which of the wrong values it takes all the same.
CALLS: dict[str, tuple[Callable[[Any, Any], Any] | InBlock, str]] = {
    "open": (lambda _, v: holdfast.open(v), ""),
    "open_manifest": (lambda _, v: holdfast.open_manifest(v), ""),
    "open_savepoint": (lambda _, v: holdfast.open_savepoint(v), ""),
    "upgrade": (lambda _, v: holdfast.upgrade(v), ""),
    "upgrade progress": (lambda g, v: holdfast.upgrade(g.catalog.address, progress=v), "none"),
    "rekey": (lambda g, v: holdfast.rekey(v, max_parallelism=4, target=g.fresh()), ""),
    "rekey max_parallelism": (lambda g, v: holdfast.rekey(g.savepoint, max_parallelism=v, target=g.fresh()), ""),
    "rekey target": (lambda g, v: holdfast.rekey(g.savepoint, max_parallelism=4, target=v), "lines"),
    "rekey upload": (lambda g, v: holdfast.rekey(g.savepoint, max_parallelism=4, target=g.fresh(), upload=v), ""),
    "groups_of subtask": (lambda _, v: holdfast.groups_of(v, 2, 4), ""),
    "groups_of subtasks": (lambda _, v: holdfast.groups_of(0, v, 4), ""),
    "groups_of groups": (lambda _, v: holdfast.groups_of(0, 2, v), "number huge"),
    "working_directory": (lambda _, v: holdfast.working_directory(v), ""),
    "working_directory base": (lambda _, v: holdfast.working_directory("taskmanager", base=v), "none lines"),
    "foreach_batch job": (lambda _, v: holdfast.foreach_batch(v, print), ""),
    "foreach_batch catalog": (lambda g, _: holdfast.foreach_batch(g.catalog, print), ""),
    "foreach_batch update": (lambda g, v: holdfast.foreach_batch(g.job, v), ""),
    "KeepLast": (lambda _, v: holdfast.KeepLast(v), "number huge"),
    "ChainLimit": (lambda _, v: holdfast.ChainLimit(v), "number huge"),
    "OnEnd": (lambda _, v: holdfast.OnEnd(drop=v), ""),
    "coordinate": (lambda g, v: g.catalog.coordinate(own(g, v)).close(), "long"),
    "coordinate max_parallelism": (option("max_parallelism"), "none"),
    "coordinate retention": (option("retention"), ""),
    "coordinate on_end": (option("on_end"), ""),
    "coordinate chain": (option("chain"), ""),
    "coordinate start": (option("start"), ""),
    "coordinate mode": (option("mode"), "none"),
    "coordinate states": (option("states"), "none list"),
    "coordinate allow_non_restored": (option("allow_non_restored"), "list"),
    "coordinate renamed": (option("renamed"), "none"),
    "coordinate upload": (option("upload"), ""),
    "coordinate checkpoint_timeout_s": (option("checkpoint_timeout_s"), "none number fraction huge"),
    "coordinate tolerated_failures": (option("tolerated_failures"), "number huge"),
    "checkpoint job": (lambda g, v: g.catalog.checkpoint(v), ""),
    "checkpoint number": (lambda g, v: g.catalog.checkpoint("f", v), "none"),
    "checkpoint number as text": (lambda g, _: g.catalog.checkpoint("f", "1"), ""),
    "hold job": (lambda g, v: g.catalog.hold(v, 1, g.fresh().name), ""),
    "hold number": (lambda g, v: g.catalog.hold("f", v, g.fresh().name), ""),
    "hold note": (lambda g, v: g.catalog.hold("f", 1, g.fresh().name, v), "none empty long"),
    "unhold job": (lambda g, v: g.catalog.unhold(v, 1, "h"), ""),
    "unhold number": (lambda g, v: g.catalog.unhold("f", v, "h"), ""),
    "unhold name": (lambda g, v: g.catalog.unhold("f", 1, v), ""),
    "drop job": (lambda g, v: g.catalog.drop(v, 1), ""),
    "drop number": (lambda g, v: g.catalog.drop("f", v), ""),
    "kill job": (lambda g, v: g.catalog.kill(v, "0" * 16), ""),
    "kill attempt": (lambda g, v: g.catalog.kill("f", v), ""),
    "own job": (lambda g, v: g.catalog.own(v, "o"), ""),
    "own name": (lambda g, v: g.catalog.own("f", own(g, v)), "long"),
    "release job": (lambda g, v: g.catalog.release(v, "o"), ""),
    "release owner": (lambda g, v: g.catalog.release("f", v), ""),
    "savepoint job": (lambda g, v: g.catalog.savepoint(v, g.fresh().name), ""),
    "savepoint name": (lambda g, v: g.catalog.savepoint("f", own(g, v)), "long"),
    "savepoint number": (lambda g, v: g.catalog.savepoint("f", g.fresh().name, checkpoint_id=v), "none"),
    "savepoint target": (lambda g, v: g.catalog.savepoint("f", g.fresh().name, target=v), "none lines"),
    "savepoint stores": (lambda g, v: g.catalog.savepoint("f", g.fresh().name, stores=v), "none"),
    "savepoint upload": (lambda g, v: g.catalog.savepoint("f", g.fresh().name, upload=v), ""),
    "dispose job": (lambda g, v: g.catalog.dispose(v, "s"), ""),
    "dispose name": (lambda g, v: g.catalog.dispose("f", v), ""),
    "export checkpoint": (lambda g, v: g.catalog.export(v, g.fresh()), ""),
    "export target": (lambda g, v: g.catalog.export(g.checkpoint, v), "lines"),
    "vacuum progress": (lambda g, v: g.catalog.vacuum(progress=v), "none"),
    "scrub progress": (lambda g, v: g.catalog.scrub(progress=v), "none"),
    "verify progress": (lambda g, v: g.catalog.verify(progress=v), "none"),
    "register": (lambda g, v: g.catalog.register(v), ""),
    "at version": (lambda g, v: g.catalog.at(version=v), ""),
    "at time": (lambda g, v: g.catalog.at(time=v), ""),
    "at ledger": (lambda g, v: g.catalog.at(version=100_000, ledger=v), ""),
    "read": (lambda g, v: g.checkpoint.read(None, v), ""),
    "read_bytes": (lambda g, v: g.checkpoint.read_bytes(v), ""),
    "duckdb": (lambda g, v: g.checkpoint.duckdb(v), ""),
    "job.savepoint": (lambda g, v: g.job.savepoint(own(g, v)), "long"),
    "job.end": (lambda g, v: g.job.end(v), ""),
    "job.drop": (lambda g, v: g.job.drop(v), ""),
    "write_bytes state": (InBlock(lambda c, _, v: c.write_bytes(v, b"1")), "long"),
    "write_bytes data": (InBlock(lambda c, _, v: c.write_bytes("z", v)), "bytes"),
    "write state": (InBlock(lambda c, _, v: c.write(v, None)), ""),
    "write frame": (InBlock(lambda c, _, v: c.write("z", v)), ""),
    "write mode": (InBlock(lambda c, _, v: c.write("z", None, mode=v)), ""),
    "write_changes frame": (InBlock(lambda c, _, v: c.write_changes("z", v, key=["a"])), ""),
    "task_owned": (InBlock(lambda c, _, v: c.task_owned(v, [])), ""),
    "write_directory state": (InBlock(lambda c, g, v: c.write_directory(v, g.store)), "long"),
    "write_directory snapshot": (InBlock(lambda c, _, v: c.write_directory("z", v)), ""),
    "write_directory subtask": (InBlock(lambda c, g, v: c.write_directory("z", g.store, subtask=v)), ""),
    "write_directory subtasks": (InBlock(lambda c, g, v: c.write_directory("z", g.store, subtasks=v)), "none"),
    "write_directory key_groups": (InBlock(lambda c, g, v: c.write_directory("z", g.store, key_groups=v)), "none"),
    "write_directory immutable": (InBlock(lambda c, g, v: c.write_directory("z", g.store, immutable=v)), "list"),
    "directories state": (InBlock(lambda c, _, v: c.directories(v, subtasks=2)), "long"),
    "directories subtasks": (InBlock(lambda c, _, v: c.directories("z", subtasks=v)), "none"),
    "acknowledge state": (InBlock(lambda c, _, v: c.acknowledge(v, [])), ""),
    "remove": (InBlock(lambda c, _, v: c.remove(v)), ""),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_an_error_of_holdfast_s_own(given: SimpleNamespace, call: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run, taken = CALLS[call]
    found = {}
    with arranged(run, given) as attempt:
        for name, value in WRONG.items():
            try:
                attempt(value)
                found[name] = "taken"
            except holdfast.HoldfastError as error:
                found[name] = str(error)
    assert {name for name, what in found.items() if what == "taken"} == {*taken.split()}
    assert all(found.values())


def test_a_number_given_as_text_is_told_as_such_where_it_is_meant(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"1")
    with pytest.raises(holdfast.UsageError, match="'1' is not the number of a checkpoint .*: pass the int 1"):
        catalog.checkpoint("flights", "1")
    with pytest.raises(holdfast.AddressError, match=r"as an int \(start=1\)"):
        catalog.coordinate("flights", start="1")


def test_a_savepoint_and_a_checkpoint_are_each_told_how_they_open(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"1")
    savepoint = catalog.savepoint("flights", "mine")
    with pytest.raises(holdfast.AddressError, match=r"holdfast\.open_savepoint"):
        holdfast.open_manifest(savepoint.path)
    with pytest.raises(holdfast.NotFoundError, match=r"holdfast\.open_manifest"):
        holdfast.open_savepoint(catalog.checkpoint("flights").path)
    with catalog.coordinate("flights", start=savepoint.checkpoint_id) as job:
        assert job.latest() is not None, "a savepoint is started from by its number"


def test_a_checkpoint_that_is_not_entered_says_that_it_is_a_block(catalog: holdfast.Catalog) -> None:
    job = catalog.coordinate("flights")
    for use in (lambda c: c.write_bytes("offsets", b"1"), lambda c: c.remove, lambda c: c.result, lambda c: c.checkpoint_id):
        with pytest.raises(holdfast.UsageError, match="with job.checkpoint"):
            use(job.checkpoint())
    assert not hasattr(job.checkpoint(), "no_such_thing")
    with catalog.duckdb() as connection:
        assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (0,)


def documented(function: Any) -> list[str]:
    """The names of the entries below `Args:`."""
    entries = re.search(r"^Args:\n((?:    .*\n|\n)*)", inspect.getdoc(function) or "", re.MULTILINE)
    return re.findall(r"^    (\w+): .", entries[1], re.MULTILINE) if entries else []


def functions() -> Iterator[tuple[str, Any]]:
    """Each public function, and each public method of a public class."""
    for name in holdfast.__all__:
        public = getattr(holdfast, name)
        if inspect.isfunction(public):
            yield name, public
        elif isinstance(public, type):
            yield from ((f"{name}.{each}", method) for each, method in inspect.getmembers(public, inspect.isfunction) if each[0] != "_")


def test_every_option_of_a_function_with_more_than_four_is_documented() -> None:
    many, entries = {}, {}
    for name, function in functions():
        options = [each for each in inspect.signature(function).parameters if each != "self"]
        if len(options) > 4:
            many[name] = options
        if len(options) > 4 or documented(function):
            entries[name] = documented(function)
    assert entries == many, "in the order of the signature"
    assert {*many} >= {"rekey", "Catalog.coordinate", "CheckpointWriter.write_directory", "Checkpoint.read"}
