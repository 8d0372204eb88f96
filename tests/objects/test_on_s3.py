"""A log on servers that speak S3: moto, and one that loses answers and is busy."""

from __future__ import annotations

import pytest

import walkit
from tests.support.object_servers import SECRET, OddS3, moto_bucket
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import CommitFailedError, LogFencedError

SMALL = walkit.LogOptions(in_flight=4, policy=OneRecordPerFrame())


def test_a_log_on_s3_is_written_read_fenced_and_opened_again() -> None:
    """Write and read at moto, open by a second writer: the first is fenced, all is there, and no secret is shown."""
    url, options = moto_bucket()
    seen: list[str] = []
    first = walkit.open(
        url, "x", SMALL, lambda name, facts: seen.append(f"{name} {facts}"), storage_options=options
    )
    for n in range(20):
        first.append(b"%d" % n, key=b"k")
    reader = walkit.open(url, mode="r", storage_options=options)
    assert [r.value for r in reader.read()] == [b"%d" % n for n in range(20)]
    with walkit.open(url, options=SMALL, storage_options=options) as second:
        assert second.recovery.verdict == "recovered" and second.recovery.last_lsn == 20
        with pytest.raises(CommitFailedError) as caught:
            first.append(b"late")
        assert isinstance(caught.value.__cause__, LogFencedError)
        seen.append(f"{caught.value!r} {caught.value.__cause__!r}")
        assert second.append(b"new").first_lsn == 21 and second.location == url
        seen.append(f"{first!r} {second!r} {second.options!r} {second._repr_html_()} {second.recovery}")
    first.close()
    assert [r.value for r in reader.read(first_lsn=20)] == [b"19", b"new"]
    reader.close()
    assert len(seen) > 3 and SECRET not in str(seen) and options["access_key_id"] not in str(seen)


def test_lost_answers_and_a_busy_server_change_nothing() -> None:
    """A server loses each third answer of a PUT of a bulk, and is busy at each fourth: every record is there once."""
    puts = 0

    def rule(method: str, path: str) -> int | str | None:
        nonlocal puts
        if method != "PUT" or "/log/" not in path:
            return None
        puts += 1
        return "lost" if puts % 3 == 1 else 503 if puts % 4 == 1 else None

    with OddS3(rule) as server:
        url, options = "s3://bucket/folder", server.options
        for opening in range(2):
            with walkit.open(url, options=SMALL, storage_options=options) as log:
                tickets = [log.submit(b"%d" % (30 * opening + n)) for n in range(30)]
                assert [t.result().first_lsn for t in tickets] == list(
                    range(30 * opening + 1, 30 * opening + 31)
                )
                assert [r.value for r in log.read()] == [b"%d" % n for n in range(30 * opening + 30)]
        assert puts > 60


def test_requests_are_counted_at_the_server() -> None:
    """Append 100 bulks one by one: the server sees one PUT for each and nothing else; an idle writer makes none."""
    with (
        OddS3(lambda method, path: None) as server,
        walkit.open("s3://bucket/folder", options=SMALL, storage_options=server.options) as log,
    ):
        log.append(b"first")
        before = len(server.requests)
        for _ in range(100):
            log.append(b"v" * 100)
        made = server.requests[before:]
        assert len(made) == 100 and all(request.startswith("PUT ") and "/log/" in request for request in made)
        log.wait_idle()
        assert len(server.requests) == before + 100
