"""A child process in its role: `python -m walkit.workload`."""

from walkit.workload.role import main

if __name__ == "__main__":
    raise SystemExit(main())
