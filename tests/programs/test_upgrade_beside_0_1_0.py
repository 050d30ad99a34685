"""Programs of 0.1.0, as its wheel has them, commit while their catalog is upgraded by processes that are killed at random.

What such a program was told is committed is there afterwards; from the close on it is refused, whatever it tries.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import holdfast
from tests.programs.test_wheel import QUIET
from tests.support.invariants import assert_catalog_sound
from tests.support.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LAST_OF_FORMAT_1 = "499151f907a4a916c8f3dbf61f3b53d09e57a551"
KILLS = 6

# Commits until it is told to stop, and says after each commit which one landed; after the first refusal it tries a few times more.
OLD_PROGRAM = """
import sys
import holdfast
from holdfast.catalog.schema import FORMAT_VERSION

assert FORMAT_VERSION == 1, holdfast.__file__
root, name = sys.argv[1:]
refused = 0
with holdfast.open(root) as catalog:
    job = catalog.coordinate(name, retention=holdfast.KeepLast(2))
    n = 0
    while refused < 3:
        n += 1
        try:
            with job.checkpoint({"n": n}) as checkpoint:
                checkpoint.write_bytes("state", b"%d" % n)
                checkpoint.write_bytes("large", b"%d " % n * 20_000)
            print("told", checkpoint.result.checkpoint_id, n, refused, flush=True)
        except holdfast.HoldfastError as error:
            refused += 1
            print("refused", type(error).__name__, " ".join(str(error).split()), flush=True)
        if n % 5 == 0:
            try:
                catalog.vacuum()
            except holdfast.HoldfastError:
                pass
try:
    holdfast.open(root)
except holdfast.FormatError:
    print("closed to the old version", flush=True)
import os
os._exit(0)  # its `finally` blocks would try to commit as well
"""

UPGRADE = "import sys, holdfast; print(holdfast.upgrade(sys.argv[1]).ledger)"


@pytest.fixture(scope="module")
def old_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the modules of 0.1.0's wheel are."""
    directory = tmp_path_factory.mktemp("old")
    source = directory / "source"
    source.mkdir()
    archived = subprocess.run(["git", "archive", LAST_OF_FORMAT_1], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        _skip(f"the last commit of format 1 is not there: {archived.stderr.decode()[-300:]}")
    subprocess.run(["tar", "x", "-C", str(source)], input=archived.stdout, check=True)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *QUIET, "--no-deps", "--wheel-dir", str(directory), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        _skip(f"no wheel can be built here: {built.stderr[-300:]}")
    (wheel,) = directory.glob("holdfast-*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(directory / "modules")
    return directory / "modules"


def _skip(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def start(program: str, *arguments: object, modules: Path | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(modules or ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def make_old_catalog(root: Path, modules: Path) -> None:
    made = start("import sys, holdfast; holdfast.open(sys.argv[1], create=True).close()", root, modules=modules)
    assert made.communicate()[1] == ""
    assert json.loads((root / "holdfast.json").read_text())["format_version"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_what_an_old_program_was_told_survives_killed_upgrades(old_version: Path, tmp_path: Path, seed: int) -> None:
    root, chance = tmp_path / "catalog", random.Random(seed)
    make_old_catalog(root, old_version)
    programs = {name: start(OLD_PROGRAM, root, name, modules=old_version) for name in ("alpha", "beta")}
    time.sleep(3)  # they are about their work
    for _ in range(KILLS):
        upgrading = start(UPGRADE, root)
        try:
            upgrading.wait(timeout=chance.uniform(0.8, 4.0))
            break
        except subprocess.TimeoutExpired:
            upgrading.send_signal(signal.SIGKILL)
            upgrading.communicate()
    assert start(UPGRADE, root).communicate(timeout=300)[1] == ""
    said = {name: program.communicate(timeout=300) for name, program in programs.items()}
    with holdfast.open(root) as catalog:
        for name, (lines, errors) in said.items():
            _assert_nothing_was_lost(catalog, name, lines.splitlines(), errors)
        assert not catalog.verify().damages
        assert_catalog_sound(catalog)
        catalog.vacuum()
        catalog.scrub()
        assert not catalog.verify().damages


def _assert_nothing_was_lost(catalog: holdfast.Catalog, name: str, lines: list[str], errors: str) -> None:
    told = [line.split()[1:] for line in lines if line.startswith("told")]
    assert told, f"{name} committed nothing: {errors[-2000:]}"
    assert lines[-1] == "closed to the old version", f"{lines[-5:]} {errors[-2000:]}"
    assert all(refused == "0" for _, _, refused in told), "a commit was acknowledged after one was refused"
    number, n = int(told[-1][0]), told[-1][1]
    newest = catalog.checkpoint(name)
    if newest.checkpoint_id != number:  # it landed, and its program died or was refused before it was told
        assert newest.checkpoint_id > number
        newest = catalog.checkpoint(name, number)
    assert newest.read_bytes("state") == n.encode()
    assert newest.read_bytes("large") == f"{n} ".encode() * 20_000
