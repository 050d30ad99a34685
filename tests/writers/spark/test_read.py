"""Reading a state back: no damage passes, nothing is left out, and only the user's rows come."""

import re
from dataclasses import replace

import pytest

from holdfast.catalog.errors import CorruptionError, DamagedFileError, FormatError, UsageError
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.types import Role
from holdfast.writers.parquet.report import state_info
from holdfast.writers.spark.file_jobs import TASK_FILES, _shares
from holdfast.writers.spark.native import NativeUploader
from holdfast.writers.spark.read import read_state
from holdfast.writers.spark.streamed import StreamedUploader
from holdfast.writers.upload import chunks_of
from tests.support.spark_support import context_for, file_rows, row_texts, session_settings


@pytest.fixture(scope="module")
def pristine(spark, tmp_path_factory):
    """A state of three files: (storage, info, chunks, paths)."""
    storage = LocalStorage(tmp_path_factory.mktemp("catalog"))
    df = spark.range(0, 900, 1, 3).selectExpr("id", "concat('row ', id) AS text")
    context = context_for(storage)
    acks = NativeUploader().write(df, context)
    return storage, state_info(df, context, acks), [chunk for ack in acks for chunk in ack.chunks], file_rows(acks)


@pytest.fixture
def state(pristine):
    """The state, and its second file as it was again afterwards."""
    storage, _, chunks, paths = pristine
    place = storage.root / paths[chunks[1].file_id][0]
    data = place.read_bytes()
    yield pristine
    place.write_bytes(data)


def second_file(state):
    storage, _, chunks, paths = state
    return storage.root / paths[chunks[1].file_id][0]


def flip(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGE = {
    "first byte": lambda data: flip(data, 0),
    "a page's header": lambda data: flip(data, 4),
    "middle": lambda data: flip(data, len(data) // 2),
    "footer": lambda data: flip(data, len(data) - 40),
    "length of the footer": lambda data: flip(data, len(data) - 8),
    "last byte": lambda data: flip(data, len(data) - 1),
    "cut by a byte": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "a byte added": lambda data: data + b"\0",
    "a byte added in front": lambda data: b"\0" + data,
    "zeros of the same length": lambda data: bytes(len(data)),
}
UNSEEN_WITHOUT_DIGESTS = {"first byte", "a page's header", "middle", "footer"}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_before_a_row_is_returned(spark, state, damage):
    place = second_file(state)
    whole = place.read_bytes()
    place.write_bytes(DAMAGE[damage](whole))
    storage, info, chunks, paths = state
    path, size_bytes, sha256 = paths[chunks[1].file_id]
    with pytest.raises(DamagedFileError) as caught:
        read_state(spark, storage, info, chunks, paths, max_parallelism=128)
    said = str(caught.value)
    found = "SHA-256 " if place.stat().st_size == size_bytes else f"{place.stat().st_size} bytes"
    assert said.startswith(f"{path} is damaged: expected {size_bytes} bytes with SHA-256 {sha256}, found {found}")
    assert str(storage.root) in said
    assert "more files" not in said


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name not in UNSEEN_WITHOUT_DIGESTS])
def test_without_verifying_sizes_and_footers_are_still_checked(spark, state, damage):
    place = second_file(state)
    place.write_bytes(DAMAGE[damage](place.read_bytes()))
    storage, info, chunks, paths = state
    with pytest.raises(DamagedFileError, match=f"^{re.escape(paths[chunks[1].file_id][0])} is damaged: expected"):
        read_state(spark, storage, info, chunks, paths, max_parallelism=128, verify=False)


@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_file_is_named(spark, state, verify):
    second_file(state).unlink()
    storage, info, chunks, paths = state
    path, size_bytes, _ = paths[chunks[1].file_id]
    with pytest.raises(DamagedFileError, match=f"^{re.escape(path)} is missing: expected {size_bytes} bytes"):
        read_state(spark, storage, info, chunks, paths, max_parallelism=128, verify=verify)


def test_a_whole_file_of_another_state_is_no_replacement(spark, state):
    """Same name, sound Parquet, other rows: sizes differ or, with the same size, digests do."""
    storage, info, chunks, paths = state
    second_file(state).write_bytes((storage.root / paths[chunks[0].file_id][0]).read_bytes())
    with pytest.raises(DamagedFileError):
        read_state(spark, storage, info, chunks, paths, max_parallelism=128)


def test_all_damaged_files_are_counted(spark, state):
    storage, info, chunks, paths = state
    wrong = {file_id: (path, size_bytes, "0" * 64) for file_id, (path, size_bytes, _) in paths.items()}
    with pytest.raises(DamagedFileError, match=r"\(2 more files of this state are damaged\)"):
        read_state(spark, storage, info, chunks, wrong, max_parallelism=128)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("uploader", [NativeUploader(), StreamedUploader()], ids=["native", "streamed"])
def test_a_sound_state_comes_back_without_its_key_groups(spark, tmp_path, uploader, verify):
    storage, df = LocalStorage(tmp_path), spark.range(0, 50, 1, 2)
    acks = uploader.write(df, context_for(storage))
    info = state_info(df, context_for(storage), acks)
    kept = read_state(spark, storage, info, chunks_of(acks), file_rows(acks), max_parallelism=128, verify=verify)
    assert kept.schema.simpleString() == "struct<id:bigint>"
    assert row_texts(kept) == row_texts(df)


def test_no_setting_of_the_session_lets_a_file_be_left_out(spark, state):
    """A file that goes after it was checked fails the action, where Spark would return fewer rows."""
    storage, info, chunks, paths = state
    with session_settings(spark, {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}):
        kept = read_state(spark, storage, info, chunks, paths, max_parallelism=128)
        second_file(state).unlink()
        with pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist"):
            kept.collect()


def test_a_state_without_chunks_is_empty_in_its_schema(spark, pristine):
    storage, info, chunks, paths = pristine
    empty = read_state(spark, storage, replace(info, rows=0), [], {}, max_parallelism=128)
    assert empty.collect() == []
    assert empty.schema == read_state(spark, storage, info, chunks, paths, max_parallelism=128).schema


def test_chunks_that_are_not_the_whole_state_are_refused(spark, pristine):
    storage, info, chunks, paths = pristine
    with pytest.raises(CorruptionError, match="has 900 rows, and its 2 chunks have 600"):
        read_state(spark, storage, info, chunks[1:], paths, max_parallelism=128)
    with pytest.raises(CorruptionError, match=f"its file {chunks[0].file_id} has no file row"):
        read_state(spark, storage, info, chunks, {chunk.file_id: paths[chunk.file_id] for chunk in chunks[1:]}, max_parallelism=128)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offset_bytes": 4}, "has .* bytes, and a chunk that ends at"),
        ({"length_bytes": 9}, "has no footer among the chunks"),
        ({"inline": b""}, "has rows without a file"),
    ],
    ids=str,
)
def test_chunks_that_do_not_fit_their_files_are_refused(spark, pristine, change, said):
    storage, info, chunks, paths = pristine
    with pytest.raises(CorruptionError, match=said):
        read_state(spark, storage, info, [replace(chunks[0], **change), *chunks[1:]], paths, max_parallelism=128)


def test_change_sets_without_keys_are_refused(spark, pristine):
    storage, info, chunks, paths = pristine
    with pytest.raises(CorruptionError, match="change sets and no key columns"):
        changed = [replace(chunks[0], role=Role.UPSERTS, layer=1), *chunks[1:]]
        read_state(spark, storage, replace(info, key_columns=(), rows=None), changed, paths, max_parallelism=128)


def test_what_is_no_rows_is_for_a_newer_version(spark, pristine):
    storage, info, chunks, paths = pristine
    with pytest.raises(FormatError, match=r"are not rows \(file\).*newer Holdfast"):
        read_state(spark, storage, info, [replace(chunks[0], role=Role.FILE), *chunks[1:]], paths, max_parallelism=128)


def test_bytes_are_no_dataframe(spark, pristine):
    storage, info, _, _ = pristine
    with pytest.raises(UsageError, match="kept as 'bytes'"):
        read_state(spark, storage, replace(info, format="bytes"), [], {}, max_parallelism=128)


def test_small_files_share_a_task_and_large_ones_do_not():
    from holdfast.catalog.storage import StoredObject

    files = [StoredObject(path=str(i), size_bytes=size_bytes) for i, size_bytes in enumerate([30, 1, 40, 40, 0] + [0] * 2 * TASK_FILES)]
    megabytes = [replace(file, size_bytes=file.size_bytes * 1024 * 1024) for file in files]
    shares = _shares(megabytes)
    assert shares[:2] == [["0", "1"], ["2"]]
    assert [len(share) for share in shares[2:]] == [1, TASK_FILES, TASK_FILES, 1]
    assert [path for share in shares for path in share] == [file.path for file in files]
