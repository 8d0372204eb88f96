"""Object stores of clouds, by the package obstore: `s3://`, `gs://` and `az://`. Extra `walkit[object]`.

A put and a deletion are tried once: a repetition could meet an object that was put since. Reads and lists are tried
again by obstore. A message has the status and the code of an answer and no other text of the
store or of obstore: there may be credentials in it. For the same reason no error has obstore's as its cause.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from walkit._internal.arguments import refuse
from walkit.errors import (
    MissingExtraError,
    ObjectConflictError,
    ObjectDeniedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRangeError,
    ObjectStoreError,
    ObjectThrottledError,
    ObjectUnknownError,
    ObjectUnsupportedError,
)
from walkit.record import Buffer
from walkit.storage.interface import checked_name
from walkit.storage.object_store import ObjectBytes, ObjectEntry, checked_range

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, PutResult

T = TypeVar("T")
DEFAULTS: dict[str, Any] = {"timeout": "30s", "connect_timeout": "5s"}
"""Of one try, for its whole answer, and for a connection; `storage_options` may have others."""
_NO_VALUE = re.compile(r"^Configuration key: |must be specified$")
"""Messages of obstore without a value."""
_OF_CLIENT = re.compile(
    "allow_.+|.*timeout|default_(content_type|headers)|http[12]_.+|pool_.+|proxy_.+|randomize_.+|root_.+|user_agent"
)
"""Options of obstore's HTTP client, which it takes apart from those of the store."""
_READ_RETRIES, _READ_RETRY_S = 4, 20
_STATUS = re.compile(r"status code: (\d{3})")
_DETAILS = re.compile(r"<Code>(\w+)</Code>|\bkind: (\w+)")
_CREDENTIALS = re.compile("/latest/(api/token|meta-data)|computeMetadata|metadata/identity")
"""The addresses where obstore looks for credentials if it was given none."""
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")
_KINDS: dict[int, type[ObjectStoreError]] = {
    **dict.fromkeys((401, 403), ObjectDeniedError),
    **dict.fromkeys((429, 503), ObjectThrottledError),
    416: ObjectRangeError,
}


class ObstoreObjectStore:
    """A bucket or container, or a folder of keys in it: see `walkit.storage.ObjectStore`.

    `options` are obstore's configuration of the store and its client: endpoint, region, credentials, timeout. The
    environment gives the others, as obstore documents it.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise MissingExtraError("object", "obstore") from error
        client = DEFAULTS | {name: value for name, value in options.items() if _OF_CLIENT.fullmatch(name)}
        # Client options that are given replace all those of the environment.
        allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
        if allowed or str(options.get("endpoint", "")).startswith("http://"):
            client = {"allow_http": True} | client
        config: Any = {name: value for name, value in options.items() if name not in client}
        retries: Any = {"max_retries": _READ_RETRIES, "retry_timeout": timedelta(seconds=_READ_RETRY_S)}
        self._url, self._obstore, make, failed = url, obstore, partial(from_url, url, config=config), ""
        try:
            self._writes: Any = make(client_options=client, retry_config={"max_retries": 0})
            self._reads: Any = make(client_options=client, retry_config=retries)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            failed = str(error).partition("\n")[0]
            if not _NO_VALUE.search(failed):
                failed = "one of them has a wrong value"
        if failed:
            refuse("storage_options", sorted(options), f"obstore does not take them for {url}: {failed}")

    pause_s = 1.0

    @property
    def location(self) -> str:
        """The URL."""
        return self._url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    def put_if_absent(self, key: str, data: Buffer) -> str:
        """Create an object; return its tag."""
        return self._put("create", key, data, "create")

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str:
        """Replace the object that has this tag; return the new tag."""
        mode: PutMode = {"version": tag} if self._has_generations else {"e_tag": tag}
        return self._put("replace", key, data, mode)

    def get(self, key: str) -> ObjectBytes:
        """Return all bytes of an object, and its tag."""
        return self._get(key, {})

    def get_range(self, key: str, start: int, stop: int) -> ObjectBytes:
        """Return bytes [start, stop) of an object, fewer if it is shorter, and its tag."""
        checked_range(start, stop)
        return self._get(key, {"range": (start, stop)})

    def list_after(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield the objects below a folder of keys whose keys sort after `after`."""
        if prefix:
            checked_name(prefix, self._url)
        pages = self._obstore.list(self._reads, prefix or None, offset=after or None)
        while page := self._call("list", prefix, lambda: next(pages, ())):
            for meta in page:
                yield ObjectEntry(meta["path"], meta["size"], self._tag(meta))

    def delete(self, key: str) -> None:
        """Remove an object, whatever its tag, if there is one."""
        self.delete_many([key])

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects, up to 1,000 in a request if the store has bulk requests."""
        paths = [checked_name(key, self._url) for key in keys]
        if paths:
            self._call("delete", paths[0], lambda: self._obstore.delete(self._writes, paths))

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _has_generations(self) -> bool:
        return self._url.startswith("gs://")

    def _tag(self, meta: ObjectMeta | PutResult) -> str:
        return meta["version" if self._has_generations else "e_tag"] or ""

    def _put(self, action: str, key: str, data: Buffer, mode: PutMode) -> str:
        checked_name(key, self._url)
        result = self._call(action, key, lambda: self._obstore.put(self._writes, key, data, mode=mode))
        return self._checked(self._tag(result), action, key)

    def _get(self, key: str, options: GetOptions) -> ObjectBytes:
        checked_name(key, self._url)

        def read() -> ObjectBytes:
            result = self._obstore.get(self._reads, key, options=options)
            return ObjectBytes(result.bytes().to_bytes(), self._checked(self._tag(result.meta), "read", key))

        return self._call("read", key, read)

    def _checked(self, tag: str | None, action: str, key: str) -> str:
        if not tag:
            text = f"cannot {action} {key!r} in {self._url}: the store gives objects no tags"
            raise ObjectUnsupportedError(text, what="tags", store=self._url, key=key)
        return tag

    def _call(self, action: str, key: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except ObjectStoreError:
            raise
        except (self._obstore.exceptions.BaseError, OSError, NotImplementedError) as error:
            answer = self._answer(action, key, error)
        raise answer  # out here: as the context of the answer, obstore's error would be shown

    def _answer(self, action: str, key: str, error: Exception) -> ObjectStoreError:
        text, known = str(error), self._obstore.exceptions
        found = _STATUS.search(text)
        status = int(found[1]) if found else None
        kind: type[ObjectStoreError]
        if _CREDENTIALS.search(text):
            kind, text, status = ObjectDeniedError, "kind: NoCredentials", None
        elif _NO_BUCKET.search(text):
            kind = ObjectMissingError
        elif status in _KINDS:
            kind = _KINDS[status]
        elif isinstance(error, FileNotFoundError):
            kind = ObjectConflictError if action == "replace" else ObjectMissingError
        elif isinstance(error, known.PreconditionError | known.AlreadyExistsError):
            kind = {"create": ObjectExistsError, "replace": ObjectConflictError}.get(action, ObjectStoreError)
        elif isinstance(error, known.NotSupportedError | NotImplementedError):
            kind = ObjectUnsupportedError
        else:
            kind = ObjectUnknownError if status is None or status >= 500 else ObjectStoreError
        details = dict.fromkeys("".join(each) for each in _DETAILS.findall(text))
        reason = " ".join([str(status or type(error).__name__), *details])
        message = f"cannot {action} {key!r} in {self._url}: {reason}"
        return kind(message, store=self._url, key=key, status=status)
