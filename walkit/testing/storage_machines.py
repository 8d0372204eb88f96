"""Random operations on storages, by Hypothesis: one machine compares two storages, one holds crashes to their promise.

Import it where hypothesis is installed; a test module makes a `TestCase` of a subclass::

    class MyComparison(StorageComparison):
        def make_storages(self):
            return MyStorage(...), CrashingStorage()


    TestMyComparison = MyComparison.TestCase
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from walkit.errors import StorageError
from walkit.models import CrashingStorage
from walkit.models.page_cache import Keep
from walkit.storage import LockHolder, Storage, StorageFile
from walkit.storage.interface import parent_folder
from walkit.testing.storage_hooks import all_files
from walkit.testing.storage_model import ModelFile, whole

NAMES = ("a", "b", "c", "sub/a", "sub/b", "x/y/a")
FOLDERS = ("", "sub", "x/y")
names = st.sampled_from(NAMES)
some_names = st.lists(names, min_size=1, max_size=3, unique=True)
indexes = st.integers(0, len(NAMES) - 1)
offsets = st.integers(0, 3000)
pieces = st.lists(
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(1, 255), st.integers(0, 1500)), max_size=4
)


class StorageComparison(RuleBasedStateMachine):
    """Does the same random operations, without crashes, to two storages, and compares all answers and errors."""

    did: ClassVar[Counter[str]] = Counter()
    """How often each operation on a file was done, and not refused, in all runs: 0 says that nothing was compared."""

    def make_storages(self) -> tuple[Storage, Storage]:
        """Return two storages that are not created yet."""
        raise NotImplementedError

    @initialize(made=some_names)
    def begin(self, made: list[str]) -> None:
        """Create both storages, with some files."""
        self.both = self.make_storages()
        self.files: dict[str, tuple[StorageFile, StorageFile]] = {}
        for storage in self.both:
            storage.create()
        for name in made:
            self.create(name)

    def compare(self, call: Callable[[int], object]) -> object:
        """Ask both storages (0 and 1) and return the answer, which has to be the same, errno included."""
        answers = []
        for side in (0, 1):
            try:
                answers.append(call(side))
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

    @rule(which=indexes, offset=offsets, buffers=pieces, sync=st.booleans())
    def write(self, which: int, offset: int, buffers: list[bytes], sync: bool) -> None:
        """Write to an open file, also one that was removed or replaced since."""
        name = self._known(which)
        self._do("write", lambda side: self.files[name][side].write(offset, buffers, sync=sync))

    @rule(which=indexes, offset=offsets, size=st.integers(0, 5000))
    def read(self, which: int, offset: int, size: int) -> None:
        """Read from an open file."""
        name = self._known(which)
        self._do("read", lambda side: self.files[name][side].read(offset, size))

    @rule(which=indexes, size=st.integers(0, 8000))
    def allocate(self, which: int, size: int) -> None:
        """Reserve space."""
        name = self._known(which)
        self._do("allocate", lambda side: self.files[name][side].allocate(size))

    @rule(which=indexes, size=st.integers(0, 8000))
    def shorten(self, which: int, size: int) -> None:
        """Cut a file."""
        name = self._known(which)
        self._do("shorten", lambda side: self.files[name][side].shorten(size))

    @rule(which=indexes)
    def sync_and_drop(self, which: int) -> None:
        """Sync a file and drop its pages."""
        name = self._known(which)
        self._do("sync", lambda side: self.files[name][side].sync())
        self._do("drop", lambda side: self.files[name][side].drop_cached())

    @rule(which=indexes)
    def close(self, which: int) -> None:
        """Close a file; it stays known, so that later calls on it are refused by both."""
        name = self._known(which)
        self._do("close", lambda side: self.files[name][side].close())

    @rule(source=names, onto=names)
    def replace(self, source: str, onto: str) -> None:
        """Rename."""
        self._do("replace", lambda side: self.both[side].replace(source, onto))

    @rule(name=names)
    def remove(self, name: str) -> None:
        """Remove."""
        self._do("remove", lambda side: self.both[side].remove(name))

    @rule(folder=st.sampled_from(FOLDERS))
    def sync_directory(self, folder: str) -> None:
        """Sync a folder that may not be there."""
        self._do("sync_directory", lambda side: self.both[side].sync_directory(folder))

    @rule(name=names)
    def take_and_release(self, name: str) -> None:
        """Take a lock on any name, ask about it, release it, and remove its file: its bytes are the backend's own."""

        def call(side: int) -> object:
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

        self.compare(call)

    @rule(name=names, offset=st.integers(-2, 40), data=st.binary(max_size=40), writable=st.booleans())
    def use_cell(self, name: str, offset: int, data: bytes, writable: bool) -> None:
        """Store into a cell and read it through another opening of it."""

        def call(side: int) -> object:
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

        self.compare(call)

    @invariant()
    def same_names_and_sizes(self) -> None:
        """Both list the same names, and open files have the same size."""
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

    def _known(self, which: int) -> str:
        """Return the name of a file that was opened once."""
        return sorted(self.files)[which % len(self.files)]

    def _do(self, operation: str, call: Callable[[int], object]) -> None:
        """Compare an operation, and count it if it was not refused."""
        answer = self.compare(call)
        self.did[operation] += not (isinstance(answer, tuple) and answer[:1] == ("refused",))

    def _open(self, name: str, opening: Callable[[int], StorageFile]) -> None:
        opened: list[StorageFile] = []

        def call(side: int) -> object:
            opened.append(opening(side))
            return opened[-1].name

        self.compare(call)
        if len(opened) == 2:
            for old in self.files.get(name, ()):
                old.close()
            self.files[name] = (opened[0], opened[1])


class CrashPromises(RuleBasedStateMachine):
    """Holds every image of a crash to a model that knows the contract and nothing of the implementation.

    For each byte the model keeps what may be there, for each name which file may be there (or none). So it
    notices promised bytes that are lost, and bytes that were never written.
    """

    did: ClassVar[Counter[str]] = Counter()
    """How often each operation was done to a file in all runs, and how often an image lost something."""

    def make_crashable(self) -> CrashingStorage:
        """Return a storage that is not created yet."""
        return CrashingStorage()

    @initialize(made=some_names, named=st.booleans())
    def begin(self, made: list[str], named: bool) -> None:
        """Create the storage, with some bytes that no sync covers, in files whose names one may cover."""
        self.storage = self.make_crashable()
        self.storage.create()
        self.current: dict[str, ModelFile] = {}
        self.possible: dict[str, list[ModelFile | None]] = {name: [None] for name in NAMES}
        self.moves: list[tuple[ModelFile, set[str], str]] = []
        """By renames: the file, the names that it had before, and the folder whose sync takes these from it."""
        for name in made:
            self.create(name)
        for which in range(len(made)):
            self.write(which, 0, [b"begun"], False)
        for folder in FOLDERS if named else ():
            self.sync_directory(folder)

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

    @rule(which=indexes, offset=st.integers(0, 1500), buffers=pieces, sync=st.booleans())
    @precondition(lambda self: bool(self.current))
    def write(self, which: int, offset: int, buffers: list[bytes], sync: bool) -> None:
        """Write, with or without sync."""
        name = self._known(which)
        self.storage.open(name, "write").write(offset, buffers, sync=sync)
        self.current[name].write(offset, b"".join(buffers), sync)
        self.did["synced write" if sync else "write"] += any(buffers)

    @rule(which=indexes)
    @precondition(lambda self: bool(self.current))
    def sync(self, which: int) -> None:
        """Sync a file."""
        name = self._known(which)
        self.storage.open(name, "read").sync()
        self.current[name].sync()
        self.did["sync"] += 1

    @rule(which=indexes, size=st.integers(0, 3000), grow=st.booleans())
    @precondition(lambda self: bool(self.current))
    def resize(self, which: int, size: int, grow: bool) -> None:
        """Allocate or shorten."""
        name = self._known(which)
        file = self.storage.open(name, "write")
        if grow:
            file.allocate(size)
        else:
            file.shorten(size)
        if (size > len(self.current[name].content)) == grow:
            self.current[name].change(size)
            self.did["resize"] += 1

    @rule(which=indexes, onto=names)
    @precondition(lambda self: bool(self.current))
    def replace(self, which: int, onto: str) -> None:
        """Rename; old and new may be at the target, and the source may come back."""
        source = self._known(which)
        if source != onto:
            self.did["replace"] += 1
            self.storage.replace(source, onto)
            file = self.current[onto] = self.current.pop(source)
            before = {name for name, files in self.possible.items() if any(file is each for each in files)}
            for other, had, _ in self.moves:
                if other is file:
                    had.discard(onto)
            self.moves.append((file, before - {onto}, parent_folder(onto)))
            self._may_be(onto, file)
            self._may_be(source, None)

    @rule(which=indexes)
    @precondition(lambda self: bool(self.current))
    def remove(self, which: int) -> None:
        """Remove a file."""
        name = self._known(which)
        self.storage.remove(name)
        del self.current[name]
        self._may_be(name, None)
        self.did["remove"] += 1

    @rule(folder=st.sampled_from(FOLDERS))
    @precondition(lambda self: bool(self.current))
    def sync_directory(self, folder: str) -> None:
        """Promise the names of one folder as they are, and that a file that moved there has no name elsewhere."""
        if folder and not any(name.startswith(f"{folder}/") for name in all_files(self.storage)):
            return
        self.storage.sync_directory(folder)
        for file, had, onto_folder in self.moves:
            for name in had if onto_folder == folder else ():
                self.possible[name] = [other for other in self.possible[name] if other is not file]
                self.did["move promised"] += 1
        self.moves = [move for move in self.moves if move[2] != folder]
        for name in NAMES:
            if parent_folder(name) == folder:
                self.did["sync of names"] += len(self.possible[name]) > 1
                self.possible[name] = [self.current.get(name)]
                if (
                    name not in self.current
                ):  # a file that moved elsewhere is there until that folder is synced
                    self.possible[name] += [file for file, had, _ in self.moves if name in had]

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
        self.possible, self.moves = {name: [None] for name in NAMES}, []
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
        """Without a crash, reads return the written bytes, synced or not."""
        if hasattr(self, "current"):
            assert all_files(self.storage) == sorted(self.current)
            for name, file in self.current.items():
                assert whole(self.storage, name) == file.content, name

    def _known(self, which: int) -> str:
        """Return the name of a file that is there."""
        return sorted(self.current)[which % len(self.current)]

    def _check(self, image: CrashingStorage) -> None:
        present = set(all_files(image))
        assert present <= set(NAMES)
        for name in NAMES:
            data = whole(image, name) if name in present else None
            file = self.current.get(name)
            self.did["name lost"] += file is not None and data is None
            self.did["bytes lost"] += file is not None and data is not None and data != file.content
            allowed = self.possible[name]
            fits = [file for file in allowed if (file is None) == (data is None)]
            assert any(file is None or data is None or file.allows(data) for file in fits), (name, data)


def _size(files: tuple[StorageFile, StorageFile], side: int) -> int:
    return files[side].size()


def _names_of(both: tuple[Storage, Storage], folder: str, side: int) -> list[str]:
    return both[side].names(folder)


def _whole_of(both: tuple[Storage, Storage], name: str, side: int) -> bytes:
    return whole(both[side], name)
