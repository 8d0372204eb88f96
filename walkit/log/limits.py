"""What fits into a frame, for callers that have no log to ask yet."""

from __future__ import annotations

from walkit._arguments import refuse
from walkit.config import ALIGNMENT_BUFFERED, ALIGNMENT_DIRECT, LogOptions
from walkit.format.body import COLUMN_BYTES_PER_RECORD
from walkit.format.layout import FRAME_HEADER_BYTES


def value_bytes_max(options: LogOptions, key_bytes: int = 0) -> int:
    """Return the most bytes of a value that a log with these options takes, beside a key of so many bytes.

    With `direct_io` where the place takes it; one that falls back to the page cache takes some bytes more.
    """
    alignment = ALIGNMENT_DIRECT if options.direct_io else ALIGNMENT_BUFFERED
    body_bytes = options.frame_bytes_max - FRAME_HEADER_BYTES - alignment
    return min(body_bytes, options.queue_bytes_max) - COLUMN_BYTES_PER_RECORD - key_bytes


def require_fits(option: str, value_bytes: int, options: LogOptions, key_bytes: int = 0) -> None:
    """OptionsError for values larger than a log with these options takes; for what is asked of it later."""
    most = value_bytes_max(options, key_bytes)
    if value_bytes > most:
        refuse(
            option,
            value_bytes,
            f"a value of at most {most:,} bytes fits a frame of {options.frame_bytes_max:,} bytes",
            most,
        )
