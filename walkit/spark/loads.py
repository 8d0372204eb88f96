"""Which log a function of `walkit.spark` is asked about, and the records of it that the answer needs.

A log is named by its path, or by a DataFrame as `load()` gave it. After another step (a condition, a union, a view)
nothing says for sure which records are left, so that such a DataFrame is a NotALoadError.

Spark prunes neither columns nor records of a source written in Python. So the log is loaded again with the
columns and bounds that the question needs; a log that has changed since is refused: see `walkit.spark.scan`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from walkit._internal.arguments import refuse
from walkit.errors import GapError, NotALoadError
from walkit.read.read_api import Resolve
from walkit.spark.errors import errors, require_open
from walkit.spark.facts import SOURCE_NAME, TOUCHED_KEY, LogFacts
from walkit.spark.options import HIDDEN, NEWEST_OF, ONLY, PLANNED, TOUCHED_FROM, Mode, View
from walkit.spark.session import session

Log: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | DataFrame
"""One log by its path, several by a list or a pattern, or either as `load()` gave it."""

RELOAD_LSNS = 1 << 17
"""A log of no more LSNs is not loaded again: that would save less than it takes."""
BROADCAST_LSNS = 1 << 17
"""The hashes of up to so many keys that a range touches go to each worker, instead of a shuffle."""
STORAGE = "storageOptions"
KEYS_MAX = 10_000
"""Most keys that are asked for at once: they are part of the query's plan."""
HASH = "walkit_hash"


@errors()
def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    first_lsn: int | None = None,
    last_lsn: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    snapshot: bool = False,
    partitions: int | None = None,
    view: View = "records",
    mode: Mode = "failfast",
    resolve: Resolve = "value",
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Return a log's records, or another view of it, as a DataFrame: `spark.read.format("walkit")` with these options.

    `path` is a folder, the URL of a log on object storage, a list or a pattern. Bounds are inclusive; `since` and
    `until` are times with a zone. The DataFrame shows the log as it is now, however it grows. With `resolve="link"` a
    value in a payload log comes as its link, in a record of kind link; `replay` and the others refuse such a DataFrame.

    `storage_options` are those of `walkit.open`: tasks get them with the plan, and no plan, error or page of Spark's
    shows them. Without them each executor takes its environment's, as it has to over Spark Connect.

    Raises walkit's own errors, also those that Spark wraps: LogNotFoundError, NotALogError, OptionsError, and GapError
    for a bound below the oldest record.
    """
    if storage_options is not None and is_remote():
        refuse(
            "storage_options",
            HIDDEN,
            "the environment of the executors has them: Spark Connect shows options",
        )
    options = {
        "firstLsn": first_lsn,
        "lastLsn": last_lsn,
        "since": since,
        "until": until,
        "snapshot": snapshot or None,
        "partitions": partitions,
        "view": view,
        "mode": mode,
        "resolve": None if resolve == "value" else resolve,
        STORAGE: None if storage_options is None else json.dumps(dict(storage_options)),
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    paths = os.fspath(path) if isinstance(path, str | os.PathLike) else [os.fspath(one) for one in path]
    found = session().read.format(SOURCE_NAME).options(**given).load(paths)
    found.schema  # noqa: B018 - Spark Connect looks at the log at the first question only
    return found


def is_load(df: DataFrame) -> bool:
    """Return whether the root of a DataFrame's plan is a load of the data source: no step is after it."""
    if is_remote():
        return bool(getattr(df._plan, "_format", None) == SOURCE_NAME)
    root = df._jdf.queryExecution().analyzed()
    is_relation = root.getClass().getSimpleName() == "DataSourceV2Relation"
    return bool(is_relation and root.table().name() == SOURCE_NAME)


def _storage_of(df: DataFrame) -> dict[str, str]:
    """Return option storageOptions of a load, if it was given."""
    if is_remote():
        return {}
    found = df._jdf.queryExecution().analyzed().options().get(STORAGE)
    return {} if found is None else {STORAGE: found}


@dataclass(frozen=True, slots=True)
class Load:
    """The records of one log or of several, each up to an LSN."""

    records: DataFrame
    logs: tuple[LogFacts, ...]
    """What `load()` noted of each."""
    ends: tuple[int, ...]
    """The last LSN of each that counts, inclusive."""
    what: str
    """Names who asks, in errors."""

    @classmethod
    def of(cls, log: Log, what: str) -> Load:
        """Return a log whole, with its snapshot if only a path is given; NotALoadError for what names no log."""
        if not isinstance(log, DataFrame):
            named = [log] if isinstance(log, str | os.PathLike) else log
            if not isinstance(named, Sequence) or not all(
                isinstance(one, str | os.PathLike) for one in named
            ):
                raise _no_load(what, f"a {type(log).__name__}")
            log = load(log, snapshot=True)
        require_open(log, what)
        if log.isStreaming:
            raise _no_load(what, "a stream: spark.read instead of spark.readStream")
        logs = tuple(LogFacts.all_of(log)) if is_load(log) else ()
        if not logs:
            raise _no_load(
                what, "a DataFrame after other steps, with links, or with a schema or view of its own"
            )
        return cls(log, logs, tuple(facts.last_lsn for facts in logs), what)

    @property
    def log(self) -> LogFacts:
        """The facts of the one log; OptionsError for several logs, whose LSNs do not compare."""
        if len(self.logs) > 1:
            paths = [facts.path for facts in self.logs]
            refuse("log", paths, f"{self.what} takes one log, as LSNs of different logs do not compare")
        return self.logs[0]

    @property
    def end(self) -> int:
        """The last LSN of the one log that counts."""
        return self.ends[self.logs.index(self.log)]

    def until(self, at_lsn: object = None, at_time: datetime | None = None) -> Load:
        """Return the records up to an LSN or a time, inclusive, or all; raise if they do not give the state then."""
        ends = self.ends
        if at_time is not None:
            ends = tuple(self.lsn_at(facts, at_time) for facts in self.logs)
        elif at_lsn is not None:
            ends = (self._lsn_of(at_lsn),)
        for facts, end in zip(self.logs, ends, strict=True):
            facts.require_state(end)
        return replace(self, ends=ends)

    def _lsn_of(self, at_lsn: object) -> int:
        if type(at_lsn) is not int or not 0 <= at_lsn <= self.log.last_lsn:
            last = self.log.last_lsn
            refuse("at_lsn", at_lsn, f"there are states at LSN 0, before the first record, to {last:,}", last)
        return at_lsn

    @property
    def is_read_again(self) -> bool:
        """Whether each question loads the log again. Over Spark Connect it has to: each query there plans its loads."""
        if is_remote():
            return True
        kept = self.records.storageLevel
        few = sum(facts.last_lsn - facts.first_lsn for facts in self.logs) < RELOAD_LSNS
        return not (few or kept.useMemory or kept.useDisk)

    def part(
        self,
        columns: str | None = None,
        *,
        first_lsn: int = 0,
        only: Sequence[bytes] | None = None,
        newest_of: Sequence[int] = (),
        touched_from: int = 0,
    ) -> DataFrame:
        """Return the records from `first_lsn` on that count, of the keys in `only`; no others.

        `columns` is the text of a schema; the columns may be more. With `newest_of` only the newest record of each key
        up to each of these LSNs has to be there, with `touched_from` only keys that a record from that LSN on has.
        Raises if the log is not as it was when it was loaded.
        """
        if not self.is_read_again:
            return self._where(first_lsn, only)
        planned = [[asdict(facts), end] for facts, end in zip(self.logs, self.ends, strict=True)]
        options = {
            PLANNED: json.dumps(planned),
            "firstLsn": first_lsn or None,
            ONLY: None if only is None else ",".join(key.hex() for key in only),
            NEWEST_OF: ",".join(map(str, newest_of)) or None,
            TOUCHED_FROM: touched_from or None,
        }
        given = {name: str(value) for name, value in options.items() if value is not None}
        given |= _storage_of(self.records)
        reader = self.records.sparkSession.read.format(SOURCE_NAME).options(**given)
        with errors():
            found = (reader if columns is None else reader.schema(columns)).load(
                [facts.path for facts in self.logs]
            )
            found.schema  # noqa: B018 - see `load`
        return found

    def _where(self, first_lsn: int, only: Sequence[bytes] | None) -> DataFrame:
        found, lsn = self.records, F.col("lsn")
        if len(self.logs) > 1:
            ended = zip(self.logs, self.ends, strict=True)
            found = found.where(
                reduce(or_, ((F.col("log_id") == log.log_id) & (lsn <= end) for log, end in ended))
            )
        elif self.end < self.log.last_lsn:
            found = found.where(lsn <= self.end)
        if first_lsn:
            found = found.where(lsn >= first_lsn)
        return found if only is None else found.where(F.col("key").isin(*only))

    def of_touched_keys(self, first_lsn: int) -> DataFrame:
        """Return the records of the keys that a record from `first_lsn` on touches, maybe of some more.

        Those before `first_lsn` may be without what is superseded by then, and without their time.
        """
        if not self.is_read_again:
            return self.part()
        narrowed = self.part(touched_from=first_lsn)
        if TOUCHED_KEY in narrowed.schema["lsn"].metadata:
            return narrowed
        records = self.part()
        if self.end - first_lsn >= BROADCAST_LSNS:
            return records
        touched = self.part("lsn bigint, key binary", first_lsn=first_lsn).where(F.col("key").isNotNull())
        # 8 bytes of each key, whatever its size; one that shares the hash of a touched one is there, too.
        hashes = touched.select(F.xxhash64("key").alias(HASH)).distinct()
        return records.join(F.broadcast(hashes), F.xxhash64("key") == F.col(HASH), "left_semi")

    def lsn_at(self, facts: LogFacts, time: datetime) -> int:
        """Return the LSN that a log had at a time, as `walkit.lsn_at` has it, and no more than it had at the load.

        HistoryTrimmedError if the time is before the oldest record: others may have been there by then.
        """
        reader = self.records.sparkSession.read.format(SOURCE_NAME).options(
            until=str(time), **_storage_of(self.records)
        )
        try:
            with errors():
                (found,) = LogFacts.all_of(reader.load(facts.path))
        except GapError as error:
            raise facts.refusal(error.wanted, error.oldest) from error
        return min(found.last_lsn, facts.last_lsn)


def keys_of(keys: bytes | Iterable[bytes] | None, option: str) -> list[bytes] | None:
    """Return the keys that are asked for, None for all; OptionsError for other types, and for too many."""
    if keys is None:
        return None
    found = [keys] if isinstance(keys, bytes) else list(keys)
    if not found or len(found) > KEYS_MAX or not all(isinstance(one, bytes) for one in found):
        refuse(option, keys, f"a key of bytes, or 1 to {KEYS_MAX:,} of them")
    return found


def _no_load(what: str, found: str) -> NotALoadError:
    return NotALoadError(
        f"{what} takes a log: a path, or a DataFrame as walkit.spark.load(path) gave it, and this is {found}. Give it "
        "the log and filter the result; walkit.spark.replay_rows takes the records of any DataFrame, unchecked",
        option="log",
        wanted=found,
    )
