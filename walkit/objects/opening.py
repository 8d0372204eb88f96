"""Opening a log on object storage for writing: the steps, in order, and the proof that no two writers acknowledge.

Words: the *log* is the longest row of bulks from 1 on in which each follows the one before (`layout.follows`). A bulk
in it is *settled*: no rule lets a writer replace it, as only stale bulks are replaced. Facts that the proofs use:

- A. Numbers of epochs grow with the manifest, by If-Match, so no two openings share one, and each opening knows every
  epoch before its own.
- B. The first bulk of an epoch is its fence, and is put when its opening has seen every bulk before it.
- C. A writer acknowledges bulk k after it has the answer that its own bulk k is there, and all its bulks before k too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from walkit.commit.ports import Owner
from walkit.errors import (
    LogExhaustedError,
    LogExistsError,
    LogFencedError,
    ObjectStoreError,
)
from walkit.format.layout import EPOCH_MAX
from walkit.format.manifest import Manifest
from walkit.objects.bulks import PARALLEL, Bulk
from walkit.objects.folder import FILES, epoch_of_key
from walkit.objects.layout import (
    CLAIMS_KEY,
    LOG_PREFIX,
    MANIFEST_KEY,
    START,
    BulkHeader,
    Claims,
    Fit,
    LogPlace,
    Stretches,
    claims_of,
    damaged,
    epochs_of,
    fences_of,
    follows,
    foreign,
    number_of_key,
    object_key,
    vouched_place,
)
from walkit.objects.requests import PatientReads, put_own
from walkit.objects.vouched import encoded, manifest_of, refuse_removed
from walkit.record import wall_us
from walkit.segments.manifest_store import check_owner, owner_facts
from walkit.storage.object_store import ObjectBytes

STEPS: Final = ("load", "claim_epoch", "note_epoch", "read_on", "look_after", "fence", "settle", "sweep")
"""The steps of an opening, in order. Each makes its requests through the store alone."""

SWEEP_KEYS: Final = 2000
"""So many keys of a listing are looked at: those of the fences come first, and then bulks that came late."""

Progress = Callable[[int, int], object]


class Opening:
    """One opening for writing. `run` does the steps; then `place` is where the first bulk of the new epoch goes."""

    def __init__(
        self,
        reads: PatientReads,
        *,
        mode: str = "a",
        window: int = 1,
        progress: Progress | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.reads, self.bulks = reads, reads.bulks()
        self.location = reads.store.location
        self.mode, self.owner = mode, owner
        self.window = self.window_before = window
        """How many numbers the new writer may be ahead of its oldest unwritten bulk; and the most of those before."""
        self.progress = progress
        self.epoch = 0
        self.epoch_id = secrets.randbits(64) | 1
        self.created = False
        self.floor = START
        self.stale: str | None = None
        """The tag of the stale bulk that has the next number; None if that number is missing."""
        self.taken = Stretches(Manifest(log_id=0), START)
        """The bulks that were read."""
        self.read = self.frames = self.records = self.bytes = 0
        """Counts of the bulks after the vouched end."""

    @property
    def place(self) -> LogPlace:
        """The end of the log as far as it was read."""
        return self.taken.place

    def run(self) -> None:
        """Do all steps. On an error the log is as it was, but that an epoch number may be used up."""
        for step in STEPS:
            getattr(self, step)()

    def look(self) -> None:
        """Refuse the place of a log that is gone, or is another owner's. Puts nothing."""
        if (found := self.reads.find(MANIFEST_KEY)) is not None:
            return self._take_manifest(found)
        owner_facts(self.owner, self.location)

    # -- step 0

    def load(self) -> None:
        """Read the manifest, or make the one of a new log."""
        found = self.reads.find(MANIFEST_KEY)
        if found is None:
            # The manifest of a log is its first object. So where another one is seen first, the manifest is there
            # when it is read again, unless it was lost.
            others = [key for key in (CLAIMS_KEY, object_key(1)) if self.reads.find(key) is not None]
            found = self.reads.find(MANIFEST_KEY)
            if others and found is None:
                raise damaged(MANIFEST_KEY, f"is missing, and {others[0]} is there", "the manifest", None)
        if found is None:
            new = Manifest(log_id=secrets.randbits(64) | 1, created_us=wall_us())
            facts = owner_facts(self.owner, self.location)
            new, data = encoded(new, self.epoch_id, {"object": 0, "opening": [], **facts})
            tag = put_own(self.reads, MANIFEST_KEY, data, None)
            self.created = tag is not None
            found = self.reads.find(MANIFEST_KEY) if tag is None else ObjectBytes(data, tag)
        if self.mode == "x" and not self.created:
            raise LogExistsError(self.location)
        self._take_manifest(found)

    def _take_manifest(self, found: ObjectBytes | None, log_id: int | None = None) -> None:
        self.manifest = manifest_of(found, self.location, log_id)
        refuse_removed(self.manifest, self.location)
        check_owner(self.manifest, self.location, self.owner)
        assert found is not None
        self.manifest_tag = found.tag
        vouched_place(self.manifest)

    # -- step 1

    def claim_epoch(self) -> None:
        """Put the number and id of the new epoch into the manifest.

        By If-Match, so each number is given once (A). From now on no older writer saves a vouched end: its tag is old,
        and the manifest that it reads back has a newer epoch. So an older writer puts at most AHEAD_MAX more bulks, and
        `fence` ends.
        """
        while True:
            self.epoch = max(epochs_of(self.manifest), default=0) + 1
            if self.epoch > EPOCH_MAX:
                raise LogExhaustedError("epoch", self.epoch, EPOCH_MAX)
            opening = [*self.manifest.extra.get("opening", []), [self.epoch, self.epoch_id]]
            if self._put_manifest({"opening": opening}):
                break
        self.epochs = epochs_of(self.manifest)

    def _put_manifest(self, extra: dict[str, object], **changes: object) -> bool:
        """Replace the manifest; False if another writer has, whose manifest is taken then."""
        log_id = self.manifest.log_id
        after, data = encoded(self.manifest, self.epoch_id, extra, **changes)
        tag = put_own(self.reads, MANIFEST_KEY, data, self.manifest_tag)
        if tag is None:
            self._take_manifest(self.reads.find(MANIFEST_KEY), log_id)
            return False
        self.manifest, self.manifest_tag = after, tag
        return True

    # -- step 2

    def note_epoch(self) -> None:
        """Put the new epoch into the object of claims and floor, and take the floor from it.

        A trim replaces this object, by If-Match, and only with an epoch in it that is not newer than its own. So from
        now on no older writer moves the floor: a number that is missing from here on was not trimmed by one.
        """
        while True:
            found = self.reads.find(CLAIMS_KEY)
            is_new = found is None and not self.manifest.lineage
            before = Claims(log_id=self.manifest.log_id) if is_new else self._claims_of(found)
            after = replace(
                before,
                epoch=self.epoch,
                epoch_id=self.epoch_id,
                nonce=self.epoch_id,
                counter=before.counter + 1,
            )
            tag = None if found is None else found.tag
            if put_own(self.reads, CLAIMS_KEY, after.encode(), tag) is not None:
                break
        self._go_to_vouched(after)

    def _go_to_vouched(self, claims: Claims) -> None:
        self.claims, self.floor = claims, claims.floor
        self.taken = Stretches(self.manifest, max(vouched_place(self.manifest), self.floor))
        if self.place.number > self.floor.number:
            self._check_vouched()

    def follow(self) -> None:
        """Read the log to its end for one who continues it with what another log has, in the epochs of that."""
        self.load()
        self.epochs = epochs_of(self.manifest)
        self.epoch = max(self.epochs, default=0)
        found = self.reads.find(CLAIMS_KEY)
        if found is None and not self.manifest.lineage:
            # The process that made the manifest ended before it put this.
            claims = Claims(log_id=self.manifest.log_id, nonce=self.epoch_id)
            put_own(self.reads, CLAIMS_KEY, claims.encode(), None)
        self._go_to_vouched(self.refuse_newer())
        self.read_on()
        self.look_after()

    def _claims_of(self, found: ObjectBytes | None) -> Claims:
        """Return claims and floor; LogFencedError if a newer opening has noted its epoch there."""
        claims = claims_of(found, self.location, self.manifest.log_id)
        if claims.epoch > self.epoch:
            raise LogFencedError(self.location, claims.epoch)
        return claims

    def _check_vouched(self) -> None:
        """Refuse a log whose last vouched bulk is gone or another one: a lifecycle rule may have deleted objects."""
        header = self.bulks.header(self.place.number)
        if header is not None and header.log_id != self.manifest.log_id:
            raise foreign(object_key(header.number), self.location, self.place.lsn)
        if header is None or header.end != self.place:
            raise damaged(object_key(self.place.number), "is not the vouched end", self.place, header)
        self.taken.sealed_us = header.sealed_us
        self.window_before = max(self.window_before, header.in_flight)

    # -- step 3

    def read_on(self) -> None:
        """Read the log from `place` on, to the first number that is missing or stale.

        `place` is settled: it is the vouched end, whose bulks were acknowledged, or the floor, which no trim moves past
        the vouched end. By induction each bulk that follows is settled, no matter which writer has put it.
        """
        self.stale = None
        with closing(self.bulks.ahead(self.place.number + 1)) as following:
            for bulk in following:
                if bulk is None or not self._take(bulk):
                    return

    def _take(self, bulk: Bulk) -> bool:
        """Go past the bulk with the next number; False if it is stale: then the log ends before it."""
        header = bulk.header
        fit = follows(header, self.place, self.manifest.log_id, self.epochs)
        if fit is Fit.FOREIGN:
            raise foreign(object_key(header.number), self.location, self.place.lsn + 1)
        if fit is Fit.NEWER:
            raise LogFencedError(self.location, header.epoch)
        if fit is Fit.WRONG:
            raise damaged(object_key(header.number), "does not follow the one before it", self.place, header)
        if fit is Fit.STALE:
            self.stale = bulk.tag
            return False
        self.taken.take(header)
        self.stale = None
        self.window_before = max(self.window_before, header.in_flight)
        self.read += 1
        self.frames += not header.is_fence
        self.records += header.records
        self.bytes += header.body_bytes
        if self.progress is not None:
            self.progress(self.bytes, self.bytes)
        return True

    # -- step 4

    def look_after(self) -> None:
        """Refuse a log that continues after the number that is missing or stale; no object is changed then.

        A bulk promises the end of the row that its writer had acknowledged when it sealed it. If one promises a
        position after `place`, the bulk that was missing has been acknowledged since, and is there now, or it is lost.
        A stale bulk of an older writer promises no more: it acknowledged nothing from the fence that it collided with
        on.
        """
        while (promiser := self._promiser()) is not None:
            found = self.bulks.get(self.place.number + 1)
            if found is None or not self._take(found):
                key = object_key(promiser.number)
                raise damaged(self.place.key, f"is missing, and {key} promises it", "a bulk", self.stale)
            self.read_on()

    def _promiser(self) -> BulkHeader | None:
        """Return a bulk after the next number that promises a position after `place`.

        A listing may show less than there is, so the next numbers are looked at, too: the bulk that comes `in_flight`
        after one was sealed after that one was acknowledged.
        """
        following = self.place.number + 1
        numbers = set(range(following + 1, following + 1 + self.window_before))
        listed = map(number_of_key, self.reads.keys_after(LOG_PREFIX.rstrip("/"), self.place.key))
        numbers.update(number for number in listed if number is not None and number > following)
        with ThreadPoolExecutor(PARALLEL, "walkit-bulks") as pool:
            for header in pool.map(self.bulks.header, sorted(numbers, reverse=True)):
                if header is None:
                    continue
                if header.log_id != self.manifest.log_id:
                    raise foreign(object_key(header.number), self.location, self.place.lsn + 1)
                if header.epoch > self.epoch:
                    raise LogFencedError(self.location, header.epoch)
                if header.promised_position > self.place.position:
                    return header
        return None

    # -- step 5

    def fence(self) -> None:
        """Put the fence of the new epoch at the end of the log.

        Proof that no older writer acknowledges a bulk after the fence, at number f:
        - All bulks before f are settled, and this opening has read them. A writer whose bulk f landed before was taken
          by `_take`, and is part of the log; the fence then goes to a later number.
        - A fence that is created finds nothing at f, so an older writer that puts f later collides with it, as a fence
          is never deleted. One that replaces a stale bulk by If-Match excludes that an older writer has replaced it
          meanwhile, and its own If-Match then fails. So no older writer ever gets the answer that its own f is there,
          and it acknowledges neither f nor what is after it (C).
        - It acknowledged all before f that it did acknowledge, and those are in this log.

        Proof that this opening has not missed the bulks of a newer one: if a newer epoch put a bulk at f before, the
        fence collides with it. If that bulk was trimmed, the trimmer had noted its newer epoch in the claims object
        before (step 2), and the look at it after the fence finds that.
        """
        while True:
            header = self._fence_header()
            key, data = object_key(header.number), header.encode()
            if put_own(self.reads, key, data, self.stale, before_repeat=self.refuse_newer) is not None:
                break
            found = self.bulks.get(header.number)
            if found is None:
                self.stale = None  # the stale one is gone: only the trim of a newer epoch deletes
                self.refuse_newer()
            elif self._take(found):
                self.read_on()
                self.look_after()
        self.taken.take(header)
        if self.refuse_newer().floor.number >= header.number:
            raise damaged(CLAIMS_KEY, "has a floor after the fence", header.number, "a later number")

    def _fence_header(self) -> BulkHeader:
        place = self.place
        return BulkHeader(
            log_id=self.manifest.log_id,
            epoch=self.epoch,
            epoch_id=self.epoch_id,
            number=place.number + 1,
            start_position=place.position,
            first_lsn=place.lsn + 1,
            promised_position=place.position,  # all before it was read, so a loss from here on is known as one
            sealed_us=wall_us(),
            body_bytes=0,
            records=0,
            span=0,
            chain=place.chain,
            end_chain=place.chain,
            body_crc=0,
            in_flight=self.window,
        )

    def refuse_newer(self) -> Claims:
        """Return claims and floor; LogFencedError if a newer opening has noted its epoch there."""
        return self._claims_of(self.reads.find(CLAIMS_KEY))

    # -- step 6

    def settle(self) -> None:
        """Put the lineage with the new epoch, and the fence as the vouched end, into the manifest.

        Openings before this one that have no fence in the log never get one: the fence of this epoch has the number
        that they would need, or they have read that number already and find a newer epoch there. So they are dropped
        from the manifest, and bulks of theirs exist nowhere.
        """
        lineage = (*self.manifest.lineage, *self.taken.began)
        extra, changes = self.taken.fields(self.floor)
        if not self._put_manifest({**extra, "opening": []}, **changes, lineage=lineage):
            # Only an opening replaces the manifest after step 1, and each has a newer epoch.
            raise LogFencedError(self.location, max(epochs_of(self.manifest)))

    # -- step 7

    def sweep(self) -> None:
        """Delete what came late, as far as a listing shows it: bulks below the floor, and files that have no name.

        An older writer's bulk that lands below the floor collides with nothing there. It is not part of the log, nor is
        any other at or below the floor but the fences; all those this opening knows, as each is before the vouched end.
        A file of an earlier epoch that had no name when this epoch was noted never gets one (F in `claims_object`).
        A newer opening may be at work by now: what is deleted here is dead for it, too. No error ends an opening here.
        """
        fences, named = fences_of(self.manifest), {key for key, _ in self.claims.files.values()}
        bulks = (
            key
            for key in self.reads.keys_after(LOG_PREFIX.rstrip("/"), "", SWEEP_KEYS)
            if (number := number_of_key(key)) is not None
            and number <= self.floor.number
            and number not in fences
        )
        files = (
            key
            for key in self.reads.keys_after(FILES, "", SWEEP_KEYS)
            if (epoch := epoch_of_key(key)) is not None and epoch < self.epoch and key not in named
        )
        with suppress(ObjectStoreError):
            self.reads.store.delete_many([*bulks, *files])
