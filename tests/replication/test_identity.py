"""Who a replica is: minted once, shown to nobody, never copied, and known to the primary over its restarts."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, Caller, Change, Relay, until
from tests.replication.test_authentication import end_of, held
from tests.support.crashes import SMALL
from walkit.errors import CorruptionError, FormatVersionError, StorageError
from walkit.format.checksum import crc32c
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage
from walkit.replication import IdentityError, Primary, Replica
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.primary.registry import ReplicaRegistry
from walkit.replication.protocol.identity import Identity, mint
from walkit.replication.protocol.messages import Ack, Batch, Welcome
from walkit.replication.replica.identity_file import OwnIdentity, drop_identity, keep_identity, load_identity
from walkit.segments.manifest_store import IDENTITY_NAME, REGISTRY_LOCK_NAME, REGISTRY_NAME
from walkit.storage.file import FileStorage
from walkit.storage.interface import LockHolder


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
    """Follow twice: the id is in the first welcome and the hellos, and not in statuses, claims, events and registry."""
    said: list[tuple[int, str, bytes]] = []
    shown: list[object] = []

    def listen(way: str) -> Change:
        def note(call: int, message: int, data: bytes) -> bytes:
            said.append((call, way, data))
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
        shown += [claims(log), (tmp_path / "p" / REGISTRY_NAME).read_text()]
    own = identity_in(tmp_path / "r")
    assert [(call, way) for call, way, data in said if own.id in data] == [(0, "down"), (1, "up")]
    text = "\n".join(map(repr, shown))
    assert own.key in text and own.id.hex() not in text and repr(own.id) not in text
    assert {path.name for path in (tmp_path / "p").glob("claim-*")} == {f"claim-{own.key}"}


def test_the_identity_is_private_and_says_which_file_it_is_in(
    log: walkit.WriteAheadLog, tmp_path: Path
) -> None:
    """After one contact identity and registry are for their owner alone; the identity names its own inode."""
    followed(log, tmp_path / "r", name="label")
    for file in (tmp_path / "r" / IDENTITY_NAME, tmp_path / "p" / REGISTRY_NAME):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    status = (tmp_path / "r" / IDENTITY_NAME).stat()
    facts = json.loads((tmp_path / "r" / IDENTITY_NAME).read_bytes().partition(b"\n")[2])
    assert (facts["device"], facts["inode"]) == (status.st_dev, status.st_ino)
    registry = ReplicaRegistry(FileStorage(tmp_path / "p"))
    known = registry.find(identity_in(tmp_path / "r").key)
    assert known is not None
    assert (known.name, known.acked.last_lsn) == ("label", 20)
    report = walkit.verify(tmp_path / "p")
    assert report.ok and not any("not the log's" in note for note in report.notes)


def test_one_identity_lasts_over_restarts_of_both_sides(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Follow with new primaries and replicas, the folder moved in between: one id, one entry, what was acked."""
    followed(log, tmp_path / "r")
    first = identity_in(tmp_path / "r")
    (tmp_path / "r").rename(tmp_path / "moved")
    for _ in range(2):
        log.append(b"more")
        followed(log, tmp_path / "moved", name="another label")
    assert identity_in(tmp_path / "moved") == first
    registry = ReplicaRegistry(FileStorage(tmp_path / "p"))
    known = registry.find(first.key)
    assert known is not None
    assert (len(registry), known.acked.last_lsn) == (1, log.acked_lsn)


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


def test_a_name_is_a_label_and_moves_no_ones_claim(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Come under the name of another replica and acknowledge all: its claim stays; each has its own."""
    with (
        Primary(log, publisher=lambda: Publisher(batch_bytes=1)) as primary,
        Caller(primary.address) as honest,
        Caller(primary.address) as thief,
    ):
        first = end_of(honest.welcomed("twin"), log)
        honest.say(Ack(end=first))
        assert honest.identity is not None
        key = honest.identity.key
        until(lambda: key in claims(log), "the claim")
        thief.welcomed("twin")
        thief.say(Ack(end=end_of(thief.next_of(Batch), log)))
        until(lambda: len(claims(log)) == 2, "the other's claim")
        assert claims(log)[key] == first.last_lsn + 1
        assert {f.name for f in primary.status().followers} == {"twin"}
        assert len({f.id for f in primary.status().followers}) == 2


def test_a_client_with_all_that_is_shown_moves_no_claim(log: walkit.WriteAheadLog) -> None:
    """Say hello with the key as the id, and acknowledge all: it is another replica, and the claim stays."""
    with (
        Primary(log, publisher=lambda: Publisher(batch_bytes=1)) as primary,
        Caller(primary.address) as honest,
    ):
        end = end_of(honest.welcomed("r"), log)
        honest.say(Ack(end=end))
        assert honest.identity is not None
        key = honest.identity.key
        until(lambda: key in claims(log), "the claim")
        with Caller(primary.address) as thief:
            thief.hello("r", id=bytes.fromhex(key)).next_of(Welcome)
            assert thief.identity is not None and thief.identity.key != key
            thief.say(Ack(end=end_of(thief.next_of(Batch), log)))
            until(lambda: len(claims(log)) == 2, "the other's claim")
            assert claims(log)[key] == end.last_lsn + 1
            assert len({follower.id for follower in primary.status().followers}) == 2


def test_a_replica_that_was_put_back_is_refused(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Acknowledge more, then come with an earlier copy of the files in the same folder: refused over a restart too."""
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
        with Replica(tmp_path / "r", primary.address, new_identity=True) as replica:
            assert replica.wait_for(30, WAIT_S) == 30


def test_an_unknown_id_gets_a_new_identity(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Remove the registry, and spoil it: the replica goes on under a new id each time."""
    followed(log, tmp_path / "r")
    first = identity_in(tmp_path / "r")
    (tmp_path / "p" / REGISTRY_NAME).unlink()
    log.append(b"more")
    followed(log, tmp_path / "r")
    second = identity_in(tmp_path / "r")
    assert second != first
    file = tmp_path / "p" / REGISTRY_NAME
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    log.append(b"more")
    with Primary(log) as primary:
        assert ReplicaRegistry(FileStorage(tmp_path / "p")).find(second.key) is None
        with Replica(tmp_path / "r", primary.address) as replica:
            assert replica.wait_for(22, WAIT_S) == 22
    assert identity_in(tmp_path / "r") not in (first, second)


def test_a_primary_that_cannot_keep_an_identity_gives_none(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Put a folder in the place of the registry: a new replica is refused for now with the cause, and then served."""
    (tmp_path / "p" / REGISTRY_NAME).mkdir()
    with (
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address, backoff=Backoff(1, 20)) as replica,
    ):
        until(lambda: replica.status().reason in ("full", "damage"), "the refusal")
        assert REGISTRY_NAME in replica.status().trouble
        assert not (tmp_path / "r" / IDENTITY_NAME).exists()
        (tmp_path / "p" / REGISTRY_NAME).rmdir()
        assert replica.wait_for(20, WAIT_S) == 20


# -- files


def sealed(name: str, body: bytes) -> bytes:
    """Return a private file with a right checksum."""
    return b"walkit-%s 1 %08x\n%s" % (name.encode(), crc32c(body), body)


def test_a_registry_of_impossible_values_is_made_anew(tmp_path: Path) -> None:
    """Put values that no registry has under a right checksum: it is damage, and the next replica gets its identity."""
    known = mint()
    numbers = b'{"replicas":[{"key":"%s","name":"x","acked":[%s],"seen_us":%s}]}'
    who = known.key.encode()
    bodies = [
        numbers % (who, b"Infinity,0,0", b"0"),
        numbers % (who, b"1,2,3", b"1e999"),
        b'{"replicas":' + b"[" * 200_000,
        b'{"replicas":' + b"9" * 6000 + b"}",
        b'{"replicas":[null]}',
    ]
    for body in bodies:
        (tmp_path / REGISTRY_NAME).write_bytes(sealed(REGISTRY_NAME, body))
        registry = ReplicaRegistry(FileStorage(tmp_path))
        assert registry.find(known.key) is None and "damaged" in registry.trouble
        identity = mint()
        assert registry.add(identity, "new", set())
        found = ReplicaRegistry(FileStorage(tmp_path)).find(identity.key)
        assert found is not None and found.key == identity.key


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
                said = f"{error!r} {vars(error)}"
                assert not any(piece in said for piece in pieces)
                error = error.__cause__ or error.__context__


@pytest.mark.parametrize("spoiled", [b"", b"x", b"\n{}", b"walkit-replica-identity 1 00000000\n{}"])
def test_a_damaged_identity_is_refused(log: walkit.WriteAheadLog, tmp_path: Path, spoiled: bytes) -> None:
    """Spoil the file: a CorruptionError before anything is opened, and a new identity mends it."""
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


def test_the_registry_is_bounded_and_forgets_who_never_acknowledged() -> None:
    """Fill a registry of three: strangers make room, then who was not seen for longest; those that are kept stay."""
    storage = CrashingStorage()
    storage.create()
    registry = ReplicaRegistry(storage, limit=3)
    one, two, three, four, five, six = (mint() for _ in range(6))
    end = LogEnd(last_lsn=9, position=640, chain=1)
    assert all(registry.add(i, "r", ()) for i in (one, two, three))
    registry.acknowledged(two.key, end)
    registry.save(now=True)
    assert registry.add(four, "r", {one.key})
    assert registry.find(three.key) is None
    assert registry.find(one.key) is not None
    registry.acknowledged(four.key, end)
    again = ReplicaRegistry(storage, limit=3)
    known = again.find(two.key)
    assert known is not None
    assert known.acked == end
    assert registry.add(five, "r", {one.key})
    assert registry.find(two.key) is None
    assert not registry.add(six, "r", {one.key, four.key, five.key})
    assert len(registry) == 3


def test_a_log_that_can_only_be_read_is_served_with_a_registry_elsewhere(tmp_path: Path) -> None:
    """Serve a folder that takes no file: a new replica is refused with the way out, and follows with `registry`."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"v")
    (tmp_path / "p" / REGISTRY_LOCK_NAME).mkdir()  # no lock can be taken there, whoever runs the tests
    with Primary(tmp_path / "p") as primary, Replica(tmp_path / "r", primary.address) as replica:
        until(lambda: "--registry" in replica.status().trouble, "the refusal")
        assert replica.status().reason == "full"
        assert replica.status().id == ""
    with (
        Primary(tmp_path / "p", registry=tmp_path / "state" / "of p") as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        assert replica.wait_for(1, WAIT_S) == 1
        assert replica.status().id == identity_in(tmp_path / "r").key
    assert (tmp_path / "state" / "of p" / REGISTRY_NAME).exists()


def test_a_power_cut_while_the_registry_is_written_leaves_what_was_given_out() -> None:
    """Cut the power after each identity that was kept: every one that was given out is known."""
    storage = CrashingStorage()
    storage.create()
    registry, given = ReplicaRegistry(storage), []
    for _ in range(4):
        given.append(mint())
        assert registry.add(given[-1], "r", ())
        for seed in range(6):
            left = ReplicaRegistry(storage.crash(keep="random", seed=seed))
            assert all(left.find(identity.key) for identity in given)


def test_a_registry_that_another_process_writes_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    """Hold the registry's lock as another process does: an identity is not kept, and the error names the lock."""
    storage = FileStorage(tmp_path)
    lock = storage.lock(REGISTRY_LOCK_NAME)
    assert not isinstance(lock, LockHolder)
    registry = ReplicaRegistry(storage)
    with pytest.raises(StorageError, match=REGISTRY_LOCK_NAME):
        registry.add(mint(), "r", ())
    assert len(registry) == 0
    lock.release()
    assert registry.add(mint(), "r", ())


def test_two_primaries_of_one_log_share_the_registry(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Mint at two primaries of one folder in turns: each knows the replicas of the other."""
    with Primary(log) as one, Primary(tmp_path / "p") as two:
        identities = []
        for primary in (one, two, one):
            with Caller(primary.address) as caller:
                caller.welcomed("r")
                assert caller.identity is not None
                identities.append(caller.identity)
        for identity in identities:
            for primary in (one, two):
                until(lambda p=primary: not p._sessions, "the sessions to end")  # type: ignore[misc]
                with Caller(primary.address) as caller:
                    assert isinstance(caller.prove(identity).next(), Welcome)
