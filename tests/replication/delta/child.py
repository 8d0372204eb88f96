"""A child process of the kill tests: follows a log by delta poll with checkpoints, until it is ended."""

from __future__ import annotations

import sys
import time

from tests.replication.writer import Ending
from walkit.replication import DeltaReader
from walkit.replication.core.backoff import Backoff


def main(log: str, address: str, own: str) -> None:
    """Follow, and take a checkpoint again and again, until SIGTERM."""
    ending = Ending()
    with DeltaReader(
        log, address, checkpoint=own, checkpoint_s=0.02, lease_s=30, backoff=Backoff(5, 50)
    ) as reader:
        print("ready", flush=True)
        while reader.error is None:
            time.sleep(0.02)
            if ending.over:
                return
        raise reader.error


if __name__ == "__main__":
    main(*sys.argv[1:])
