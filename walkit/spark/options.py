"""The options of a load: what each may be, and which logs its paths mean.

Spark hands options over as text, in any case, and adds its own if a load is a table of its catalog.
"""

from __future__ import annotations

import glob
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from walkit._internal.arguments import check_choice, refuse
from walkit.errors import LogNotFoundError, OptionsError
from walkit.format.file_names import is_cursor_name
from walkit.format.layout import CLAIM_LEASE_US_MAX
from walkit.read.read_api import Resolve
from walkit.spark.facts import LogFacts
from walkit.storage.address import FILES, StorageOptions, is_object_url, storage_at

T = TypeVar("T")
View: TypeAlias = Literal["records", "frames", "segments", "damage", "changes"]
Mode: TypeAlias = Literal["failfast", "permissive"]
VIEWS: tuple[View, ...] = ("records", "frames", "segments", "damage", "changes")
MODES: tuple[Mode, ...] = ("failfast", "permissive")
RESOLVE: tuple[Resolve, ...] = ("value", "link")
OF_FOLDERS = ("segments", "damage", "permissive")
"""Views and modes that a log on object storage does not have."""

OF_A_LOAD = (
    *("path", "bodies", "firstLsn", "lastLsn", "mode", "partitions"),
    *("resolve", "since", "snapshot", "storageOptions", "until", "view"),
)
OF_A_STREAM = ("claim", "claimSeconds", "failOnDataLoss", "maxBytesPerTrigger", "maxRecordsPerTrigger")
OPTIONS = (*OF_A_LOAD, *OF_A_STREAM)
"""The options that a user may give. Any other is Spark's or a mistake."""

NEWEST_OF = "newestOf"
"""An option of walkit's own: LSNs, with commas. A partition has only the newest record of each key up to each."""
TOUCHED_FROM = "touchedFrom"
"""And: an LSN. Only records of keys that a record from there on has, where finding these keys costs little."""
ONLY = "only"
"""And: keys in hexadecimal digits, with commas. Only their records."""
PLANNED = "planned"
"""And: what an earlier load noted of each log, with the last LSN that is wanted of it, as JSON."""

OF_OTHERS = {
    "versionasof": "lastLsn, and snapshot true for the whole state",
    "timestampasof": "until, and snapshot true for the whole state",
    "startingversion": "firstLsn",
    "startingtimestamp": "since",
    "endingversion": "lastLsn",
    "endingtimestamp": "until",
    "readchangefeed": "walkit.spark.changes(path, first_lsn), and view 'changes' of a stream",
    "readchangedata": "walkit.spark.changes(path, first_lsn), and view 'changes' of a stream",
}
"""Options of Delta Lake, and what walkit has for each."""

OWN = (NEWEST_OF, TOUCHED_FROM, ONLY, PLANNED)
OPTION_NAMES = {name.lower(): name for name in (*OPTIONS, *OWN)}

OF_SPARK = (
    *("paths", "owner", "provider", "location", "comment", "collation", "external"),
    *("is_managed_location", "table_type", "transient_lastddltime"),
)
"""The options that Spark adds: several paths as JSON, and the properties of a table in its catalog."""
TABLE_PREFIX = "option."
"""Spark gives each option of a table a second time, under this."""

CLAIM_S_DEFAULT = 2 * 24 * 3600
"""How long the claim of a stream counts after its last renewal: a daily job that is late once has it still."""

HIDDEN = "..."
"""Shown instead of credentials."""

OF_A_SINK = "checkpointlocation"
"""An option that Spark gives to the sink of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of one `load()`, checked. Picklable."""

    paths: tuple[str, ...]
    """Absolute paths of the logs."""
    many: bool
    """Whether the load is of several logs by its form: a list or a pattern, even where that is one log now."""
    view: View
    mode: Mode
    first_lsn: int | None
    last_lsn: int | None
    """Inclusive; 0 is before the first record."""
    since: datetime | None
    until: datetime | None
    """Bounds as times, with a time zone: `walkit.spark.time_bounds` makes LSNs of them, for each log."""
    partitions: int | None
    storage_options: StorageOptions | None
    """Endpoint, region and credentials of object storage; without them the environment of each process has them."""
    snapshot: bool
    resolve: Resolve
    """Whether tasks fetch the values of links, or hand out records of kind link."""
    bodies: bool
    """Whether view "frames" reads the bodies, to verify their checksums."""
    claim: str | None
    """The name of a stream's claim; "" for no claim, None for a name of the stream's own."""
    claim_s: int
    fail_on_data_loss: bool
    """Whether a stream fails if records that it has not read are gone; else it continues with the rest."""
    max_records: int | None
    max_bytes: int | None
    newest_of: tuple[int, ...]
    """See `NEWEST_OF`; without LSNs all records are read."""
    touched_from: int | None
    """See `TOUCHED_FROM`."""
    only: frozenset[bytes] | None
    """See `ONLY`; None is all keys."""
    planned: tuple[tuple[LogFacts, int], ...]
    """See `PLANNED`, for each of `paths`."""
    given: frozenset[str]
    """The options that were given, as `OPTIONS` spells them."""

    def refuse(self, names: Sequence[str], reason: str) -> None:
        """Raise OptionsError where one of these options was given."""
        for name in names:
            if name in self.given:
                raise OptionsError(f"option {name} {reason}", option=name)


def unknown(name: str) -> OptionsError:
    """Return the error of who gave an option that there is not, with the one that was meant where that is near."""
    if name in OF_OTHERS:
        return OptionsError(f"option {name} is Delta Lake's; walkit has {OF_OTHERS[name]}", option=name)
    near = get_close_matches(name.replace("_", ""), [known.lower() for known in OPTIONS], 1)
    meant = f"; did you mean {OPTION_NAMES[near[0]]}?" if near else ";"
    return OptionsError(f"unknown option {name!r}{meant} walkit knows {', '.join(OPTIONS)}", option=name)


def no_sink() -> OptionsError:
    """Return the error of who would have Spark write a log."""
    return OptionsError(
        "Spark reads logs of walkit and does not write them: a log has one writer. Append from the driver: "
        "walkit.open(path).append_arrow(batch) for the batches of df.toArrow(), or of foreachBatch in a stream",
        option="format",
        wanted="walkit",
    )


def read_options(options: Mapping[str, Any]) -> LoadOptions:
    """Return the options of a load; `OptionsError` for one that is unknown, or is not what it has to be."""
    given = {name.lower(): str(value) for name, value in options.items()}
    for name in given:
        if name == OF_A_SINK:
            raise no_sink()
        if name not in OPTION_NAMES and name not in OF_SPARK and not name.startswith(TABLE_PREFIX):
            raise unknown(name)
    paths, many = _paths(given)
    found = LoadOptions(
        paths=paths,
        many=many,
        view=cast("View", _one_of(given, "view", VIEWS)),
        mode=cast("Mode", _one_of(given, "mode", MODES)),
        first_lsn=_number(given, "firstLsn"),
        last_lsn=_number(given, "lastLsn", least=0),
        since=_time(given, "since"),
        until=_time(given, "until"),
        partitions=_number(given, "partitions"),
        storage_options=_storage_options(given),
        snapshot=_switch(given, "snapshot"),
        fail_on_data_loss=_switch(given, "failOnDataLoss", "true"),
        resolve=cast("Resolve", _one_of(given, "resolve", RESOLVE)),
        bodies=_switch(given, "bodies"),
        claim=_claim(given),
        claim_s=_number(given, "claimSeconds") or CLAIM_S_DEFAULT,
        max_records=_number(given, "maxRecordsPerTrigger"),
        max_bytes=_number(given, "maxBytesPerTrigger"),
        newest_of=tuple(_own(NEWEST_OF, given, lambda text: [int(lsn) for lsn in text.split(",")]) or ()),
        touched_from=_number(given, TOUCHED_FROM),
        only=_own(ONLY, given, lambda text: frozenset(bytes.fromhex(key) for key in text.split(","))),
        planned=tuple(_own(PLANNED, given, _planned) or ()),
        given=frozenset(OPTION_NAMES[name] for name in given if name in OPTION_NAMES),
    )
    _check(found)
    return found


def _own(name: str, given: Mapping[str, str], read: Callable[[str], T]) -> T | None:
    """Return the value of an option of walkit's own, or None."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        return read(text)
    except (TypeError, ValueError):
        refuse(name, text, "this option is walkit's own, and invalid")


def _planned(text: str) -> list[tuple[LogFacts, int]]:
    return [(LogFacts(**facts), end) for facts, end in json.loads(text)]


def _check(found: LoadOptions) -> None:
    for first in ("firstLsn", "since"):
        if found.snapshot:
            found.refuse((first,), "leaves out what option snapshot puts first; give one of them")
    for time, lsn in (("since", "firstLsn"), ("until", "lastLsn")):
        if lsn in found.given:
            found.refuse((time,), f"is the same bound as option {lsn}, as a time; give one of them")
    if found.since is not None and found.until is not None and found.since > found.until:
        refuse(
            "since",
            found.since.isoformat(),
            f"not after option until ({found.until.isoformat()})",
            found.until,
        )
    if found.view != "records":
        found.refuse(("resolve", "snapshot"), f"is for view 'records', and this is view {found.view!r}")
    if found.view != "frames":
        found.refuse(("bodies",), f"is for view 'frames', and this is view {found.view!r}")
    if found.mode == "permissive":
        found.refuse(
            ("snapshot",), "needs the whole history, and mode 'permissive' leaves out what is damaged"
        )
    if found.mode == "permissive" or found.view == "damage":
        found.refuse(("since", "until"), "needs the times of all frames, which a damaged log may not show")
    if found.many:
        found.refuse(
            ("firstLsn", "lastLsn"), "is for one log: the LSNs of several do not compare; use column log"
        )
    for name, value in (("view", found.view), ("mode", found.mode)):
        if value in OF_FOLDERS and any(map(is_object_url, found.paths)):
            refuse(name, value, "this is for logs in folders, and one is on object storage")
    if not any(is_object_url(path) and not path.startswith(FILES) for path in found.paths):
        found.refuse(("storageOptions",), "is for s3://, gs:// and az://, and no path is one of these")
    if found.claim_s * 1e6 > CLAIM_LEASE_US_MAX:
        refuse(
            "claimSeconds", found.claim_s, f"a claim lasts at most {CLAIM_LEASE_US_MAX // 10**6} (30 days)"
        )


def _paths(given: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """Return the logs' absolute paths, and whether the load is of several by its form."""
    named = []
    if "paths" in given:
        named = _listed(given["paths"])
    elif given.get("path") or given.get("location"):
        named = [given.get("path") or given["location"]]
    if not named:
        refuse("path", None, "give the path of a log: load(path), or OPTIONS (path '...') of a table")
    if "provider" in given:
        named = [table_path(name) for name in named]
    found: list[str] = []
    many = len(named) > 1
    for name in named:
        path = local_path(name)
        if not is_object_url(path) and glob.has_magic(path) and not os.path.exists(path):
            many = True
            found += _matching(os.path.join(path, "") if name.endswith("/") else path)
        else:
            found.append(path)
    real = [path if is_object_url(path) else os.path.realpath(path) for path in found]
    for path, at in zip(found, real, strict=True):
        if real.count(at) > 1:
            refuse("path", path, "this log is named twice")
    return tuple(found), many


def _listed(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        refuse("paths", text, "give several logs as a list: load([PATH, PATH])")
    return found


def table_path(name: str) -> str:
    """Return the path of a table: Spark's catalog hands it over as `file:/PATH`, in which nothing is escaped."""
    return name[len("file:") :] if name.startswith("file:/") and not name.startswith("file://") else name


def _matching(pattern: str) -> list[str]:
    found = sorted(os.path.normpath(path) for path in glob.glob(pattern))
    if not found:
        raise LogNotFoundError(pattern, "no path has this pattern")
    return found


def local_path(name: str) -> str:
    """Return the URL of an object store, or the absolute path of a folder: a path, `~`, `file:/PATH`, `file:///PATH`.

    `OptionsError` for another kind of address: Spark's workers are other processes.
    """
    if is_object_url(name):
        if name.startswith(FILES):
            return FILES + os.path.abspath(os.path.expanduser(name.removeprefix(FILES)))
        return name.rstrip("/")
    if name.startswith("memory:"):
        refuse(
            "path",
            name,
            "this log is in the memory of one process, and Spark reads in others: open it at a path",
        )
    if name.startswith("file:"):
        rest = name[len("file:") :]
        host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        if host not in ("", "localhost"):
            refuse("path", name, f"the host is {host}; give file:///PATH")
        name = unquote(slash + path)
    elif "://" in name:
        refuse("path", name, "a log is read from a path, file:///PATH or the URL of an object store")
    path = os.path.abspath(os.path.expanduser(name))
    storage_at(path)  # raises walkit's words for a file, an empty path, a zero character
    return path


def _number(given: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        refuse(name, text, f"a whole number of {least} or more")
    return int(text)


def _time(given: Mapping[str, str], name: str) -> datetime | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        refuse(name, text, "a time with its zone, such as 2026-01-31 09:00:00+00:00")
    return found


def _storage_options(given: Mapping[str, str]) -> StorageOptions | None:
    text = given.get("storageoptions")
    if text is None:
        return None
    if "provider" in given:
        where = "the environment of the executors has them; a catalog keeps the options of its tables, and shows them"
        refuse("storageOptions", HIDDEN, where)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        refuse(
            "storageOptions", HIDDEN, 'a JSON object, such as {"endpoint": "https://...", "region": "..."}'
        )
    return StorageOptions(found)


def _switch(given: Mapping[str, str], name: str, default: str = "false") -> bool:
    text = given.get(name.lower(), default).lower()
    check_choice(text, ("true", "false"), name)
    return text == "true"


def _one_of(given: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    text = given.get(name.lower(), choices[0]).lower()
    check_choice(text, choices, name)
    return text


def _claim(given: Mapping[str, str]) -> str | None:
    name = given.get("claim")
    if name is None or name == "none":
        return None if name is None else ""
    if not is_cursor_name(name):
        refuse("claim", name, "1 to 64 letters, digits, '_' and '-', or none for no claim")
    return name


def own_claim_name(owner: uuid.UUID) -> str:
    """Return the name of the claim of a stream to which none was given."""
    return f"spark-{owner.hex[:16]}"
