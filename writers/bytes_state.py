"""Small state as bytes: inlined in the manifest and the row up to a limit, beyond it an EXCLUSIVE file.

What is inline is SHARED: the row says it once, for all checkpoints that carry it.
"""

import hashlib

from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import INLINE_LIMIT_BYTES, Ack, CheckpointMetrics, Role, Scope, StoredFile
from holdfast.writers.upload import UploadContext


def write_bytes(data: bytes | bytearray | memoryview, context: UploadContext, environment: Environment, room_bytes: int) -> Ack:
    """Digest the bytes and make them durable, as a file if they are too many to inline; returns the ack.

    `room_bytes` is how many the checkpoint may still inline.
    Raises:
        UsageError: it is something else; nothing was written.
    """
    data = _plain(data, context.state)
    began = environment.monotonic_s()
    sha256 = hashlib.sha256(data).hexdigest()
    digested = environment.monotonic_s()
    file_id = paths.file_id(context.attempt, context.call, 0)
    inline = len(data) <= min(INLINE_LIMIT_BYTES, room_bytes)
    files: tuple[StoredFile, ...] = ()
    if not inline:
        path = context.place(str(context.call), "bytes", Scope.EXCLUSIVE)
        context.storage.create(path, data)
        files = (StoredFile(file_id=file_id, path=path, size_bytes=len(data), sha256=sha256, scope=Scope.EXCLUSIVE),)
    chunk = context.chunk(
        file_id=file_id,
        scope=context.inline_scope if inline else Scope.EXCLUSIVE,
        role=Role.BASE,
        layer=context.layer,
        length_bytes=len(data),
        sha256=sha256,
        inline=data if inline else None,
    )
    metrics = CheckpointMetrics(
        bytes_written=len(data),
        digest_ms=round((digested - began) * 1000),
        upload_ms=round((environment.monotonic_s() - digested) * 1000),
    )
    return context.ack([chunk], files, metrics)


def _plain(data: object, state: str) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):  # `bytes` would take a list, and make five NULs of a 5
        msg = f"state {state!r} is given as {type(data).__name__}: write_bytes takes bytes, bytearray or memoryview; encode it first"
        raise UsageError(msg)
    return bytes(data)
