"""The segments that a writer writes to: made ahead, zeroed ahead, started, written, sealed (FORMAT.md F-8, F-9).

Frames are assigned to a segment one after the other, and written side by side; everything that can be done beside the
path of a record is done by the maintenance thread: making the next segment, zeroing ahead, sealing the last one.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress

from walkit._internal.locks import once
from walkit.commit.frame import SealedFrame
from walkit.config import ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT, LogOptions
from walkit.errors import LogFullError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.frame import FrameIdentity
from walkit.format.index import has_index
from walkit.format.layout import SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import LogEnd, Manifest
from walkit.format.segment import SegmentHeader, segment_name
from walkit.record import wall_us
from walkit.segments.active_segment import (
    ZERO_AHEAD_BYTES,
    OpenSegment,
    check_order,
    open_segment_file,
    same_file,
)
from walkit.segments.index_file import reindex, write_index
from walkit.segments.maintenance_worker import MaintenanceWorker
from walkit.segments.manifest_store import (
    ManifestStore,
    SlotStore,
    load_manifest,
    record_of,
    replaced_error,
    with_prepared,
    with_sealed,
    without_segment,
)
from walkit.storage.interface import BACK_PRESSURE, OpenMode, Storage, StorageFile, hold_file

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs while the machine sleeps, and cannot be set."""


def _passed_us() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1000


class PassedTime:
    """The wall clock's time at an opening, and the time that has passed since. Safe from any thread."""

    def __init__(
        self, wall_us: Callable[[], int] = wall_us, passed_us: Callable[[], int] = _passed_us
    ) -> None:
        self._wall_us, self._passed_us = wall_us, passed_us
        self.opened_us = wall_us()
        self._offset_us = self.opened_us - passed_us()

    def us(self) -> int:
        """Return the time, microseconds since 1970: no step of the wall clock is in it."""
        return max(self._passed_us() + self._offset_us, 0)

    def ahead_us(self) -> int:
        """Return by how much the wall clock was set since the opening; below 0 if it was set back."""
        return self._wall_us() - self.us()


LOOK_S = 1.0  # after so long without a look at its place, a writer looks before the next acknowledgement


class SegmentSet:
    """The segments of a log that is open for writing: the `FrameSink` of its commit driver."""

    def __init__(
        self,
        storage: Storage,
        store: ManifestStore,
        options: LogOptions,
        *,
        identity: FrameIdentity,
        epoch_began: LogEnd,
        slots: SlotStore,
        events: EventSink,
        name: str,
        alignment: int = ALIGNMENT_BUFFERED,
    ) -> None:
        self.storage = storage
        self.store = store
        self.options = options
        self.identity = identity
        self.epoch_began = epoch_began
        self.events = events
        self.maintenance = MaintenanceWorker(name, events, options.write_timeout_ms)
        self.time = PassedTime()
        self.reorder_window_bytes = 0
        """The window that new segments allow for frames after a hole (FORMAT.md F-2.7)."""
        self.flags = SegmentFlag(0)
        self.current: OpenSegment | None = None
        # Appended by `begin_segment`, whose calls are serial, and shortened by the one thread that seals; others read
        # copies.
        self.open_segments: list[OpenSegment] = []
        self.left: list[int] = []
        """Numbers of files that could not become segments, and that are to be removed."""
        self.rotations = 0
        self.watched: Callable[[SealedFrame], AbstractContextManager[None]] = lambda _: nullcontext()
        """Watches the calling thread's waits on a frame's behalf."""
        self.poison: Callable[[BaseException], object] = lambda _: None
        """Fails the log for a cause that no frame's own write has reported: a sync or a zeroing beside it."""
        self.on_seal: Callable[[], object] | None = None
        """Called on the maintenance thread, or the thread that closes, when a segment has been sealed."""
        self._alignment = alignment
        self._slots = slots
        # Appended by `begin_segment`, taken out by `passed` on any thread; each by one call, so no lock guards it.
        self._full: deque[OpenSegment] = deque()
        self._prepared: OpenSegment | None = None
        self._index_steps = reindex(storage, lambda: store.current)
        self._look_at = 0.0  # when the next frame looks, by the monotonic clock
        # Guards `_prepared`: one segment is made at a time. Taken before the manifest's lock, which naming it needs.
        self._prepare_lock = threading.RLock()

    # -- on the path of a frame

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """See FrameSink. The header is durable before any frame is written after it."""
        segment = self._take_prepared()
        header = self._new_header(segment.number, position, first_lsn, chain)
        try:
            segment.file.write(0, [header.encode()], sync=True)
        except StorageError:
            segment.file.close()
            raise
        segment.header = header
        segment.base_offset = header.offset_of(0)
        segment.end_position = position
        segment.last_lsn = first_lsn - 1
        segment.chain = chain
        previous, self.current = self.current, segment
        self.open_segments.append(segment)
        self.rotations += 1
        self.events.emit(
            "walkit.segment.rotate", number=segment.number, position=position, first_lsn=first_lsn
        )
        if previous is not None:
            self._full.append(previous)
        elif any(has_index(record) for record in self.store.current.sealed):
            self.maintenance.submit("index", self._reindex)
        segment.plan_maintenance()
        self._check()
        return position + segment.size - SEGMENT_HEADER_BYTES

    def _new_header(self, number: int, position: int, first_lsn: int, chain: int) -> SegmentHeader:
        return SegmentHeader(
            log_id=self.identity.log_id,
            epoch=self.identity.epoch,
            epoch_id=self.identity.epoch_id,
            number=number,
            start_position=position,
            # The first one may begin after the end of another epoch, on its own alignment (FORMAT.md F-2.5).
            previous_end=position if self.rotations else self.epoch_began.position,
            first_lsn=first_lsn,
            chain=chain,
            alignment=self._alignment,
            frame_bytes_max=self.options.frame_bytes_max,
            reorder_window_bytes=self.reorder_window_bytes,
            flags=self.flags,
            created_us=self.time.us(),
            manifest_generation=self.store.current.generation,  # durable before it was made current
        )

    def assign(self, frame: SealedFrame) -> None:
        """See FrameSink."""
        segment = self.current
        assert segment is not None
        frame.target = segment
        offset = frame.position + segment.base_offset
        if offset + frame.footprint > segment.zeroed:
            with self.watched(frame):
                segment.pass_zeroed(offset + frame.footprint)
        if frame.position >= segment.next_indexed:
            segment.add_to_index(frame.position, frame.first_lsn)
        segment.frames += 1
        segment.records += frame.count
        segment.last_lsn = frame.last_lsn
        segment.chain = frame.header_crc
        segment.end_position = frame.next_position
        if offset >= segment.maintain_from:
            self._ask_maintenance(segment, offset)

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        """See FrameSink."""
        segment: OpenSegment = frame.target
        offset = frame.position + segment.base_offset
        try:
            if sync:
                segment.write_synced(offset, frame.buffers)
                # Before the frame is acknowledged as durable: a file without a name would lose it.
                if segment.status is not None and not segment.status().st_nlink:
                    raise replaced_error(self.storage.location, segment.file.name)
            else:
                segment.file.write(offset, frame.buffers)
            if time.monotonic() > self._look_at:
                self._look()
        except BaseException as error:
            segment.fail(error)
            raise
        if not sync:
            segment.unsynced = True
        elif segment.failed is not None:
            segment.refuse_failed()

    def _look(self) -> None:
        self._look_at = time.monotonic() + LOOK_S
        try:
            self.store.look(wait=False)
        except StorageError as error:
            if error.errno == errno.ESTALE:
                raise  # any other says nothing about the place, and the next look asks again

    def files(self) -> list[StorageFile]:
        """Return the files of the segments that are open or prepared."""
        return [each.file for each in (*self.open_segments, self._prepared) if each is not None]

    def passed(self, position: int) -> None:
        """See FrameSink. A seal needs every frame of its segment on stable storage, and it syncs the written ones."""
        full = self._full
        while full:
            try:
                segment = full[0]
                if segment.end_position > position:
                    return
                full.remove(segment)
            except (IndexError, ValueError):  # another thread has taken it
                continue
            self.maintenance.submit("seal", lambda segment=segment: self.seal(segment))  # type: ignore[misc]

    def _ask_maintenance(self, segment: OpenSegment, offset: int) -> None:
        """Prepare ahead: zeroed space ahead, and the next segment from the middle of this one on."""
        if segment.is_zeroed_ahead():
            goal = min(offset + ZERO_AHEAD_BYTES, segment.size)
            self.maintenance.submit("zero", lambda: self._zero_ahead(segment, goal))
        if offset >= segment.size // 2:
            self.maintenance.submit("prepare", self._prepare_next)
        segment.plan_maintenance()

    def sync(self) -> None:
        """See FrameSink."""
        for segment in tuple(self.open_segments):
            segment.sync()

    def publish(self, position: int, lsn: int) -> None:
        """See FrameSink."""
        self._slots.store(self.identity, position, lsn)

    # -- making segments ahead

    def _take_prepared(self) -> OpenSegment:
        with self.events.held(), once(self._prepare_lock), self._prepare_lock:
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                return prepared
            try:
                return self._make()
            except StorageError as error:
                reason, remedy = BACK_PRESSURE.get(error.errno or 0, ("", ""))
                if not reason:
                    raise
                self.events.emit("walkit.segment.full", location=self.storage.location, error=str(error))
                raise LogFullError(
                    f"a segment of {self.options.segment_bytes:,} bytes cannot be made now ({error}); nothing was "
                    f"written. {remedy} and append again",
                    reason=reason,
                    limit_bytes=self.options.segment_bytes,
                ) from error

    def _prepare_next(self) -> None:
        """Make the next segment before it is needed; back-pressure is reported when it is needed."""
        with self.events.held(), once(self._prepare_lock), self._prepare_lock:
            if self._prepared is not None:
                return
            try:
                self._prepared = self._make()
            except StorageError as error:
                if error.errno not in BACK_PRESSURE:
                    raise

    def _make(self) -> OpenSegment:
        """Create a segment file with its space reserved, its first step zeroed, and its name in the manifest."""
        self.store.look()
        while True:
            number = self.store.take_number()
            try:
                file = self._open(number, "create")
                break
            except StorageError as error:
                if error.errno != errno.EEXIST:
                    raise
        try:
            hold_file(file)  # no other has it: its name was free
            file.allocate(self.options.segment_bytes)
            segment = OpenSegment(
                number, file, self.options.segment_bytes, lambda: same_file(file, self._open(number, "write"))
            )
            self.maintenance.steps += 1
            segment.zero_step()
            segment.hold_size()
            self.maintenance.steps += 1
            self.storage.sync_directory()  # the file has its name before anything is written to it
            self.store.update(lambda m: self._with_prepared(m, number))
            self.maintenance.steps += 1
        except StorageError:
            file.close()
            self.left.append(number)
            self.remove_left()
            raise
        self.remove_left()
        self.events.emit("walkit.segment.prepare", number=number, bytes=self.options.segment_bytes)
        return segment

    def remove_left(self) -> None:
        """Remove files of segments that could not be made, unless the manifest on disk names them (FORMAT.md F-9.1).

        A change of the manifest that failed may have landed. The next change, or the next opening, removes the rest.
        """
        with suppress(WalkitError, ValueError):
            named = {record.number for record in load_manifest(self.storage).segments} if self.left else set()
            for number in tuple(self.left):
                if number not in named:
                    self.left.remove(
                        number
                    )  # ValueError: another thread has just taken it, and removes the rest
                    self.storage.remove(segment_name(number))

    def _open(self, number: int, mode: OpenMode) -> StorageFile:
        return open_segment_file(self.storage, number, mode, direct=self._alignment == ALIGNMENT_DIRECT)

    def _with_prepared(self, manifest: Manifest, number: int) -> Manifest:
        """Name a prepared segment; a replica's segments name the epochs that came with it, too."""
        size = self.options.segment_bytes
        return with_prepared(manifest, number, self.identity, self.epoch_began, size)

    def _zero_ahead(self, segment: OpenSegment, goal: int) -> None:
        """Zero one more step, then queue the next, so that sealing and preparing are not kept waiting."""
        if segment.zeroed >= goal:
            return
        with self._poisoning(segment):
            stepped = segment.zero_step()
        if stepped:
            self.maintenance.steps += 1
            self.maintenance.submit("zero", lambda: self._zero_ahead(segment, goal))

    def _reindex(self) -> None:
        """Do one step towards indexes that are absent or damaged, then queue the next: all else goes first."""
        if next(self._index_steps, True) is None:
            self.maintenance.submit("index", self._reindex)

    # -- sealing

    @contextmanager
    def _poisoning(self, segment: OpenSegment) -> Iterator[None]:
        """Fail the log if this block, beside the path of the frames, finds that the segment's file has failed."""
        try:
            yield
        except BaseException:
            if segment.failed is not None:
                self.poison(segment.failed)
            raise

    def seal(self, segment: OpenSegment) -> None:
        """Seal this segment, after those before it: the manifest's end must never pass a segment that is not sealed.

        The next seal makes up for one that failed; but a file that has failed, and all after it, is left to
        the next opening as it is.
        """
        while segment in self.open_segments:
            first = self.open_segments[0]
            if first.failed is not None:
                return
            self._seal_one(first)

    def _seal_one(self, segment: OpenSegment) -> None:
        """Say in the manifest where a segment ends, once every frame in it is durable; then cut its unused space."""
        header = segment.header
        assert header is not None
        with once(segment.zero_lock), segment.zero_lock:
            segment.overtaken = True
        with self._poisoning(segment):
            segment.sync()
        self.maintenance.steps += 1
        record = record_of(segment, header)
        self.store.update(lambda m: with_sealed(m, record))
        self.maintenance.steps += 1
        self.open_segments.remove(segment)
        self._check()
        self.events.emit("walkit.segment.seal", number=segment.number, end_position=segment.end_position)
        segment.seal(header.offset_of(segment.end_position))
        self.maintenance.steps += 1
        write_index(self.storage, self.identity.log_id, record, segment.index)
        self.remove_left()
        self.maintenance.steps += 1
        if self.on_seal is not None:
            self.on_seal()

    def _check(self) -> None:
        """Assert that open segments follow each other; from any thread, at changes of the list."""
        check_order(tuple(self.open_segments))

    def settle(self) -> None:
        """See `Segments`: wait for the seals that the maintenance thread has to make."""
        self.maintenance.drain()

    def close(self, *, poisoned: bool, hung: bool = False) -> None:
        """Seal the open segments and remove the prepared ones; a poisoned log is left to recovery as it is.

        With `hung` files stay open: a write to one of them is under way still, and its number must not be reused
        meanwhile.
        """
        self.maintenance.close()
        self._index_steps.close()
        prepared, self._prepared = self._prepared, None
        try:
            for segment in () if poisoned else list(self.open_segments):
                self.seal(segment)
            if prepared is not None and not poisoned:
                self._drop_prepared(prepared)
        finally:
            with ExitStack() as closing:  # all of them, even if one raises
                for segment in [*self.open_segments, *([prepared] if prepared is not None else [])]:
                    closing.callback(segment.free if hung else segment.close)

    def _drop_prepared(self, segment: OpenSegment) -> None:
        self.store.update(lambda m: without_segment(m, segment.number))
        self.storage.remove(segment_name(segment.number))

    def forget(self) -> None:
        """In a forked child: drop this copy's files without writing anything."""
        for part in (*self.open_segments, self._prepared, self._slots):
            if part is not None:
                part.close()
