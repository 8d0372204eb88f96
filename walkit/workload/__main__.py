"""The writer as a process of its own: `python -m walkit.workload`."""

from walkit.workload.child import main

if __name__ == "__main__":
    raise SystemExit(main())
