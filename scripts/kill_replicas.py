"""Kill writers, servers and replicas with SIGKILL until so many kills are counted; seeded, and continued.

    python scripts/kill_replicas.py --kills 1000 --state kills.jsonl [--dir DIR]

Runs rounds of `tests/replication/chaos_rounds.py`, each with 15 faults. Each round that ends is a line of the state
file; a run with the same file continues after the last one. A round that breaks a promise ends the run with its seed
and leaves its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = sys.path[0]  # of the processes that a round starts

from tests.replication.chaos_rounds import Chaos
from tests.replication.processes import processes

FAULTS_A_ROUND = 15


def done(state: Path) -> list[dict[str, int]]:
    """The rounds that have ended."""
    lines = state.read_text().splitlines() if state.exists() else []
    return [json.loads(line) for line in lines]


def main() -> int:
    """Run rounds until there are enough kills."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--state", type=Path, required=True, help="where rounds that ended are noted")
    parser.add_argument("--dir", help="where the logs of a round are made")
    args = parser.parse_args()
    rounds = done(args.state)
    while (kills := sum(each["kills"] for each in rounds)) < args.kills:
        seed = len(rounds)
        folder = Path(tempfile.mkdtemp(prefix=f"walkit-kills-{seed}-", dir=args.dir))
        try:
            with ExitStack() as stack:
                world = Chaos(folder, seed, stack.enter_context(processes()), stack)
                world.run(FAULTS_A_ROUND)
        except BaseException:
            print(f"seed {seed} failed after {kills:,} kills; its logs are in {folder}", flush=True)
            raise
        shutil.rmtree(folder)
        facts = {"seed": seed, **world.tally}
        rounds.append(facts)
        with args.state.open("a") as file:
            file.write(json.dumps(facts) + "\n")
        print(f"{kills + facts['kills']:,} kills", facts, flush=True)
    of = {name: sum(each[name] for each in rounds) for name in ("kills", "bootstrapping", "trims")}
    print(f"{of['kills']:,} kills in {len(rounds):,} rounds, none broke a promise:", of)
    return 0


if __name__ == "__main__":
    sys.exit(main())
