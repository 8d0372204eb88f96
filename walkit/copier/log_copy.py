"""`walkit.copy`: a consistent copy of a log that may be written meanwhile, made by any process.

A claim comes first, so that nothing that is copied is dropped. Then snapshots and the segments up to the durable end
are gathered in a folder DIR.partial, as a bootstrap gathers them; they get their names, and last comes the manifest.
The folder becomes DIR by being renamed. A copy that was killed is taken up where it was.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from walkit._internal.arguments import check_progress, refuse
from walkit._main_thread import end_if_abandoned, ending_early, run_uninterrupted
from walkit.copier.copy_report import CopyReport
from walkit.copier.gathering import Gathering, part_name, snapshot_part_name
from walkit.copier.object_target import ObjectTarget
from walkit.copier.payload_copies import NO_PAYLOADS, PayloadCopies
from walkit.copier.plan import MissingRange
from walkit.copier.planned_files import PlannedFiles
from walkit.copier.snapshot_check import snapshot_lsns, verify_open_snapshot
from walkit.copier.switch import part_names, place
from walkit.errors import (
    ClaimError,
    CorruptionError,
    FormatVersionError,
    GapError,
    NotALogError,
    OptionsError,
    SnapshotError,
    StorageError,
    WalkitError,
)
from walkit.format.file_names import BOOTSTRAP_PREFIX, INDEX_SUFFIX, lsn_of_name, snapshot_name
from walkit.format.index import has_index
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.log.open import make_log
from walkit.objects.entrance import claim, log_at, object_store_of
from walkit.objects.segments_folder import files_of, segments_folder
from walkit.objects.view import ObjectEnd
from walkit.read.claim import Claim, is_due
from walkit.read.payloads import names_of
from walkit.read.reader import LogReader, reader_view_of
from walkit.read.view import LogView
from walkit.recovery.apply import sync_unsealed
from walkit.recovery.log_scan import Progress, read_durable_slot
from walkit.segments.consumer_files import drop_claim
from walkit.segments.history import identity_at
from walkit.segments.index_file import index_segment
from walkit.segments.manifest_store import LOCK_NAME, NEW_NAME, OWN_NAMES, load_manifest
from walkit.segments.writer_lock import WriterLock, has_writer, take_writer_lock
from walkit.storage.address import FILES, AnyPlace, is_object_url, storage_at
from walkit.storage.file import FileStorage
from walkit.storage.folder import Folder, opened_folder
from walkit.storage.interface import FileNumber, NumberedFile, Storage, StorageFile, Translated
from walkit.storage.object_store import ObjectStore

PARTIAL_SUFFIX = ".partial"
CHUNK_BYTES = 4 << 20
LEASE_S = 300.0
"""How long the claim of a copier that died keeps records, unless the copy is started again."""
LOOKS_MAX = 8
"""So many looks at a log whose oldest segment is rewritten meanwhile; each of them is another trim."""

Target: TypeAlias = Gathering | ObjectTarget

_SEGMENT_NAME = re.compile(r"(\d{20})\.segment")


def copy(
    path: AnyPlace,
    target: str | os.PathLike[str] | ObjectStore,
    progress: Progress | None = None,
    *,
    payloads: bool | str | os.PathLike[str] = False,
    storage_options: Mapping[str, Any] | None = None,
) -> CopyReport:
    """Copy the part of a log on stable storage into a new folder or object store; whole and durable there on return.

    Made beside a living writer in any process, or of a closed log. The copy has every record that was durable when the
    call began, and some that became so meanwhile. Segments are copied byte for byte, the newest up to the durable end;
    snapshots, indexes, log id and lineage come with them; cursors, claims, the identity of a replica and
    lost+found do not. Each frame is checked. `progress` is called with (bytes done, bytes to do).

    Either place may be the URL of an object store, with `storage_options` as of `walkit.open`. Frames, positions and
    lineage are the same, so a replica in one kind of place can follow a log in the other.

    A claim with the name "copy-..." keeps trim, retention and compaction from its records, so the log's folder must
    be writable. Everything is written to `target`.partial, which is renamed last: a copy that was killed or failed
    leaves no `target`, and the same call continues with the files that are whole. Copies to one target exclude each
    other. In an object store nothing opens the copy before it is whole, and the same call continues it.

    Values in a payload log stay there: the copy reads them where they are, and `payload_logs` of the report names the
    places. With `payloads=True` each payload log is copied first, to `target`.payloads-ID, or to the path or URL that
    is given instead of True. Then the copy reads its values there, and `payload_copies` of the report names the
    places. In either case it frees nothing there, and writes its own large values to a new payload log.

    The copy is the same history, not another log: two writers of a log and its copy diverge, and replication refuses
    diverged logs (DivergenceError).

    OptionsError if there is something at `target` or in `target`.partial; LogLockedError if another copy to it is under
    way; CorruptionError for a damaged frame; GapError if a hard cap of retention dropped records of the copy;
    StorageError, LogNotFoundError, NotALogError, FormatVersionError. Safe from any thread.
    """
    check_progress(progress, "(bytes done, bytes to do)")
    if not _is_cloud(path) and not _is_cloud(target):
        object_store_of(path, storage_options)  # refuses options that nothing takes
    store = object_store_of(target, storage_options if _is_cloud(target) else None)
    folder = "" if store is not None else _target_of(target)
    # A place without a log is refused here.
    source = _source_at(path, storage_options)
    if store is None:
        _refuse_place(source, folder)
    along = PayloadCopies.of(load_manifest(source), source.location, target, payloads)

    def claimed(place: str, at: str) -> AbstractContextManager[Claim]:
        return _claimed(_source_at(place, storage_options), f"values of {at}")

    def opened(place: str) -> LogReader:
        return LogReader(log_at(place, storage_options if _is_cloud(place) else None))

    def work() -> CopyReport:
        with along.kept(claimed, ending_early(progress)) as told:

            def take_along() -> None:
                for place, at in along.left(opened):
                    _take_up(at, place, opened)
                    options = storage_options if _is_cloud(place) or _is_cloud(at) else None
                    copy(place, at, told, storage_options=options)

            if store is None:
                return _copy(source, folder, told, along, take_along)
            return _copy_to_objects(source, store, told, along, take_along)

    return run_uninterrupted(work, "copy")


def _source_at(path: AnyPlace, storage_options: Mapping[str, Any] | None) -> Storage:
    """Return a log as a folder of segments."""
    found = log_at(path, storage_options if _is_cloud(path) else None)
    return segments_folder(lambda: found.now().view) if isinstance(found, ObjectEnd) else found


def _is_cloud(place: object) -> bool:
    return is_object_url(place) and not str(place).startswith(FILES)


def _target_of(target: object) -> str:
    if not isinstance(target, str | os.PathLike):
        refuse("target", target, "the path of a new folder")
    try:
        place = storage_at(target)
    except NotALogError:
        raise _exists(os.fspath(target)) from None
    if not isinstance(place, FileStorage):
        refuse("target", target, "a copy is made in a folder of the file system")
    return place.location


def _refuse_place(source: Storage, folder: str) -> None:
    if os.path.lexists(folder):
        raise _exists(folder)
    if isinstance(source, FileStorage) or source.location.startswith(FILES):
        outer, inner = (os.path.realpath(path) for path in (source.location.removeprefix(FILES), folder))
        if outer == os.path.realpath(folder + PARTIAL_SUFFIX):
            raise OptionsError(
                f"{folder}{PARTIAL_SUFFIX} is the log itself, and the place of its copy; give another target",
                option="target",
                wanted=folder,
            )
        if inner.startswith(outer.rstrip(os.sep) + os.sep):
            raise OptionsError(
                f"{folder} is in the folder of the log; give a place outside it",
                option="target",
                wanted=folder,
            )


def _exists(folder: str) -> OptionsError:
    return OptionsError(
        f"{folder} is there already; a copy is made in a new folder. Nothing was changed",
        option="target",
        wanted=folder,
    )


def _copy(
    source: Storage,
    folder: str,
    progress: Progress | None,
    along: PayloadCopies,
    take_along: Callable[[], None],
) -> CopyReport:
    load_manifest(source)  # no folder is made without a log
    partial_copy = FileStorage(folder + PARTIAL_SUFFIX)
    partial_copy.create_for(source)
    with _locked(partial_copy) as lock:
        _keep_private(source, partial_copy)
        _refuse_place(source, folder)
        report = copy_into(source, partial_copy, progress, folder, along)
        take_along()
        _refuse_place(source, folder)
        _refuse_moved(partial_copy, lock)
        with Translated(f"rename to {folder!r} the folder", "", partial_copy.location):
            os.rename(partial_copy.location, folder)
        FileStorage(os.path.dirname(folder)).sync_directory()
    return report


def _take_up(whole: str, place: str, opened: Callable[[str], LogReader]) -> None:
    """Let a whole copy of a payload log be continued, which a call left that was killed before the log's own was whole.

    Only if the payload log has all that the copy has; else the copy is refused as one that is there.
    """
    if not os.path.isdir(whole) or not all(map(_is_of_a_copy, FileStorage(whole).names())):
        return
    with suppress(WalkitError), opened(whole) as copied, opened(place) as log:
        ids = {each.source.now().view.manifest.log_id for each in (copied, log)}
        if (
            len(ids) == 1
            and log.first_lsn <= copied.first_lsn
            and not os.path.lexists(whole + PARTIAL_SUFFIX)
        ):
            os.rename(whole, whole + PARTIAL_SUFFIX)


def _keep_private(source: Storage, partial: FileStorage) -> None:
    """Give the copy's folder the permissions of the log's, before anything is in it."""
    if isinstance(source, FileStorage):
        with Translated("set the permissions of the folder", "", partial.location):
            wanted = os.stat(source.location).st_mode | stat.S_IRWXU
            with opened_folder(Folder(partial.location)) as fd:
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode & wanted))


@contextmanager
def _locked(partial: Storage) -> Iterator[WriterLock]:
    """Have the writer's lock of the log to be: no other copy, and no writer, comes in between."""
    lock = take_writer_lock(partial)
    try:
        yield lock
    finally:
        lock.release()


def _number_of(target: Storage) -> FileNumber | None:
    """Return the number of the lock's file of a target: which folder it is, whatever its path leads to.

    None without a lock's file, or without numbers of files.
    """
    try:
        with closing(target.open(LOCK_NAME, "read")) as file:
            return file.number() if isinstance(file, NumberedFile) else None
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def _refuse_moved(partial: Storage, lock: WriterLock) -> None:
    """StorageError (ESTALE) if the name no longer leads to the folder that the copy is made in."""
    lock.look()
    if lock.moved_to is not None:
        raise StorageError(
            f"the folder that the copy is made in was moved from {partial.location} to {lock.moved_to}. "
            "No copy was made; the file of this name was not touched",
            errno=errno.ESTALE,
            name="",
        )


def copy_into(
    source: Storage,
    target: Storage,
    progress: Progress | None,
    location: str,
    along: PayloadCopies = NO_PAYLOADS,
) -> CopyReport:
    """Copy a log from storage to storage; durable on return. `location` is the copy's final name.

    `target` is empty, or has the files of an earlier copy; the manifest is its last file. OptionsError for other files.
    """
    began = time.perf_counter()
    target.create()
    _clear(target, load_manifest(source))
    # The path alone is a name: a copier in another folder of that path may be alive.
    with _claimed(source, f"{location}\0{_number_of(target)}") as claimed:
        meter = _Meter(progress, claimed)
        gathering = Gathering(target, meter.renew)
        snapshots, left = _gather(source, gathering, claimed, meter, along.named_in(location))
        manifest = gathering.manifest()
        place(target, part_names(((record, record) for record in manifest.sealed), snapshots))
        for record in manifest.sealed:
            if has_index(record):
                index_segment(target, manifest, record)
        target.sync_directory()
        meter.copied(0)
        make_log(target, manifest)
        return _report(source, location, manifest, snapshots, left, meter, along, began)


def _copy_to_objects(
    source: Storage,
    store: ObjectStore,
    progress: Progress | None,
    along: PayloadCopies,
    take_along: Callable[[], None],
) -> CopyReport:
    began = time.perf_counter()
    target = ObjectTarget(store)
    with closing(store), _claimed(source, store.location) as claimed:  # its next put opens it again
        meter = _Meter(progress, claimed)
        snapshots, left = _gather(source, target, claimed, meter, along.named_in(store.location))
        meter.copied(0)
        take_along()
        left = sorted([*snapshots, *left])  # an untrimmed log has all that they have
        return _report(source, store.location, target.finish(), (), left, meter, along, began)


@contextmanager
def _claimed(source: Storage, which: str) -> Iterator[Claim]:
    """Have a claim on all that a log has; `which` tells the target from others."""
    files = files_of(source)
    name = f"copy-{hashlib.sha256(which.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    drop_claim(files, name)  # of a copier to this target that died: who copies to a folder now has its lock
    claimed = claim(files, name, lease_s=LEASE_S, complete=False)
    try:
        yield claimed
    finally:
        with suppress(WalkitError):
            claimed.release()
        if files is not source:
            source.close()


class _Meter:
    """How far a copy is: for the progress, for the report, and for the claim, which is renewed as it advances."""

    def __init__(self, progress: Progress | None, claimed: Claim) -> None:
        self.bytes_copied = self.bytes_kept = self._total = 0
        self._progress, self._claimed = progress, claimed

    def begin(self, missing: tuple[MissingRange, ...]) -> None:
        """Begin to count a plan, of which some bytes may be there."""
        self._total = sum(part.size for part in missing)
        self.bytes_kept = max(sum(part.offset for part in missing) - self.bytes_copied, 0)

    def copied(self, size: int) -> None:
        """Count bytes that were copied, say how far the copy is, and renew the claim if that is due."""
        self.bytes_copied += size
        self.renew()
        if self._progress is not None:
            self._progress(min(self.bytes_copied + self.bytes_kept, self._total), self._total)

    def renew(self) -> None:
        """Renew the claim if that is due; ends the copy if its caller was interrupted."""
        end_if_abandoned()
        if is_due(self._claimed):
            self._claimed.renew()


def _clear(target: Storage, source: Manifest) -> None:
    """Make an earlier copy's remains no log again; refuse files that are not a copy of this log.

    No writer and no replica has opened a copier's files: each of them leaves an epoch, a segment in use or a durable
    slot there, and records that may be nowhere else.
    """
    others = [name for name in target.names() if not _is_of_a_copy(name)]
    if others:
        raise OptionsError(
            f"{target.location} has files that no copy leaves ({others[0]}); remove that folder, or give another "
            "target. Nothing was changed",
            option="target",
            wanted=target.location,
        )
    slot = read_durable_slot(target)
    written = bool(slot.generation or slot.promise.generation)
    if MANIFEST_NAME in target.names():
        there = load_manifest(target)
        written |= there.log_id != source.log_id or bool(there.unsealed)
        written |= there.lineage != source.lineage[: len(there.lineage)]
    if written:
        raise OptionsError(
            f"{target.location} is another log, or was written to; remove it, or give another target. Nothing was "
            "changed",
            option="target",
            wanted=target.location,
        )
    for name in (MANIFEST_NAME, NEW_NAME):
        if name in target.names():
            target.remove(name)
            target.sync_directory()
    for name in target.names():  # a file of its name is a part of this copy
        if segment := _SEGMENT_NAME.fullmatch(name):
            target.replace(name, part_name(int(segment[1])))
        elif lsn := lsn_of_name(name):
            target.replace(name, snapshot_part_name(lsn))
        elif name.endswith(INDEX_SUFFIX):
            target.remove(name)


def _is_of_a_copy(name: str) -> bool:
    """Say whether a file may come from a copy that was killed."""
    is_segment = _SEGMENT_NAME.fullmatch(name.removesuffix(INDEX_SUFFIX)) is not None
    is_part = name.startswith(BOOTSTRAP_PREFIX) and name.endswith(".part")
    return name in OWN_NAMES or is_segment or is_part or lsn_of_name(name) is not None


def _report(
    source: Storage,
    location: str,
    manifest: Manifest,
    snapshots: tuple[int, ...],
    left: list[int],
    meter: _Meter,
    along: PayloadCopies,
    began: float,
) -> CopyReport:
    return CopyReport(
        source=source.location,
        location=location,
        log_id=manifest.log_id,
        first_lsn=max(manifest.first_lsn, manifest.low_watermark + 1),
        last_lsn=manifest.end.last_lsn,
        end_position=manifest.end.position,
        records=sum(record.records for record in manifest.sealed),
        segments=len(manifest.sealed),
        snapshots=snapshots,
        snapshots_left=tuple(left),
        payload_logs={
            log_id: place
            for log_id, place in names_of(manifest, location).items()
            if log_id not in along.targets
        },
        payload_copies=dict(along.targets),
        bytes_copied=meter.bytes_copied,
        bytes_kept=meter.bytes_kept,
        duration_s=time.perf_counter() - began,
    )


def _gather(
    source: Storage, gathering: Target, claimed: Claim, meter: _Meter, payload_places: Mapping[int, str]
) -> tuple[tuple[int, ...], list[int]]:
    """Gather the log as it is now; return the LSNs of its snapshots, and of those that were left out.

    GapError if records that are claimed are gone. Those below the low watermark before the claim are not claimed: a
    trim may replace the oldest segment by a copy of its end between the look at the manifest and the opening.
    Then the plan is made again, and the parts that are there stay.
    """
    for left in reversed(range(LOOKS_MAX)):
        # Snapshots before the marks: the log is on stable storage up to each, and a later checkpoint may remove it.
        usable, unusable = _open_snapshots(source)
        try:
            look = partial(_durable_view, source)
            with closing(PlannedFiles(look, usable, payload_places=payload_places)) as planned:
                missing = gathering.prepare(planned.manifest, planned.sizes, planned.snapshot_lsns)
                meter.begin(missing)
                for part in missing:
                    _fetch(planned, gathering, part, meter)
            beyond = usable.keys() - {*planned.snapshot_lsns}  # their records were cut off by damage
            return planned.snapshot_lsns, sorted([*unusable, *beyond])
        except GapError as gap:
            try:
                claimed.renew()  # GapError if records that it keeps are gone
            except ClaimError:
                raise gap from None
            if not left:
                raise
        finally:
            gathering.close()
    raise AssertionError("the last look returns or raises")


def _fetch(planned: PlannedFiles, gathering: Target, part: MissingRange, meter: _Meter) -> None:
    """Copy the missing part of a file of the plan; all of it if the existing part is damaged."""
    try:
        for offset in range(part.offset, part.size, CHUNK_BYTES):
            data = planned.read(part.file, offset, min(CHUNK_BYTES, part.size - offset))
            gathering.store(part.file, offset, data)
            meter.copied(len(data))
    except CorruptionError:
        if not part.offset:
            raise
        meter.bytes_kept -= part.offset
        _fetch(planned, gathering, part._replace(offset=0), meter)


def _open_snapshots(source: Storage) -> tuple[dict[int, StorageFile], list[int]]:
    """Open the snapshots of a log, by their LSNs; the LSNs of those that cannot be used are apart."""
    usable: dict[int, StorageFile] = {}
    unusable: list[int] = []
    try:
        while new := [lsn for lsn in snapshot_lsns(source) if lsn not in usable and lsn not in unusable]:
            for lsn in new:
                try:
                    file = source.open(snapshot_name(lsn), "read")
                except StorageError as error:
                    if error.errno != errno.ENOENT:
                        raise
                    continue
                try:
                    verify_open_snapshot(file, lsn, identity_at(load_manifest(source), lsn))
                    usable[lsn] = file
                except (SnapshotError, FormatVersionError) as error:
                    file.close()
                    if isinstance(error.__cause__, StorageError):
                        raise
                    unusable.append(lsn)
    except BaseException:
        for file in usable.values():
            file.close()
        raise
    return usable, unusable


def _durable_view(source: Storage) -> LogView:
    """Return all that can be read now and is on stable storage.

    Without a writer, records that recovery would keep are put there first, as the next opening would: the last
    acknowledged frame of a log whose power was cut may be promised by no other.
    """
    manifest = load_manifest(source)
    generation, settled = manifest.generation, not has_writer(source, manifest)
    if settled:
        sync_unsealed(source, load_manifest(source))
    seen = reader_view_of(source)
    settled = settled and load_manifest(source).generation == generation
    durable = seen.end_position if settled else seen.durable_position
    spans = (s for s in seen.view.spans if s.record.start_position < durable)
    return replace(
        seen.view, spans=tuple(replace(s, end_position=min(s.end_position, durable)) for s in spans)
    )
