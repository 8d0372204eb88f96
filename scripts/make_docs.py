#!/usr/bin/env python3
"""Make the site of the documentation, and the book with it: notebooks are executed once for both. `make docs`.

    python scripts/make_docs.py [--out build/docs] [--no-execute] [--executed build/executed]

The site needs no network and no server: open build/docs/index.html. Its source is a tree that is rebuilt each time: the
Markdown of docs/, FORMAT.md, the changelog and others, the notebooks with their outputs, and the files that these show
or link to; links are rewritten for the site. Sphinx builds the tree with docs/conf.py, and a warning is an error. With
`--no-execute` the notebooks come from the folder `--executed` if it has them, else as committed, without outputs.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from time import monotonic

import nbformat

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script: use the checkout, installed or not
    sys.path.insert(0, str(ROOT))

from scripts import book  # noqa: E402
from walkit import crashlab, errors, events, metrics, plots  # noqa: E402
from walkit.cli.arguments import make_parser  # noqa: E402
from walkit.metrics.prometheus import metric_name  # noqa: E402
from walkit.recovery import decision  # noqa: E402
from walkit.simulate.world_rules import RULES  # noqa: E402

OUT = ROOT / "build" / "docs"
EXECUTED = ROOT / "build" / "executed"
ELSEWHERE = {
    "walkit/format/FORMAT.md": "format.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "data/README.md": "data.md",
}
"""Pages of the site that are not in docs/, by their path in the repository."""
INDEX, FIRST = "00-index", "01-one-record-on-disk"
"""The notebook that lists the others, and the one that is the tutorial and stands by itself."""
CONTENTS = {"docs/decisions/README.md": "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"}
"""Text added at the end of a page: the pages that its own tables list."""
PROSE_OR_CODE = re.compile(
    r"(^(`{3,}|~{3,}).*?^\2[ \t]*$|(`+)(?!`).+?(?<!`)\3(?!`))", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^)\s>]+)>?((?:\s+\"[^\"]*\")?)\s*\)")


@dataclass
class Tree:
    """The source of the site while it is put together, and the files of the repository that its pages lead to."""

    root: Path
    source: Path
    files: set[str] = field(default_factory=set)

    def place_of(self, path: str) -> str | None:
        """Return where a file of the repository is in the site: a page, or a copy of the file; None for a folder."""
        if path in ("README.md", "docs"):
            return "index.md"
        if path in ELSEWHERE:
            return ELSEWHERE[path]
        if re.fullmatch(r"docs/.+\.md", path):
            return re.sub(r"(^|/)README\.md$", r"\1index.md", path.removeprefix("docs/"))
        if re.fullmatch(r"notebooks/[^/]+\.ipynb", path):
            return path
        if not (self.root / path).is_file():
            return None
        self.files.add(path)
        return f"files/{path}"

    def at_home(self, path: str, text: str) -> str:
        """Return a page's Markdown with its relative links as they lead in the site; a folder is named, not linked."""
        own = PurePosixPath(self.place_of(path) or path).parent

        def moved(match: re.Match[str]) -> str:
            picture, words, target, title = match.groups()
            words = LINK.sub(moved, words) if "](" in words else words
            if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
                return f"{picture}[{words}]({target}{title})"
            name, _, anchor = target.partition("#")
            place = self.place_of(os.path.normpath(PurePosixPath(path).parent / name))
            if place is None:
                return words
            if anchor and not place.endswith(".md"):
                anchor = ""
            to = os.path.relpath(place, own) + (f"#{anchor}" if anchor else "")
            return f"{picture}[{words}]({to}{title})"

        def contents(match: re.Match[str]) -> str:
            return match[1] + "".join(self.listed(path, line, own) for line in match[2].splitlines())

        return TOCTREE.sub(contents, outside_code(text, lambda prose: LINK.sub(moved, prose)))

    def listed(self, path: str, line: str, own: PurePosixPath) -> str:
        """Return a line of a list of pages as it leads in the site: `page`, or `Title <page>`, without its ending."""
        title, target = re.fullmatch(r"(?:(.+) <)?([^<>]+?)>?", line.strip()).groups()  # type: ignore[union-attr]
        if "*" in target:
            return f"{target}\n"
        name = os.path.normpath(PurePosixPath(path).parent / target)
        for ending in (".md", ".ipynb"):
            if (self.root / f"{name}{ending}").is_file():
                place = os.path.relpath((self.place_of(f"{name}{ending}") or name).removesuffix(ending), own)
                return f"{title} <{place}>\n" if title else f"{place}\n"
        raise FileNotFoundError(f"{path} lists {target}, and there is no such page")

    def write(self, path: str, text: str) -> None:
        """Put a file of the site into the tree, at its place in it."""
        target = self.source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def copy_files(self) -> None:
        """Copy the files that the pages show or link to."""
        for name in sorted(self.files):
            target = self.source / "files" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / name, target)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with `change` made outside code."""
    parts, at = [], 0
    for match in PROSE_OR_CODE.finditer(text):
        parts += [change(text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*parts, change(text[at:])])


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; `head` is its first line."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines])


def table_of_metrics() -> str:
    """Return each metric of the four snapshots once: name, unit, meaning, name in Prometheus' text."""
    kinds = metrics.LogStatistics, metrics.StoreStatistics, metrics.TrafficStatistics, metrics.PeerStatistics
    rows = {
        metric_name(snapshot, f): (f"`{f.name}`", f.metadata["unit"], f.metadata["help"])
        for snapshot in (kind() for kind in kinds)
        for f in fields(snapshot)
    }
    return table(
        "| metric | unit | meaning | Prometheus |", [(*row, f"`{name}`") for name, row in rows.items()]
    )


def table_of_events() -> str:
    """Return each event: name, level, meaning, attributes."""
    rows = [
        (f"`{name}`", logging.getLevelName(level), text, ", ".join(f"`{a}`" for a in events.CARRIES[name]))
        for name, (level, text) in events.EVENTS.items()
    ]
    return table("| event | level | meaning | attributes |", rows)


def table_of_attributes() -> str:
    """Return each attribute of events: name, unit, meaning."""
    rows = [(f"`{name}`", *about) for name, about in events.ATTRIBUTES.items()]
    return table("| attribute | unit | meaning |", rows)


def tables_of_recovery() -> str:
    """Return the decision table of recovery, its facts and its decisions."""
    rows = [["" if v == "any" else v for v in row.values()][:-1] for row in decision.table_rows()]
    facts = table("| fact | meaning |", [(f"`{name}`", text) for name, text in decision.MEANINGS.items()])
    names = " | ".join(decision.MEANINGS).replace("_", " ")
    verdicts = table("| decision | meaning |", [(d.name, d.value) for d in decision.Decision])
    return "\n\n".join([table(f"| row | {names} | decision |", rows), facts, verdicts])


def table_of_edges() -> str:
    """Return each transition of a replica and of a session: side, from, to, cause, event."""
    from walkit.replication.core.states import EDGES  # needs the extra replication

    rows = [(e.side, e.start, e.end, e.cause, f"`{e.event}`") for e in EDGES]
    return table("| side | from | to | cause | event |", rows)


def table_of_bugs() -> str:
    """Return each historic bug of the crash laboratory: mutant, the bug, the engines that had it."""
    rows = [(name, bug.text, bug.seen_in) for name, bug in crashlab.museum.MUTANTS.items()]
    return table("| mutant | what is wrong | seen in |", rows)


def table_of_errors() -> str:
    """Return each error: class, code, the meaning by its docstring, the next step by the tree of the module."""
    steps = dict(re.findall(r"^[\s│├└─]+([\w.]+)(?:\(\w+\))? +(.+)$", str(errors.__doc__), re.MULTILINE))
    rows = []
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.WalkitError) and kind is not errors.WalkitError:
            meaning = " ".join(str(kind.__doc__).split("\n\n")[0].split())
            step = steps.get(name) or steps[kind.__mro__[1].__name__]
            rows.append((f"`{name}`", f"`{kind.code}`", meaning, step))
    return table("| error | code | meaning | next step |", rows)


OF_ALL = {"--help", "--debug", "--quiet", "--verbose"}
"""Options that each command has."""


def table_of_options() -> str:
    """Return the options of each command: a heading per command and kind, and a row per argument."""

    def parts(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
        rows = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for kind, each in action.choices.items():
                    yield from parts(f"{name} {kind}".strip(), each)
            elif action.help != argparse.SUPPRESS and not OF_ALL & {*action.option_strings}:
                cells = (f"`{parser._get_formatter()._format_action_invocation(action)}`", str(action.help))
                rows.append([cell.replace("|", "\\|") for cell in cells])
        if rows and name:
            yield f"### Options of {name}\n\n{table('| argument | meaning |', rows)}"

    return "\n\n".join(parts("", make_parser()))


TABLES: dict[str, Callable[[], str]] = {
    "errors": table_of_errors,
    "options": table_of_options,
    "metrics": table_of_metrics,
    "events": table_of_events,
    "attributes": table_of_attributes,
    "edges": table_of_edges,
    "recovery": tables_of_recovery,
    "historic bugs": table_of_bugs,
    "crash rules": lambda: table("| rule | what must hold |", crashlab.RULES.items()),
    "world rules": lambda: table("| rule | what must hold |", RULES.items()),
}
"""Tables that code makes; a page names one by `<!-- table: NAME -->`."""


def with_tables(text: str) -> str:
    """Return a page with the tables of code in the places of their names."""
    names = "|".join(TABLES)
    return re.sub(rf"^<!-- table: ({names}) -->$", lambda match: TABLES[match[1]](), text, flags=re.MULTILINE)


TOCTREE = re.compile(r"(^```\{toctree\}\n(?::\w+:.*\n)*\n)((?:[^`\n]+\n)+)(?=```)", re.MULTILINE)
"""A list of pages: its head, and a path on each line, which leads in the repository as links do."""


def gather(source: Path, executed: Path | None = None, root: Path = ROOT) -> Tree:
    """Put the source of the site together in the folder `source`, with the outputs of `executed` if they exist."""
    shutil.rmtree(source, ignore_errors=True)
    tree = Tree(root, source)
    (source / "extra" / "notebooks" / "data").mkdir(parents=True)
    pages = sorted(str(page.relative_to(root)) for page in (root / "docs").rglob("*.md"))
    for path in [*pages, *(name for name in ELSEWHERE if (root / name).is_file())]:
        text = with_tables((root / path).read_text("utf-8")) + CONTENTS.get(path, "")
        tree.write(tree.place_of(path) or path, tree.at_home(path, text))
    figures = 0
    for notebook in sorted((root / "notebooks").glob("*.ipynb")):
        figures += add_notebook(tree, notebook, executed)
    if figures:
        (source / "extra" / "_static").mkdir()
        (source / "extra" / "_static" / book.SCRIPT).write_text(plots.plotly_script(), encoding="utf-8")
    shutil.copy(root / "docs" / "conf.py", source)
    shutil.copytree(root / "docs" / "_static", source / "_static")
    tree.copy_files()
    return tree


def add_notebook(tree: Tree, notebook: Path, executed: Path | None) -> int:
    """Put one notebook into the tree, with its files; return how many figures it has."""
    path = f"notebooks/{notebook.name}"
    ran = executed / notebook.name if executed is not None else notebook
    content = nbformat.read(ran if ran.is_file() else notebook, as_version=4)
    if notebook.stem == INDEX:
        names = sorted(other.stem for other in notebook.parent.glob("*.ipynb"))
        listed = [name for name in names if name not in (INDEX, FIRST)]
        contents = "\n".join(["```{toctree}", ":hidden:", "", *listed, "```"])
        content.cells.append(nbformat.v4.new_markdown_cell(contents))
    figures = book.draw_still(content, notebook.stem, tree.source / "extra" / "notebooks" / "data")
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = tree.at_home(path, cell.source)
    tree.write(path, json.dumps(content))
    return figures


def build(source: Path, out: Path) -> None:
    """Build the site of a source tree in `out`, replacing the one that is there; RuntimeError if Sphinx warns."""
    from sphinx.cmd.build import build_main

    shutil.rmtree(out, ignore_errors=True)
    doctrees = source.with_name(f"{source.name}-doctrees")
    arguments = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-d", str(doctrees), str(source), str(out)]
    if build_main(arguments):
        raise RuntimeError("Sphinx warned: its words are above")
    shutil.rmtree(doctrees, ignore_errors=True)
    (out / "_static" / "webpack-macros.html").unlink(missing_ok=True)  # a template of the theme, and no page
    for page in out.rglob("*.html"):  # without scripts the theme would be neither light nor dark
        html = page.read_text("utf-8").replace('data-theme="auto"', 'data-theme="light"', 1)
        html = NUMBER.sub(r'<td class="number">\1</td>', PARAMETERS.sub(parameters, html))
        page.write_text(html, encoding="utf-8")


NUMBER = re.compile(r"<td>([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?%?|-?inf|NaN)</td>")
"""A number in a table of results: numbers are set flush right, words flush left."""
PARAMETERS = re.compile(r"<dl>\s*((?:<dd>(?:(?!</?d[dlt]\b).)*</dd>\s*)+)</dl>", re.DOTALL)
"""The parameters of a long signature: Sphinx makes a list of definitions of them that define nothing."""


def parameters(match: re.Match[str]) -> str:
    """Return the parameters of a signature as lines instead of a list."""
    lines = match[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">{lines}</span>'


def main() -> int:
    """Make the site as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--executed", type=Path, default=EXECUTED, help="where notebooks with outputs are kept"
    )
    parser.add_argument("--no-execute", action="store_true", help="take them from there instead")
    given = parser.parse_args()
    if not given.no_execute:
        book.make(sorted(book.NOTEBOOKS.glob("*.ipynb")), book.OUT, executed=given.executed)
    # Millions of nodes live until the site is written: looking among them for garbage is a third of the build's time.
    gc.disable()  # which takes 0.8 GB instead of 0.5
    began = monotonic()
    source = given.out.with_name(f"{given.out.name}-source")
    gather(source, given.executed)
    build(source, given.out)
    pages = sum(1 for _ in given.out.rglob("*.html"))
    print(f"{pages} pages in {monotonic() - began:.0f} s: {given.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
