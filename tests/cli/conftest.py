"""Logs to look at, and the command run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.damaged import close_log, kill_log
from walkit.cli import main


@dataclass(frozen=True)
class Ran:
    """The result of one command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log, and one whose writer was killed; "power cut" is the latter, to lose its durable slot."""
    folder = tmp_path_factory.mktemp("originals")
    close_log(folder / "closed")
    kill_log(folder / "killed")
    shutil.copytree(folder / "killed", folder / "power cut")
    return folder


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run `walkit` with these arguments in this process, its output captured at the file descriptors."""

    def call(*arguments: object) -> Ran:
        capfdbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode(), err.decode())

    return call
