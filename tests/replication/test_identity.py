"""A replica's identity: minted once, secret, never copied, and known to the primary over its restarts."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, Caller, Change, Relay, until
from tests.replication.test_authentication import end_of, frames_of_log, held
from tests.support.crashes import SMALL
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.checksum import crc32c
from walkit.models import CrashingStorage
from walkit.replication import IdentityError, Primary, Replica
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.protocol.identity import Identity, mint
from walkit.replication.protocol.messages import Ack, Batch, Welcome
from walkit.replication.replica.identity_file import OwnIdentity, drop_identity, keep_identity, load_identity
from walkit.segments.manifest_store import IDENTITY_NAME
from walkit.storage.file import FileStorage


@pytest.fixture
def log(tmp_path: Path) -> Iterator[walkit.WriteAheadLog]:
    """A log with twenty records, in a folder."""
    with walkit.open(tmp_path / "p", options=SMALL) as log:
        for number in range(20):
            log.append(b"%d" % number)
        log.wait_idle()
        yield log


def followed(log: walkit.WriteAheadLog, folder: Path, **options: object) -> None:
    """Follow a log into a folder up to its end, and stop when the primary knows and has saved it."""
    with Primary(log) as primary:
        _follow(log, primary, folder, **options)
        until(lambda: not primary._sessions, "the end of the session")


def _follow(log: walkit.WriteAheadLog, primary: Primary, folder: Path, **options: object) -> None:
    with Replica(folder, primary.address, **options) as replica:  # type: ignore[arg-type]
        replica.wait_for(log.acked_lsn, WAIT_S)
        until(
            lambda: any(f.acked_lsn == log.acked_lsn for f in primary.status().followers),
            "the acknowledgement",
        )


def identity_in(folder: Path) -> Identity:
    """The identity that a replica's folder holds."""
    own = load_identity(FileStorage(folder))
    assert own is not None
    return own.identity


# -- who has it


def test_nothing_that_is_shown_has_the_id(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Follow twice: the id is in the hellos, and not in statuses, events, claims and files of the log."""
    sent: list[tuple[int, str, bytes]] = []
    shown: list[object] = []

    def listen(way: str) -> Change:
        def note(call: int, message: int, data: bytes) -> bytes:
            sent.append((call, way, data))
            return data

        return note

    events = lambda *event: shown.append(event)  # noqa: E731
    with (
        Primary(log, events=events) as primary,
        Relay(primary.address, up=listen("up"), down=listen("down")) as relay,
    ):
        for _ in range(2):
            with Replica(tmp_path / "r", relay.address, events=events) as replica:
                replica.wait_for(log.acked_lsn, WAIT_S)
                until(lambda: len(claims(log)) == 1, "the claim")
                (session,) = primary._sessions
                shown += [*session.core.history, *replica._core.history, replica.status(), primary.status()]
            until(lambda: not primary._sessions, "the end of the session")
            log.append(b"more")
        shown += [log.claims(), *(path.read_bytes() for path in (tmp_path / "p").iterdir())]
    own = identity_in(tmp_path / "r")
    assert [(call, way) for call, way, data in sent if own.id in data] == [(0, "up"), (1, "up")]
    text = "\n".join(map(repr, shown))
    assert own.key in text and own.id.hex() not in text and repr(own.id)[2:-1] not in text
    assert {path.name for path in (tmp_path / "p").glob("claim-*")} == {f"claim-{own.key}"}


def test_the_identity_is_private_and_names_its_file(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """After one contact the identity is for its owner alone, and names its inode; the claim says label and end."""
    followed(log, tmp_path / "r", name="label")
    status = (tmp_path / "r" / IDENTITY_NAME).stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    facts = json.loads((tmp_path / "r" / IDENTITY_NAME).read_bytes().partition(b"\n")[2])
    assert (facts["device"], facts["inode"]) == (status.st_dev, status.st_ino)
    (claim,) = log.claims()
    assert claim.mark is not None and claim.name == identity_in(tmp_path / "r").key
    assert (claim.label, claim.mark.acked) == ("label", frames_of_log(log)[-1])
    report = walkit.verify(tmp_path / "p")
    assert report.ok and not any("not the log's" in note for note in report.notes)


def test_one_identity_lasts_over_restarts_of_both_sides(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Follow with new primaries and replicas, the folder moved in between: one id, one claim, what was acked."""
    followed(log, tmp_path / "r")
    first = identity_in(tmp_path / "r")
    (tmp_path / "r").rename(tmp_path / "moved")
    for _ in range(2):
        log.append(b"more")
        followed(log, tmp_path / "moved", name="another label")
    assert identity_in(tmp_path / "moved") == first
    (claim,) = log.claims()
    assert claim.mark is not None and claim.label == "another label"
    assert (claim.name, claim.mark.acked.last_lsn) == (first.key, log.acked_lsn)


# -- who is not the replica that it was minted for


def test_a_copied_folder_is_refused_and_follows_under_a_new_identity(
    log: walkit.WriteAheadLog, tmp_path: Path
) -> None:
    """A copied folder is refused in a sentence with nothing changed; with a new identity it keeps the data."""
    followed(log, tmp_path / "r", name="first")
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    before = {p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()}
    with pytest.raises(IdentityError, match="walkit follow --new-identity") as refused:
        Replica(tmp_path / "copy", "127.0.0.1:1")
    assert (refused.value.reason, refused.value.location) == ("copied", str(tmp_path / "copy"))
    assert {p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()} == before
    log.append(b"more")
    with (
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
        Replica(tmp_path / "copy", primary.address, new_identity=True) as seeded,
    ):
        for one in (replica, seeded):
            assert one.wait_for(21, WAIT_S) == 21
        assert seeded.name != replica.name == "first"
        until(lambda: len(held(log)) == 2, "a claim for each")
    assert identity_in(tmp_path / "copy") != identity_in(tmp_path / "r")
    followed(log, tmp_path / "copy")


def claims(log: walkit.WriteAheadLog) -> dict[str, int]:
    """The claims on a log, and from which LSN on they keep records."""
    return {claim.name: claim.needed_lsn for claim in log.claims()}


def test_client_with_token_and_all_that_is_shown_moves_no_claim(
    log: walkit.WriteAheadLog, tmp_path: Path
) -> None:
    """Say hello as the key that all show, in three forms, and acknowledge all: the claim of the replica stays."""
    keys: set[str] = set()

    def note(name: str, about: dict[str, Any]) -> None:
        keys.add(about.get("id", ""))

    with (
        Primary(log, token="t", publisher=lambda: Publisher(heartbeat_ms=20), events=note) as primary,
        Replica(tmp_path / "r", primary.address, name="r", token="t") as replica,
    ):
        replica.wait_for(log.acked_lsn, WAIT_S)
        until(lambda: len(held(log)) == 1, "the claim")
        until(lambda: bool(keys), "the events, which a thread of their own sends")
    (claim,) = log.claims()
    assert claim.mark is not None and claim.owner is not None
    manifest, end = log.parts.manifest_store.current, claim.mark.acked
    all_there = {"log_id": manifest.log_id, "lineage": manifest.lineage, "end": end}
    last = log.append(b"more").last_lsn
    assert keys == {claim.name} == {claim.owner}
    stolen = [bytes.fromhex(claim.owner), claim.owner.encode()[:16], claim.mark.log_id.to_bytes(8) * 2]
    with Primary(log, token="t", publisher=lambda: Publisher(heartbeat_ms=20)) as primary:
        for number, sent in enumerate(stolen):
            with Caller(primary.address, token="t") as thief:
                thief.hello("r", id=sent, **all_there).next_of(Welcome)
                thief.send(Ack(end=end_of(thief.next_of(Batch), log)))
                until(lambda n=number: len(log.claims()) == 2 + n, "a claim of its own")  # type: ignore[misc]
            until(lambda: not primary.status().followers, "the session to end")
        assert [c.mark for c in log.claims() if c.name == claim.name] == [claim.mark]
        with Replica(tmp_path / "r", primary.address, name="r", token="t") as replica:
            replica.wait_for(last, WAIT_S)


def test_a_replica_that_was_put_back_is_refused(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Come with an earlier copy of the files in the same folder: refused, over a restart too, until the claim goes."""
    followed(log, tmp_path / "r")
    shutil.copytree(tmp_path / "r", tmp_path / "early")
    log.append_many([b"more"] * 10)
    followed(log, tmp_path / "r")
    for file in (tmp_path / "r").iterdir():
        if file.name != IDENTITY_NAME:
            file.unlink()
    for file in (tmp_path / "early").iterdir():
        if file.name != IDENTITY_NAME:
            shutil.copy(file, tmp_path / "r" / file.name)
    with Primary(log) as primary:
        with Replica(tmp_path / "r", primary.address, backoff=Backoff(1, 2)) as replica:
            with pytest.raises(IdentityError, match="put back to an earlier state") as refused:
                replica.wait_for(30, WAIT_S)
            assert refused.value.reason == "rewound"
        log.drop_claim(identity_in(tmp_path / "r").key)
        with Replica(tmp_path / "r", primary.address) as replica:
            assert replica.wait_for(30, WAIT_S) == 30


# -- files


def sealed(name: str, body: bytes) -> bytes:
    """Return a private file with a right checksum."""
    return b"walkit-%s 1 %08x\n%s" % (name.encode(), crc32c(body), body)


def test_no_error_of_a_damaged_identity_has_the_id(tmp_path: Path) -> None:
    """Cut the file at each byte, with and without a right checksum: no word, field or cause has six bytes of it."""
    storage, own = FileStorage(tmp_path), OwnIdentity(mint(), "r")
    keep_identity(storage, own)
    text = (tmp_path / IDENTITY_NAME).read_bytes()
    body, secret = text.partition(b"\n")[2], own.identity.id.hex()
    pieces = [secret[n : n + 12] for n in range(len(secret) - 11)]
    for at in range(1, len(text)):
        for spoiled in (text[at:], text[:at], sealed(IDENTITY_NAME, body[at:])):
            (tmp_path / IDENTITY_NAME).write_bytes(spoiled)
            with pytest.raises(CorruptionError) as raised:
                load_identity(storage)
            error: BaseException | None = raised.value
            while error is not None:
                shown = f"{error!r} {vars(error)}"
                assert not any(piece in shown for piece in pieces)
                error = error.__cause__ or error.__context__


@pytest.mark.parametrize("spoiled", [b"", b"x", b"\n{}", b"walkit-replica-identity 1 00000000\n{}"])
def test_a_damaged_identity_is_refused(log: walkit.WriteAheadLog, tmp_path: Path, spoiled: bytes) -> None:
    """Spoil the file: a CorruptionError before anything is opened, and a new identity repairs it."""
    followed(log, tmp_path / "r")
    (tmp_path / "r" / IDENTITY_NAME).write_bytes(spoiled)
    with pytest.raises(CorruptionError):
        Replica(tmp_path / "r", "127.0.0.1:1")
    log.append(b"more")
    followed(log, tmp_path / "r", new_identity=True)
    newer = (tmp_path / "r" / IDENTITY_NAME).read_bytes().replace(b" 1 ", b" 2 ", 1)
    (tmp_path / "r" / IDENTITY_NAME).write_bytes(newer)
    with pytest.raises(FormatVersionError):
        Replica(tmp_path / "r", "127.0.0.1:1")


def test_a_power_cut_while_it_is_kept_leaves_one_identity_or_none() -> None:
    """Cut the power after each identity that is kept: what is read is the last one whose writing returned."""
    storage = CrashingStorage()
    storage.create()
    for _ in range(3):
        own = OwnIdentity(mint(), "r")
        keep_identity(storage, own)
        for seed in range(8):
            assert load_identity(storage.crash(keep="random", seed=seed)) == own
    drop_identity(storage)
    drop_identity(storage)
    assert load_identity(storage.crash()) is None
