"""The layout: what is built is recognised, what is not built here is foreign."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog import paths
from holdfast.catalog.errors import AddressError
from holdfast.catalog.paths import AttemptPath, ChkPath, ForeignPath, InternalPath
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId

JOB = JobId("flights-12345678")
TOKEN = AttemptToken("0123456789abcdef")
N = CheckpointId(42)

names = st.text(max_size=80)
job_ids = st.builds(paths.new_job_id, names, st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
tokens = st.from_regex(r"[0-9a-f]{16}", fullmatch=True).map(AttemptToken)
checkpoint_ids = st.integers(0, 10**18 - 1).map(CheckpointId)
numbers = st.integers(0, 10**18 - 1)
labels = numbers | st.from_regex(r"[0-9A-Za-z_]+", fullmatch=True)
drafts = st.sampled_from(["", ".1a2b3c4d.tmp"])
belows = st.sampled_from(["", "/part-00000-x.parquet", "/_temporary/0/_temporary/attempt_1/part-0", "/.part-0.crc"])


def test_the_layout_is_the_design_s() -> None:
    assert paths.MARKER == "holdfast.json"
    assert paths.job_directory(JOB) == "jobs/flights-12345678"
    assert paths.native_directory(JOB, N, TOKEN, 3) == "jobs/flights-12345678/shared/42-0123456789abcdef-3"
    assert paths.streamed_file(JOB, N, TOKEN, 17, 0) == "jobs/flights-12345678/shared/42-0123456789abcdef-17-0.parquet"
    assert paths.exclusive_file(JOB, N, TOKEN, 3, "bin") == "jobs/flights-12345678/exclusive/42-0123456789abcdef-3-0.bin"
    assert paths.shared_file(JOB, N, TOKEN, 3, "bin") == "jobs/flights-12345678/shared/42-0123456789abcdef-3-0.bin"
    owned = "jobs/flights-12345678/taskowned/wal-7/0-0123456789abcdef-fedcba9876543210-0.bin"
    assert paths.owned_file(JOB, "WAL 7", TOKEN, "fedcba9876543210") == owned
    assert paths.checkpoint_directory(JOB, CheckpointId(7)) == "jobs/flights-12345678/chk-7"
    assert paths.manifest_path(JOB, N) == "jobs/flights-12345678/chk-42/_metadata"
    assert paths.file_id(TOKEN, 3, 0) == "0123456789abcdef-3-0"
    assert paths.manifest_file_id(TOKEN) == "0123456789abcdef-metadata-0"


@given(job_ids, checkpoint_ids, tokens, labels, numbers, belows, drafts, st.sampled_from(["parquet", "bytes", "bin"]))
def test_what_an_attempt_writes_is_recognised_as_its_own(
    job: JobId, n: CheckpointId, token: AttemptToken, a: Any, b: int, below: str, draft: str, ext: str
) -> None:
    own = AttemptPath(job_id=job, checkpoint_id=n, attempt=token)
    assert paths.parse(paths.native_directory(job, n, token, b) + below) == own
    assert paths.parse(paths.streamed_file(job, n, token, a, b) + draft) == own
    assert paths.parse(paths.exclusive_file(job, n, token, a, ext) + draft) == own
    assert paths.parse(paths.shared_file(job, n, token, a, ext) + draft) == own
    owner = AttemptPath(job_id=job, checkpoint_id=paths.NO_CHECKPOINT, attempt=token, name=paths.slug(below))
    assert paths.parse(paths.owned_file(job, below, token, str(a)) + draft) == owner
    savepoint = AttemptPath(job_id=job, checkpoint_id=None, attempt=token, name=paths.slug(below))
    for own_file in ("", "/_metadata" + draft, "/data", "/data/1.bytes" + draft, "/data/2" + below):
        assert paths.parse(paths.savepoint_directory(job, below, token) + own_file) == savepoint
    chk = ChkPath(job_id=job, checkpoint_id=n)
    assert paths.parse(paths.manifest_path(job, n) + draft) == paths.parse(paths.checkpoint_directory(job, n)) == chk


@given(st.text() | st.lists(st.text(max_size=20)).map(lambda parts: "/".join(["jobs", JOB, *parts])))
def test_any_text_has_an_answer(text: str) -> None:
    assert isinstance(paths.parse(text), paths.ParsedPath)


FORMS = [f"jobs/{JOB}/shared/{N}-{TOKEN}-3/part-0", f"jobs/{JOB}/exclusive/{N}-{TOKEN}-3-0.bin", f"jobs/{JOB}/chk-{N}/_metadata"]


@given(st.sampled_from(FORMS), st.data())
def test_recognised_path_is_the_one_spelling_of_what_it_says(path: str, data: st.DataObject) -> None:
    """Change one character: either it is foreign, or it says something else, or the change lies behind the token."""
    i = data.draw(st.integers(0, len(path) - 1))
    other = path[:i] + data.draw(st.characters()) + path[i + 1 :]
    if other != path and paths.parse(other) == paths.parse(path):
        assert i > (path.index(TOKEN) + 16 if TOKEN in path else path.index("/_metadata"))


OUTSIDE_OF_JOBS = [
    "", "x", "jobs", "ledgers/x", "ledger-x/y", "holdfast.jsonx", "holdfast.json/x", f"shared/42-{TOKEN}-3/part-0",
    f"/jobs/{JOB}/chk-1/_metadata", f"jobs/{JOB}", f"jobs/flights/shared/42-{TOKEN}-3/part-0",
    f"jobs/Flights-12345678/shared/42-{TOKEN}-3/part-0", f"jobs/-12345678/shared/42-{TOKEN}-3/part-0",
]  # fmt: skip
STRANGE_IN_A_JOB = [
    "shared", "notes.txt", "chk-007/_metadata", "chk-/_metadata", "chk--1/_metadata", "chk-1x/_metadata", "chk-1\n/_metadata",
    "chk-1/NOTES.txt", "chk-1/_metadata.bak", "chk-1/_metadata.1a2b3c4d.tmp~", "chk-1/_metadata.1A2B3C4D.tmp", "chk-1/_metadata/x",
    "chk-1/.1a2b3c4d.tmp", "chk-1/sub/_metadata", "chk-1/_metadata\n", "chk-\u0661/_metadata", f"chk-{10**18}/_metadata", "chk-1/../chk-2/_metadata",
    f"shared/042-{TOKEN}-3/part-0", f"shared/42-{TOKEN}", f"shared/42-{TOKEN}-", f"shared/42-{TOKEN}.parquet", f"shared/42-{TOKEN}-3/a\\b",
    f"shared/42-{TOKEN[:15]}-3/part-0", f"shared/42-{TOKEN}0-3/part-0", f"shared/42-{TOKEN.upper()}-3/part-0",
    f"shared/.42-{TOKEN}-3-0.parquet.crc", f"shared/sub/42-{TOKEN}-3-0.parquet", f"other/42-{TOKEN}-3-0.parquet",
    f"taskowned/42-{TOKEN}-3", f"savepoints/{TOKEN}/_metadata", f"savepoints/x-{TOKEN}1/_metadata",
]  # fmt: skip
_COPIES = (
    "Copy of {}",
    "{} (copy)",
    "{} copy",
    "{}.bak",
    "{}.orig",
    "{}~",
    "{}.old",
    "{}.1",
    "{}-copy",
    "copy-{} 2",
    ".{}.swp",
    "{}.tmp",
    "_{}",
)
COPIED = [
    *(f"{place}/{copy.format(f'42-{TOKEN}-3-0.{ext}')}" for copy in _COPIES for place in ("shared", "exclusive", "taskowned/wal")
      for ext in ("parquet", "bin", "bytes")),
    *(f"shared/{copy.format(f'42-{TOKEN}-3')}{below}" for copy in _COPIES for below in ("", "/part-0.parquet")),
    *(f"chk-42/{copy.format('_metadata')}" for copy in _COPIES), *(f"{copy.format('chk-42')}/_metadata" for copy in _COPIES),
    *(f"savepoints/{copy.format(f'before-{TOKEN}')}/_metadata" for copy in _COPIES),
    *(f"savepoints/before-{TOKEN}/{copy.format('_metadata')}" for copy in _COPIES), *(f"savepoints/before-{TOKEN}/{n}" for n in ("NOTES.txt", "x/y", "data2/x")),
    f"savepoints/Before-{TOKEN}/_metadata", f"savepoints/vor dem Umbau-{TOKEN}/_metadata", f"shared/42-{TOKEN}-3_old/part-0",
    f"shared/42-{TOKEN}-3-0.csv", f"exclusive/42-{TOKEN}-3", f"exclusive/42-{TOKEN}-3/part-0", f"shared/42-{TOKEN}-3-0.parquet/x",
    f"taskowned/wal/sub/0-{TOKEN}-3-0.bin", f"taskowned/wal/0-{TOKEN}-3",
]  # fmt: skip


@pytest.mark.parametrize("path", [*OUTSIDE_OF_JOBS, *(f"jobs/{JOB}/{path}" for path in (*STRANGE_IN_A_JOB, *COPIED))])
def test_what_is_not_built_here_is_foreign(path: str) -> None:
    assert paths.parse(path) == ForeignPath()


@pytest.mark.parametrize(
    "path", ["holdfast.json", "holdfast.json.1a2b3c4d.tmp", "ledger", "ledger/_delta_log/0.json", "ledger-2/x.parquet"]
)
def test_marker_and_ledger_are_internal(path: str) -> None:
    assert paths.parse(path) == InternalPath()


@pytest.mark.parametrize("path", ["holdfast.json", "holdfast.json.1a2b3c4d.tmp", "ledger/_delta_log/00000000000000000000.json"])
def test_only_the_log_and_the_marker_are_left_by_a_creation(path: str) -> None:
    assert paths.is_left_by_a_creation(path)
    for other in (f"{path}.bak", f"jobs/{path}", "ledger/part-0.parquet", "ledger-2/_delta_log/0.json", "ledger", ""):
        assert paths.is_left_by_a_creation(other) == (other.startswith("ledger/_delta_log/"))


def test_a_draft_that_would_not_be_recognised_is_not_named() -> None:
    assert paths.draft_name("_metadata", "1a2b3c4d") == "_metadata.1a2b3c4d.tmp"
    with pytest.raises(ValueError, match="draft"):
        paths.draft_name("_metadata", "1a2b3c")


def test_directory_that_goes_with_a_file_is_of_the_same_attempt() -> None:
    for directory in (paths.native_directory(JOB, N, TOKEN, 0), paths.checkpoint_directory(JOB, N)):
        assert paths.attempt_directory(f"{directory}/x") == directory
    owned = paths.owned_file(JOB, "wal", TOKEN, "0")  # other owners of the name write beside it
    for path in (paths.streamed_file(JOB, N, TOKEN, 0, 0), owned, "holdfast.json", "ledger/_delta_log/0.json", "x", ""):
        assert paths.attempt_directory(path) is None


@pytest.mark.parametrize("token", ["", "0123", TOKEN.upper(), TOKEN + "0", TOKEN + "\n", "../../../../../etc"])
def test_path_that_would_not_be_recognised_is_not_built(token: str) -> None:
    bad = AttemptToken(token)
    for build in (
        lambda: paths.native_directory(JOB, N, bad, 0),
        lambda: paths.file_id(bad, 0, 0),
        lambda: paths.streamed_file(JOB, N, bad, 0, 0),
    ):
        with pytest.raises(ValueError, match="token"):
            build()


def test_parts_of_a_path_that_would_lead_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match="job id"):
        paths.job_directory(JobId("../x-12345678"))
    with pytest.raises(ValueError, match="checkpoint id"):
        paths.manifest_path(JOB, CheckpointId(-1))
    with pytest.raises(ValueError, match="file's name"):
        paths.exclusive_file(JOB, N, TOKEN, 0, "a/b")


@given(names)
def test_slug_is_a_short_plain_name(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", paths.slug(name))
    assert len(paths.slug(name)) <= paths.SLUG_LIMIT


@pytest.mark.parametrize(
    ("name", "slug"), [("flights", "flights"), ("Flüge  2013!", "fluge-2013"), ("../..", "job"), ("日本", "job"), ("a" * 99, "a" * 48)]
)
def test_slug_keeps_what_can_be_read(name: str, slug: str) -> None:
    assert paths.slug(name) == slug


STARTS = {
    "/data/x/": "/data/x",
    "/": "/",
    "": ".",
    "x//": "x",
    "file:///x/": "file:///x",
    "file:///": "file:///",
    "/a/jobs/b/": "/a/jobs/b",
}


@pytest.mark.parametrize("tail", ["", "/", "/_metadata", "//", "/_metadata/"])
@pytest.mark.parametrize(("start", "root"), STARTS.items())
def test_path_of_a_checkpoint_names_its_catalog_job_and_number(start: str, root: str, tail: str) -> None:
    assert paths.parse_checkpoint_directory(f"{start}jobs/{JOB}/chk-42{tail}") == (root, JOB, 42)


@pytest.mark.parametrize(
    "address",
    ["", "chk-42", f"jobs/{JOB}/chk-042", f"jobs/{JOB}/42", "jobs/flights/chk-42", f"/x/jobs/{JOB}/chk-42/other", f"xjobs/{JOB}/chk-42"],
)
def test_what_is_not_the_path_of_a_checkpoint_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="chk-<n>|is not the address of a directory"):
        paths.parse_checkpoint_directory(address)
