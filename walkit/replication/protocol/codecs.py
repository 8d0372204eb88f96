"""How frames are compressed on their way, and how much of them travels by each codec. Pure."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zstandard

from walkit._internal.arrow import pa
from walkit.metrics import TrafficStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable

CODECS = ("zstd", "snappy")
"""Codecs of both sides, besides sending frames as they are stored."""
ZSTD_LEVEL = 1
_of_thread = threading.local()


def chosen(offered: Iterable[str]) -> str:
    """Return the first of the codecs that a subscriber offers which is known; "" if none is."""
    return next((codec for codec in offered if codec in CODECS), "")


def pack(data: bytes, codec: str) -> tuple[str, bytes]:
    """Return (codec, bytes to send): compressed if that is agreed and smaller, else as it is and ""."""
    if codec == "zstd":
        packed = _compressor().compress(data)
    elif codec == "snappy":
        packed = _snappy().compress(data, asbytes=True)
    else:
        return "", data
    return (codec, packed) if len(packed) < len(data) else ("", data)


def _compressor() -> zstandard.ZstdCompressor:
    """Return this thread's compressor: to make one takes longer than to compress a small batch."""
    made = getattr(_of_thread, "compressor", None)
    if made is None:
        made = _of_thread.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return made


def unpack(data: bytes, codec: str, size: int) -> bytes | None:
    """Return the bytes of a batch; None if they are not `size` bytes, which is all that is ever allocated.

    Compressed data has its size in front: data without one, or with another, is not unpacked.
    """
    if size <= 0:
        return None
    if codec == "zstd":
        try:
            if zstandard.frame_content_size(data) != size:
                return None
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError:
            return None
    elif codec == "snappy":
        if _snappy_size(data) != size:  # else the rest of the allocation would be uninitialised
            return None
        try:
            data = _snappy().decompress(data, size, asbytes=True)
        except (OSError, ValueError):
            return None
    return data if len(data) == size else None


def _snappy() -> Any:
    return pa.Codec("snappy")


def _snappy_size(data: bytes) -> int | None:
    """Return the size that a snappy content says in front: a little-endian number of 7 bits a byte."""
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size
    return None


@dataclass(slots=True)
class Traffic:
    """Frames that one side has sent, or received. One thread counts; any may read, a batch sooner or later."""

    batches: int = 0
    frame_bytes: int = 0
    by_codec: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("", *CODECS), 0))

    def count(self, codec: str, frame_bytes: int, travelled_bytes: int) -> None:
        """Add one batch."""
        self.batches += 1
        self.frame_bytes += frame_bytes
        self.by_codec[codec] += travelled_bytes

    def add(self, other: Traffic) -> None:
        """Add all that another one has counted."""
        self.batches += other.batches
        self.frame_bytes += other.frame_bytes
        for codec, travelled_bytes in other.by_codec.items():
            self.by_codec[codec] += travelled_bytes

    def statistics(self) -> TrafficStatistics:
        """Return a snapshot by the names of metrics."""
        return TrafficStatistics(
            batches=self.batches,
            frame_bytes=self.frame_bytes,
            plain_bytes=self.by_codec[""],
            zstd_bytes=self.by_codec["zstd"],
            snappy_bytes=self.by_codec["snappy"],
        )
