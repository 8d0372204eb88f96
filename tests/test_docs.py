"""The documents match the code: links, names, commands, targets, and an example that runs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from operator import attrgetter
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
    unknown = [dead for path, text in documents.items() for dead in dead_links(path, text, {}, places)]
    assert len(unknown) > 30, "the headings of other pages are looked up"
    assert len([dead for path, text in documents.items() for dead in dead_links(path, text, {}, set())]) > 200
    assert not found, "\n".join(found)


DECISIONS = "docs/decisions/"
DECISION = re.compile(r"docs/decisions/(\d{4})-[a-z0-9-]+\.md")
PARTS_OF_A_DECISION = ["Context", "Decision", "Options that lost", "What would overturn it"]
DECISION_WORDS_MAX = 400
DECISIONS_MAX = 65
ARCHITECTURE_WORDS_MAX = 2_500


def words_in(text: str) -> int:
    """How many words a reader sees: without bars and rules of tables, marks of lists and targets of links."""
    shown = re.sub(r"\]\([^)]*\)", "", text)
    return sum(any(letter.isalnum() for letter in word) for word in shown.split())


def faults_of_decisions(documents: Mapping[str, str]) -> list[str]:
    """Pages of decisions that lack a part, are too long, have a number twice, or differ from the index."""
    pages = {path: text for path, text in documents.items() if path.startswith(DECISIONS)}
    index = pages.pop(f"{DECISIONS}README.md")
    listed = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE)
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
    """Each page of docs/decisions has the four parts, at most 400 words, and its number and title in the index."""
    documents = checkout.files(".md")
    assert 25 < sum(DECISION.fullmatch(path) is not None for path in documents) <= DECISIONS_MAX
    found = faults_of_decisions(documents)
    assert not found, "\n".join(found)


def test_the_architecture_is_short_and_names_the_rooms(checkout: Checkout) -> None:
    """Below 2,500 words; the rooms of its table are those of the test of imports; the public ones are drawn."""
    text = (checkout.root / "docs" / "architecture.md").read_text()
    assert words_in(text) < ARCHITECTURE_WORDS_MAX
    rooms = text.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", rooms, re.MULTILINE)) == ROOMS
    drawn = (checkout.root / "docs" / "rooms.svg").read_text()
    assert tuple(re.findall(r'class="name"[^>]*>(\w+)<', drawn)) == tuple(r for r in ROOMS if r[0] != "_")


def test_the_questions_of_the_architecture_lead_to_functions(checkout: Checkout) -> None:
    """Each row of the table of questions: a place on the page, a module and a function that are there."""
    text = (checkout.root / "docs" / "architecture.md").read_text()
    rows = re.findall(
        r"^\|[^|]+\? \| \[[^]]+\]\(#([\w-]+)\)[^|]*\| `(\S+)\.py` \| `(\S+)` \|$", text, re.MULTILINE
    )
    assert len(rows) == 4
    for anchor, module, function in rows:
        assert anchor in anchors(text)
        assert callable(attrgetter(function)(importlib.import_module(module.replace("/", "."))))


def test_the_changelog_is_short(checkout: Checkout) -> None:
    """One unreleased section with at most 25 bullets, each of which names its subject first."""
    text = (checkout.root / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == "[Unreleased]"
    bullets = re.findall(r"^- (.+)", text.split("## [Unreleased]")[1], re.MULTILINE)
    assert 10 < len(bullets) <= 25
    assert all(bullet.startswith("**") for bullet in bullets)


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
    """Code, tests, documents and notebooks, except this file: none cites a note that is not in the repository."""
    files = checkout.files(".py", ".md", ".toml", ".ipynb", ".sh", "Makefile")
    del files["tests/test_docs.py"]
    found = foreign_citations(files)
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
    """The help of a command; it exits with 0."""
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
            code = " ".join(span for _, span in CODE.findall(line))
            found += [(tuple(command.split()), option) for option in re.findall(r"--[a-z][a-z-]+", code)]
    return found


def test_options_on_the_page_of_commands_exist(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option that the page of commands names is in the help of its command."""
    found = options_of_the_page((checkout.root / "docs" / "command-line.md").read_text())
    assert len(found) > 15 and len({command for command, _ in found}) > 8
    general = {"--path"}  # said of all benchmarks at once
    wrong = [
        (command, option)
        for command, option in found
        if not (command == ("bench",) and option in general)
        and not re.search(rf"{option}\b(?!-)", helped(capsys, *command))
    ]
    assert wrong == []


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


def test_the_readme_opens_with_a_sentence_and_two_commands(readme: str) -> None:
    """The first block of code is the two commands, in the first 25 lines, after the sentence on what walkit is."""
    first = FENCE.search(readme)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[3].splitlines()] == ["make demo", "make test"]
    before = readme[: first.start()]
    assert before.count("\n") < 25
    assert "an embedded write-ahead log for Python" in before


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
    """Each Python block of README.md alone in an empty folder, except Spark's: it runs, and prints the output shown."""
    anywhere, with_spark = examples(readme)
    assert (len(anywhere), len(with_spark)) == (3, 1)
    log, simulated, crashed = (printed(example, tmp_path / f"{n}") for n, example in enumerate(anywhere))
    assert log == [
        *(f"mail {n} {value!r}" for n, value in enumerate((b"paid", b"shipped", b"new", None), 1)),
        "b'100' 1 1",
        "True",
    ]
    records_per_s, waited_us = map(float, simulated[0].split())
    assert records_per_s > 1000
    assert waited_us == 0
    assert crashed == ["ok: none of 100 distinct states breaks a rule, profile contract, durability sync"]
