"""The start of an epoch: what went before is fenced, what is another job's is pinned, and what cannot be referred to is copied."""

from holdfast.catalog.errors import DamagedFileError, RefusedError
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.rules import decision, jobs
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.types import AttemptToken, JobId
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.copying import copy_state
from holdfast.writers.line import Line, opened_by
from holdfast.writers.start import StartPoint, StateMapping
from holdfast.writers.upload import in_full


def start_epoch(line: Line, start: StartPoint) -> None:
    """Start an epoch of the line's job; a source is copied whole, into a first checkpoint that is committed when this returns.

    Checked before: a start that is refused has not happened.
    Raises:
        RefusedError: the checkpoint has other key groups, was dropped, or has a state that would be lost.
        DamagedFileError: a manifest or a file to be copied is not what was committed.
    """
    if start.source is not None:
        _require_same_groups(line, start.source.manifest)
    with line.transactor.remembering():  # another job that it begins with is read once
        while not _has_started(line, start):
            pass  # what it was to begin with is another by now
    if start.source is not None:
        copy_source(line, start.source, start.mapping)


def _has_started(line: Line, start: StartPoint) -> bool:
    """Find what to begin with, check it, and commit the start if it still is that."""
    found = line.transactor.look(start.find)
    pins = start.source is not None or (found is not None and found.job_id != line.job_id)
    first = AttemptToken(line.environment.new_id()) if pins else None
    manifest = None
    if start.source is None and found is not None and (pins or start.mapping != StateMapping()):
        manifest = _checked(line, found, start)
        if manifest is None:
            return False
    started = line.transactor.run(lambda state: _start(state, line.job_id, start, found, first))
    if started is None:
        return False
    line.epoch, line.parent, line.opened = started
    line.manifest = manifest
    return True


def copy_source(line: Line, source: Checkpoint, mapping: StateMapping) -> None:
    """A first checkpoint that has everything of the source and refers to nothing of it."""
    opened, line.opened = line.opened, None
    assert opened is not None
    names = mapping.names_in(source)
    attempt = line.attempt_of(opened, None, source.progress)
    with line.ending(attempt):
        for info in source.manifest.states:
            if info.state in names:
                context = attempt.context(names[info.state], info.key_columns)
                attempt.take(in_full(*copy_state(source, info, context)), context)
        with attempt.step("the commit"):
            content = attempt.acknowledged()
            manifest = attempt.write_manifest(content)
            line.commit(attempt, content, manifest)


def _checked(line: Line, ref: Ref, start: StartPoint) -> Manifest | None:
    """The manifest of what is continued from, if this job can, and no state would be lost silently; None if it is another now."""
    transactor = line.transactor
    try:
        manifest = load_committed(line.storage, transactor.look(lambda state: state.checkpoint(ref)).fact)
    except DamagedFileError:
        if transactor.look(start.find) != ref:
            return None
        transactor.look(lambda state: decision.require_live(state, ref, "begin with"))
        raise
    _require_same_groups(line, manifest)
    names = start.mapping.names_in(Checkpoint(manifest, line.storage), copies=False)
    line.not_carried = tuple(info.state for info in manifest.states if info.state not in names)
    return manifest


def _require_same_groups(line: Line, manifest: Manifest) -> None:
    job = line.transactor.recall(lambda state: state.job(line.job_id))
    if manifest.max_parallelism != job.registered.max_parallelism:
        msg = (
            f"checkpoint {manifest.checkpoint_id} of job {manifest.job!r} has max_parallelism={manifest.max_parallelism}, and job "
            f"{job.name!r} has {job.registered.max_parallelism}: rewrite a savepoint of it with "
            f"holdfast.rekey(savepoint, max_parallelism={job.registered.max_parallelism})"
        )
        raise RefusedError(msg)


def _start(state: CatalogState, job_id: JobId, start: StartPoint, found: Ref | None, first: AttemptToken | None) -> Decision:
    """The start, if what it begins with is still what was found and checked; else nothing, and None.

    What is copied becomes the head when its copy is committed; until then it stays what it was, if that is still there.
    """
    if start.find(state) != found:
        return Decision([], {}, None)
    parent, source = found, None
    if start.source is not None:
        before, source = state.job(job_id).begin, found
        parent = before if before is not None and state.checkpoint(before).live else None
    started = jobs.start(state, job_id, parent, claim=start.claim, first=first, source=source)
    return Decision(started.facts, started.keys, (started.result, parent, opened_by(started)))
