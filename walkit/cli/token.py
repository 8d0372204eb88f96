"""The token of `walkit serve` and `walkit follow`: from a file or the environment, where other users do not see it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from walkit.cli.usage import UsageError

TOKEN_VARIABLE = "WALKIT_TOKEN"
TOKEN_BYTES_MAX = 4096


class _RefuseToken(argparse.Action):
    """Name the right place for a token, without repeating it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: str | Sequence[Any] | None,
        name: object = None,
    ) -> NoReturn:
        parser.error(
            "--token would show the token to every user of this machine, through its command line (ps): give "
            f"--token-file FILE, or the environment variable {TOKEN_VARIABLE}"
        )


def add_token_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--token-file`, and a `--token` that only explains why it is refused."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"{what}: the first line of this file; without it the environment variable {TOKEN_VARIABLE}, if it is set",
    )
    parser.add_argument("--token", nargs="?", action=_RefuseToken, help=argparse.SUPPRESS)


def token_of(args: argparse.Namespace) -> str | None:
    """Return the requested token, or None. UsageError for a file or a variable without one."""
    path = args.token_file
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE)
        if token == "":
            raise UsageError(f"{TOKEN_VARIABLE} is set and empty: unset it, or give it the token")
        return token
    try:
        with open(path, "rb") as file:
            content = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror or error}") from None
    lines = content.splitlines()
    first = lines[0].strip() if lines else b""
    if not first or len(content) > TOKEN_BYTES_MAX or any(line.strip() for line in lines[1:]):
        raise UsageError(f"--token-file {path}: the token is its only line, of up to {TOKEN_BYTES_MAX} bytes")
    try:
        return first.decode("ascii")
    except UnicodeDecodeError:
        raise UsageError(f"--token-file {path}: a token is printable ASCII") from None
