"""Salvage of a log on object storage into a folder: what is intact stays, and every loss is in the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import walkit
from tests.objects.made_log import MadeLog
from tests.support.makers import flipped
from walkit.cli import main
from walkit.errors import LogNotFoundError, OptionsError
from walkit.objects.layout import BULK_HEADER_BYTES, CLAIMS_KEY, MANIFEST_KEY, object_key
from walkit.storage.object_memory import MemoryObjectStore

BULKS = 22
"""Bulk 1 and bulk 12 are fences; each other one has two records."""
Damage = Callable[[MadeLog], object]


def two_epochs() -> MadeLog:
    """A log of two openings, ten bulks each; LSN n has the value n. Its manifest vouches for all of it."""
    made = MadeLog()
    for epoch in range(2):
        if epoch:
            made.fence()
        for _ in range(10):
            made.append([b"%d" % (made.place.lsn + n) for n in (1, 2)])
    made.save()
    return made


def delete(*keys: str) -> Damage:
    return lambda made: made.store.delete_many(keys)


def flip(number: int, offset: int) -> Damage:
    return lambda made: made.put(
        object_key(number), flipped(made.store.get(object_key(number)).data, offset * 8)
    )


def cut(number: int) -> Damage:
    return lambda made: made.put(object_key(number), made.store.get(object_key(number)).data[:-100])


def stale(made: MadeLog) -> None:
    """A bulk that the first writer put after the fence of the second, which never acknowledged anything after it."""
    made.put(object_key(BULKS + 2), made.bulk([b"stale"], made.place._replace(number=BULKS + 1, epoch=1)))


def lost_fence_and_stale(made: MadeLog) -> None:
    made.fence()
    made.put(object_key(BULKS + 2), made.bulk([b"stale"], made.place._replace(epoch=2)))
    delete(object_key(BULKS + 1))(made)


def second_header_after_a_loss(made: MadeLog) -> None:
    flip(6, 50)(made)
    delete(object_key(5))(made)


CASES: dict[str, tuple[Damage, list[tuple[int, int]], int]] = {
    "nothing": (delete(), [], 0),
    "manifest missing": (delete(MANIFEST_KEY), [], 0),
    "claims missing": (delete(CLAIMS_KEY), [], 0),
    "only bulks": (delete(MANIFEST_KEY, CLAIMS_KEY), [], 0),
    "manifest damaged": (lambda made: made.put(MANIFEST_KEY, b"x" * 500), [], 0),
    "claims damaged": (lambda made: made.put(CLAIMS_KEY, b"x" * 500), [], 0),
    "a bulk missing in the middle": (delete(object_key(5)), [(7, 8)], 0),
    "bulks missing in both epochs": (
        delete(object_key(5), object_key(15), object_key(16)),
        [(7, 8), (25, 28)],
        0,
    ),
    "the last bulk missing": (delete(object_key(BULKS)), [(39, 40)], 0),
    "around the second fence": (delete(MANIFEST_KEY, *map(object_key, (11, 12, 13))), [(19, 22)], 0),
    "a fence missing": (delete(MANIFEST_KEY, object_key(12)), [], 0),
    "a fence damaged": (flip(12, 50), [], 0),
    "a frame damaged": (flip(6, BULK_HEADER_BYTES + 80), [(9, 9)], 0),
    "the header of a bulk damaged": (flip(6, 50), [], 0),
    "the header of a bulk damaged, and the one before missing": (second_header_after_a_loss, [(7, 8)], 0),
    "a bulk cut short": (cut(6), [(10, 10)], 0),
    "a stale bulk": (stale, [], 1),
    "a stale bulk, and the fence before it missing": (lost_fence_and_stale, [], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_intact_is_salvaged_and_every_loss_is_reported(case: str, tmp_path: Path) -> None:
    """Damage a log of two epochs: the lost LSNs are named, all others are there, and the new log is whole."""
    damage, lost, stale_bulks = CASES[case]
    made = two_epochs()
    damage(made)
    before = dict(made.store.objects.held)
    report = walkit.salvage(made.store, tmp_path / "log")
    assert [(each.first_lsn, each.last_lsn) for each in report.lost] == lost and report.ok is (not lost)
    missing = {lsn for first, last in lost for lsn in range(first, last + 1)}
    expected = [lsn for lsn in range(1, 41) if lsn not in missing]
    assert ("stale" in case) == any("older writers" in note for note in report.notes) == bool(stale_bulks)
    with walkit.open(tmp_path / "log", "r") as reader:
        assert [(r.lsn, r.value) for r in reader.read()] == [(n, b"%d" % n) for n in expected]
    assert walkit.verify(tmp_path / "log").ok is True and made.store.objects.held == before
    with walkit.open(tmp_path / "log") as log:
        assert log.append(b"new").first_lsn == 41


def test_the_command_salvages_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Salvage a store of files that lost its manifest and a bulk: exit code 1, and the report names the loss."""
    with walkit.open(f"objects:{tmp_path / 'store'}") as log:
        for n in range(5):
            log.append(b"%d" % n)
    walkit.storage.FileObjectStore(tmp_path / "store").delete_many([MANIFEST_KEY, object_key(3)])
    assert main(["salvage", f"objects:{tmp_path / 'store'}", str(tmp_path / "log")]) == 1
    assert "4 of 5 records left; LSN 2 lost" in capsys.readouterr().out
    with walkit.open(tmp_path / "log", "r") as reader:
        assert [r.value for r in reader] == [b"0", b"2", b"3", b"4"]


def test_what_cannot_be_salvaged_is_refused(tmp_path: Path) -> None:
    """Give a folder, a store without bulks, and a target that has files: nothing is written."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(OptionsError, match="salvages a folder"):
        walkit.salvage(tmp_path / "used", tmp_path / "log")
    with pytest.raises(OptionsError, match="has files"):
        walkit.salvage(two_epochs().store, tmp_path / "used")
    with pytest.raises(LogNotFoundError):
        walkit.salvage(MemoryObjectStore(), tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_trimmed_log_and_a_listing_that_lags_are_salvaged(tmp_path: Path) -> None:
    """Lose the claims of a log whose front was trimmed: what is left is there, also bulks that no listing shows."""
    made = two_epochs()
    made.store.delete_many([CLAIMS_KEY, *(object_key(n) for n in range(2, 6))])
    made.store.list_lag = 3
    for n in range(3):
        made.append([b"%d" % (41 + n)])
    report = walkit.salvage(made.store, tmp_path / "log")
    assert report.ok is not True  # trimmed or lost: nothing tells
    assert (report.first_lsn, report.last_lsn, report.unaccounted_lsns) == (9, 43, 8) and not report.lost
