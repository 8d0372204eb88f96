"""From a log's bytes to a recovery plan, by any policy: what opening and `walkit.repair` begin with."""

from __future__ import annotations

from walkit.errors import LogExhaustedError
from walkit.format.durable import DurableMark
from walkit.format.layout import EPOCH_MAX
from walkit.format.manifest import Manifest
from walkit.log.recovery import RecoveryPlan, make_plan
from walkit.log.scan import Progress, look_around, scan_log
from walkit.storage.base import Storage


def plan_recovery(
    storage: Storage,
    manifest: Manifest,
    mark: DurableMark,
    policy: str,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> RecoveryPlan:
    """Look at a log and decide by this policy; `deep` reads the frames of sealed segments, too. Changes nothing.

    Raises what `scan_log`, `make_plan` and `make_salvage_plan` raise.
    """
    if policy == "salvage":
        # What looks at wrecks is half of what an opening would have to load.
        from walkit.log.salvage import make_salvage_plan

        return make_salvage_plan(storage, look_around(storage, manifest, mark, salvage=True), progress)
    findings = scan_log(storage, manifest, mark, deep=deep or policy == "absolute", progress=progress)
    return make_plan(findings, policy)


def next_epoch(manifest: Manifest) -> int:
    """Return the number of the epoch that an opening for writing begins; LogExhaustedError where none is left."""
    number = max((e.number for e in manifest.lineage), default=0) + 1
    if number > EPOCH_MAX:
        raise LogExhaustedError("epoch", number, EPOCH_MAX)
    return number
