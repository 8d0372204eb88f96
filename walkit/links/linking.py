"""Giving a log its payload log: the owner, the place, and the way of readers to it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, cast

from walkit._internal.arguments import refuse
from walkit.commit.ports import LogPorts, Owner
from walkit.config import LogOptions
from walkit.errors import OptionsError
from walkit.links.floor import PayloadFloor
from walkit.links.writer import VALUE_BYTES_MAX, PayloadWriter, payload_options
from walkit.log.wal import WriteAheadLog, link_values
from walkit.read.payloads import LOGS_KEY, Opener, Payloads, names_of, stored_place
from walkit.read.view import PayloadSource
from walkit.segments.manifest_store import PAYLOAD_KEY
from walkit.storage.address import FILES, AnyPlace, absolute, is_object_url, open_store, storage_at


def real(location: str) -> str:
    """Return a location by which two spellings of one folder are equal."""
    return os.path.realpath(location.removeprefix(FILES))


def payload_place(given: Any, location: str) -> AnyPlace:
    """Return the place of a payload log so that it means the same in any folder, for the log at `location`.

    OptionsError for anything else, and for the log's own place.
    """
    try:
        if is_object_url(given):
            given = absolute(given)
            open_store(given).close()  # makes no request
        elif not hasattr(given, "put_if_absent"):
            given = storage_at(given)
    except OptionsError:
        # A URL may have a password in it.
        shown = f"{given.partition(':')[0]}:..." if isinstance(given, str) and ":" in given else given
        refuse("payload_log", shown, "a path, a URL without credentials, a storage or an object store")
    there = given if isinstance(given, str) else given.location
    if real(location) == real(there):
        refuse("payload_log", there, "another place than the log's own", location)
    return cast(AnyPlace, given)


OpenPayloadLog = Callable[[LogOptions, LogPorts], WriteAheadLog]


def link(log: WriteAheadLog, payload_location: str, open_log: OpenPayloadLog, open_reader: Opener) -> None:
    """Send the large values of a log that was just opened to its payload log, which is opened or made.

    `open_log` opens it for writing, `open_reader` any payload log for reading. The key of the owner is durable before
    the payload log is made, and the place of the payload log before the first link.
    """
    parts, location = log.parts, log.location
    manifests, options = parts.manifest_store, payload_options(parts.options)
    key = manifests.current.extra.get(PAYLOAD_KEY)
    if key is None:
        key = secrets.randbits(63) | 1
        manifests.note({PAYLOAD_KEY: key})
    named, place = manifests.current.extra.get(LOGS_KEY, {}), stored_place(location, payload_location)
    places = names_of(manifests.current, location).items()
    known = next((log_id for log_id, where in places if real(where) == real(payload_location)), 0)
    owner = Owner(manifests.current.log_id, key, known)
    payload_log = open_log(options, LogPorts(owner=owner))
    try:
        log_id = payload_log.parts.manifest_store.current.log_id
        again = LogPorts(owner=owner._replace(payload_log_id=log_id))
        if named.get(f"{log_id:016x}") != place:
            manifests.note({LOGS_KEY: {**named, f"{log_id:016x}": place}})
        payloads = Payloads(location, lambda: names_of(manifests.current, location), open_reader)
        writer = PayloadWriter(parts, lambda: open_log(options, again), payload_log)
    except BaseException:
        payload_log.close()
        raise

    floor = PayloadFloor(parts, writer)

    def close() -> None:
        floor.close()
        payloads.close()
        writer.close()

    payloads.adopt(log_id, PayloadSource(payload_log.location, writer.now, close))
    parts.trimmer.on_dropped = floor.free
    limit_bytes = min(VALUE_BYTES_MAX + parts.core.body_bytes_max, parts.options.queue_bytes_max)
    link_values(log, limit_bytes, payloads, floor, close)
