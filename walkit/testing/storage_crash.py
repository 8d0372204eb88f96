"""The suite of a storage that can crash: what must survive a power cut, what may, and what must not be invented."""

from __future__ import annotations

from pathlib import Path

from walkit.models import CrashingStorage, FaultyStorage
from walkit.models.page_cache import Keep
from walkit.storage import LockHolder, StorageFile
from walkit.testing.storage_hooks import Refused, all_files

EIO = 5
SEEDS = range(60)
KEEPS: tuple[Keep, ...] = ("none", "all", "random")


class CrashTests:
    """Override `make_crashable` where the storage under test is another than `CrashingStorage`."""

    def make_crashable(self, place: Path) -> CrashingStorage:
        """Return a storage that is not created yet."""
        return CrashingStorage()

    def with_durable(self, place: Path, data: bytes = b"") -> tuple[CrashingStorage, StorageFile]:
        """Return a created storage with one file, "file", that a power cut cannot harm."""
        storage = self.make_crashable(place)
        storage.create()
        file = storage.open("file", "create")
        file.write(0, [data])
        file.sync()
        storage.sync_directory()
        return storage, file

    def test_what_is_not_synced_may_be_lost_or_kept(self, tmp_path: Path) -> None:
        """`keep="none"` loses the unsynced write and its growth, keep="all" keeps both."""
        storage, file = self.with_durable(tmp_path, b"durable")
        file.write(0, [b"DUR"])
        file.write(7, [b" tail"])
        assert content(storage.crash(keep="none")) == b"durable"
        assert content(storage.crash(keep="all")) == b"DURable tail"

    def test_sync_covers_what_was_written_before_it(self, tmp_path: Path) -> None:
        """After sync every image of every kind holds the bytes; what comes after the sync is not covered."""
        storage, file = self.with_durable(tmp_path)
        file.write(0, [b"before"])
        file.allocate(100)
        file.sync()
        file.write(6, [b"after"])
        assert content(storage.crash(keep="none")) == b"before" + bytes(94)
        for seed in SEEDS:
            assert content(storage.crash(keep="random", seed=seed))[:6] == b"before"

    def test_a_sync_covers_only_the_writes_before_it(self, tmp_path: Path) -> None:
        """A sync hangs, a write happens meanwhile, the sync returns: the write is not durable by it."""
        storage, file = self.with_durable(tmp_path)
        file.write(0, [b"1111"])
        memory_file = storage.open("file", "write")
        mark = memory_file.sync_mark()
        file.write(2, [b"2222"])
        memory_file.sync_up_to(mark)
        assert content(storage.crash(keep="none")) == b"1111"
        assert content(storage.crash(keep="all")) == b"112222"

    def test_a_synced_write_covers_its_own_bytes_only(self, tmp_path: Path) -> None:
        """Bytes written earlier, before and after it, can still be lost after write(sync=True)."""
        storage, file = self.with_durable(tmp_path)
        file.write(0, [b"early"])
        file.write(5, [b" own "], sync=True)
        file.write(10, [b"late"])
        assert content(storage.crash(keep="none")) == bytes(5) + b" own "
        assert content(storage.crash(keep="all")) == b"early own late"

    def test_an_older_write_never_covers_a_newer_synced_one(self, tmp_path: Path) -> None:
        """Unsynced bytes lie under, over the edges and inside a synced write: its bytes are in every image."""
        storage, file = self.with_durable(tmp_path, b"." * 3000)
        for offset, size in [(0, 3000), (900, 200), (1000, 1000), (1200, 100), (1900, 300)]:
            file.write(offset, [b"o" * size])
        file.write(1000, [b"N" * 1000], sync=True)
        file.write(100, [b"o" * 100])
        for keep in KEEPS:
            for seed in SEEDS:
                image = content(storage.crash(keep=keep, seed=seed))
                assert image[1000:2000] == b"N" * 1000
                assert set(image) <= set(b".oN")
        assert set(content(storage.crash(keep="none"))[:1000]) == set(b".")

    def test_writes_tear_at_sectors(self, tmp_path: Path) -> None:
        """Each sector of an unsynced write is old or new as a whole; over the seeds all three fates come up."""
        storage, file = self.with_durable(tmp_path, b"." * 4096)
        file.write(300, [b"N" * 3000])
        starts = [300, *range(512, 3300, 512)]
        edges = list(zip(starts, [*starts[1:], 3300], strict=True))
        seen = set()
        for seed in range(200):
            image = content(storage.crash(keep="random", seed=seed))
            sectors = [image[start:end] for start, end in edges]
            assert all(len(set(sector)) == 1 for sector in sectors)
            seen.add("".join(chr(sector[0]) for sector in sectors))
            assert (image[:300], image[3300:]) == (b"." * 300, b"." * 796)
        assert {"." * len(edges), "N" * len(edges)} < seen
        assert len(seen) > 10

    def test_untorn_and_single_sector_writes_are_whole(self, tmp_path: Path) -> None:
        """With torn=False no write is cut, and a write inside one sector never is."""
        storage, file = self.with_durable(tmp_path, b"." * 2048)
        file.write(0, [b"A" * 1000])
        file.write(1024, [b"B" * 512])
        fates = set()
        for seed in range(100):
            whole = content(storage.crash(keep="random", seed=seed, torn=False))
            assert whole[:1000] in (b"." * 1000, b"A" * 1000)
            torn = content(storage.crash(keep="random", seed=seed))
            assert torn[1024:1536] in (b"." * 512, b"B" * 512)
            fates.add((whole[0], torn[1024]))
        assert len(fates) == 4

    def test_a_torn_growth_can_leave_zeros_or_a_short_file(self, tmp_path: Path) -> None:
        """An unsynced write at the end can leave the size without the bytes, and some bytes without the size."""
        storage, file = self.with_durable(tmp_path)
        file.write(0, [b"N" * 2048])
        images = [content(storage.crash(keep="random", seed=seed)) for seed in range(200)]
        assert {len(image) for image in images} == {0, 512, 1024, 1536, 2048}
        assert all(set(image) <= set(b"\0N") for image in images)
        assert any(image[:512] == bytes(512) and b"N" in image for image in images)
        assert any(len(image) == 2048 and image[1536:] == bytes(512) for image in images)

    def test_space_and_cuts_can_be_undone(self, tmp_path: Path) -> None:
        """An allocation and a shortening are lost or kept until a sync."""
        storage, file = self.with_durable(tmp_path, b"0123456789")
        file.shorten(4)
        file.allocate(20)
        outcomes = {content(storage.crash(keep="random", seed=seed)) for seed in SEEDS}
        kept, lost = b"0123" + bytes(16), b"0123456789"
        assert outcomes == {lost, kept, lost + bytes(10), b"0123"}
        assert (content(storage.crash(keep="none")), content(storage.crash(keep="all"))) == (lost, kept)
        file.sync()
        assert content(storage.crash(keep="none")) == kept

    def test_a_synced_write_survives_a_pending_cut(self, tmp_path: Path) -> None:
        """Shortened without sync, then written after the new end with sync: the written bytes are in every image."""
        storage, file = self.with_durable(tmp_path, b"0123456789")
        file.write(0, [b"ab"])
        file.write(3, [b"cut"])
        file.shorten(4)
        file.write(6, [b"XY"], sync=True)
        assert file.read(0, 100) == b"ab2c\0\0XY"
        assert content(storage.crash(keep="all")) == b"ab2c\0\0XY"
        assert content(storage.crash(keep="none")) == b"0123\0\0XY"
        for keep in KEEPS:
            for seed in SEEDS:
                assert content(storage.crash(keep=keep, seed=seed))[6:] == b"XY"

    def test_files_are_synced_one_by_one(self, tmp_path: Path) -> None:
        """A sync of one file says nothing about another, and closing a file syncs nothing."""
        storage, file = self.with_durable(tmp_path)
        other = storage.open("other", "create")
        storage.sync_directory()
        file.write(0, [b"lost"])
        other.write(0, [b"kept"])
        other.sync()
        file.close()
        image = storage.crash()
        assert (content(image), content(image, "other")) == (b"", b"kept")

    def test_names_need_their_folder_synced(self, tmp_path: Path) -> None:
        """A synced file is missing when its folder was not synced; syncing another folder does not help."""
        storage, _ = self.with_durable(tmp_path)
        file = storage.open("sub/new", "create")
        file.write(0, [b"data"], sync=True)
        storage.sync_directory()
        assert storage.crash().names() == ["file"]
        assert all_files(storage.crash(keep="all")) == ["file", "sub/new"]
        storage.sync_directory("sub")
        assert content(storage.crash(), "sub/new") == b"data"

    def test_a_removal_can_be_undone(self, tmp_path: Path) -> None:
        """A removed file is back after a power cut, with its durable bytes, until the folder is synced."""
        storage, file = self.with_durable(tmp_path, b"data")
        file.write(0, [b"DATA"])
        storage.remove("file")
        assert content(storage.crash()) == b"data"
        assert {tuple(storage.crash(keep="random", seed=seed).names()) for seed in SEEDS} == {(), ("file",)}
        storage.sync_directory()
        assert storage.crash().names() == []

    def test_a_replacement_leaves_the_old_or_the_new(self, tmp_path: Path) -> None:
        """The target is never missing or mixed; both come up; its folder's sync makes it the new one."""
        storage, _ = self.with_durable(tmp_path, b"old")
        new = storage.open("file.tmp", "create")
        new.write(0, [b"new"])
        new.sync()
        storage.replace("file.tmp", "file")
        images = [storage.crash(keep="random", seed=seed) for seed in SEEDS]
        assert {content(image) for image in images} == {b"old", b"new"}
        assert {tuple(image.names()) for image in images} == {("file",), ("file", "file.tmp")}
        assert all(content(image, "file.tmp") == b"new" for image in images if len(image.names()) == 2)
        storage.sync_directory()
        assert storage.crash().names() == ["file"]
        assert content(storage.crash()) == b"new"

    def test_an_unsynced_file_renamed_durably_is_empty(self, tmp_path: Path) -> None:
        """Rename and folder sync without a sync of the file: the name is new and the bytes may be lost."""
        storage, _ = self.with_durable(tmp_path, b"old")
        new = storage.open("file.tmp", "create")
        new.write(0, [b"new"])
        storage.replace("file.tmp", "file")
        storage.sync_directory()
        assert content(storage.crash()) == b""

    def test_a_move_between_folders_is_whole(self, tmp_path: Path) -> None:
        """A file moved between folders has just one of its names in every image."""
        storage, _ = self.with_durable(tmp_path, b"data")
        storage.replace("file", "sub/file")
        storage.sync_directory()
        names = {tuple(all_files(storage.crash(keep="random", seed=seed))) for seed in SEEDS}
        assert names == {("file",), ("sub/file",)}
        storage.sync_directory("sub")
        assert all_files(storage.crash()) == ["sub/file"]
        storage.replace("sub/file", "file")
        storage.replace("file", "sub/again")
        storage.sync_directory("sub")
        for keep in KEEPS:
            assert all_files(storage.crash(keep=keep)) == ["sub/again"]
        for name in ("first", "second"):
            storage.open(name, "create").close()
        storage.sync_directory()
        for source, onto in (("first", "way"), ("second", "way"), ("way", "sub/second")):
            storage.replace(source, onto)  # the first file is replaced, and the name of both is free again
        storage.sync_directory("sub")
        assert all_files(storage.crash(keep="all")) == ["sub/again", "sub/second"]
        assert all_files(storage.crash(keep="none")) == ["first", "sub/again", "sub/second"]

    def test_cells_hold_anything_or_nothing(self, tmp_path: Path) -> None:
        """A cell is lost, at its newest, or at any earlier content after a power cut; never at bytes not stored."""
        storage, _ = self.with_durable(tmp_path)
        cell = storage.cell("cell", 8, writable=True)
        assert cell is not None
        storage.sync_directory()
        stored = [b"%08d" % turn for turn in range(5)]
        for value in stored:
            cell.write(0, value)
        lost = storage.crash().cell("cell", 8, writable=False)
        assert lost is not None
        assert lost.read() == bytes(8)
        assert content(storage.crash(keep="all"), "cell") == stored[-1]
        seen = {content(storage.crash(keep="random", seed=seed), "cell") for seed in range(200)}
        assert seen == {b"", bytes(8), *stored}

    def test_a_cell_is_durable_only_through_its_file(self, tmp_path: Path) -> None:
        """A sync of a cell's file makes its content durable; opening a plain file as a cell changes nothing of it."""
        storage, file = self.with_durable(tmp_path, b"durable!")
        cell = storage.cell("cell", 8, writable=True)
        assert cell is not None
        cell.write(0, b"synced")
        storage.open("cell", "read").sync()
        storage.sync_directory()
        cell.write(0, b"later.")
        assert content(storage.crash(), "cell") == b"synced\0\0"
        file.write(0, [b"UNSYNCED"])
        assert storage.cell("file", 8, writable=False) is not None
        assert content(storage.crash()) == b"durable!"
        report = storage.crash(keep="all").crash_report
        assert report is not None
        assert {fate.name: fate.cell for fate in report.files} == {"cell": "kept", "file": ""}

    def test_images_are_independent(self, tmp_path: Path) -> None:
        """Image and original continue apart; the same seed gives the same image; an image's locks are free."""
        storage, file = self.with_durable(tmp_path, b"durable")
        assert not isinstance(storage.lock("lock"), LockHolder)
        file.write(0, [b"x" * 2000])
        images = [storage.crash(keep="random", seed=7) for _ in range(2)]
        assert content(images[0]) == content(images[1])
        assert storage.is_locked("lock")
        assert not images[0].is_locked("lock")
        images.append(storage.crash())
        before = content(images[0])
        file.write(0, [b"original"], sync=True)
        images[1].open("file", "write").write(0, [b"image"], sync=True)
        assert content(images[0]) == before
        assert content(storage)[:8] == b"original"
        assert content(images[1])[:5] == b"image"
        assert content(images[0].crash(keep="none")) == before
        assert content(images[2]) == b"durable"

    def test_a_failed_sync_looks_clean(self, tmp_path: Path) -> None:
        """Reads still show the bytes, later syncs do not write them, a crash and drop_cached show the old ones."""
        storage, _ = self.with_durable(tmp_path, b"durable")
        faulty = FaultyStorage(storage)
        faulty.fail("sync", "file")
        file = faulty.open("file", "write")
        file.write(0, [b"FAILED!"])
        with Refused(EIO):
            file.sync()
        assert file.read(0, 100) == b"FAILED!"
        file.sync()
        file.write(7, [b" later"], sync=True)
        for keep in KEEPS:
            assert content(storage.crash(keep=keep)) == b"durable later"
        assert file.read(0, 100) == b"FAILED! later"
        file.drop_cached()
        assert file.read(0, 100) == b"durable later"

    def test_dropping_the_cache_keeps_what_waits_for_a_sync(self, tmp_path: Path) -> None:
        """After a failed sync, bytes written since survive dropping the clean pages, and can be synced."""
        storage, _ = self.with_durable(tmp_path, b"durable")
        faulty = FaultyStorage(storage)
        faulty.fail("sync")
        file = faulty.open("file", "write")
        file.write(0, [b"FAILED!"])
        with Refused(EIO):
            file.sync()
        file.write(2, [b"xx"])
        file.drop_cached()
        assert file.read(0, 100) == b"duxxble"
        file.sync()
        assert content(storage.crash()) == b"duxxble"

    def test_a_failed_synced_write_looks_clean(self, tmp_path: Path) -> None:
        """As a failed sync: its own bytes and all that waited for a sync look clean; what comes later is synced."""
        storage, _ = self.with_durable(tmp_path, b"durable")
        faulty = FaultyStorage(storage)
        faulty.fail("synced_write")
        file = faulty.open("file", "write")
        file.write(0, [b"DUR"])
        with Refused(EIO):
            file.write(2, [b"??????"], sync=True)
        assert file.read(0, 100) == b"DU??????"
        file.write(6, [b"E"])
        file.sync()
        assert content(storage.crash()) == b"durablE"
        file.drop_cached()
        assert file.read(0, 100) == b"durablE\0"

    def test_what_failed_may_have_landed(self, tmp_path: Path) -> None:
        """With landed=True the error is reported and the bytes are durable all the same: an unknown outcome."""
        storage, _ = self.with_durable(tmp_path)
        faulty = FaultyStorage(storage)
        faulty.fail("sync", landed=True)
        faulty.fail("synced_write", landed=True)
        file = faulty.open("file", "write")
        file.write(0, [b"one "])
        with Refused(EIO):
            file.sync()
        with Refused(EIO):
            file.write(4, [b"two"], sync=True)
        assert content(storage.crash()) == b"one two"

    def test_a_killed_process_loses_nothing(self, tmp_path: Path) -> None:
        """`process_kill` keeps unsynced bytes, names and cells readable, frees locks, and leaves them losable later."""
        storage, file = self.with_durable(tmp_path, b"durable")
        cell = storage.cell("cell", 4, writable=True)
        assert cell is not None
        cell.write(0, b"cell")
        assert not isinstance(storage.lock("lock"), LockHolder)
        file.write(0, [b"UNSYNCED"])
        storage.open("new", "create").write(0, [b"new"])
        image = storage.process_kill()
        assert image.names() == storage.names()
        assert (content(image), content(image, "new"), content(image, "cell")) == (
            b"UNSYNCED",
            b"new",
            b"cell",
        )
        assert not image.is_locked("lock")
        assert image.location != storage.location
        assert content(image.crash()) == b"durable"
        assert image.crash().names() == ["file"]
        reopened = image.open("file", "write")
        reopened.sync()
        image.sync_directory()
        assert content(image.crash()) == b"UNSYNCED"
        assert content(storage.crash()) == b"durable"

    def test_the_report_counts_what_happened(self, tmp_path: Path) -> None:
        """The report of an image names each file's changes and each change of names as kept, lost or undone."""
        storage, file = self.with_durable(tmp_path, b"durable")
        assert storage.crash_report is None
        clean = storage.crash().crash_report
        assert clean is not None
        assert clean.lost_nothing
        file.write(0, [b"x" * 100])
        file.allocate(200)
        storage.open("new", "create")
        lost, kept = storage.crash().crash_report, storage.crash(keep="all").crash_report
        assert lost is not None
        assert kept is not None
        fate = lost.files[0]
        assert (fate.name, fate.kept, fate.lost, fate.torn, fate.bytes_lost) == ("file", 0, 2, 0, 100)
        assert (lost.names_kept, lost.names_undone) == ((), ("create new",))
        assert (kept.files[0].kept, kept.names_kept, kept.lost_nothing) == (2, ("create new",), True)
        assert not lost.lost_nothing
        assert "create new" in str(lost)
        assert "create new" in lost._repr_html_()


def content(storage: CrashingStorage, name: str = "file") -> bytes:
    """Return all bytes of a file."""
    file = storage.open(name, "read")
    return file.read(0, file.size())
