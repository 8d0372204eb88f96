"""Calls of one question: the token is looked at before the question comes, and callers that send none hold no place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from walkit.replication.transport.calls import enter_waiting
from walkit.replication.transport.grpc_common import grpc

Answer: TypeAlias = Callable[[bytes, Any], Iterator[bytes]]
"""Answers a question on its call's own thread: the message and gRPC's context in, the answers out."""


class Questions:
    """Takes the question of each call. Safe from any thread.

    These calls are served as streams: gRPC would read the message of a unary call before any handler runs, so that a
    caller that sends none would hold one of the primary's calls unseen, and for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Any, None] = {}

    def asked(self, answer: Answer) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
        """Return the handler of a call whose one message `answer` takes."""

        def handle(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            question = self._question(requests, context)
            if question is not None:
                yield from answer(question, context)

        return handle

    def _question(self, requests: Iterator[bytes], context: Any) -> bytes | None:
        """Return the message of a call; None where the call ends without one."""
        with self._lock:
            longest = enter_waiting(self._waiting, context)
        if longest is not None:
            longest.cancel()
        try:
            with suppress(grpc.RpcError):  # the call has ended: nothing is left to answer
                return next(requests, None)
        finally:
            with self._lock:
                self._waiting.pop(context, None)
        return None
