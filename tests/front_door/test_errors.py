"""Errors as users meet them: a stable kind for each class, told as `holdfast.X`, and a row in the documentation."""

import json
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import cli
from holdfast.catalog import errors
from tests.support.places import ROOT

# Never changed: programs match on them. A new class gets a line of its own.
KINDS = {
    "HoldfastError": "error",
    "RetryError": "retry",
    "ConflictError": "conflict",
    "UnknownOutcomeError": "unknown-outcome",
    "StorageFullError": "storage-full",
    "NotDurableError": "not-durable",
    "UsageError": "usage",
    "AddressError": "address",
    "NotFoundError": "not-found",
    "AlreadyExistsError": "already-exists",
    "FormatError": "format",
    "RefusedError": "refused",
    "ReadOnlyError": "read-only",
    "UnsafeSettingsError": "unsafe-settings",
    "EngineSetupError": "engine-setup",
    "FencedError": "fenced",
    "AttemptEndedError": "attempt-ended",
    "TooManyFailuresError": "too-many-failures",
    "CorruptionError": "corruption",
    "DamagedFileError": "damaged-file",
    "DamagedLedgerError": "damaged-ledger",
    "ForeignTokensError": "foreign-tokens",
    "WorkingDirectoryError": "working-directory",
}
CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HoldfastError)]
ROW = re.compile(r"^\| `([a-z-]+)` \| ((?:↳ )*)`(\w+)` \| (\d) \|", re.MULTILINE)


def test_the_kinds_are_what_they_were_and_each_class_has_its_own() -> None:
    assert {each.__name__: vars(each).get("kind") for each in CLASSES} == KINDS
    assert len({*KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__name__)
def test_an_error_shows_itself_as_what_users_import(each: type[errors.HoldfastError]) -> None:
    error = each("checkpoint 3 of job 'f'")
    assert getattr(holdfast, each.__name__) is each
    assert traceback.format_exception_only(error) == [f"holdfast.{each.__name__}: checkpoint 3 of job 'f'\n"]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.kind) == (each, str(error), KINDS[each.__name__])


def test_an_error_of_a_task_pickles_in_a_process_that_imports_nothing_else() -> None:
    sent = pickle.dumps(errors.DamagedFileError("file 'a' is missing"))
    program = (
        f"import pickle, sys; error = pickle.loads({sent!r}); print(repr(error), 'pyspark' in sys.modules, 'deltalake' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "DamagedFileError(\"file 'a' is missing\") False False\n"


def test_an_error_whose_module_is_of_before_is_still_read() -> None:
    """Pickled by an executor with an older Holdfast."""
    assert type(pickle.loads(b"choldfast.catalog.errors\nFencedError\n(S'late'\ntR.")) is errors.FencedError


def test_the_documentation_has_a_row_for_each_class_in_the_trees_order() -> None:
    rows = [
        (kind, name, len(depth.split()), int(code)) for kind, depth, name, code in ROW.findall((ROOT / "docs" / "errors.md").read_text())
    ]
    ours = [sum(issubclass(base, errors.HoldfastError) for base in each.__mro__) for each in CLASSES]
    assert rows == [
        (each.kind, each.__name__, max(depth - 2, 0), cli.exit_code(each("what happened")))
        for each, depth in zip(CLASSES, ours, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.__name__)
def test_a_script_is_told_the_kind_of_an_error(each: type[errors.HoldfastError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise each(f"no é here:\n{path}")

    monkeypatch.setattr(cli, "open_catalog", refuse)
    result = CliRunner().invoke(cli.main, ["jobs", "there", "--json"])
    told = {"error": "no é here: there", "kind": each.kind, "exit_code": result.exit_code}
    assert (json.loads(result.stderr), result.stdout, result.stderr.count("\n")) == (told, "", 1)
    assert result.exit_code == cli.exit_code(each("what happened")) != 0
    assert CliRunner().invoke(cli.main, ["jobs", "there"]).stderr == "holdfast: no é here: there\n"


@pytest.mark.parametrize(
    ("raised", "kind", "code"),
    [(PermissionError("denied"), "operating-system", cli.MACHINE), (KeyboardInterrupt(), "interrupted", cli.INTERRUPTED)],
    ids=repr,
)
def test_what_is_no_error_of_ours_has_a_kind_too(raised: BaseException, kind: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise raised

    monkeypatch.setattr(cli, "open_catalog", refuse)
    result = CliRunner().invoke(cli.main, ["jobs", "there", "--json"])
    assert (json.loads(result.stderr)["kind"], result.exit_code) == (kind, code)


def test_every_command_but_the_group_prints_json() -> None:
    for name, command in cli.main.commands.items():
        assert any(isinstance(each, click.Option) and each.name == "as_json" for each in command.params), name
