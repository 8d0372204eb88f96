"""Following a log in an object store while its writers are killed: real processes over real files."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import walkit
from tests.support.object_servers import SECRET, moto_bucket
from tests.support.threads import wait_until
from walkit.objects.open import open_object_writer
from walkit.objects.segments_folder import segments_folder
from walkit.objects.verify import verify
from walkit.objects.view import ObjectEnd
from walkit.read.reader import LogReader
from walkit.segments.manifest_store import load_manifest
from walkit.storage import MemoryObjectStore
from walkit.storage.address import open_store
from walkit.storage.object_files import FileObjectStore

WRITER = """
import sys
from walkit.objects.open import open_object_writer
from walkit.storage.object_files import FileObjectStore

log = open_object_writer(FileObjectStore(sys.argv[1]))
while True:
    print(log.append(b"value").last_lsn, flush=True)
"""


def killed_writer(folder: Path, appends: int) -> int:
    """Run a writer, kill it (-9) after so many acknowledgements; return the last LSN that it has acknowledged."""
    with subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acked = [int(child.stdout.readline()) for _ in range(appends)]
        child.kill()
        return max([*acked, *map(int, child.stdout.read().split())])


def test_a_follower_sees_each_record_of_killed_writers_once(tmp_path: Path) -> None:
    """Follow two writers, both killed: every LSN once and in order, at least all that was acknowledged."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(FileObjectStore(tmp_path)))
        open_object_writer(store).close()
        reader = stack.enter_context(LogReader(ObjectEnd(store)))
        seen: list[int] = []
        follower = threading.Thread(target=lambda: seen.extend(r.lsn for r in reader.follow(1)))
        follower.start()
        acked = [killed_writer(tmp_path, appends) for appends in (5, 10)]
        with open_object_writer(store) as log:
            acked.append(log.append(b"last").last_lsn)
        assert [r.lsn for r in reader] == list(range(1, acked[-1] + 1)) and acked == sorted(acked)
        wait_until(lambda: len(seen) >= acked[-1])
        assert len(reader.source.now().view.manifest.lineage) == 4 and verify(store).ok is True
        reader.close()
        follower.join()
        assert seen == list(range(1, acked[-1] + 1))


def test_a_log_on_s3_is_followed_read_and_verified() -> None:
    """A server of S3: a reader follows the writer over two openings, its ends are 404s, and all of it verifies."""
    url, options = moto_bucket()
    values = [b"%d" % at for at in range(12)]
    with ExitStack() as stack:
        with walkit.open(url, storage_options=options) as log:
            log.append_many(values[:5])
            reader = stack.enter_context(walkit.open(url, "r", storage_options=options))
            follower = reader.follow(1)
            assert [next(follower).value for _ in range(5)] == values[:5]
            log.append(values[5])
            assert next(follower).value == values[5]
        with walkit.open(url, storage_options=options) as log:
            for value in values[6:]:
                log.append(value)
                assert next(follower).value == value
        assert [r.value for r in reader] == values and list(reader.read(13)) == []
        store = stack.enter_context(closing(open_store(url, options)))
        assert walkit.verify(store).ok is True and SECRET not in repr(reader)


def test_a_segment_of_an_open_log_grows_with_it() -> None:
    """Open the newest segment as a primary reads it, append: the file that is open has the new frame, too."""
    with walkit.open(MemoryObjectStore()) as log:
        log.append(b"first")
        contents: Any = log.parts.contents
        folder = segments_folder(contents.view)
        file = folder.open(load_manifest(folder).sealed[-1].name, "read")
        before = file.size()
        log.append(b"second")
        assert load_manifest(folder).end.last_lsn == 2
        assert file.size() > before and len(file.read(before, 1 << 20)) == file.size() - before
        file.close()
