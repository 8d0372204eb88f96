"""The writer as a separate process: `python -m walkit.workload`."""

from walkit.workload.child_process import main

if __name__ == "__main__":
    raise SystemExit(main())
