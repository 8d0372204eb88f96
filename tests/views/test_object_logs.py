"""Pages on a log on object storage: by its URL, in a folder and on a server, never changed; wrong URLs are refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import walkit
from tests.support.object_servers import moto_bucket
from tests.views.waiting import until
from walkit.commit.policy import OneRecordPerFrame
from walkit.storage.address import StorageOptions
from walkit.views import Shell, given
from walkit.views.background_jobs import Job
from walkit.views.frame_pages import (
    PAGE_FRAMES,
    FramePage,
    find_key,
    find_lsn,
    frame_around,
    page_before,
    page_from,
)
from walkit.views.inspector_parts import logs_below
from walkit.views.log_outline import outline_of
from walkit.views.page import PAGES, make_shell
from walkit.views.page_inspector import InspectorPage
from walkit.views.page_states import StatesPage
from walkit.views.workspace import DataRoot, Workspace

EPOCHS, RECORDS = 3, 250


def write(url: str, options: StorageOptions | None = None) -> None:
    """Write three epochs, a frame for each record, seven keys in turn."""
    for epoch in range(EPOCHS):
        with walkit.open(
            url, options=walkit.LogOptions(policy=OneRecordPerFrame()), storage_options=options
        ) as log:
            first = epoch * RECORDS + 1
            tickets = [
                log.submit(b"value %d" % n, key=b"k%d" % (n % 7)) for n in range(first, first + RECORDS)
            ]
            assert [ticket.result().first_lsn for ticket in tickets] == list(range(first, first + RECORDS))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a log on object storage in it, and one in a folder."""
    root = tmp_path_factory.mktemp("root")
    write(f"objects:{root}/orders")
    with walkit.open(root / "folder") as log:
        log.append(b"x", key=b"k1")
    return root


@pytest.fixture
def shell(root: Path) -> Iterator[Shell]:
    """A dashboard over the data root."""
    made = Shell(Workspace(DataRoot(root)), PAGES, first="inspector")  # the figures of Live take 0.3 s
    yield made
    made.close()


def inspector(shell: Shell, query: str) -> InspectorPage:
    """The Inspector, once it has read what the query names."""
    shell.read_url(f"?page=inspector&log={query}")
    page = shell.page
    assert isinstance(page, InspectorPage)
    until(page, lambda: not page.looking.busy)
    return page


def files(root: Path) -> dict[str, bytes]:
    """The objects of the log: what a reader must not change."""
    return {path.name: path.read_bytes() for path in (root / "orders").iterdir() if path.name[0] != "="}


def test_frames_of_bulks_join_and_are_found(root: Path) -> None:
    """Walk every epoch on and back, and find records by LSN, key and position: each frame once, in order."""
    outline, job = outline_of(f"objects:{root}/orders"), Job("test")
    assert (outline.state, outline.first_lsn, outline.last_lsn) == ("closed", 1, EPOCHS * RECORDS)
    assert [line.number for line in outline.segments] == [1, 2, 3]
    for line in outline.segments:
        pages: list[FramePage] = []
        at = 0
        while not pages or pages[-1].next_position is not None:
            pages.append(page_from(outline, line, at, job))
            at = pages[-1].next_position or 0
        items = [item for page in pages for item in page.items]
        assert len(items) == RECORDS == line.records
        assert all(a.end_position == b.position for a, b in pairwise(items))
        for page in pages[1:]:
            before = page_before(outline, line, page.first_position, job)
            assert before.items == tuple(items[items.index(page.items[0]) - PAGE_FRAMES :][:PAGE_FRAMES])
    for lsn in (1, RECORDS, RECORDS + 1, 2 * RECORDS + 77, EPOCHS * RECORDS):
        view = frame_around(outline, find_lsn(outline, lsn, job) + 70, job)
        assert view.intact and [(r.lsn, r.value) for r in view.records] == [(lsn, b"value %d" % lsn)]
    hits = find_key(outline, b"k3", 400, job).hits
    assert [hit.record.lsn for hit in hits] == [n for n in range(400, EPOCHS * RECORDS + 1) if n % 7 == 3][
        :100
    ]


def test_inspector_opens_a_url_and_changes_nothing(shell: Shell, root: Path) -> None:
    """Open by a relative URL, find an LSN, verify: the page has the objects, the frame and the verdict."""
    before = files(root)
    page = inspector(shell, "objects:orders")
    assert page.outline is not None and page.status.object.count(f"objects:{root}/orders")
    assert f"{EPOCHS * RECORDS + EPOCHS:,}" in page.numbers.object
    page.find_by.value, page.wanted.value = "lsn", "300"
    page._find()
    until(page, lambda: page.frame is not None and page.frame.records[0].value == b"value 300")
    page._verify()
    until(page, lambda: page.report is not None)
    assert page.report is not None and page.report.ok and page.report.last_lsn == EPOCHS * RECORDS
    assert page.state()["log"] == "objects:orders" and files(root) == before


def test_wrong_urls_are_refused_in_a_sentence(shell: Shell) -> None:
    """Type wrong URLs: the page has the reason, without a log and without credentials."""
    for url, detail in (
        ("objects:nothing", "there is no such file or folder"),
        ("objects:folder", "the log there is folder"),
        ("orders", "the log there is objects:orders"),
        ("objects:../elsewhere", "outside the data root"),
        ("objects:", "name a log"),
        ("s3://", "s3://BUCKET/FOLDER"),
        ("s3://key:secret@bucket/a", "s3://BUCKET/FOLDER"),
    ):
        page = inspector(shell, url)
        assert detail in page.status.object and "role='alert'" in page.status.object, url
        assert page.outline is None and "secret" not in page.status.object


def test_logs_are_listed_by_path_and_url(shell: Shell, root: Path) -> None:
    """Look for logs below the root: the folder by its path, the objects by their URL, which the chooser offers."""
    assert logs_below(root) == [root / "folder", f"objects:{root}/orders"]
    page = inspector(shell, "folder")
    until(page, lambda: "objects:orders" in page.chooser.known.options)
    page.chooser.known.value = "objects:orders"
    until(page, lambda: page.outline is not None and page.outline.objects is not None)


def test_states_of_a_url_are_compared(shell: Shell) -> None:
    """Compare two LSNs of a log on object storage: the seven keys differ."""
    shell.read_url("?page=states&log=objects:orders&left=100&right=700")
    page = shell.page
    assert isinstance(page, StatesPage)
    until(page, lambda: page.outlines is not None)
    page._compare()
    until(page, lambda: page.compared is not None)
    assert page.compared is not None and page.compared.counts.changed == 7


def test_wrong_urls_are_not_given(root: Path) -> None:
    """Give URLs without a log, a folder's path of objects, and no bucket: each is its typed error."""
    refusals = {
        f"objects:{root}/none": walkit.LogNotFoundError,
        f"{root}/orders": walkit.OptionsError,
        "s3://": walkit.OptionsError,
    }
    for wrong, error in refusals.items():
        with pytest.raises(error):
            given([wrong])


# Slow: a server of S3 starts, 10 s. The Inspector opens a URL of a folder above, and objects/test_on_s3 reads by S3.
@pytest.mark.slow
def test_dashboard_is_given_urls(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a URL of a folder and one of a server, with credentials of the environment: the Inspector opens both."""
    url, options = moto_bucket()
    for name, value in options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    write(url)
    shell = make_shell(root=root / "folder", shown=given([f"objects:{root}/orders", url]))
    first = shell.page
    assert isinstance(first, InspectorPage)
    until(first, lambda: first.frame is not None)
    assert f"LSN 1 to {EPOCHS * RECORDS}" in first.status.object
    page = inspector(shell, url)
    assert page.page is not None and page.page.items
    shell.close()


def test_damaged_bulk_is_named(tmp_path: Path) -> None:
    """Change a byte of a bulk: its page is an error that names the object, and the others are shown."""
    url = f"objects:{tmp_path}/log"
    write(url)
    path = tmp_path / "log" / f"log%2F{10:020d}"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))
    outline, job = outline_of(url), Job("test")
    with pytest.raises(walkit.CorruptionError, match=f"{10:020d}"):
        page_from(outline, outline.segments[0], 0, job)
    assert page_from(outline, outline.segments[2], 0, job).items
