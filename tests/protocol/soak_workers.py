"""What the soak kills: a writer and a vacuum, each a real process over the real ledger and local files.

Spark is left out: a small writer of files stands for it, so that hundreds of deaths fit into a minute.
"""

import json
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from random import Random

from holdfast.catalog.creation import create_catalog, open_ledger
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import JobId, KeepLast
from holdfast.opening import open_catalog
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.coordinator import coordinate as start_coordinator
from holdfast.writers.registration import register_job
from holdfast.writers.start import StartPoint
from tests.support.world import FakeStateWriter

JOB = "soak"
FRAME, BLOB, ORIGIN = "frame", "blob", "origin"
FRAME_FILES = 3
SCRUB_EVERY = 3


def coordinate(root: Path, keep: int, name: str = JOB) -> Coordinator:
    """A new epoch of a job of the catalog at `root`, both made if need be; a "DataFrame" is a list of files' bytes."""
    storage, environment = open_storage(root), SystemEnvironment()
    transactor = Transactor(open_ledger(storage, create_catalog(storage, environment)), environment)
    job_id = register_job(transactor, environment, name, None)
    return start_coordinator(
        transactor=transactor,
        storage=storage,
        environment=environment,
        state_writer=FakeStateWriter(),
        job_id=job_id,
        retention=KeepLast(keep),
        start=StartPoint(find=lambda state: state.job(job_id).begin),
    )


def content(name: str, checkpoint_id: int) -> list[bytes]:
    """The files of a state as the checkpoint that wrote it made them: anybody can say later what they must hold."""
    parts, size = (FRAME_FILES, 3_000) if name == FRAME else (1, 30_000)
    return [(f"{name} {checkpoint_id} {i} ".encode() * size)[:size] for i in range(parts)]


def expected_states(origin: Mapping[str, int]) -> dict[str, bytes]:
    """Every state of a checkpoint, from what it says of who wrote them."""
    return {ORIGIN: encoded(origin), **{name: b"".join(content(name, number)) for name, number in origin.items()}}


def encoded(origin: Mapping[str, int]) -> bytes:
    return json.dumps(origin, sort_keys=True).encode()


def write_until_killed(root: Path, acks: Path, seed: int) -> None:
    """Checkpoints without end; each is told by one line, written after the commit was acknowledged to this process."""
    random = Random(seed)
    told = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with coordinate(root, keep=random.choice([1, 1, 2, 3])) as job:
        latest = job.latest()
        origin: dict[str, int] = json.loads(latest.read_bytes(ORIGIN)) if latest else {}
        while True:
            with job.checkpoint() as checkpoint:
                number = int(checkpoint.checkpoint_id)
                names = [name for name in (FRAME, BLOB) if name not in origin or random.random() < 0.6]
                if FRAME in names:
                    checkpoint.write(FRAME, content(FRAME, number))
                if BLOB in names:
                    checkpoint.write_bytes(BLOB, content(BLOB, number)[0])
                origin |= dict.fromkeys(names, number)
                checkpoint.write_bytes(ORIGIN, encoded(origin))
            os.write(told, (json.dumps({"job_id": job.job_id, "checkpoint_id": number, "origin": origin}) + "\n").encode())


def vacuum_until_killed(root: Path) -> None:
    """Vacuums without end, with a scrub now and then, beside the writer."""
    with open_catalog(root, create=True) as catalog:
        for n in count(1):
            catalog.vacuum()
            if n % SCRUB_EVERY == 0:
                catalog.scrub()


def told_by(acks: Path) -> list[tuple[JobId, int, dict[str, int]]]:
    """What the writers told: job, checkpoint and the writers of its states. A line that the kill cut short was not told."""
    lines = acks.read_bytes().split(b"\n")[:-1] if acks.exists() else []
    told = [json.loads(line) for line in lines]
    return [(JobId(line["job_id"]), line["checkpoint_id"], line["origin"]) for line in told]
