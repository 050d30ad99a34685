"""Acknowledgements as bytes, which any channel takes from a task to the driver: what arrives is what was sent, or is refused.

What an acknowledgement says is committed without another look at storage. So the bytes carry a digest of themselves: one flipped digit
of a size or of a file's digest would otherwise be a checkpoint that cannot be restored.
"""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, get_origin

from holdfast.catalog.errors import UsageError
from holdfast.catalog.manifest_rules import require_ack
from holdfast.catalog.types import Ack, AttemptToken, CheckpointId, CheckpointMetrics, Chunk, Role, Scope, StoredFile

_DIGITS = 64  # the SHA-256 before the text has them

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAck:
    """Instead of an acknowledgement: a sync failed where the task ran."""

    attempt: AttemptToken
    operator: str
    state: str
    checkpoint_id: CheckpointId
    not_durable: str


def encode_ack(ack: Ack) -> bytes:
    """An acknowledgement as bytes."""
    plain = asdict(ack)
    for chunk in plain["chunks"]:
        chunk["inline"] = None if chunk["inline"] is None else base64.b64encode(chunk["inline"]).decode()
    return sealed(json.dumps(plain).encode())


def encode_failure(attempt: AttemptToken, operator: str, state: str, checkpoint_id: CheckpointId, not_durable: str) -> bytes:
    """That a task could not make durable what it uploaded, as bytes that travel where its acknowledgement would have."""
    plain = FailedAck(attempt=attempt, operator=operator, state=state, checkpoint_id=checkpoint_id, not_durable=not_durable)
    return sealed(json.dumps(asdict(plain)).encode())


def sealed(text: bytes) -> bytes:
    """The text behind its digest."""
    return hashlib.sha256(text).hexdigest().encode() + text


def decode_ack(data: object) -> Ack | FailedAck:
    """What `encode_ack` or `encode_failure` was given.
    Raises UsageError for other bytes, and for those of which one was changed, lost or added."""
    try:
        if not isinstance(data, bytes | bytearray | memoryview):  # `bytes` would turn a number into that many zeros
            msg = "it is not bytes"
            raise TypeError(msg)
        return _decoded(bytes(data))
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        msg = (
            f"{type(data).__name__} {data!r:.60} is not an acknowledgement, or was damaged on its way ({error}): pass what upload.ack() "
            "returned in the task"
        )
        raise UsageError(msg) from error


def _decoded(data: bytes) -> Ack | FailedAck:
    text = data[_DIGITS:]
    if sealed(text) != data:
        msg = "it does not have the digest of itself"
        raise ValueError(msg)
    plain: dict[str, Any] = json.loads(text)
    if "not_durable" in plain:
        return _made(FailedAck, plain)
    files = tuple(_made(StoredFile, {**file, "scope": Scope(file["scope"])}) for file in plain["files"])
    chunks = tuple(_made(Chunk, _plain_chunk(chunk)) for chunk in plain["chunks"])
    ack = _made(Ack, {**plain, "files": files, "chunks": chunks, "metrics": _made(CheckpointMetrics, plain["metrics"])})
    if ack.subtask is None or not chunks or {(each.operator, each.state, each.subtask) for each in chunks} != {_share(ack)}:
        msg = "it is not of one subtask"
        raise ValueError(msg)
    require_ack(ack)
    return ack


def _share(ack: Ack) -> tuple[str, str, int | None]:
    return (ack.operator, ack.state, ack.subtask)


def _plain_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    inline = chunk["inline"]
    data = None if inline is None else base64.b64decode(inline)
    return {**chunk, "scope": Scope(chunk["scope"]), "role": Role(chunk["role"]), "inline": data}


def _made(kind: type[T], plain: dict[str, Any]) -> T:
    """One of this kind, if every field has a value of its type: another version may have other fields. Raises TypeError."""
    made = kind(**plain)
    for field in fields(made):  # type: ignore[arg-type]
        value, type_ = getattr(made, field.name), getattr(field.type, "__supertype__", field.type)
        type_ = get_origin(type_) if get_origin(type_) is tuple else type_
        if isinstance(value, bool) or not isinstance(value, type_):  # type: ignore[arg-type]
            msg = f"{field.name} of {kind.__name__} is {value!r:.60}"
            raise TypeError(msg)
    return made
