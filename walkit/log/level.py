"""Which durability level the last opening of a log had: the manifest says where it was "none" (FORMAT.md, `extra`)."""

from __future__ import annotations

from walkit._internal.arguments import refuse
from walkit.format.manifest import Manifest
from walkit.segments.manifest_store import ManifestStore

LEVEL_KEY = "durability"


def level_of(manifest: Manifest) -> str:
    """Return the level of the last opening for writing, as far as the manifest says: "" or "none"."""
    return "none" if manifest.extra.get(LEVEL_KEY) == "none" else ""


def note_level(store: ManifestStore, durability: str) -> None:
    """Say in the manifest, durably, that this opening has the level "none", or that it no longer is so.

    For readers of the log without its writer: its acknowledgements promise nothing. The manifest is written only
    where that changes, so an opening at another level costs nothing after one like it.
    """
    now = "none" if durability == "none" else ""
    manifest = store.current
    if level_of(manifest) == now:
        return
    extra = {key: value for key, value in manifest.extra.items() if key != LEVEL_KEY}
    if now:
        extra[LEVEL_KEY] = now
    store.update(lambda m: m.next(extra=extra), opening=True)


def require_promises(durability: str) -> None:
    """OptionsError for the level "none": no replica can follow what promises nothing."""
    if durability == "none":
        text = "replication needs 'sync' or 'interval', so that no replica is ahead of its primary"
        refuse(
            "durability", durability, f"{text}; a closed log needs one more opening with either", durability
        )
