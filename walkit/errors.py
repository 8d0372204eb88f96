"""One error tree, grouped by the caller's next step.

::

    WalkitError
    ├── OptionsError(ValueError)            change the call
    │   └── NotALoadError                   give the log, and filter the result
    ├── RecordTooLargeError(ValueError)     change the record
    ├── RecordTypeError(TypeError)          change the record
    ├── RecordTimeError(ValueError)         change the record
    ├── MissingExtraError(ImportError)      install the extra that it names
    │   └── spark.JavaNotFoundError
    ├── spark.SparkStartError               read the JVM's words that it carries
    ├── LogNotFoundError(FileNotFoundError) look elsewhere
    ├── LogExistsError(FileExistsError)     look elsewhere
    ├── NotALogError                        look elsewhere
    ├── LogLockedError                      close the other writer
    ├── LogOwnedError                       give the log a payload log of its own
    ├── LogFencedError                      find out which writer has the log now; opening again takes it back
    ├── FormatVersionError                  use a newer walkit
    ├── CorruptionError                     stop; keep the files; verify, repair or restore
    │   └── SegmentMissingError
    ├── StorageError(OSError)               repair the place, open again
    │   └── ObjectStoreError                the answer of an object store; see its subclass
    │       ├── ObjectExistsError           read the object: it decides
    │       ├── ObjectConflictError         read the object: it decides
    │       ├── ObjectMissingError          look for the bucket, and for the key
    │       ├── ObjectRangeError            read from within the object
    │       ├── ObjectDeniedError           correct the credentials or the rights
    │       ├── ObjectThrottledError        wait, then ask again
    │       ├── ObjectUnknownError          outcome unknown: read the object
    │       └── ObjectUnsupportedError      use another store
    ├── LogFullError                        wait or make room, then try again
    │   └── JournalFullError                take a checkpoint, then try again
    ├── LogExhaustedError                   nothing was written: continue in a new log
    ├── CommitFailedError                   outcome unknown: open again and look
    │   └── CommitTimeoutError(TimeoutError) outcome unknown: look, or continue waiting
    ├── AppendTimeoutError(TimeoutError)    nothing was written: try again
    ├── WaitTimeoutError(TimeoutError)      still on its way: wait again
    ├── CallbackError                       use `submit` in the callback, or another thread
    ├── LogPoisonedError                    nothing was written: repair the device, open again
    ├── LogClosedError                      nothing was written: open again
    ├── PayloadError                        read with resolve="link", or see its subclass
    │   ├── PayloadGoneError                the value is lost: restore the payload log
    │   └── PayloadUnreachableError         give the reader a way to the payload log, then try again
    ├── GapError                            start again at `oldest`
    ├── ClaimError                          look at `reason`: take the claim again, or leave it to its owner
    ├── CursorError                         decide where the consumer begins, and reset the cursor
    │   └── CursorDivergedError             the same; it is a DivergenceError, too
    ├── HistoryTrimmedError                 ask for a newer LSN
    ├── SnapshotError                       retry the stage it names
    ├── DivergenceError                     the two logs are different histories
    │   └── replication.RewindError         look at `reason`: its readers, or the need of a bootstrap
    ├── replication.ProtocolError           look at the server there
    ├── replication.IdentityError           follow with a new identity
    └── replication.ReplicaFailedError      read its cause; make a new replica

Every error is picklable and carries its facts as attributes, so that a handler never has to parse a message.
"""

from __future__ import annotations

from errno import EACCES, EAGAIN, EEXIST, EINVAL, EIO, ENOENT, EOPNOTSUPP, ESTALE
from typing import Any, ClassVar


def _rebuild(cls: type[WalkitError], message: str, facts: dict[str, Any]) -> WalkitError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    for name, value in facts.items():
        setattr(error, name, value)
    return error


class WalkitError(Exception):
    """Base of every error that walkit raises on purpose."""

    code: ClassVar[str] = "walkit"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and facts, independently of the subclass's constructor."""
        facts = dict(self.__dict__)
        if isinstance(self, OSError):
            # They live in slots of OSError, outside __dict__.
            facts["errno"], facts["filename"] = self.errno, self.filename
        return _rebuild, (type(self), str(self), facts)

    def __str__(self) -> str:
        """Return the message alone, even if a builtin base class would print errno."""
        return str(self.args[0]) if self.args else type(self).__name__


class OptionsError(WalkitError, ValueError):
    """Options contradict each other, or the log they are used on."""

    code = "options"

    def __init__(
        self, message: str, *, option: str = "", wanted: object = None, stored: object = None
    ) -> None:
        super().__init__(message)
        self.option, self.wanted, self.stored = option, wanted, stored


class NotALoadError(OptionsError):
    """A DataFrame is not as a load of a log gave it: which records are in it cannot be known for sure."""

    code = "not-a-load"


class RecordTooLargeError(WalkitError, ValueError):
    """A record, or a transaction as a whole, is over a limit of one frame. Nothing was written.

    `records` and `limit_records` are None unless a transaction has more records than any frame may.
    """

    code = "record-too-large"

    def __init__(
        self,
        size_bytes: int,
        limit_bytes: int,
        what: str = "record",
        *,
        records: int | None = None,
        limit_records: int | None = None,
        is_fixed: bool = False,
    ) -> None:
        """With `is_fixed` no option raises the limit."""
        remedy = "Split it"
        if records is None:
            limits = f"needs {size_bytes:,} bytes in its frame and the limit is {limit_bytes:,}"
            remedy += "" if is_fixed else ", or open the log with a larger frame_bytes_max"
        else:
            limits = f"has {records:,} records and the limit of a frame is {limit_records:,}"
        super().__init__(f"the {what} {limits}; nothing was written. {remedy}")
        self.size_bytes, self.limit_bytes, self.what = size_bytes, limit_bytes, what
        self.records, self.limit_records = records, limit_records


class RecordTypeError(WalkitError, TypeError):
    """A key, a value or a column of records has a wrong type. Nothing was written.

    `what` names it, `found` its type.
    """

    code = "record-type"

    def __init__(self, what: str, found: object, wanted: str = "bytes or another buffer") -> None:
        hint = "; encode text first: value.encode()" if isinstance(found, str) else ""
        name, arrow_type = type(found).__name__, getattr(found, "type", None)
        if arrow_type is not None:  # an Arrow column, with one type for all
            name = f"{name} of {arrow_type}"
            if "string" in str(arrow_type):
                hint = "; cast text first: column.cast(pa.binary())"
        super().__init__(f"a {what} is {wanted}, not {name}{hint}. Nothing was written")
        self.what, self.found = what, name


class RecordTimeError(WalkitError, ValueError):
    """A timestamp has no time zone, is finer than microseconds, or outside the years 1 to 9999. Nothing was written."""

    code = "record-time"

    def __init__(self, message: str, *, timestamp: object = None) -> None:
        super().__init__(f"{message}. Nothing was written")
        self.timestamp = timestamp


def how_to_install(extras: str) -> str:
    """Return the command that installs the packages of extras: from the checkout, until there is a release."""
    return f"in walkit's checkout: pip install -e '.[{extras}]'"


class MissingExtraError(WalkitError, ImportError):
    """A room needs a package that is not installed."""

    code = "missing-extra"

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package} is not installed; {how_to_install(extra)}")
        self.extra, self.package = extra, package


class LogNotFoundError(WalkitError, FileNotFoundError):
    """There is nothing at this path."""

    code = "log-not-found"

    def __init__(
        self, path: str, reason: str = "the manifest is missing. walkit.open(path) makes a new log"
    ) -> None:
        super().__init__(f"no log at {path}: {reason}")
        self.path = self.filename = path
        self.errno = ENOENT


class NotALogError(WalkitError):
    """There is something at this path, and it is not a walkit log."""

    code = "not-a-log"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a walkit log: {reason}. Nothing was changed")
        self.path, self.reason = path, reason


class LogExistsError(WalkitError, FileExistsError):
    """`mode="x"` asked for a new log, and there is one already."""

    code = "log-exists"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"there is a log at {path} already, and mode='x' only makes new ones. Open it with mode='a'"
        )
        self.path = self.filename = path
        self.errno = EEXIST


class LogLockedError(WalkitError):
    """Another writer holds the log. `index` is its place in `walkit.open_logs()`, if it is in this process."""

    code = "log-locked"

    def __init__(
        self, path: str, *, pid: int | None, command: str | None, same_process: bool, index: int | None = None
    ) -> None:
        if same_process and index is None:
            text = (
                f"{path} is already open for writing in this process, by a log, a Store or a running Replica: continue "
                "with that object, or close it (a Replica: stop it) and run this again"
            )
        elif same_process:
            text = (
                f"{path} is already open for writing in this process: it is one of walkit.open_logs(). Continue with "
                f"that object, or close it and run this again: walkit.open_logs()[{index}].close()"
            )
        else:
            holder = f"process {pid} ({command})" if pid else "another process"
            text = f"{path} is open for writing in {holder}; a log has one writer. Read it with mode='r'"
        super().__init__(text)
        self.path, self.pid, self.command, self.same_process = path, pid, command, same_process
        self.index = index


class LogFencedError(WalkitError):
    """Another writer has opened the log on object storage since: nothing more of this one is acknowledged.

    `epoch` is that of the newer opening. Records that were acknowledged before are part of its history.
    """

    code = "log-fenced"

    def __init__(self, path: str, epoch: int) -> None:
        super().__init__(
            f"another writer has opened {path} since, in epoch {epoch}: this one writes no more. Opening it again "
            "takes the log back"
        )
        self.path, self.epoch = path, epoch


class FormatVersionError(WalkitError):
    """The bytes have a newer format or another draft's, or use a feature this version does not know."""

    code = "format-version"

    def __init__(self, where: str, *, found: int | str, supported: int | str) -> None:
        super().__init__(
            f"{where} is of format {found}; this walkit reads {supported}. Use the walkit that wrote it, or a newer "
            "one; nothing was changed"
        )
        self.where, self.found, self.supported = where, found, supported


class CorruptionError(WalkitError):
    """Promised bytes differ from the written ones. Nothing was changed.

    `first_lost_lsn` is the first LSN that cannot be read, `position` its position in the log;
    `expected` and `found` are the values that differed. Facts that are not known are None.
    """

    code = "corruption"

    def __init__(
        self,
        message: str,
        *,
        segment: str | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        first_lost_lsn: int | None = None,
    ) -> None:
        super().__init__(message)
        self.segment, self.position = segment, position
        self.expected, self.found, self.first_lost_lsn = expected, found, first_lost_lsn


class SegmentMissingError(CorruptionError):
    """A segment that the manifest names is not there, or is shorter than the manifest promises."""

    code = "segment-missing"


class StorageError(WalkitError, OSError):
    """The place failed: an I/O error, a full disk, a permission. The cause is chained."""

    code = "storage"

    def __init__(self, message: str, *, errno: int | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.errno, self.name = errno, name


class ObjectStoreError(StorageError):
    """An object store did not do a request. This class: an answer that none of the others describes.

    `store` is the URL of the store, without credentials; `key` the object ("" for the store itself). `status` is the
    HTTP status, `retry_after_s` the time that the store asks to wait; None if the answer has none.
    """

    code = "object-store"
    NUMBER: ClassVar[int | None] = None
    """The errno of the class."""

    def __init__(
        self,
        message: str,
        *,
        store: str = "",
        key: str = "",
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, errno=self.NUMBER, name=key)
        self.store, self.key, self.status, self.retry_after_s = store, key, status, retry_after_s


class ObjectExistsError(ObjectStoreError):
    """An object was to be created, and its key is taken, or another put of the key was under way.

    It may be another writer's, or one's own whose answer was lost. Read the object: its content decides. After a
    conflict with a put under way there may be no object.
    """

    code = "object-exists"
    NUMBER = EEXIST


class ObjectConflictError(ObjectStoreError):
    """An object was to be replaced, and it has another tag, is missing, or another put of it was under way.

    The other content may be one's own whose answer was lost. Read the object: its content decides.
    """

    code = "object-conflict"
    NUMBER = ESTALE


class ObjectMissingError(ObjectStoreError):
    """There is no such object. From a put: there is no such bucket, container or folder."""

    code = "object-missing"
    NUMBER = ENOENT


class ObjectRangeError(ObjectStoreError):
    """A range begins at the end of the object or after it: there is nothing to read there."""

    code = "object-range"
    NUMBER = EINVAL


class ObjectDeniedError(ObjectStoreError):
    """The store refuses the credentials, or this request with them. It says nothing about the object: it may exist."""

    code = "object-denied"
    NUMBER = EACCES


class ObjectThrottledError(ObjectStoreError):
    """The store is busy (429 or 503): wait `retry_after_s` or longer, then ask again.

    A put was refused. If its repetition finds the key taken or the tag changed, read the object all the same.
    """

    code = "object-throttled"
    NUMBER = EAGAIN


class ObjectUnknownError(ObjectStoreError):
    """The store gave no clear answer: a time-out, a broken connection, a failure within the store.

    A put or a deletion may have happened, may still happen, or never. Read the object: its content decides.
    """

    code = "object-unknown"
    NUMBER = EIO


class ObjectUnsupportedError(ObjectStoreError):
    """The store cannot do it: it has no listing, or it ignores the conditions of a put. `what` names the ability."""

    code = "object-unsupported"
    NUMBER = EOPNOTSUPP

    def __init__(self, message: str, *, what: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.what = what


class LogFullError(WalkitError):
    """No room for now. Nothing of this call, except its `acknowledged_prefix`, was written; try again.

    `reason` is "queue", "retention", "journal" or "replicas"; or, for a new segment, "disk", "file-size", "descriptors"
    or "memory".
    """

    code = "log-full"

    def __init__(
        self, message: str, *, reason: str, limit_bytes: int | None = None, acknowledged_prefix: int = 0
    ) -> None:
        super().__init__(message)
        self.reason, self.limit_bytes = reason, limit_bytes
        self.acknowledged_prefix = acknowledged_prefix


class JournalFullError(LogFullError):
    """The journal of a store has no free slot: as many records as it has slots are in no checkpoint.

    Nothing of this call was written. `store.checkpoint()` makes room; `failed` is the error of the last automatic one,
    as text ("" if it succeeded), and `__cause__` the error itself.
    """

    code = "journal-full"

    def __init__(
        self, slots: int, checkpoint_lsn: int, *, failed: str = "", acknowledged_prefix: int = 0
    ) -> None:
        reason = f" (the last one failed: {failed})" if failed else ""
        super().__init__(
            f"the journal is full: its slots ({slots:,}) hold what follows LSN {checkpoint_lsn:,} and is in no "
            f"checkpoint; nothing was written. store.checkpoint() makes room{reason}",
            reason="journal",
            acknowledged_prefix=acknowledged_prefix,
        )
        self.slots, self.checkpoint_lsn, self.failed = slots, checkpoint_lsn, failed


class LogExhaustedError(WalkitError):
    """The log has no number left that its format holds: `what` is "LSN", "position", "epoch" or "segment"."""

    code = "log-exhausted"
    acknowledged_prefix = 0

    def __init__(self, what: str, wanted: int, last: int) -> None:
        super().__init__(
            f"the log has no {what} left: this needs {wanted:,}, and the last that the format holds is {last:,}. "
            "Nothing was written; continue in a new log"
        )
        self.what, self.wanted, self.last = what, wanted, last


class CommitFailedError(WalkitError):
    """A write or sync failed after it started: the records may or may not survive reopening.

    `acked_lsn` is the last LSN acknowledged before the failure. `acknowledged_prefix` counts the records of
    this very call that were acknowledged (`append_many`).
    """

    code = "commit-failed"

    def __init__(self, message: str, *, acked_lsn: int | None = None, acknowledged_prefix: int = 0) -> None:
        super().__init__(message)
        self.outcome = "unknown"
        self.acked_lsn, self.acknowledged_prefix = acked_lsn, acknowledged_prefix


class CommitTimeoutError(CommitFailedError, TimeoutError):
    """The time of an append was over while its write was under way: the records may still become durable."""

    code = "commit-timeout"


class AppendTimeoutError(WalkitError, TimeoutError):
    """The time of an append was over while it waited for its frame. Nothing of it was written."""

    code = "append-timeout"


class WaitTimeoutError(WalkitError, TimeoutError):
    """The time of a wait was over. The awaited records are still on their way: wait again.

    `ticket.result(timeout)` and `exception`, and `wait_for` of a replica or a delta reader raise it.
    """

    code = "wait-timeout"


class CallbackError(WalkitError):
    """A callback, a finaliser or a signal handler asked for a result that cannot come before it returns.

    Its thread is inside a frame, a sync or another step of walkit's, and has its locks.

    Nothing of this call was written; a ticket that was asked for its result is still on its way. `submit` queues a
    record after the frame, and another thread can wait for it.
    """

    code = "callback"

    def __init__(
        self,
        message: str = "this thread runs the log's own work, such as a frame or a trim: it cannot wait for "
        "the log before the callback has returned. Use submit(), or another thread",
        *,
        acknowledged_prefix: int = 0,
    ) -> None:
        super().__init__(message)
        self.acknowledged_prefix = acknowledged_prefix


class LogPoisonedError(WalkitError):
    """An earlier write or sync failed, so the log takes no more. Nothing of this call was written.

    `cause` is the failure, as text; `__cause__` the error itself, which a pickled copy no longer has.
    """

    code = "log-poisoned"

    def __init__(self, message: str, *, cause: str = "", acknowledged_prefix: int = 0) -> None:
        super().__init__(message)
        self.cause, self.acknowledged_prefix = cause, acknowledged_prefix


class LogClosedError(WalkitError):
    """The log is closed, or this is a forked child's copy of it. Nothing of this call was written."""

    code = "log-closed"

    def __init__(self, message: str = "the log is closed", *, acknowledged_prefix: int = 0) -> None:
        super().__init__(message)
        self.acknowledged_prefix = acknowledged_prefix


class GapError(WalkitError):
    """The wanted record has been dropped by trimming or retention; the oldest readable is `oldest`."""

    code = "gap"

    def __init__(self, wanted: int, oldest: int, hint: str = "") -> None:
        what = f"record {wanted} is gone: the oldest that can be read is {oldest}"
        super().__init__(f"{what}; {hint}" if hint else what)
        self.wanted, self.oldest = wanted, oldest


class LogOwnedError(WalkitError):
    """A log cannot be opened for writing like this: it is the payload log of another log, or an ordinary log.

    `owner` is the id of the log that it belongs to; None for a log that belongs to none. It was not changed.
    """

    code = "log-owned"

    def __init__(self, path: str, owner: int | None, wanted: int = 0) -> None:
        """`wanted` is the payload log that was at this place, if one is known."""
        if owner is None:
            what = "is an ordinary log; give payload_log a new place"
        else:
            what = f"is the payload log of log {owner:016x}, which alone writes to it"
        if wanted:
            what += f"; payload log {wanted:016x} was at this place"
        super().__init__(f"{path} {what}. It was not changed")
        self.path, self.owner = path, owner


class PayloadError(WalkitError):
    """A value that is kept in a payload log was not written, or cannot be read.

    `location` is the log, `lsn` the record (0 before it has a number), `link` the reference as a tuple (payload log id,
    epoch id, LSN, length, CRC-32C, kind), or None.
    """

    code = "payload"

    def __init__(
        self, message: str, *, location: str, lsn: int = 0, link: tuple[Any, ...] | None = None
    ) -> None:
        super().__init__(message)
        self.location, self.lsn, self.link = location, lsn, link


class PayloadGoneError(PayloadError):
    """The value of a link is no longer in its payload log, or it is damaged there."""

    code = "payload-gone"


class PayloadUnreachableError(PayloadError):
    """A payload log cannot be found or reached. A record that was being written was not written."""

    code = "payload-unreachable"


class CursorError(WalkitError):
    """The saved progress of a consumer is not of this log as it is, and guessing would skip records. Nothing changed.

    `reason` is "beyond" (after the end of the log), "identity" (the record at its LSN has another epoch: its old record
    was cut, and the number given again), "foreign" (of another log), "moved" (another of this name has advanced
    it), or "undurable" (moved by a reader past the proven records). `expected` and `found` are the values that differ.
    """

    code = "cursor"

    def __init__(
        self, message: str, *, name: str, reason: str, lsn: int, expected: object = None, found: object = None
    ) -> None:
        super().__init__(message)
        self.name, self.reason, self.lsn = name, reason, lsn
        self.expected, self.found = expected, found


class ClaimError(WalkitError):
    """A claim was not written: the log has no room for it, or it is not this consumer's. Nothing was changed.

    `reason` is "full" (the log has as many claims as it may), "taken" (another owner has it, or another session of this
    one has written it), "dropped" (somebody has removed it before its lease was over), "released" (by this very
    object), or "clock" (the wall clock is at a time that no claim has). `owner` is the one that the file names, and
    `lease_until_us` the end of its lease, microseconds since 1970; None without one.
    """

    code = "claim"

    def __init__(
        self,
        message: str,
        *,
        name: str,
        reason: str,
        owner: str | None = None,
        lease_until_us: int | None = None,
    ) -> None:
        super().__init__(message)
        self.name, self.reason, self.owner, self.lease_until_us = name, reason, owner, lease_until_us


class HistoryTrimmedError(WalkitError):
    """State below `exact_from_lsn` is no longer known exactly."""

    code = "history-trimmed"

    def __init__(self, wanted: int, exact_from_lsn: int) -> None:
        super().__init__(f"history is exact from LSN {exact_from_lsn}; {wanted} is below it")
        self.wanted, self.exact_from_lsn = wanted, exact_from_lsn


class DivergenceError(WalkitError):
    """Two logs differ from `first_lsn` on: they are two histories, and are never merged."""

    code = "divergence"

    def __init__(self, message: str, *, first_lsn: int) -> None:
        super().__init__(message)
        self.first_lsn = first_lsn


class CursorDivergedError(CursorError, DivergenceError):
    """A consumer's saved progress was cut: its cursor is in a history that the log no longer has.

    `reason` is "beyond" or "identity", as of a CursorError; `first_lsn` is the first LSN that is another record now, or
    none.
    """

    code = "cursor-diverged"

    def __init__(
        self,
        message: str,
        *,
        name: str,
        reason: str,
        lsn: int,
        first_lsn: int,
        expected: object = None,
        found: object = None,
    ) -> None:
        WalkitError.__init__(self, message)
        self.name, self.reason, self.lsn = name, reason, lsn
        self.expected, self.found, self.first_lsn = expected, found, first_lsn


class SnapshotError(WalkitError):
    """A snapshot could not be written or read; `stage` is the stage that failed and `retry` the one to retry.

    `retry_stage` names the stage of writing from which it can be continued: "write" is a new snapshot, any other is
    done again by itself. None for one that could not be read. `needed_bytes` is the size of a snapshot for which the
    storage had no room, and 0 else.
    """

    code = "snapshot"

    def __init__(
        self, message: str, *, stage: str, retry: str, retry_stage: str | None = None, needed_bytes: int = 0
    ) -> None:
        super().__init__(message)
        self.stage, self.retry, self.retry_stage = stage, retry, retry_stage
        self.needed_bytes = needed_bytes
