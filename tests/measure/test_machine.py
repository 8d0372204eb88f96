"""Facts about this machine: what is known, and that nothing here fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from walkit.measure import FileSystemFacts, MachineFacts, file_system, machine


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
def test_this_machine_is_described(tmp_path: Path) -> None:
    """Here, for a file that does not exist yet: the file system's device number is the folder's own."""
    facts = MachineFacts.here(tmp_path / "not" / "yet")
    assert facts.cores == os.cpu_count()
    assert facts.memory_bytes
    assert facts.kernel
    assert facts.python
    place = facts.file_system
    assert place is not None
    assert place.type
    assert place.mount_point
    assert place.mount_options
    assert os.stat(place.mount_point).st_dev == os.stat(tmp_path).st_dev
    assert place.type in facts._repr_html_()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_a_file_system_in_memory_is_known() -> None:
    """/dev/shm is a tmpfs and is flagged; it has no device."""
    place = file_system("/dev/shm/log")
    assert (place.type, place.tmpfs, place.device) == ("tmpfs", True, None)


def test_unreadable_facts_are_unknown_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No /proc, no /sys, no sysconf: unknown, never an error."""

    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(machine, "_read", lambda path: None)
    monkeypatch.setattr(machine, "mount_of", lambda path: None)
    monkeypatch.setattr(os, "sysconf", refuse)
    facts = MachineFacts.here(tmp_path)
    assert (facts.memory_bytes, facts.virtual, facts.file_system) == (None, None, FileSystemFacts())
    assert "unknown" in facts._repr_html_()
