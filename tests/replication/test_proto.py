"""The generated protobuf code is that of walkit.proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Checkout

PROTO = "walkit/replication/protocol/walkit.proto"
GENERATED = "walkit/replication/protocol/walkit_pb2.py"


def meaning(code: str) -> list[str]:
    """The generated code without the lines that only name the protobuf version."""
    lines = code.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("_sym_db"))
    return lines[begin:]


def test_the_generated_code_is_current(checkout: Checkout, tmp_path: Path) -> None:
    """Generate it again and compare; `python -m grpc_tools.protoc -I. --python_out=. FILE` rebuilds it."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools, of the dev extra, is not installed")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", PROTO]
    subprocess.run(command, cwd=checkout.root, check=True, timeout=60)
    made = (tmp_path / GENERATED).read_text()
    kept = (checkout.root / GENERATED).read_text()
    assert "AddSerializedFile" in made
    assert meaning(made) == meaning(kept)
