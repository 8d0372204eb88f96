"""Fixtures of these tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

import walkit
from walkit.links.writer import payload_options


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give payload logs segments that drop out soon after their values were freed."""

    def small(options: walkit.LogOptions) -> walkit.LogOptions:
        return replace(payload_options(options), segment_bytes=64 << 10, frame_bytes_max=32 << 10)

    monkeypatch.setattr("walkit.links.linking.payload_options", small)
