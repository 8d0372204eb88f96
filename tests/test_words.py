"""The words of docstrings and comments: the field's, and each first line a sentence."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tests.test_architecture import python_files

if TYPE_CHECKING:
    from tests.conftest import Checkout

IDIOM = re.compile(
    r"\b(?:who (?:leads|waits|reads|writes|closes|opens|calls|seeks)|(?:is|are|be|been|was|were) told|tells? of|"
    r"lets? go|nobody|whoever|comes? to it|goes on|stands? behind|frees? what|by and by|behind)\b".replace(
        " ", r"\s+(?:#:?\s+)?"
    ),
    re.IGNORECASE,
)
"""Phrases that one house uses and the field does not."""
LAG = re.compile(
    r"(?:\b(?:(?:fell|fall|falls|far|lags?)(?: so far)?|records|hours|is|was|primary)|`close_s`|\} s) behind\b|"
    r"^f?.behind[.,] |\.behind\b",
    re.IGNORECASE,
)
"""What is behind because it is slower, and not because it comes after."""
NAMES = ("walkit", "pyarrow", "gRPC")
"""Names that begin a sentence as they are written."""


def modules_of(checkout: Checkout) -> Mapping[str, str]:
    """Return the package's modules that people write, by path."""
    modules = python_files(checkout, "walkit/")
    return {
        path: source for path, source in modules.items() if not path.endswith(("_pb2.py", "_pb2_grpc.py"))
    }


def idioms(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, phrase) for each phrase of the house in a module's strings and comments."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            text = LAG.sub("", token.string)
            yield from ((token.start[0], found.group()) for found in IDIOM.finditer(text))


def idioms_left(files: Mapping[str, str]) -> list[str]:
    """Phrases of the house, and where they are."""
    return [
        f"{path}:{line}: {' '.join(phrase.split())}"
        for path, text in files.items()
        for line, phrase in idioms(text)
    ]


def no_sentence(files: Mapping[str, str]) -> list[str]:
    """Docstrings whose first line is no sentence: without a capital or a name in front, or a period at the end."""
    found = []
    for path, source in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "It.").split("\n")[0]
                begins = (
                    first[0].isupper() or first[0].isdigit() or first[0] in "`\"'(" or first.startswith(NAMES)
                )
                if not begins or not first.endswith("."):
                    found.append(f"{path}:{getattr(node, 'lineno', 1)}: {first}")
    return found


@pytest.mark.parametrize(
    ("source", "phrases"),
    [
        ('"""Wakes who\n    waits."""\n', 1),
        ("# it is told, and lets\n# go\n", 1),
        ("# nobody\nx = f'whoever stands behind'\n", 3),
        ('"""How far the replica fell behind."""\n', 0),
        ('"""The frames behind the hole."""\n', 1),
        ("behind = nobody = 1  # names are not looked at\n", 0),
    ],
)
def test_the_counter_of_idioms_notices(source: str, phrases: int) -> None:
    """Count phrases of the house in small sources: a line break splits none, a lag is none, names are not counted."""
    assert len(list(idioms(source))) == phrases


def test_the_checker_of_sentences_notices() -> None:
    """Give it docstrings without a capital and without a period, and right ones: the first two are found."""
    files = {
        "walkit/a.py": '"""small."""\n',
        "walkit/b.py": '"""No end"""\n',
        "walkit/c.py": '"""`x` is right."""\n',
    }
    assert no_sentence(files) == ["walkit/a.py:1: small.", "walkit/b.py:1: No end"]


def test_docstrings_and_comments_use_the_words_of_the_field(checkout: Checkout) -> None:
    """Look for phrases of the house in every module's strings and comments: there are none."""
    assert not idioms_left(modules_of(checkout))


def test_the_first_line_of_a_docstring_is_a_sentence(checkout: Checkout) -> None:
    """Read every docstring of the package: its first line begins with a capital or a name and ends with a period."""
    assert not no_sentence(modules_of(checkout))
