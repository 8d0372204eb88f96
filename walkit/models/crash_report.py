"""The effect of a power cut on a `CrashingStorage`: the report that every crash image carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from walkit._internal.html import table, tag
from walkit.models.page_cache import FileOutcome, Keep


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingChange:
    """One change that no sync has covered: a power cut at this moment may lose it, keep it, or keep parts of it."""

    number: int
    """Changes that were made later have larger ones; only the order means anything."""
    kind: Literal["write", "allocate", "shorten", "create", "replace", "remove", "cell"]
    """`cell` stands for all stores into one shared cell."""
    file: str
    """The file, by its name of now; for a replacement the old name."""
    target: str = ""
    """The new name of a replacement."""
    offset: int = 0
    """Where a write begins; the new size of an allocation or a shortening."""
    size: int = 0
    """Bytes of a write; of a cell, how many contents it has had."""
    sectors: tuple[int, ...] = ()
    """The sectors of a write that change durable bytes, counted from the one in which it begins."""
    grows: bool = False
    """Whether a write or an allocation ends after the file's durable end."""

    def __str__(self) -> str:
        if self.kind == "write":
            return f"write {self.file} [{self.offset:,}, {self.offset + self.size:,})"
        if self.kind in ("allocate", "shorten"):
            return f"{self.kind} {self.file} to {self.offset:,}"
        if self.kind == "cell":
            return f"{self.size} stores into {self.file}"
        return f"{self.kind} {self.file}" + (f" -> {self.target}" if self.target else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class CrashReport:
    """The request for a crash, and the kept and lost changes.

    `files` has one fate for each file that the image holds; `names_kept` and `names_undone` are the creations,
    replacements and removals that no `sync_directory` had covered, as texts, in their order. A file whose creation
    was undone is in `names_undone` only.
    """

    keep: Keep
    seed: int
    torn: bool
    sector_bytes: int
    files: tuple[FileOutcome, ...]
    names_kept: tuple[str, ...]
    names_undone: tuple[str, ...]

    @property
    def lost_nothing(self) -> bool:
        """Whether the image is exactly the storage's content (a crash right after everything was synced)."""
        return not self.names_undone and not any(
            fate.lost or fate.torn or fate.cell not in ("", "kept") for fate in self.files
        )

    def __str__(self) -> str:
        lines = [
            f"power cut: keep={self.keep} seed={self.seed} torn={self.torn} sectors of {self.sector_bytes} B"
        ]
        for fate in self.files:
            if fate.cell:
                lines.append(f"  {fate.name}: cell {fate.cell}")
            elif fate.kept or fate.lost or fate.torn:
                counts = f"{fate.kept} kept, {fate.lost} lost, {fate.torn} torn"
                lines.append(f"  {fate.name}: {counts}, {fate.bytes_lost:,} bytes lost")
        lines += [f"  kept: {change}" for change in self.names_kept]
        lines += [f"  undone: {change}" for change in self.names_undone]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(f.name, f.kept, f.lost, f.torn, f"{f.bytes_lost:,}", f.cell) for f in self.files]
        names = [f"kept: {change}" for change in self.names_kept]
        names += [f"undone: {change}" for change in self.names_undone]
        title = f"Power cut, keep={self.keep}, seed={self.seed}, torn={self.torn}, {self.sector_bytes}-byte sectors"
        head = ("file", "kept", "lost", "torn", "bytes lost", "cell")
        return tag(
            "div",
            tag("b", title),
            table(rows, head, right=(1, 2, 3, 4)),
            tag("ul", *(tag("li", name) for name in names)),
        )
