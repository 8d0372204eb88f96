"""The states that a power cut at one moment can leave: how many there are, each by its number, and which to look at.

Every change that no sync covers is lost, kept, or torn in one of so many ways. A state is one choice for each of them;
states are numbered in mixed radix, so a number is enough to make one again, and they can be counted even if they are
far too many to make.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

from walkit.crashlab.coverage import NAMES
from walkit.crashlab.profiles import Profile
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.models import CrashingStorage, PendingChange
from walkit.models.page_cache import KEPT, LOST, CrashOutcome
from walkit.segments.manifest_store import LOCK_NAME
from walkit.storage.object_files import LIFE, LOCK

BIASES = (0.1, 0.5, 0.9)
"""How much survives in a state that is drawn: nearly nothing and nearly everything come up as well as halves."""
DRAWS_PER_STATE = 4
"""Draws for each state wanted, as a draw may repeat an earlier one."""


class Choice:
    """The fates of one change: number 0 is lost, the last one kept, those between are torn."""

    def __init__(self, change: PendingChange, profile: Profile) -> None:
        self.change = change
        self._sectors = change.sectors
        self._grown = profile.size_first
        torn = 0
        if change.kind == "write" and len(change.sectors) > 1 and profile.tears != "no":
            count = len(change.sectors)
            torn = count - 1 if profile.tears == "prefix" else (1 << count) - 2
        self._prefix = profile.tears == "prefix"
        self._empty = change.kind == "write" and change.grows and profile.size_first
        if change.kind == "cell":
            self.ways = change.size + 1
        elif change.kind in ("write", "shorten") and (
            change.file in (LOCK_NAME, CLAIMS_LOCK_NAME, LOCK) or change.file.startswith(LIFE)
        ):
            self.ways = 1  # who holds the lock: for people, and nothing reads it
        elif change.kind == "write" and not change.sectors and not change.grows:
            self.ways = 1  # it changes nothing, be it lost or kept
        else:
            self.ways = 2 + torn + self._empty

    def fate(self, number: int) -> CrashOutcome:
        """Return the fate of this number, from 0 to `ways` - 1."""
        if self.change.kind == "cell":
            return CrashOutcome(kept=number > 0, content=number - 1)
        if number == self.ways - 1:
            return KEPT
        if number == 0:
            return LOST
        if number == 1 and self._empty:
            return CrashOutcome(sectors=frozenset())
        number -= self._empty
        some = self._sectors[:number]
        if not self._prefix:
            some = tuple(s for bit, s in enumerate(self._sectors) if number >> bit & 1)
        return CrashOutcome(sectors=frozenset(some), grown=self._grown)

    def describe(self, number: int) -> str:
        """Return the fate of the change, in words; "" if it is kept."""
        if self.change.kind == "cell":
            kept = number - 1
            if kept == self.change.size - 1:
                return ""
            return f"{self.change.file}: " + (
                "no store arrived" if kept < 0 else f"store {kept} of {self.change.size - 1} is the last"
            )
        if number == self.ways - 1:
            return ""
        if number == 0:
            return f"lost: {self.change}"
        fate = self.fate(number)
        if not fate.sectors:
            return f"zeros: {self.change} has its size and none of its bytes"
        return f"torn: {self.change}, {len(fate.sectors)} of {len(self._sectors)} sectors arrived"


class CrashStates:
    """The states of one moment under a profile, numbered from 0 (all is lost) to `count` - 1 (all is kept)."""

    def __init__(self, storage: CrashingStorage, profile: Profile) -> None:
        self.profile = profile
        self._storage = storage
        self.changes = storage.pending(profile.sector_bytes)
        """The changes that are not durable at this moment."""
        self.choices = [Choice(change, profile) for change in self.changes]
        self._groups = _groups(self.choices, profile)
        self.count = 1
        """How many states there are."""
        for group in self._groups:
            self.count *= group.ways

    def image(self, number: int) -> CrashingStorage:
        """Return a storage as the power cut of this number leaves it."""
        fates = [c.fate(n) for c, n in zip(self.choices, self.fates(number), strict=True)]
        return self._storage.image(fates, sector_bytes=self.profile.sector_bytes, changes=self.changes)

    def fates(self, number: int) -> list[int]:
        """Return the number of each change's fate in a state."""
        found = [0] * len(self.choices)
        for group in self._groups:
            number, digit = divmod(number, group.ways)
            group.put(digit, found)
        return found

    def number(self, digits: Sequence[int]) -> int:
        """Return the number of the state with these digits, one for each group."""
        number = 0
        for group, digit in zip(reversed(self._groups), reversed(digits), strict=True):
            number = number * group.ways + digit
        return number

    def digits(self, number: int) -> list[int]:
        """Return the digits of a state, one for each group of changes that are decided together."""
        found = []
        for group in self._groups:
            number, digit = divmod(number, group.ways)
            found.append(digit)
        return found

    def gentler(self, number: int) -> Iterator[int]:
        """Yield the states that keep one more group of changes whole than this one: to find the change that matters."""
        digits = self.digits(number)
        for index, group in enumerate(self._groups):
            if digits[index] != group.ways - 1:
                yield self.number([*digits[:index], group.ways - 1, *digits[index + 1 :]])

    def describe(self, number: int) -> tuple[str, ...]:
        """Return the changes that were not kept, a line for each."""
        lines = (c.describe(n) for c, n in zip(self.choices, self.fates(number), strict=True))
        return tuple(line for line in lines if line)

    def chosen(self, budget: int, seed: int) -> Iterator[int]:
        """Yield at most so many different states: all of them if they fit, else corners, then draws.

        Corners lose or keep everything, one change, one file, or everything from one change on: most bugs of crashes
        need few changes to be lost (Mohan et al., OSDI 2018). They come in a drawn order, so that few states of many
        points are not the same corner of each.
        """
        chance = random.Random(seed)
        if not budget:
            return
        if self.count <= budget:
            yield from chance.sample(range(self.count), self.count)
            return
        seen: set[int] = set()
        corners = list(self._corners())
        chance.shuffle(corners)
        candidates = [iter(corners), self._draws(chance, budget * DRAWS_PER_STATE)]
        for source in candidates:
            for number in source:
                if len(seen) >= budget:
                    return
                if number not in seen:
                    seen.add(number)
                    yield number

    def _corners(self) -> Iterator[int]:
        whole = [group.ways - 1 for group in self._groups]
        nothing = [0] * len(whole)
        yield self.number(nothing)
        yield self.number(whole)
        files: dict[str, set[int]] = {}
        for index, group in enumerate(self._groups):
            if isinstance(group, _Single):
                files.setdefault(group.file, set()).add(index)
        for its in files.values() if len(files) > 1 else ():
            yield self.number([0 if index in its else way for index, way in enumerate(whole)])
            yield self.number([way if index in its else 0 for index, way in enumerate(whole)])
        for index in range(len(whole)):
            yield self.number([*whole[:index], 0, *whole[index + 1 :]])
            yield self.number([*nothing[:index], whole[index], *nothing[index + 1 :]])
            yield self.number([*whole[:index], *nothing[index:]])
            yield self.number([*nothing[:index], *whole[index:]])

    def _draws(self, chance: random.Random, draws: int) -> Iterator[int]:
        for _ in range(draws):
            bias = chance.choice(BIASES)
            yield self.number([group.draw(chance, bias) for group in self._groups])


class _Single:
    """One change that is decided by itself."""

    def __init__(self, index: int, choice: Choice) -> None:
        self._index = index
        self.file = choice.change.file
        self.ways = choice.ways

    def put(self, digit: int, fates: list[int]) -> None:
        fates[self._index] = digit

    def draw(self, chance: random.Random, bias: float) -> int:
        if self.ways > 2 and chance.random() < 0.5:
            return chance.randrange(self.ways)
        return self.ways - 1 if chance.random() < bias else 0


class _Row:
    """Changes that arrive in their order: digit d keeps those before one of them, of which it may keep a part."""

    def __init__(self, members: list[tuple[int, Choice]]) -> None:
        self._members = members
        # Each member has every fate but the last, which is the first fate of the next one; then all are kept.
        self._starts = [0, *accumulate(max(choice.ways - 1, 0) for _, choice in members)]
        self.ways = self._starts[-1] + 1

    def put(self, digit: int, fates: list[int]) -> None:
        for (index, choice), start in zip(self._members, self._starts, strict=False):
            fates[index] = min(max(digit - start, 0), choice.ways - 1)

    def draw(self, chance: random.Random, bias: float) -> int:
        return min(int(self.ways * chance.random() ** (0.5 / bias)), self.ways - 1)


def _groups(choices: list[Choice], profile: Profile) -> list[_Single | _Row]:
    """Return the changes in groups that are decided apart: rows of those that arrive in order, and single ones."""
    rows: dict[str, list[tuple[int, Choice]]] = {}
    groups: list[_Single | _Row] = []
    for index, choice in enumerate(choices):
        kind = choice.change.kind
        if kind != "cell" and profile.order == "issued":
            rows.setdefault("all", []).append((index, choice))
        elif kind in NAMES and profile.names == "issued":
            rows.setdefault("names", []).append((index, choice))
        else:
            groups.append(_Single(index, choice))
    return [*groups, *(_Row(members) for members in rows.values())]
