"""What the documents say is there: links, names, commands, targets, and an example that runs."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from tests.test_architecture import ROOMS
from walkit.cli import main

if TYPE_CHECKING:
    from tests.conftest import Checkout

FENCE = re.compile(r"^(`{3,}|~{3,})(\w*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
NAMED_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def anchors(text: str) -> set[str]:
    """The names by which a reader of this Markdown can be sent to a place in it."""
    found: set[str] = set()
    prose = FENCE.sub("", text)
    for title in HEADING.findall(prose):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found | set(NAMED_ANCHOR.findall(prose))


def dead_links(path: str, text: str, documents: Mapping[str, str], places: set[str]) -> list[str]:
    """Relative links of one document that lead nowhere. `places` are the paths of all files and folders."""
    found = []
    prose = CODE.sub("", FENCE.sub("", text))
    for target in LINK.findall(prose) + REFERENCE.findall(prose):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        place = os.path.normpath(Path(path).parent / name) if name else path
        is_known_anchor = not anchor or (place in documents and anchor in anchors(documents[place]))
        if place not in places or not is_known_anchor:
            found.append(f"{path}: {target}")
    return found


def all_places(names: list[str]) -> set[str]:
    """The paths of files, and of every folder they are in."""
    return {str(place) for name in names for place in (Path(name), *Path(name).parents)}


def test_links_lead_somewhere(checkout: Checkout) -> None:
    """Each relative link of each Markdown file leads to a file that is there, and to a heading that is in it."""
    documents = checkout.files(".md")
    assert {
        "README.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "walkit/format/FORMAT.md",
    } <= documents.keys()
    places = all_places(checkout.names())
    found = [dead for path, text in documents.items() for dead in dead_links(path, text, documents, places)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        (
            "[a](other.md) [b](../top.md) [c](..) [d](#here-it-is) [e](other.md#two-words-1)\n# Here, it *is*!\n",
            [],
        ),
        ("[a](gone.md)", ["gone.md"]),
        ("[a](other.md#gone)", ["other.md#gone"]),
        ("[a](#gone)", ["#gone"]),
        ("[a][r]\n\n[r]: gone.md\n", ["gone.md"]),
        ('![a](gone.png "title")', ["gone.png"]),
        ("[web](https://example.org/gone) [mail](mailto:a@example.org)", []),
        ("`[a](gone.md)`\n```\n[a](gone.md)\n# no heading\n```\n[b](#no-heading)", ["#no-heading"]),
    ],
)
def test_the_checker_of_links_notices(text: str, dead: list[str]) -> None:
    """Each kind of link in a small tree: the dead ones are named, the living and the quoted ones are not."""
    documents = {"docs/this.md": text, "docs/other.md": "# Two words\n# Two words\n", "top.md": ""}
    places = all_places(list(documents))
    assert dead_links("docs/this.md", text, documents, places) == [
        f"docs/this.md: {target}" for target in dead
    ]


DECISIONS = "docs/decisions/"
DECISION = re.compile(r"docs/decisions/(\d{4})-[a-z0-9-]+\.md")
PARTS_OF_A_DECISION = ["Context", "Decision", "Options that lost", "Consequences"]
DECISION_WORDS_MAX = 450
ARCHITECTURE_WORDS_MAX = 2_500


def words_in(text: str) -> int:
    """How many words a reader sees: the bars and rules of tables, marks of lists and targets of links are none."""
    shown = re.sub(r"\]\([^)]*\)", "", text)
    return sum(any(letter.isalnum() for letter in word) for word in shown.split())


def faults_of_decisions(documents: Mapping[str, str]) -> list[str]:
    """Pages of decisions that lack a part, are too long, have a number twice, or differ from the index."""
    pages = {path: text for path, text in documents.items() if path.startswith(DECISIONS)}
    index = pages.pop(f"{DECISIONS}README.md")
    listed = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| .+ \|$", index, re.MULTILINE)
    titles = {DECISIONS + name: f"{number} {title}" for number, name, title in listed}
    found = [f"{path}: listed, and not there" for path in titles.keys() - pages.keys()]
    for path, text in pages.items():
        named = DECISION.fullmatch(path)
        headings = HEADING.findall(FENCE.sub("", text))
        if named is None or [p for p in pages if p.startswith(f"{DECISIONS}{named[1]}")] != [path]:
            found.append(f"{path}: a decision has a number of four digits of its own")
        if headings[:1] != [titles.get(path)]:
            found.append(f"{path}: the index says {titles.get(path)}, the page {headings[:1]}")
        if headings[1:] != PARTS_OF_A_DECISION:
            found.append(f"{path}: the parts are {headings[1:]}")
        if words_in(text) > DECISION_WORDS_MAX:
            found.append(f"{path}: {words_in(text)} words")
    return found


def test_each_decision_has_one_page_of_one_form(checkout: Checkout) -> None:
    """Each page of docs/decisions has the four parts, at most 450 words, and its number and title in the index."""
    documents = checkout.files(".md")
    assert sum(DECISION.fullmatch(path) is not None for path in documents) > 40
    found = faults_of_decisions(documents)
    assert not found, "\n".join(found)


def test_the_checker_of_decisions_notices() -> None:
    """A small index and its pages: a good one passes; a part, a word, a number or a title that is wrong is named."""
    good = "# 0001 A title\n\n" + "\n\n".join(f"## {part}\n\nwords" for part in PARTS_OF_A_DECISION) + "\n"
    index = f"{DECISIONS}README.md"
    row = "| [0001](0001-a-title.md) | A title | In a sentence. |\n"
    page = f"{DECISIONS}0001-a-title.md"
    assert faults_of_decisions({index: row, page: good, "other.md": "# No\n"}) == []
    for documents in (
        {index: row},
        {index: "", page: good},
        {index: row.replace("A title", "Another"), page: good},
        {index: row, page: good.replace("## Context\n\nwords", "")},
        {index: row, page: good + "word " * DECISION_WORDS_MAX},
        {index: row + row.replace("a-title", "b"), page: good, f"{DECISIONS}0001-b.md": good},
    ):
        assert faults_of_decisions(documents) != []


def test_the_architecture_is_short_and_names_the_rooms(checkout: Checkout) -> None:
    """Below 2,500 words; the rooms of its table are those of the test of imports; the public ones are drawn."""
    text = (checkout.root / "docs" / "architecture.md").read_text()
    assert words_in(text) < ARCHITECTURE_WORDS_MAX
    rooms = text.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", rooms, re.MULTILINE)) == ROOMS
    drawn = (checkout.root / "docs" / "rooms.svg").read_text()
    assert tuple(re.findall(r'class="name"[^>]*>(\w+)<', drawn)) == tuple(r for r in ROOMS if r[0] != "_")


def loose_lines(changelog: str) -> list[str]:
    """Lines of the changelog that stand in a section and under none of its heads."""
    found = []
    head = True
    for line in changelog.splitlines():
        if line.startswith("### "):
            head = line == "### Removed"
        elif re.match(r"[A-Z].*:$", line):
            head = True
        elif line.startswith("- ") and not head:
            found.append(line)
    return found


def test_the_changelog_has_four_sections_in_order(checkout: Checkout) -> None:
    """Added, Changed, Fixed, Removed, in this order; each line of the first three stands under a head."""
    text = (checkout.root / "CHANGELOG.md").read_text()
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == ["Added", "Changed", "Fixed", "Removed"]
    assert loose_lines("### Added\n\n- one\n\nThe log:\n\n- two\n### Fixed\n- three\n") == [
        "- one",
        "- three",
    ]
    assert loose_lines(text) == []


NOT_IN_THE_REPOSITORY = re.compile(
    r"\bDESIGN(\.md)?\b|\bARCHITECTURE(\.md)? section|\bHOUSE(\.md)?\b|\bthe reference's\b|\bseed issue"
    r"|\bthe seed's (volume|notes|documents?)\b|\b(automq|iggy|quiver|kevo|ecosystem)\.md\b"
    r"|[\"(]\[?[BCDEH]\*?\d*\]?\d*\.\d+\b|\btest_[bcd]\d+_"
)
"""How notes are cited that a reader of the repository does not have: by name, or by their numbering."""


def foreign_citations(files: Mapping[str, str]) -> list[str]:
    """Lines that cite a document which is not in the repository, as "file:line: what"."""
    return [
        f"{path}:{number}: {found[0]}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := NOT_IN_THE_REPOSITORY.search(line))
    ]


def test_no_page_cites_what_a_reader_does_not_have(checkout: Checkout) -> None:
    """Code, tests, documents and notebooks, but for this file: none cites a note that is not in the repository."""
    files = checkout.files(".py", ".md", ".toml", ".ipynb", ".sh", "Makefile")
    del files["tests/test_docs.py"]
    found = foreign_citations(files)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "see DESIGN.md 8.3",
        "The rules it keeps (ARCHITECTURE section 5):",
        "the reference's sections 4.1",
        '    "D1.1 an empty log": (',
        "def test_c2_three_bytes_torn() -> None:",
        "the window of automq.md 4.2",
    ],
)
def test_the_checker_of_citations_notices(line: str) -> None:
    """Each way in which such a document was cited is named with its line; public issues and pages of here are not."""
    assert [name.split(": ")[0] for name in foreign_citations({"a.py": f"x\n{line}\n"})] == ["a.py:2"]
    fine = "AutoMQ #1808, PR #2916, FORMAT.md F-9.10, docs/decisions/0032-recovery-is-a-table.md, LSN 2^62, the seed 7"
    assert foreign_citations({"a.py": fine}) == []


def undocumented(module: object, names: list[str]) -> list[str]:
    """Classes, functions and modules among `names` that have no docstring of their own, and their public methods."""
    found = []
    for name in names:
        value = getattr(module, name)
        parts = {name: value}
        if inspect.isclass(value):
            own = {f"{name}.{key}": part for key, part in vars(value).items() if not key.startswith("_")}
            parts |= {
                key: part
                for key, part in own.items()
                if inspect.isfunction(part) or isinstance(part, property)
            }
        elif not (inspect.isroutine(value) or inspect.ismodule(value)):
            continue
        found += [key for key, part in parts.items() if not is_documented(part)]
    return found


def is_documented(value: object) -> bool:
    """Whether there are words. What a dataclass makes of its own signature is none."""
    text = value.__doc__ or ""
    return bool(text.strip()) and not text.startswith(f"{getattr(value, '__name__', '')}(")


def test_public_names_are_documented() -> None:
    """Everything in walkit.__all__ exists and has a docstring, down to the public methods of its classes."""
    assert len(walkit.__all__) > 20
    found = undocumented(walkit, list(walkit.__all__))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", ["walkit", "walkit.storage"])
def test_a_lazy_front_door_lists_public_names_alone(package: str) -> None:
    """dir() before and after loading: all that is public, loaded or not, and no import of the module's own."""
    module = importlib.import_module(package)
    listed = [name for name in dir(module) if not name.startswith("_")]
    assert listed == sorted({*module.__all__, *getattr(module, "_ROOMS", ())})
    assert "__version__" in dir(walkit)
    assert not {"annotations", "importlib", "Any", "TYPE_CHECKING"} & {*listed}
    for name in module.__all__:
        getattr(module, name)
    assert [name for name in dir(module) if not name.startswith("_")] == listed


def test_the_checker_of_docstrings_notices() -> None:
    """A function, a class, a method and a property without words are named, documented ones and constants are not."""

    class Told:
        """Words."""

        size = 3

        def method(self) -> None: ...

        @property
        def mark(self) -> int:
            return 1

        def told(self) -> None:
            """Words."""

    class Untold: ...

    Untold.function = lambda: None  # type: ignore[attr-defined]
    module = type("module", (), {"Told": Told, "Untold": Untold, "f": lambda: None, "X": 3})
    assert undocumented(module, ["Told", "Untold", "f", "X"]) == [
        "Told.method",
        "Told.mark",
        "Untold",
        "Untold.function",
        "f",
    ]


@pytest.fixture(scope="module")
def readme(checkout: Checkout) -> str:
    """README.md."""
    return (checkout.root / "README.md").read_text()


def commands(text: str) -> set[str]:
    """The subcommands in code: `walkit inspect LOG` names inspect."""
    spans = [span for _, span in CODE.findall(FENCE.sub("", text))]
    shell = [block for _, language, block in FENCE.findall(text) if language != "python"]
    return {name for code in spans + shell for name in re.findall(r"(?:^|[\s/])walkit ([a-z]+)\b", code)}


def test_commands_of_the_documents_exist(
    readme: str, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each `walkit NAME` of README and its page of commands is in `walkit --help` and answers; the page has all."""
    page = commands((checkout.root / "docs" / "command-line.md").read_text())
    named = page | commands(readme)
    assert len(page) >= 10
    listing = helped(capsys)
    assert [name for name in sorted(named) if not re.search(rf"\b{name}\b", listing)] == []
    listed = set(re.findall(r"^    ([a-z]+)  ", listing, re.MULTILINE))
    assert len(listed) >= 10 and listed <= page
    for name in sorted(named):
        assert f"walkit {name} " in helped(capsys, name)


def helped(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What a command prints with --help; it exits with 0."""
    assert main([*command, "--help"]) == 0
    return capsys.readouterr().out


def options_of_the_page(text: str) -> list[tuple[tuple[str, ...], str]]:
    """Each option in code of the page of commands, with the command that it is said of.

    That is the one of its section, of the row of the table, or of the line of the shell.
    """
    found: list[tuple[tuple[str, ...], str]] = []
    for heading, section in re.findall(r"^### (.+)\n((?:(?!^###? ).*\n)+)", text, re.MULTILINE):
        for line in section.splitlines():
            row = re.match(r"\| `walkit ([a-z ]+)` \|", line)
            command = row[1] if row else heading
            code = line if line.startswith("walkit ") else " ".join(span for _, span in CODE.findall(line))
            found += [(tuple(command.split()), option) for option in re.findall(r"--[a-z][a-z-]+", code)]
    return found


def test_options_on_the_page_of_commands_exist(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option that the page of commands names is in the help of its command."""
    found = options_of_the_page((checkout.root / "docs" / "command-line.md").read_text())
    assert len(found) > 30 and len({command for command, _ in found}) > 10
    general = {"--path"}  # said of all benchmarks at once
    wrong = [
        (command, option)
        for command, option in found
        if not (command == ("bench",) and option in general)
        and not re.search(rf"{option}\b(?!-)", helped(capsys, *command))
    ]
    assert wrong == []


def test_the_reader_of_options_notices() -> None:
    """Options are taken from code of a section, a row of its table and its shell, not from prose."""
    text = (
        "## A\n### one\n```sh\nwalkit one --aa X\n```\nprose --no, `--bb` and `--cc FILE`\n"
        "### bench\n| `walkit bench write` | x; `--dd 1,2` |\n## B\n`--ee`\n"
    )
    assert options_of_the_page(text) == [
        *((("one",), option) for option in ("--aa", "--bb", "--cc")),
        (("bench", "write"), "--dd"),
    ]


def test_the_reader_of_commands_notices() -> None:
    """Subcommands are taken from spans and shell blocks, not from prose, Python or file names."""
    prose = "walkit prose `walkit one X` `walkit/two` `.venv/bin/walkit three`\n"
    text = prose + "```sh\nwalkit four\n```\n```python\nwalkit no\n```\n"
    assert commands(text) == {"one", "three", "four"}


def test_make_targets_of_the_documents_exist(checkout: Checkout) -> None:
    """README's two commands, and each other `make NAME` in code in a Markdown file, are targets with a help line."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", (checkout.root / "Makefile").read_text(), re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", (checkout.root / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert targets == set(phony[1].split())
    named = set()
    for text in checkout.files(".md").values():
        code = [block for _, _, block in FENCE.findall(text)] + [
            span for _, span in CODE.findall(FENCE.sub("", text))
        ]
        named |= {name for part in code for name in re.findall(r"^make ([a-z-]+)", part, re.MULTILINE)}
    assert {"demo", "test"} <= named
    assert named <= targets


def test_the_readme_opens_with_what_it_is_and_two_commands(readme: str) -> None:
    """The first block of code is the two commands, in the first 25 lines, after the sentence on what walkit is."""
    first = FENCE.search(readme)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[3].splitlines()] == ["make demo", "make test"]
    before = readme[: first.start()]
    assert before.count("\n") < 25
    assert "laboratory for write-ahead logs" in before


NEEDS_SPARK = "<!-- needs Spark -->\n"


def examples(text: str) -> tuple[list[str], list[str]]:
    """The Python blocks of a document: those that run anywhere, and those that are marked to need Spark."""
    found: tuple[list[str], list[str]] = ([], [])
    for match in FENCE.finditer(text):
        if match[2] == "python":
            found[text[: match.start()].endswith(NEEDS_SPARK)].append(match[3])
    return found


def printed(example: str, folder: Path) -> list[str]:
    """Run Python as if it were pasted by itself, in a process and an empty folder of its own; return what it prints."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(walkit.__file__).parent.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{example}\n{done.stderr}"
    return done.stdout.splitlines()


def test_each_example_of_the_readme_runs_by_itself(readme: str, tmp_path: Path) -> None:
    """Each Python block of README.md alone in an empty folder, but for Spark's: it runs, and prints what it says."""
    anywhere, with_spark = examples(readme)
    assert (len(anywhere), len(with_spark)) == (3, 1)
    log, simulated, crashed = (printed(example, tmp_path / f"{n}") for n, example in enumerate(anywhere))
    assert log == [
        "1 put b'order-7' b'paid'",
        "2 put b'order-7' b'shipped'",
        "3 put b'order-8' b'new'",
        "4 delete b'order-7' None",
        "b'100' 1 1",
        "True",
    ]
    records_per_s, waited_us = map(float, simulated[0].split())
    assert records_per_s > 1000
    assert waited_us == 0
    assert crashed == ["ok: none of 100 distinct states breaks a rule, profile contract, durability sync"]


def test_the_reader_of_examples_notices() -> None:
    """Python is taken apart from shell, and what is marked apart from the rest."""
    text = f"```sh\nno\n```\n```python\none\n```\n\n{NEEDS_SPARK}```python\ntwo\n```\n"
    assert examples(text) == (["one\n"], ["two\n"])
