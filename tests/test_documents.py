"""Every snippet in the README and in docs/ runs: Python top to bottom in one namespace for each page, SQL against a small catalog;
command lines are parsed as the commands would."""

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from holdfast.cli import main

ROOT = Path(__file__).parent.parent
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


@pytest.mark.parametrize("page", CODE_PAGES, ids=named)
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
