"""The objects of a log in a world, with what may become of each request; see `MemoryObjectStore`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from walkit.errors import ObjectConflictError, ObjectDeniedError, ObjectThrottledError, ObjectUnknownError
from walkit.objects.layout import CLAIMS_KEY, BulkHeader, Claims, number_of_key
from walkit.simulate.runner import Killed, Life, Runner
from walkit.simulate.world_log import Ledger, Violation
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest

REQUEST_MS = (*(1.0, 2.0, 5.0) * 8, *(30.0,) * 3, 300.0)
"""How long a request is under way before it is done; an answer takes as long again at most."""
LAND_MS = (5.0, 300.0, 6_000.0)
"""So long after the answer was given up a late put or deletion is done."""
THIS_REQUEST = 0.15
"""The chance that a crash or a stall which waits for a request comes in the next one."""
READ_FATES = (
    ObjectFault(before=ObjectUnknownError),
    ObjectFault(before=ObjectThrottledError, retry_after_s=0.05),
)
FATES = (
    *READ_FATES,
    ObjectFault(after=ObjectUnknownError),
    ObjectFault(after=ObjectUnknownError),
    ObjectFault(late=True),
    ObjectFault(late=True),
    ObjectFault(before=ObjectConflictError),
    ObjectFault(after=ObjectConflictError),
)


class Objects:
    """The objects of one log, and the rules for each change of them."""

    def __init__(self, runner: Runner, ledger: Ledger, random: Random) -> None:
        self.runner, self.ledger, self.random = runner, ledger, random
        self.base = MemoryObjectStore(
            name="world",
            list_lag=random.choice((0, 0, 3, 50)),
            page_keys=random.choice((3, 1000)),
            can_list=random.random() < 0.9,
            pause_s=random.choice((0.0, 0.05, 0.5)),
        )
        self.claims: Claims | None = None
        self._changes = 0
        self.writer: Life | None = None
        """The life that has noted the newest epoch."""

    def check_change(self, life: Life) -> None:
        """Judge what a request of this life has changed."""
        held, gone, seen = self.base.objects.held, self.base.objects.gone, self._changes
        self._changes = self.base.objects.changes
        if CLAIMS_KEY not in held or self._changes == seen:
            return
        before, after = self.claims, Claims.decode(held[CLAIMS_KEY].data)
        self.claims = after
        if before is None or after.epoch > before.epoch:
            self.writer = life
        elif after.epoch < before.epoch or (
            published(after) != published(before) and life is not self.writer
        ):
            self._report(f"{life.process.name} publishes {published(after)} after epoch {before.epoch}")
        named = {key for key, _ in after.files.values()}
        for key, was in gone.items():
            number = number_of_key(key)
            if was.since > seen and (
                key in named
                or (
                    number is not None
                    and (number > after.floor.number or BulkHeader.decode(was.data).is_fence)
                )
            ):
                self._report(f"{life.process.name} deletes {key}, and the floor is {after.floor}")

    def _report(self, text: str) -> None:
        self.ledger.found = self.ledger.found or Violation("fenced", text)


def published(claims: Claims) -> tuple[object, ...]:
    """Return what only the newest writer changes."""
    return claims.floor, claims.low_watermark, claims.checkpoint_lsn, claims.segments, claims.files


class Bucket:
    """A way to the objects, with faults. It stands for the disk of a process: see `Disk`."""

    def __init__(self, objects: Objects) -> None:
        self.objects, self.random = objects, objects.random
        self.away = 0
        """How many faults keep everyone from it."""
        self.trouble = 0.0
        """The part of the requests that go wrong."""
        self.fails_next_write = False
        self.on_write: Callable[[], object] | None = None
        """Called once, while one of the next requests is under way."""

    def free(self) -> None:
        """Nothing is locked, and each put that was done is durable."""

    cut_power = free

    def come_back(self) -> None:
        """Be there again."""
        self.away -= 1

    def view_for(self, life: Life) -> BucketView:
        """Return it as one life of a process sees it."""
        return BucketView(self, life)


class BucketView:
    """A bucket as one life of a process sees it. `place` is the store that is given to walkit."""

    def __init__(self, disk: Bucket, life: Life) -> None:
        self.disk, self._life, self._runner = disk, life, disk.objects.runner
        self.faults = Counter[str]()
        """By name, how many there are: it "fails" for this process, or is "read-only" for it."""
        self.files: list[str] = []
        """No file is ever open."""
        self.place = replace(disk.objects.base, plan=self._fate, sleep=self._answered)

    def _fate(self, request: ObjectRequest) -> ObjectFault:
        bucket, random, is_put = self.disk, self.disk.random, request.method.startswith(("put", "delete"))
        took_ms = random.choice(REQUEST_MS)
        if bucket.on_write is not None and random.random() < THIS_REQUEST:
            act, bucket.on_write = bucket.on_write, None
            self._runner.after(took_ms * random.random(), act)
        self._wait(took_ms)
        if bucket.away or (self.faults["fails"] and random.random() < 0.7):
            return ObjectFault(before=ObjectUnknownError)
        if self.faults["read-only"] and is_put:
            return ObjectFault(before=ObjectDeniedError)
        fate = ObjectFault()
        if (is_put and bucket.fails_next_write) or random.random() < bucket.trouble:
            self._runner.count("requests")
            fate = random.choice(FATES if request.method.startswith("put") else READ_FATES)
            bucket.fails_next_write &= not is_put
        if fate.late:
            self._runner.after(random.choice(LAND_MS), self._land)
        return replace(fate, answer_s=random.choice(REQUEST_MS) / 1000)

    def _answered(self, seconds: float) -> None:
        self.disk.objects.check_change(self._life)
        self._wait(seconds * 1000)

    def _land(self) -> None:
        self.place.land()
        self.disk.objects.check_change(self._life)

    def _wait(self, ms: float) -> None:
        if self._life.is_over:
            raise Killed
        if self._runner.here() is not None:
            self._runner.sleep(ms)
