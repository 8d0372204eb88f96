"""Random operations on storages, by Hypothesis: one machine compares two storages, one holds crashes to their promise.

Import it where hypothesis is installed; a test module makes a `TestCase` of a subclass::

    class MyComparison(StorageComparison):
        def make_storages(self):
            return MyStorage(...), CrashingStorage()


    TestMyComparison = MyComparison.TestCase
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from walkit.errors import StorageError
from walkit.models import CrashingStorage
from walkit.models.page_cache import Keep
from walkit.storage import LockHolder, Storage, StorageFile
from walkit.storage.io_errors import parent_folder
from walkit.testing.storage_hooks import all_files

NAMES = ("a", "b", "c", "sub/a", "sub/b", "x/y/a")
FOLDERS = ("", "sub", "x/y")
names = st.sampled_from(NAMES)
offsets = st.integers(0, 3000)
pieces = st.lists(
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(1, 255), st.integers(0, 1500)), max_size=4
)


class StorageComparison(RuleBasedStateMachine):
    """Does the same random operations, without crashes, to two storages, and compares all answers and errors."""

    def make_storages(self) -> tuple[Storage, Storage]:
        """Return two storages that are not created yet."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        """Create both storages."""
        self.both = self.make_storages()
        self.files: dict[str, tuple[StorageFile, StorageFile]] = {}
        for storage in self.both:
            storage.create()

    def compare(self, ask: Callable[[int], object]) -> object:
        """Ask both storages (0 and 1) and return the answer, which has to be the same, errno included."""
        answers = []
        for side in (0, 1):
            try:
                answers.append(ask(side))
            except StorageError as error:
                answers.append(("refused", error.errno, error.name))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(name=names)
    def create(self, name: str) -> None:
        """Make a file, or be refused."""
        self._open(name, lambda side: self.both[side].open(name, "create"))

    @rule(name=names)
    def reopen(self, name: str) -> None:
        """Open a file that may not be there."""
        self._open(name, lambda side: self.both[side].open(name, "write"))

    @rule(name=names, offset=offsets, buffers=pieces, sync=st.booleans())
    def write(self, name: str, offset: int, buffers: list[bytes], sync: bool) -> None:
        """Write to an open file, also one that was removed or replaced since."""
        if name in self.files:
            self.compare(lambda side: self.files[name][side].write(offset, buffers, sync=sync))

    @rule(name=names, offset=offsets, size=st.integers(0, 5000))
    def read(self, name: str, offset: int, size: int) -> None:
        """Read from an open file."""
        if name in self.files:
            self.compare(lambda side: self.files[name][side].read(offset, size))

    @rule(name=names, size=st.integers(0, 8000))
    def allocate(self, name: str, size: int) -> None:
        """Reserve space."""
        if name in self.files:
            self.compare(lambda side: self.files[name][side].allocate(size))

    @rule(name=names, size=st.integers(0, 8000))
    def shorten(self, name: str, size: int) -> None:
        """Cut a file."""
        if name in self.files:
            self.compare(lambda side: self.files[name][side].shorten(size))

    @rule(name=names)
    def sync_and_drop(self, name: str) -> None:
        """Sync a file and drop its pages."""
        if name in self.files:
            self.compare(lambda side: self.files[name][side].sync())
            self.compare(lambda side: self.files[name][side].drop_cached())

    @rule(name=names)
    def close(self, name: str) -> None:
        """Close a file; it stays known, so that later calls on it are refused by both."""
        if name in self.files:
            self.compare(lambda side: self.files[name][side].close())

    @rule(source=names, onto=names)
    def replace(self, source: str, onto: str) -> None:
        """Rename."""
        self.compare(lambda side: self.both[side].replace(source, onto))

    @rule(name=names)
    def remove(self, name: str) -> None:
        """Remove."""
        self.compare(lambda side: self.both[side].remove(name))

    @rule(folder=st.sampled_from(FOLDERS))
    def sync_directory(self, folder: str) -> None:
        """Sync a folder that may not be there."""
        self.compare(lambda side: self.both[side].sync_directory(folder))

    @rule(name=names)
    def take_and_release(self, name: str) -> None:
        """Take a lock on any name, ask about it, release it, and remove its file: its bytes are the backend's own."""

        def ask(side: int) -> object:
            storage = self.both[side]
            lock = storage.lock(f"{name}.lock")
            assert not isinstance(lock, LockHolder)
            answers = (
                storage.is_locked(f"{name}.lock"),
                isinstance(storage.lock(f"{name}.lock"), LockHolder),
            )
            lock.release()
            storage.remove(f"{name}.lock")
            return answers, storage.is_locked(f"{name}.lock")

        self.compare(ask)

    @rule(name=names, offset=st.integers(-2, 40), data=st.binary(max_size=40), writable=st.booleans())
    def use_cell(self, name: str, offset: int, data: bytes, writable: bool) -> None:
        """Store into a cell and read it through another opening of it."""

        def ask(side: int) -> object:
            cell = self.both[side].cell(f"{name}.cell", 32, writable=writable)
            if cell is None:
                return None
            try:
                cell.write(offset, data)
            finally:
                reader = self.both[side].cell(f"{name}.cell", 32, writable=False)
                assert reader is not None
                seen = reader.read()
                cell.close()
                reader.close()
            return seen

        self.compare(ask)

    @invariant()
    def same_names_and_sizes(self) -> None:
        """Both list the same names, and open files are of the same size."""
        if hasattr(self, "both"):
            for folder in FOLDERS:
                self.compare(partial(_names_of, self.both, folder))
            for files in self.files.values():
                self.compare(partial(_size, files))

    def teardown(self) -> None:
        """Compare every file whole, and close all."""
        for name in all_files(self.both[0]) if hasattr(self, "both") else []:
            self.compare(partial(_whole_of, self.both, name))
        for files in getattr(self, "files", {}).values():
            for file in files:
                file.close()

    def _open(self, name: str, opening: Callable[[int], StorageFile]) -> None:
        opened: list[StorageFile] = []

        def ask(side: int) -> object:
            opened.append(opening(side))
            return opened[-1].name

        self.compare(ask)
        if len(opened) == 2:
            for old in self.files.get(name, ()):
                old.close()
            self.files[name] = (opened[0], opened[1])


@dataclass
class ModelFile:
    """What may be in a file after a power cut: for each position the bytes that could be there.

    -1 means "beyond the end". One possibility is a promise.
    """

    content: bytearray = field(default_factory=bytearray)
    possible: list[set[int]] = field(default_factory=list)

    def reach(self, size: int) -> None:
        """Know positions up to `size`; nothing was promised there."""
        self.possible += [{-1} for _ in range(size - len(self.possible))]

    def change(self, size: int) -> None:
        """Set the size of the content, unsynced: what goes may stay, what comes may be missing or zero."""
        self.reach(size)
        for position in range(min(size, len(self.content)), len(self.possible)):
            self.possible[position] |= {0, -1}
        self.content = self.content[:size].ljust(size, b"\0")

    def write(self, offset: int, data: bytes, sync: bool) -> None:
        """Write; with sync these bytes are promised, and that all before them is within the file."""
        end = offset + len(data)
        if not data:
            return
        if end > len(self.content):
            self.change(end)
        self.content[offset:end] = data
        for position in range(offset, end):
            byte = self.content[position]
            self.possible[position] = {byte} if sync else self.possible[position] | {byte}
        if sync:
            for position in range(offset):
                self.possible[position] = (self.possible[position] - {-1}) | (
                    {0} if -1 in self.possible[position] else set()
                )

    def sync(self) -> None:
        """Promise everything."""
        self.possible = [{byte} for byte in self.content]

    def allows(self, image: bytes) -> bool:
        """Say whether a power cut may leave these bytes."""
        padded: list[int] = [*image, *[-1] * (len(self.possible) - len(image))]
        if len(padded) > len(self.possible):
            return False
        return all(byte in allowed for byte, allowed in zip(padded, self.possible, strict=True))


class CrashPromises(RuleBasedStateMachine):
    """Holds every image of a crash to a model that knows the contract and nothing of the implementation.

    For each byte the model keeps what may be there, for each name which file may be there (or none). So it
    notices what was promised and is lost, and what was never written and is there.
    """

    def make_crashable(self) -> CrashingStorage:
        """Return a storage that is not created yet."""
        return CrashingStorage()

    @initialize()
    def begin(self) -> None:
        """Create the storage, with nothing in it."""
        self.storage = self.make_crashable()
        self.storage.create()
        self.current: dict[str, ModelFile] = {}
        self.possible: dict[str, list[ModelFile | None]] = {name: [None] for name in NAMES}
        self.moved_to: dict[str, str] = {}

    def _may_be(self, name: str, file: ModelFile | None) -> None:
        if not any(file is other for other in self.possible[name]):
            self.possible[name].append(file)

    @rule(name=names)
    def create(self, name: str) -> None:
        """Make a file; until its folder is synced its name may be missing."""
        if name not in self.current:
            self.storage.open(name, "create").close()
            self.current[name] = ModelFile()
            self._may_be(name, self.current[name])

    @rule(name=names, offset=st.integers(0, 1500), buffers=pieces, sync=st.booleans())
    def write(self, name: str, offset: int, buffers: list[bytes], sync: bool) -> None:
        """Write, with or without sync."""
        if name in self.current:
            self.storage.open(name, "write").write(offset, buffers, sync=sync)
            self.current[name].write(offset, b"".join(buffers), sync)

    @rule(name=names)
    def sync(self, name: str) -> None:
        """Sync a file."""
        if name in self.current:
            self.storage.open(name, "read").sync()
            self.current[name].sync()

    @rule(name=names, size=st.integers(0, 3000), grow=st.booleans())
    def resize(self, name: str, size: int, grow: bool) -> None:
        """Allocate or shorten."""
        if name in self.current:
            file = self.storage.open(name, "write")
            if grow:
                file.allocate(size)
            else:
                file.shorten(size)
            if (size > len(self.current[name].content)) == grow:
                self.current[name].change(size)

    @rule(source=names, onto=names)
    def replace(self, source: str, onto: str) -> None:
        """Rename; old and new may be at the target, and the source may come back."""
        if source in self.current and source != onto:
            self.storage.replace(source, onto)
            self.current[onto] = self.current.pop(source)
            self._may_be(onto, self.current[onto])
            self._may_be(source, None)
            self.moved_to[source] = parent_folder(onto)

    @rule(name=names)
    def remove(self, name: str) -> None:
        """Remove a file."""
        if name in self.current:
            self.storage.remove(name)
            del self.current[name]
            self._may_be(name, None)
            self.moved_to[name] = parent_folder(name)

    @rule(folder=st.sampled_from(FOLDERS))
    @precondition(lambda self: bool(self.current))
    def sync_directory(self, folder: str) -> None:
        """Promise the names of one folder as they are; that a file has moved away, the other folder's sync promises."""
        if folder and not any(name.startswith(f"{folder}/") for name in all_files(self.storage)):
            return
        self.storage.sync_directory(folder)
        for name in NAMES:
            file = self.current.get(name)
            if (parent_folder(name) if file is not None else self.moved_to.get(name)) == folder:
                self.possible[name] = [file]

    @rule(keep=st.sampled_from(("none", "all", "random")), seed=st.integers(0, 999), torn=st.booleans())
    def look_at_an_image(self, keep: Keep, seed: int, torn: bool) -> None:
        """Take an image, compare it with the model, and continue with the original; keep="all" loses nothing."""
        image = self.storage.crash(keep=keep, seed=seed, torn=torn)
        self._check(image)
        if keep == "all":
            assert all_files(image) == sorted(self.current)
            for name, file in self.current.items():
                assert whole(image, name) == file.content, name

    @rule(seed=st.integers(0, 999))
    def go_on_from_an_image(self, seed: int) -> None:
        """Take an image, compare it, and continue with it: what it holds is durable from now on."""
        image = self.storage.crash(keep="random", seed=seed)
        self._check(image)
        self.storage = image
        self.current = {}
        self.possible, self.moved_to = {name: [None] for name in NAMES}, {}
        for name in all_files(image):
            self.current[name] = ModelFile(bytearray(whole(image, name)))
            self.current[name].sync()
            self.possible[name] = [self.current[name]]

    @rule()
    def kill_the_process(self) -> None:
        """Continue in the storage that the next process finds, under the same promises."""
        self.storage = self.storage.process_kill()

    @invariant()
    def reads_see_everything(self) -> None:
        """Without a crash, what was written is what is read, synced or not."""
        if hasattr(self, "current"):
            assert all_files(self.storage) == sorted(self.current)
            for name, file in self.current.items():
                assert whole(self.storage, name) == file.content, name

    def _check(self, image: CrashingStorage) -> None:
        present = set(all_files(image))
        assert present <= set(NAMES)
        for name in NAMES:
            data = whole(image, name) if name in present else None
            allowed = self.possible[name]
            fits = [file for file in allowed if (file is None) == (data is None)]
            assert any(file is None or data is None or file.allows(data) for file in fits), (name, data)


def _size(files: tuple[StorageFile, StorageFile], side: int) -> int:
    return files[side].size()


def _names_of(both: tuple[Storage, Storage], folder: str, side: int) -> list[str]:
    return both[side].names(folder)


def _whole_of(both: tuple[Storage, Storage], name: str, side: int) -> bytes:
    return whole(both[side], name)


def whole(storage: Storage, name: str) -> bytes:
    """Return all bytes of a file."""
    file = storage.open(name, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()
