"""Who a replica is: minted once, proved each time, never copied, and known to the primary over its restarts."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, Caller, Relay, until
from tests.replication.sim_network import history_of
from tests.replication.test_authentication import end_of, held
from tests.support.crashes import SMALL
from walkit.errors import CorruptionError, FormatVersionError, StorageError
from walkit.format.checksum import crc32c
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage
from walkit.replication import IdentityError, Primary, Replica
from walkit.replication.core.actions import SendToPublisher
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.primary.registry import ReplicaRegistry
from walkit.replication.protocol.identity import Identity, mint, new_nonce, proof_of, proves
from walkit.replication.protocol.messages import Ack, Batch, Challenge, Hello, Proof, Refusal, Welcome
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


# -- what proves it


def test_a_proof_is_good_for_one_secret_one_nonce_and_one_hello() -> None:
    """Change each of them by itself: the proof of the others does not pass, and its own does."""
    one, nonce = mint(), new_nonce()
    hello = Hello(name="r", log_id=7, end=LogEnd(last_lsn=5, position=640, chain=9), id=one.id)
    proof = proof_of(one, nonce, hello)
    assert proves(proof, one, nonce, hello)
    assert not proves(proof, replace(one, secret=mint().secret), nonce, hello)
    assert not proves(proof, one, new_nonce(), hello)
    for changed in (
        replace(hello, name="s"),
        replace(hello, log_id=8),
        replace(hello, end=replace(hello.end, last_lsn=6)),
        replace(hello, end=replace(hello.end, position=704)),
        replace(hello, end=replace(hello.end, chain=8)),
    ):
        assert not proves(proof, one, nonce, changed)
    assert not proves(b"", one, nonce, hello)
    assert "secret" not in repr(one)


def test_a_secret_is_in_no_message_after_the_first_contact(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Listen to all bytes of two sessions: the first welcome alone has the secret, and no note of a core."""
    seen: list[tuple[int, bytes]] = []

    def listen(call: int, message: int, data: bytes) -> bytes:
        seen.append((call, data))
        return data

    with Primary(log) as primary, Relay(primary.address, up=listen, down=listen) as relay:
        for _ in range(2):
            with Replica(tmp_path / "r", relay.address) as replica:
                replica.wait_for(log.acked_lsn, WAIT_S)
                (session,) = primary._sessions
                notes = "\n".join([*session.core.history, *replica._core.history])
            until(lambda: not primary._sessions, "the end of the session")
            log.append(b"more")
            secret = identity_in(tmp_path / "r").secret
            assert repr(secret) not in notes and secret.hex() not in notes
    assert {call for call, _ in seen} == {0, 1}
    assert [call for call, data in seen if secret in data] == [0]


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
    known = registry.find(identity_in(tmp_path / "r").id)
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
    known = registry.find(first.id)
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


def test_an_id_without_its_secret_gets_no_place(log: walkit.WriteAheadLog) -> None:
    """Say an id that is served, with a wrong proof, none, and an old one: refused, and its session goes on."""
    with Primary(log) as primary, Caller(primary.address) as honest:
        end = end_of(honest.welcomed("r"), log)
        mine = honest.identity
        assert mine is not None
        hello = Hello(name="r", id=mine.id)
        for answer in (Proof(mac=bytes(32)), Ack(end=LogEnd()), hello):
            with Caller(primary.address) as thief:
                assert isinstance(thief.say(hello).next(), Challenge)
                refusal = thief.say(answer).next()
                assert isinstance(refusal, Refusal)
                assert refusal.reason == ("identity" if isinstance(answer, Proof) else "protocol")
                assert thief.next() is None
        assert "ipv4:127.0.0.1" in primary.status().trouble
        assert [f.id for f in primary.status().followers] == [mine.key]
        honest.say(Ack(end=end))
        until(lambda: held(log) == {"r": end.last_lsn + 1}, "the honest claim")


def test_a_replayed_hello_and_proof_are_refused(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Record what a replica says, and say it again: the nonce is another one, so the proof does not pass."""
    said: list[bytes] = []

    def record(call: int, message: int, data: bytes) -> bytes:
        said.append(data)
        return data

    followed(log, tmp_path / "r")
    with Primary(log) as primary:
        with Relay(primary.address, up=record) as relay, Replica(tmp_path / "r", relay.address) as replica:
            replica.wait_for(20, WAIT_S)
            until(lambda: len(said) >= 2, "hello and proof")
        until(lambda: not primary._sessions, "the end of the session")
        with Caller(primary.address) as thief:
            refusal = thief.say(said[0]).say(said[1]).next_of(Refusal)
            assert refusal.reason == "identity"
            assert thief.next() is None


def test_a_replica_with_another_secret_fails_by_name(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Follow with the right id and another secret: an IdentityError after the second try, and nothing is lost."""
    followed(log, tmp_path / "r")
    own = load_identity(FileStorage(tmp_path / "r"))
    assert own is not None
    forged = OwnIdentity(Identity(own.identity.id, mint().secret), own.name)
    keep_identity(FileStorage(tmp_path / "r"), forged)
    log.append(b"more")
    with Primary(log) as primary:
        with Replica(tmp_path / "r", primary.address, backoff=Backoff(1, 2)) as replica:
            with pytest.raises(IdentityError, match="new_identity=True") as refused:
                replica.wait_for(21, WAIT_S)
            assert refused.value.reason == "identity"
            assert [r.lsn for r in replica.log.read()] == list(range(1, 21))
        with Replica(tmp_path / "r", primary.address, new_identity=True) as replica:
            assert replica.wait_for(21, WAIT_S) == 21


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
        assert ReplicaRegistry(FileStorage(tmp_path / "p")).find(second.id) is None
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
    numbers = b'{"replicas":[{"id":"%s","secret":"%s","name":"x","acked":[%s],"seen_us":%s}]}'
    who = known.id.hex().encode(), known.secret.hex().encode()
    bodies = [
        numbers % (*who, b"Infinity,0,0", b"0"),
        numbers % (*who, b"1,2,3", b"1e999"),
        b'{"replicas":' + b"[" * 200_000,
        b'{"replicas":' + b"9" * 6000 + b"}",
        b'{"replicas":[null]}',
    ]
    for body in bodies:
        (tmp_path / REGISTRY_NAME).write_bytes(sealed(REGISTRY_NAME, body))
        registry = ReplicaRegistry(FileStorage(tmp_path))
        assert registry.find(known.id) is None and "damaged" in registry.trouble
        identity = mint()
        assert registry.add(identity, "new", set())
        found = ReplicaRegistry(FileStorage(tmp_path)).find(identity.id)
        assert found is not None and found.identity == identity


def test_no_error_of_a_damaged_identity_has_the_secret(tmp_path: Path) -> None:
    """Cut the file at each byte, with and without a right checksum: no word, field or cause has six bytes of it."""
    storage, own = FileStorage(tmp_path), OwnIdentity(mint(), "r")
    keep_identity(storage, own)
    text = (tmp_path / IDENTITY_NAME).read_bytes()
    body, secret = text.partition(b"\n")[2], own.identity.secret.hex()
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
    registry.acknowledged(two.id, end)
    registry.save(now=True)
    assert registry.add(four, "r", {one.key})
    assert registry.find(three.id) is None
    assert registry.find(one.id) is not None
    registry.acknowledged(four.id, end)
    again = ReplicaRegistry(storage, limit=3)
    known = again.find(two.id)
    assert known is not None
    assert known.acked == end
    assert registry.add(five, "r", {one.key})
    assert registry.find(two.id) is None
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
    """Cut the power after each identity that was kept: every one that was given out is known, with its secret."""
    storage = CrashingStorage()
    storage.create()
    registry, given = ReplicaRegistry(storage), []
    for _ in range(4):
        given.append(mint())
        assert registry.add(given[-1], "r", ())
        for seed in range(6):
            left = ReplicaRegistry(storage.crash(keep="random", seed=seed))
            found = [left.find(identity.id) for identity in given]
            assert [known and known.identity for known in found] == given


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


def test_a_challenge_that_nothing_asked_for_is_not_answered() -> None:
    """Challenge a subscriber without an identity, and one twice: the connection is given up, and no proof is said."""
    history = history_of(9, 7, 8)
    for identity, challenges in ((None, 1), (mint(), 2)):
        subscriber = Subscriber("r", log_id=history.manifest.log_id, identity=identity)
        subscriber.start(0)
        subscriber.connected(0)
        steps = [subscriber.receive(Challenge(nonce=new_nonce()), 0) for _ in range(challenges)]
        assert not any(isinstance(step, SendToPublisher) for step in steps[-1])
        assert (subscriber.state, subscriber.reason) == ("detached", "protocol")
