"""What forks after it has used a catalog: each entry says so in the child, and nothing panics, hangs or ends what the parent has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.catalog import forks
from holdfast.catalog.errors import UsageError

PROGRAM = """
import json, os, signal, sys, threading
import holdfast

place = sys.argv[1]

def in_child(act):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # of a child that hangs
        try:
            said = ["returned", repr(act())]
        except BaseException as error:
            said = [type(error).__name__, str(error)]
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else ["died", ""]

answers = {"import only": in_child(lambda: holdfast.open(place, create=True).catalog_id)}
catalog = holdfast.open(place)
job = catalog.coordinate("flights", retention=holdfast.KeepAll())
with job.checkpoint() as checkpoint:
    checkpoint.write_bytes("offsets", b"1" * 50_000)
owner = catalog.own("flights", "wal")
read = catalog.checkpoint("flights")
connection = catalog.duckdb()
connection.sql("select count(*) from jobs").fetchall()

def commit():
    with job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"2")

ENTRIES = {
    "open": lambda: holdfast.open(place),
    "create": lambda: holdfast.open(place + "-2", create=True),
    "coordinate": lambda: catalog.coordinate("flights"),
    "checkpoint": lambda: catalog.checkpoint("flights"),
    "hold": lambda: catalog.hold("flights", 1, "mine"),
    "drop": lambda: catalog.drop("flights", 1),
    "kill": lambda: catalog.kill("flights", "0" * 16),
    "own": lambda: catalog.own("flights", "wal"),
    "release": lambda: catalog.release("flights", "wal"),
    "owner.release": lambda: owner.release(),
    "savepoint": lambda: catalog.savepoint("flights", "mine"),
    "dispose": lambda: catalog.dispose("flights", "mine"),
    "vacuum": lambda: catalog.vacuum(),
    "plan_vacuum": lambda: catalog.plan_vacuum(),
    "scrub": lambda: catalog.scrub(),
    "verify": lambda: catalog.verify(),
    "end_dead_readers": lambda: catalog.end_dead_readers(),
    "duckdb": lambda: catalog.duckdb(),
    "job.checkpoint": commit,
    "job.latest": lambda: job.latest(),
    "job.savepoint": lambda: job.savepoint("mine"),
    "job.end": lambda: job.end("finished"),
    "job.close": lambda: job.close(),
}
# A thread that is amid a transaction does not live on in the child, and neither does anybody who would open its lock.
locked, done = threading.Event(), threading.Event()
def hold_the_lock():
    with catalog._transactor._lock, job._transactor._lock:
        locked.set()
        done.wait()
for held in (False, True):
    if held:
        thread = threading.Thread(target=hold_the_lock)
        thread.start()
        locked.wait()
    for name, act in ENTRIES.items():
        answers[f"{name}, locked" if held else name] = in_child(act)
done.set()
thread.join()
answers["read_bytes"] = in_child(lambda: read.read_bytes("offsets")[:1])
answers["read.close"] = in_child(read.close)
answers["catalog.close"] = in_child(catalog.close)
with holdfast.open(place) as again:
    answers["readers"] = again.duckdb().sql("select count(*) from readers").fetchone()[0]
    answers["attempts"] = again.duckdb().sql("select purpose, status from attempts order by all").fetchall()
commit()
answers["parent"] = repr(catalog.checkpoint("flights"))
json.dump(answers, sys.stdout)
"""


def test_a_child_is_told_to_spawn_and_the_parent_keeps_what_it_has(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "c")], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers.pop("import only")[0] == "returned"
    assert answers.pop("read_bytes") == ["returned", "b'1'"], "the bytes of what is pinned are read without the ledger"
    assert [answers.pop(name) for name in ("read.close", "catalog.close")] == [["returned", "None"]] * 2
    assert answers.pop("readers") == 1
    assert ["read", "open"] in answers["attempts"]
    assert not [each for each in answers.pop("attempts") if each[1] in ("killed", "aborted", "released")]
    assert answers.pop("parent") == "<checkpoint 2 of job 'flights': offsets>"
    wrong = {name: said for name, said in answers.items() if said[0] != "UsageError" or "'spawn' or 'forkserver'" not in said[1]}
    assert wrong == {}
    assert len(answers) == 46
    assert "panicked" not in done.stderr


def test_a_runtime_that_another_started_before_the_fork_is_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs itself panics, for Holdfast was not used in the parent."""
    monkeypatch.setattr(forks, "_claimed_by", None)
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(UsageError, match="'spawn' or 'forkserver'"), forks.ledger_engine():
        raise panic("Forked process detected - current PID is 2 but the tokio runtime was created by 1.")
    assert forks.is_forked(), "it stays so"
    monkeypatch.setattr(forks, "_claimed_by", None)
    with pytest.raises(panic, match="another"), forks.ledger_engine():
        raise panic("another")
