"""The rights of callers at a primary: tokens with rights, each compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from walkit._internal.arguments import refuse
from walkit.replication.transport.grpc_common import grpc

TOKEN_KEY = "walkit-token"
TOKEN_CHARS_MAX = 4096
HIDDEN = "..."
"""A message has this for a token."""
TOKENS_MAX = 64
Right: TypeAlias = Literal["read", "append"]
Serve: TypeAlias = Callable[[Any, Any], Iterator[bytes]]
"""Handles a call: its messages, or its one message, and its context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """The tokens that a primary takes, by their right; several, so that one can replace another.

    A token of `read` lets a replica follow, and appends nothing. `append` is the right to append, and no right to
    follow: this version of walkit has no call that needs it. A token in both has both.
    """

    read: Sequence[str] = field(default=(), repr=False)
    append: Sequence[str] = field(default=(), repr=False)


class Authenticator:
    """Decides by the token of a call. Safe from any thread."""

    def __init__(self, tokens: Tokens | None) -> None:
        """None asks for no token. OptionsError for tokens that cannot be sent, or for none at all."""
        self._tokens: tuple[tuple[bytes, Right], ...] = ()
        if tokens is None:
            return
        if not isinstance(tokens, Tokens):
            refuse("tokens", type(tokens).__name__, "Tokens(read=..., append=...)")
        rights: tuple[tuple[Right, Sequence[str]], ...] = (("read", tokens.read), ("append", tokens.append))
        for right, given in rights:
            if isinstance(given, str):
                refuse("tokens", HIDDEN, f"{right} is a list of tokens, not one token")
            self._tokens += tuple((_checked(token, "tokens").encode(), right) for token in given)
        if not 1 <= len(self._tokens) <= TOKENS_MAX:
            refuse("tokens", len(self._tokens), f"1 to {TOKENS_MAX} tokens")

    @property
    def needs_token(self) -> bool:
        """Whether a token is needed at all."""
        return bool(self._tokens)

    def refusal(self, metadata: Any, right: Right) -> tuple[Any, str] | None:
        """Return the gRPC status and text that refuse a call; None if it has this right."""
        if not self._tokens:
            return None
        said = next((value for key, value in metadata if key == TOKEN_KEY), "")
        found = said.encode() if isinstance(said, str) else bytes(said)
        rights = [has for token, has in self._tokens if hmac.compare_digest(token, found)]
        if not rights:
            return grpc.StatusCode.UNAUTHENTICATED, "the token is missing, or another one"
        if right not in rights:
            return grpc.StatusCode.PERMISSION_DENIED, f"the token is good to {rights[0]}, and not to {right}"
        return None

    def guarded(self, right: Right, serve: Serve) -> Serve:
        """Return a handler of calls that serves those alone whose token has this right; the others are aborted."""

        def handle(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            refusal = self.refusal(context.invocation_metadata(), right)
            if refusal is not None:
                context.abort(*refusal)
            yield from serve(requests, context)

        return handle


def tokens_of(token: object, tokens: Tokens | None) -> Tokens | None:
    """Return the tokens that a primary was given: one that may read, or several; OptionsError for both."""
    if token is None:
        return tokens
    if tokens is not None:
        refuse("tokens", HIDDEN, "not beside token: put that into Tokens(read=...)")
    return Tokens(read=(_checked(token, "token"),))


def check_token(token: object) -> str | None:
    """Return the token of a replica; OptionsError for one that cannot be sent."""
    return None if token is None else _checked(token, "token")


def _checked(token: object, option: str) -> str:
    if (
        not isinstance(token, str)
        or not 1 <= len(token) <= TOKEN_CHARS_MAX
        or not (token.isascii() and token.isprintable())
    ):
        refuse(option, HIDDEN, f"a string of 1 to {TOKEN_CHARS_MAX:,} printable ASCII characters")
    return token
