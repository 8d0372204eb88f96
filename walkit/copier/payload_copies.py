"""The payload logs that a copy takes along: each is a log, and is copied as one before the copy is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from walkit._internal.arguments import refuse
from walkit.errors import WalkitError
from walkit.format.manifest import Manifest
from walkit.read.claim import Claim, is_due
from walkit.read.payloads import names_of, stored_place
from walkit.read.reader import LogReader
from walkit.recovery.log_scan import Progress
from walkit.storage.address import absolute


@dataclass(frozen=True)
class PayloadCopies:
    """Where the payload logs of a log are, and where their copies come, by their ids."""

    sources: Mapping[int, str] = field(default_factory=dict)
    targets: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, location: str, target: object, payloads: object) -> PayloadCopies:
        """Return what `walkit.copy` is to take along. OptionsError for a place that cannot have it."""
        if payloads is False:
            return cls()
        if payloads is not True and not isinstance(payloads, str | os.PathLike):
            refuse(
                "payloads",
                payloads,
                "True for places beside the copy, or the path or URL of a payload log's copy",
            )
        sources = names_of(manifest, location)
        if payloads is True:
            if not isinstance(target, str | os.PathLike):
                refuse("payloads", True, "a place: the target has no name to put payload logs beside")
            targets = {log_id: absolute(f"{os.fspath(target)}.payloads-{log_id:016x}") for log_id in sources}
        elif len(sources) > 1:
            refuse("payloads", payloads, f"True: the log has {len(sources)} payload logs")
        else:
            targets = dict.fromkeys(sources, absolute(os.fspath(payloads)))
        return cls(sources, targets)

    def named_in(self, location: str) -> dict[int, str]:
        """Return the places of the copies as the manifest of a log at `location` names them: relative, for folders."""
        return {log_id: stored_place(location, place) for log_id, place in self.targets.items()}

    @contextmanager
    def kept(
        self, claimed: Callable[[str, str], AbstractContextManager[Claim]], progress: Progress | None
    ) -> Iterator[Progress | None]:
        """Have claims on the payload logs, which the progress that is yielded renews: no value of the copy goes."""
        if not self.sources:
            yield progress
            return
        with ExitStack() as stack:
            claims = [
                stack.enter_context(claimed(place, self.targets[log_id]))
                for log_id, place in self.sources.items()
            ]

            def move(done: int, total: int) -> None:
                for each in filter(is_due, claims):
                    each.renew()
                if progress is not None:
                    progress(done, total)

            yield move

    def left(self, opened: Callable[[str], LogReader]) -> Iterator[tuple[str, str]]:
        """Yield the places of each payload log and its copy, unless an earlier attempt has copied it whole.

        `opened` opens a log for reading.
        """
        for log_id, place in self.sources.items():
            if not _has_all(opened, self.targets[log_id], place):
                yield place, self.targets[log_id]


NO_PAYLOADS = PayloadCopies()


def _has_all(opened: Callable[[str], LogReader], target: str, place: str) -> bool:
    """Say whether a place has a copy of a log up to its end."""
    try:
        with opened(target) as copied, opened(place) as log:
            is_copy = copied.source.now().view.manifest.log_id == log.source.now().view.manifest.log_id
            return is_copy and copied.durable_lsn >= log.durable_lsn
    except WalkitError:
        return False
