"""Every snippet in the README and in docs/ runs: Python top to bottom in one namespace for each page, SQL against a small catalog;
command lines are parsed as the commands would."""

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from holdfast.cli import main
from tests.support.places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`(holdfast(?: [^`]+)?)`")
LINE = re.compile(r"^(?:.*\s)?(?:\S*/)?(holdfast .*)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)")


def snippets(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def command_lines(page: Path) -> list[str]:
    """What a page tells to type: `holdfast ...` in running text, and in what a shell is given or shows."""
    shown = [line for language in ("sh", "text") for body in snippets(page, language) for line in LINE.findall(body)]
    return [line for line in CODE.findall(FENCE.sub("", page.read_text())) if " " in line] + shown


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


CODE_PAGES = [p for p in PAGES if snippets(p, "python")]
FIRST = ("README.md", "embedded-stores.md", "streaming.md")  # the other pages take their time


@pytest.mark.parametrize("page", [p if p.name in FIRST else pytest.param(p, marks=pytest.mark.slow) for p in CODE_PAGES], ids=named)
def test_python_of_a_page_runs_from_top_to_bottom(page, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"spark": spark, "__name__": "__page__"}
    for body in snippets(page, "python"):
        exec(compile(body, named(page), "exec"), names)  # noqa: S102 - that is the test
    assert os.listdir(tmp_path), "a page's code is expected to write something"


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, "sql")], ids=named)
def test_sql_of_a_page_runs_on_a_catalog(page, tmp_path):
    import holdfast

    catalog = holdfast.open(tmp_path / "catalog", create=True)
    with catalog.coordinate("flights") as job, job.checkpoint() as cp:
        cp.write_bytes("offsets", b"42")
    with catalog.duckdb() as connection:
        for body in snippets(page, "sql"):
            for statement in filter(str.strip, body.split(";")):
                assert connection.execute(statement).description is not None, statement


def test_the_recipes_say_what_grew_and_what_a_drop_frees(tmp_path):
    """The manifest too; nothing of what another checkpoint has. And why each of them is still there."""
    import holdfast

    queries = snippets(ROOT / "docs" / "recipes.md", "sql")

    def answers(column):
        (query,) = [each for each in queries if f"AS {column}" in each]
        with catalog.duckdb() as connection:
            result = connection.execute(query)
            names = [name for name, *_ in result.description]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    with (
        holdfast.open(tmp_path / "catalog", create=True) as catalog,
        catalog.coordinate("flights", retention=holdfast.KeepAll()) as job,
    ):
        for size in (30_000, 50_000, 40_000):
            with job.checkpoint() as cp:
                cp.write_bytes("large", b"x" * size)
                if size == 30_000:
                    cp.write_bytes("kept", b"y" * 60_000)
        catalog.hold("flights", 1, "audit")
        job.savepoint("mine")
        assert [(row["checkpoint_id"], row["grown_bytes"]) for row in answers("grown_bytes") if row["state"] == "large"] == [
            (3, -10_000), (2, 20_000), (1, None),
        ]  # fmt: skip
        assert [(row["state"], row["percent"]) for row in answers("percent")] == [("kept", 60.0), ("large", 40.0)]
        assert [row["why"] for row in answers("why")] == [
            "held as audit", "kept by retention", "the job continues from it", "savepoint mine",
        ]  # fmt: skip
        (told,) = [row["freed_bytes"] for row in answers("freed_bytes") if row["checkpoint_id"] == 2]
        catalog.drop("flights", 2)
        assert catalog.vacuum().deleted_bytes == told > 50_000


@pytest.mark.slow
def test_the_plain_sql_gives_a_state_of_every_checkpoint_and_savepoint(spark, tmp_path):
    """Not only those of the page: new bases of some groups, groups that became empty, several change sets, a savepoint."""
    import holdfast

    page = ROOT / "docs" / "choosing-a-mode.md"
    names = {}
    for body in snippets(page, "python"):
        if body.startswith(("CHUNKS", "ANY")):
            exec(compile(body, named(page), "exec"), names)  # noqa: S102 - that is the test
    planes = spark.range(200).selectExpr("concat('N', id) AS tailnum", "id AS flights")
    group = "pmod(hash(tailnum), 16)"
    some = planes.selectExpr("tailnum", f"if({group} = 3, -1, flights) AS flights").where(f"{group} NOT IN (5, 6)")
    limit = holdfast.ChainLimit(change_sets=100, share_of_base=1e9)
    with (
        holdfast.open(tmp_path / "catalog", create=True) as catalog,
        catalog.coordinate("flights", max_parallelism=16, retention=holdfast.KeepAll(), chain=limit) as job,
    ):

        def changes(cp, upserted, deleted):
            rows = spark.createDataFrame([(name, n) for n, name in enumerate(upserted)], "tailnum string, flights long")
            keys = spark.createDataFrame([(name,) for name in deleted], "tailnum string")
            cp.write_changes("planes", rows, keys, key=["tailnum"])

        for write in (
            lambda cp: cp.write("planes", planes, key=["tailnum"], mode="changed-groups"),
            lambda cp: cp.write("planes", some, key=["tailnum"], mode="changed-groups"),
            lambda cp: changes(cp, ["N1", "N2", "new"], ["N3", "N4"]),
            lambda cp: changes(cp, ["N3", None], ["N1", "new", "never"]),
            lambda cp: cp.write_bytes("other", b"carried"),
        ):
            with job.checkpoint() as cp:
                write(cp)
        savepoint = catalog.savepoint("flights", "whole", spark=spark)
        layers = []
        for checkpoint in (*(catalog.checkpoint("flights", n) for n in range(1, 6)), savepoint):
            expected = sorted(checkpoint.duckdb("planes").fetchall(), key=repr)
            with catalog.duckdb() as connection:
                which = {"root": catalog.address, "job": "flights", "checkpoint_id": checkpoint.checkpoint_id, "state": "planes"}
                connection.execute(names["CHUNKS"], which).execute(names["PATHS"])
                assert sorted(connection.execute(names["ANY"]).fetchall(), key=repr) == expected
                layers.append(connection.execute("SELECT count(DISTINCT layer) FROM chunks").fetchone()[0])
                if layers[-1] == 1:
                    assert sorted(connection.execute(names["BASE_ONLY"]).fetchall(), key=repr) == expected
        assert layers == [1, 2, 3, 4, 4, 1]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_a_page_lead_somewhere(page):
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


def test_there_are_command_lines_to_parse():
    assert {line.split()[1] for page in PAGES for line in command_lines(page)} >= {"vacuum", "scrub", "verify", "hold", "kill"}


@pytest.mark.parametrize("page", [p for p in PAGES if command_lines(p)], ids=named)
def test_command_lines_of_a_page_are_as_the_commands_take_them(page):
    """Parsed only. A command's bare name is a mention of it; N stands for a number."""
    for line in command_lines(page):
        words = ["1" if word == "N" else word for word in shlex.split(line)[1:]]
        if words == ["--help"]:
            continue
        assert words[0] in main.commands, line
        if words[1:]:
            main.commands[words[0]].make_context(words[0], words[1:])  # raises what the user would be told


def test_a_wrong_command_line_in_a_page_would_be_seen():
    with pytest.raises(click.UsageError):
        main.commands["hold"].make_context("hold", ["PATH", "JOB", "1", "--name", "before-upgrade"])
