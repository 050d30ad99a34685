"""Every error of Holdfast, arranged by what the caller does next.

HoldfastError
  RetryError               try again, as the message says
    ConflictError          a transaction lost its races; nothing was committed
    UnknownOutcomeError    a commit may or may not have landed; look before anything else
    StorageFullError       no room for what was to be written (OSError): make some
    NotDurableError        a sync failed (OSError): examine the disk, write again in a new attempt
  UsageError (ValueError)  fix the call
    AddressError           an address that no storage adapter takes
    NotFoundError          no such catalog, job, checkpoint or state (LookupError)
    AlreadyExistsError     the name or place is taken
    FormatError            written by a newer version, or by an older one and not upgraded, or not a catalog of this ledger
    RefusedError           the ledger's rules forbid it: held, the head, already ended, dropped
      ReadOnlyError        this process, or an executor, may not write to the ledger or to storage
    UnsafeSettingsError    engine settings under which a write could lose or double rows
    EngineSetupError       the engine lacks something: its executors' Python, a package, a JAR
  FencedError              a newer coordinator owns the job: stop; never retried
  AttemptEndedError        the attempt was killed, expired or aborted: start another
  TooManyFailuresError     more checkpoints in a row failed than the job tolerates: look at the cause
  CorruptionError          bytes are missing or wrong: report, restore; nothing was changed
    DamagedFileError       a state file or a manifest
    DamagedLedgerError     the ledger's log or data
    ForeignTokensError     storage is newer than the ledger; scrub stopped
  WorkingDirectoryError (OSError)  this process's own disk: make room, or give another directory

Each class has a `kind` of its own, for programs that match on errors (`--json` prints it): it never changes, even if its class is renamed.
Each shows itself as what users import and catch, `holdfast.X`, in tracebacks, logs and pickles.
"""

from typing import ClassVar


class HoldfastError(Exception):
    """Base of all errors raised on purpose. `kind` is stable, and each class's own."""

    kind: ClassVar[str] = "error"


class RetryError(HoldfastError):
    """The same call may succeed later."""

    kind = "retry"


class ConflictError(RetryError):
    """Other transactions of the job won every race; nothing was committed."""

    kind = "conflict"


class UnknownOutcomeError(RetryError):
    """A commit was sent and its fate could not be read back; nothing may be deleted on its account."""

    kind = "unknown-outcome"


class StorageFullError(RetryError, OSError):
    """A disk that is written to is full; nothing of the write was acknowledged."""

    kind = "storage-full"


class NotDurableError(RetryError, OSError):
    """Storage reported that it may not have kept what was written; nothing of it was acknowledged, and its attempt is ended."""

    kind = "not-durable"


class UsageError(HoldfastError, ValueError):
    """The call cannot succeed as it stands."""

    kind = "usage"


class AddressError(UsageError):
    """No storage adapter takes this address."""

    kind = "address"


class NotFoundError(UsageError, LookupError):
    """The named catalog, job, checkpoint, state or hold does not exist."""

    kind = "not-found"


class AlreadyExistsError(UsageError, FileExistsError):
    """The name or the place is taken."""

    kind = "already-exists"


class FormatError(UsageError):
    """The catalog was written by a newer version, or has a format that must be upgraded; or marker and ledger do not belong together."""

    kind = "format"


class RefusedError(UsageError):
    """The ledger's rules forbid the request; the message says which rule."""

    kind = "refused"


class ReadOnlyError(RefusedError):
    """This process, or an executor, may not write to the ledger or to storage: its credentials or the mount are read-only."""

    kind = "read-only"


class UnsafeSettingsError(UsageError):
    """The engine is set up in a way that can lose or double rows."""

    kind = "unsafe-settings"


class EngineSetupError(UsageError):
    """The engine lacks what its tasks need: the right Python, a package, a JAR."""

    kind = "engine-setup"


class FencedError(HoldfastError):
    """A newer coordinator has started; this one must stop. Never retried."""

    kind = "fenced"


class AttemptEndedError(HoldfastError):
    """The attempt was ended by somebody else; what it uploaded is garbage, a new attempt may begin."""

    kind = "attempt-ended"


class TooManyFailuresError(HoldfastError):
    """More checkpoints in a row failed than the job tolerates; the last failure is the cause."""

    kind = "too-many-failures"


class CorruptionError(HoldfastError):
    """Bytes are missing or are not what was committed."""

    kind = "corruption"


class DamagedFileError(CorruptionError):
    """A state file or manifest is missing or fails its digest."""

    kind = "damaged-file"


class DamagedLedgerError(CorruptionError):
    """The ledger's log or data has a hole or damage that opening cannot mend."""

    kind = "damaged-ledger"


class ForeignTokensError(CorruptionError):
    """Storage holds attempts that the ledger never knew: the ledger was probably restored from a backup."""

    kind = "foreign-tokens"


class WorkingDirectoryError(HoldfastError, OSError):
    """The working directory cannot be used: a full disk, a read-only volume, no permission. Nothing is lost, it is only a cache."""

    kind = "working-directory"


for _error in [each for each in globals().values() if isinstance(each, type) and issubclass(each, HoldfastError)]:
    _error.__module__ = "holdfast"
del _error
