"""`%load_ext walkit`: the command line and a workload in a notebook's cell."""

from __future__ import annotations

import ast
import shlex
from typing import Any

from walkit.cli import main
from walkit.cli.usage import UsageError


def load_ipython_extension(shell: Any) -> None:
    """Register `%walkit` and `%%drive` with an IPython shell."""

    def walkit(line: str) -> None:
        """Run a command of walkit: `%walkit inspect orders.log`. A nonzero exit code is printed."""
        code = main(shlex.split(line))
        if code:
            print(f"exit code {code}")

    def drive(line: str, cell: str) -> Any:
        """Drive a log or Store: `%%drive LOG [NAME]`, below it the fields of a Workload, one `name = value` a line.

        The Run is the cell's result, and the value of NAME if it is given.
        """
        from walkit.workload import Workload
        from walkit.workload import drive as run_of

        target, *names = line.split()
        run = run_of(shell.user_ns[target], Workload(**_fields(cell)))
        shell.user_ns.update(dict.fromkeys(names, run))
        return run

    shell.register_magic_function(walkit, "line")
    shell.register_magic_function(drive, "cell")


def _fields(cell: str) -> dict[str, Any]:
    """Return the literals that the lines of a cell assign. UsageError for any other statement."""
    fields = {}
    for statement in ast.parse(cell).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise UsageError(f"{ast.unparse(statement)!r} is not a field of a Workload: name = value")
        fields[statement.targets[0].id] = ast.literal_eval(statement.value)
    return fields
