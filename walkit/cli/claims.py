"""`walkit claims`: what consumers in other processes need of a log, and the removal of one whose consumer is gone."""

from __future__ import annotations

import argparse
from typing import Any

from walkit._internal.text import aligned, counted
from walkit.cli.output import publish
from walkit.objects.entrance import folder_at
from walkit.segments.consumer_files import ClaimFact, claim_facts, drop_claim
from walkit.segments.manifest_store import load_manifest


def claims(args: argparse.Namespace) -> int:
    """List the claims on a log, after dropping one on request. Returns 1 for one that is not there or not readable."""
    storage = folder_at(args.log)
    dropped = None if args.drop is None else drop_claim(storage, args.drop)
    found = claim_facts(storage, load_manifest(storage))

    def lines() -> list[str]:
        said = [] if dropped is None else [f"{'dropped' if dropped else 'there is no'} claim {args.drop!r}"]
        rows = [_row(fact) for fact in found]
        headers = ("claim", "state", "first LSN needed", "lease until", "owner", "label")
        listed = aligned(headers, rows, right=(2,)) if rows else []
        faults = [f"problem: {fact.fault}" for fact in found if fact.fault is not None]
        return [f"{counted(len(found), 'claim')} on {storage.location}", *said, *listed, *faults]

    def plain() -> dict[str, Any]:
        return {"log": storage.location, "dropped": dropped, "claims": [_plain(fact) for fact in found]}

    publish("claims", lines, plain, as_json=args.json, out=args.out)
    return 1 if dropped is False or any(fact.fault is not None for fact in found) else 0


def _row(fact: ClaimFact) -> tuple[str, ...]:
    first = "?" if fact.first_lsn is None else f"{fact.first_lsn:,}"
    return fact.name, fact.state, first, fact.lease_until, fact.owner or "?", fact.label


def _plain(fact: ClaimFact) -> dict[str, Any]:
    return {
        "name": fact.name,
        "state": fact.state,
        "first_lsn": fact.first_lsn,
        "lease_until_us": fact.lease_until_us,
        "owner": fact.owner,
        "label": fact.label,
        "fault": fact.fault,
    }
