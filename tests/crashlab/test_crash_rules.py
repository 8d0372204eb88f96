"""The oracle: each rule is broken by a state that is made to break it, and by no honest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import walkit
from walkit.crashlab import RULES, SCENARIOS
from walkit.crashlab.crash_rules import BrokenRuleError, Oracle
from walkit.crashlab.promises import Ledger, Promise
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.record import Kind

OPTIONS = SCENARIOS["append"].options
ROWS = [(Kind.PUT, b"key", b"value %d" % number) for number in range(6)]


def logged() -> tuple[CrashingStorage, Promise]:
    """Return a closed log of six records, of which two are a transaction, and its promises."""
    storage, ledger = CrashingStorage(), Ledger()
    with walkit.open(storage=storage, options=OPTIONS) as log:
        for kind, key, value in ROWS[:4]:
            ledger.keep(ledger.submit((kind, key, value)))
            log.append(value, key)
        with log.transaction() as tx:
            for _, key, value in ROWS[4:]:
                tx.put(key, value)
        ledger.keep(ledger.submit(*ROWS[4:], together=True))
    return storage, ledger.promise()


def damaged(storage: CrashingStorage) -> None:
    """Change a byte inside a sealed segment."""
    name = next(name for name in storage.names() if name.endswith(".segment"))
    storage.open(name, "write").write(4096 + 200, [b"\xff"])


def without_manifest(storage: CrashingStorage) -> None:
    """Remove the manifest."""
    storage.remove("manifest")


def other_row(promise: Promise) -> Promise:
    """Promise another record under an LSN."""
    return replace(promise, rows=[*promise.rows[:2], (Kind.PUT, b"key", b"other"), *promise.rows[3:]])


Spoil = tuple[str, Callable[[CrashingStorage], None] | None, Callable[[Promise], Promise] | None]
SPOILED: dict[str, Spoil] = {
    "a byte is changed": ("verified", damaged, None),
    "the manifest is gone": ("readers", without_manifest, None),
    "more was promised": ("kept", None, lambda p: replace(p, kept=7, submitted=7)),
    "less was appended": ("genuine", None, lambda p: replace(p, submitted=5, kept=5)),
    "another record was appended": ("genuine", None, other_row),
    "a cursor was put into place": ("stands", None, lambda p: replace(p, places=(("cursor a", 3, 4),))),
    "a hold was taken": ("held", None, lambda p: replace(p, held=3)),
    "a repair was to leave more": ("aside", None, lambda p: replace(p, is_damaged=True, repaired=("more",))),
    "one after the end was acknowledged": ("kept", None, lambda p: replace(p, also=frozenset({9}))),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_state_breaks_its_rule(name: str) -> None:
    """Spoil a log, or its promises: the oracle names the rule; unspoiled it breaks none."""
    rule, spoil, promised = SPOILED[name]
    storage, promise = logged()
    Oracle(OPTIONS).judge(storage.process_kill(), promise)
    if spoil is not None:
        spoil(storage)
    with pytest.raises(BrokenRuleError) as broken:
        Oracle(OPTIONS).judge(storage, promise if promised is None else promised(promise))
    assert broken.value.rule in RULES
    if rule != "readers":  # the first refusal may come from any way in
        assert broken.value.rule == rule


def test_an_error_without_a_type_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the recovery raise an unexpected error: the state breaks the rule under test, with the cause."""
    storage, promise = logged()

    def broken(*given: object) -> None:
        raise KeyError("no such segment")

    monkeypatch.setattr(WriteAheadLog, "read", broken)
    with pytest.raises(BrokenRuleError, match="KeyError: 'no such segment'") as raised:
        Oracle(OPTIONS).judge(storage, promise)
    assert raised.value.rule == "opens" and isinstance(raised.value.__cause__, KeyError)


def test_a_part_of_a_transaction_is_noticed() -> None:
    """Append the records of a transaction one by one, and cut the log between them: the rule is named."""
    storage, ledger = CrashingStorage(), Ledger()
    with walkit.open(storage=storage, options=OPTIONS) as log:
        ledger.submit(*ROWS[:2], together=True)
        log.append(ROWS[0][2], ROWS[0][1])
    with pytest.raises(BrokenRuleError) as broken:
        Oracle(OPTIONS).judge(storage, ledger.promise())
    assert broken.value.rule == "whole"


def test_a_state_of_a_store_is_compared() -> None:
    """Promise other values than the Store was given under keys: the state differs at its last LSN."""
    storage, ledger = CrashingStorage(), Ledger()
    with walkit.Store.open(storage=storage, options=OPTIONS) as store:
        store.put(b"a", b"1")
        ledger.keep(ledger.submit((Kind.PUT, b"a", b"1")))
        store.checkpoint()
    promise = ledger.promise()
    Oracle(OPTIONS, is_store=True).judge(storage.process_kill(), replace(promise, trimmed=1))
    spoiled = replace(promise, trimmed=1, rows=[(Kind.PUT, b"a", b"2")])
    with pytest.raises(BrokenRuleError) as broken:
        Oracle(OPTIONS, is_store=True).judge(storage, spoiled)
    assert broken.value.rule in ("state", "genuine")


def test_a_ledger_keeps_what_is_acknowledged_out_of_order() -> None:
    """Acknowledge the second record before the first: it is promised alone, and with the first one all is."""
    ledger = Ledger()
    ledger.submit(*ROWS[:3])
    ledger.keep_also(2, 2)
    assert (ledger.promise().kept, ledger.promise().also) == (0, frozenset({2}))
    before = ledger.promise()
    ledger.keep_also(1, 1)
    assert (ledger.promise().kept, ledger.promise().also) == (2, frozenset())
    ledger.restart(2)
    ledger.submit(ROWS[5])
    assert before.rows[2] == ROWS[2] and ledger.promise().rows[2] == ROWS[5]
    assert before.key != ledger.promise().key
