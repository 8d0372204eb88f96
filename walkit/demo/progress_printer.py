"""The demo's progress on the terminal, and the time of each step."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Step:
    """One step of the story and the seconds it took; its parts too."""

    title: str
    seconds: float = 0.0
    parts: list[tuple[str, float]] = field(default_factory=list)


class ProgressPrinter:
    """Prints at once; a closed output does not stop the work. Used by one thread."""

    def __init__(self, show: bool = True) -> None:
        self.steps: list[Step] = []
        self._show = show
        self._in_line = False

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, and time it."""
        step = Step(title=title)
        self.steps.append(step)
        self.print_line(f"{len(self.steps)}. {title}")
        began = time.perf_counter()
        try:
            yield
        finally:
            step.seconds = time.perf_counter() - began

    @contextmanager
    def part(self, title: str, *, bar: bool = False) -> Iterator[None]:
        """Print the title of a part of the step, and its time at the end; with `bar` with a progress bar between."""
        text = f"   {title} ..."
        self._print(text, end="\n" if bar else "")
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            self._print("" if bar else "\n", end="")
            raise
        took = time.perf_counter() - began
        self.steps[-1].parts.append((title, took))
        self._print(f"   {took:.1f} s" if bar else f" {took:.1f} s")

    def print_line(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def _print(self, text: str, end: str = "\n") -> None:
        if not self._show:
            return
        try:
            print(text, end=end, flush=True)
        except BrokenPipeError:
            self._show = False
            # Bytes that are left in the buffer would fail again when the interpreter ends.
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, sys.stdout.fileno())
                os.close(null)
