"""Effects of a power cut on unsynced changes, by file system and device: an assumption, as an object.

Engines differ less in code than in these assumptions: raft-wal's README compares them (may a sector tear, are
bytes beside a write safe), Pillai et al. (OSDI 2014) measured file systems. A profile states both, so that one
run can be judged under several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from walkit._internal.arguments import check_choice
from walkit._internal.report import Cells, TableReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The unsynced changes that may survive. Synced changes always survive."""

    name: str
    text: str
    """Its model in a sentence."""
    sector_bytes: int = 512
    """A write tears at multiples of so many bytes of its file."""
    tears: Literal["no", "prefix", "any"] = "any"
    """Which sectors of a torn write arrive: all or none, the first ones, or any of them."""
    order: Literal["any", "issued"] = "any"
    """Whether writes arrive in any order, or in the order in which they were issued."""
    names: Literal["any", "issued"] = "any"
    """The same for creations, replacements and removals: a journal keeps their order."""
    size_first: bool = True
    """Whether a file may have its new size before the bytes: they read as zeros then."""


PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile(
            name="contract",
            text="all that walkit.storage.Storage allows: any sectors of any writes, any names, sizes before bytes",
        ),
        Profile(
            name="ext4-ordered",
            text="names in the journal's order, no size before its bytes; overwritten sectors in any order",
            names="issued",
            size_first=False,
        ),
        Profile(
            name="ext4-writeback",
            text="names in the journal's order; a file may have its size, and zeros, before its bytes",
            names="issued",
        ),
        Profile(
            name="pages",
            text="whole pages of 4,096 bytes, as a drive with atomic pages writes them, in any order",
            sector_bytes=4096,
            names="issued",
            size_first=False,
        ),
        Profile(
            name="issued",
            text="everything arrives in the order in which it was issued; the last write may be torn after any sector",
            tears="prefix",
            order="issued",
            names="issued",
            size_first=False,
        ),
    )
}
"""By name. `contract` is the hardest; each of the others is a part of it."""


def profile_of(given: str | Profile) -> Profile:
    """Return the profile of this name, or the one that is given. OptionsError."""
    if isinstance(given, Profile):
        return given
    check_choice(given, PROFILES, "profile", ", or a walkit.crashlab.Profile")
    return PROFILES[given]


@dataclass(frozen=True)
class ProfileTable(TableReport):
    """The profiles and their permissions, as a table."""

    title = "Effects of a power cut on unsynced changes"
    left_columns = 7

    def _head(self) -> Cells:
        return ("profile", "sector", "a write tears", "writes", "names", "size before bytes", "stands for")

    def _cells(self) -> list[Cells]:
        tears = {"no": "never", "prefix": "after any sector", "any": "into any sectors"}
        order = {"any": "in any order", "issued": "as issued"}
        return [
            (
                p.name,
                f"{p.sector_bytes:,} B",
                tears[p.tears],
                order[p.order],
                order[p.names],
                "yes" if p.size_first else "no",
                p.text,
            )
            for p in PROFILES.values()
        ]

    def _facts(self) -> dict[str, object]:
        return {name: p.text for name, p in PROFILES.items()}
