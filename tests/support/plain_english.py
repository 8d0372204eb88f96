"""Counts sentence patterns that a native reader of English trips over, by file.

`python -m tests.support.plain_english` prints the counts by pattern; with a path, the lines; with `--lower`, it lowers
the counts in english.json to what the files have now. tests/test_english.py holds each file to its count.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

RULES = tuple(
    (name, re.compile(rule), write)
    for name, rule, write in (
        (
            "where = if",
            (
                r"(?:;|,|\bor|\band|^|\.)\s*(?:[A-Za-z`'*]+\s){0,6}?where (?:there|it|they|nothing|none|no |"
                r"the \w+ (?:is|was|has|does)|a \w+ (?:is|was|has|does|cannot))"
            ),
            "if, when",
        ),
        (
            "is none / is no X",
            r"\b(?:is|are|was|were) (?:none\b|no (?!longer|more|one|matter|doubt|need|way|such|less))",
            "is not a, there is no",
        ),
        (
            "is of",
            r"\b(?:is|are|was|were) of (?:a|an|the|no|none|another|its|one|that|this)\b",
            "belongs to",
        ),
        (
            "Of a ..., fronted",
            (
                r"(?:^|[.:;] )(?:Of|By|Beside|Behind|Below|To) (?:a|an|the|each|all|what) [^.;:,]{3,60}? (?:all|"
                r"the|a|an|what|it|they|only|nothing|no|is|are|comes|stands)\b"
            ),
            "subject first",
        ),
        (
            "what as a noun",
            (
                r"(?:^|[.;:(] )What (?!(?:is|are|does|do|happens|if|to)\b[^.]*\?)\w+|"
                r"\b(?:of|and|but|is|than|with|for|from|by|in|to|all|only) what (?:is|was|it|they|a|an|the|no|"
                r"has|comes|came|makes|keeps|refuses|each|one|people)\b"
            ),
            "name the thing",
        ),
        (
            "who / whoever / nobody",
            r"(?:^|[.;:] )Who [a-z]|\bwhoever\b|\bnobody\b|\bwhom\b",
            "name the actor",
        ),
        (
            "anew, no more, any more, for ever",
            (
                r"\banew\b|"
                r"\b(?:is|are|was|grows?|reads?|follows?|does|do|did|works?|waits?|fails?|"
                r"counts?) (?:\w+ ){0,2}no more\b|"
                r"\bany more\b|\bfor ever\b"
            ),
            "again, no longer, forever",
        ),
        (
            "but for, in the midst, at the most, in place of",
            (
                r"\bbut for\b|\bin the midst\b|\bat the most\b|\bin (?:the )?place of\b|"
                r"\bin the mean\b"
            ),
            "except, during, at most, instead of, on average",
        ),
        (
            "seldom, needless, dear, quick, hardly, to speak of",
            (
                r"\bseldom\b|\bneedless(?!ly)\b|\bdear(?:er)?\b|\bquick(?:er)?\b|\bhardly\b|"
                r"\bto speak of\b"
            ),
            "rarely, unnecessary, expensive, fast, barely",
        ),
        (
            "so often, into order, so that are",
            r"\bso often\b|\binto order\b|\bso that are\b",
            "N times, repair, that",
        ),
        (
            "stands, lies, lives for is",
            (
                r"\b(?:stands?|stood) (?:in|at|there|beside|for itself|before|after|behind|alone|on)\b|"
                r"\blies? (?:in|beside|with|apart)\b"
            ),
            "is, is kept in",
        ),
        (
            "tell, ask, hear, say so",
            (
                r"\btold (?:of|by|that|what|apart)\b|\btells? (?:of|what|that|whether)\b|"
                r"\bsays? (?:so|what|why|which|that it)\b|\bhears? (?:of|that)\b"
            ),
            "reports, shows, notifies",
        ),
        (
            "mend, begin anew, bring",
            r"\bmend(?:s|ed|ing)?\b|\bbegun\b|\bbegins? (?:a|an|again|with)\b",
            "fix, start",
        ),
        (
            "a for per",
            (
                r"\b(?:bytes|records|frames|calls|writes|reads|keys|rows|segments|requests|ms|us|seconds|lines|"
                r"states|events) an? (?:record|frame|second|row|key|call|segment|batch|log|read|write|page|"
                r"module|state|reader|round)\b"
            ),
            "per",
        ),
        (
            "behind for after",
            r"\bbehind (?:the|a|an|it|them|its|each|that|this|all|which)\b",
            "after, past",
        ),
        (
            "goes on, comes to, lets go, gives up, takes in",
            (
                r"\bgoes? on (?!to\b)|\bcomes? to (?:it|them|nothing|an end)\b|\blets? go\b|"
                r"\bhang(?:s|ed)? up\b"
            ),
            "continues, ends, releases",
        ),
        (
            "beside other work, in parts of",
            r"\bbeside other work\b|\bin parts of\b",
            "on a busy machine, relative to",
        ),
    )
)
"""(name, expression, what to write). A hit is a place to look at: a few are right."""
COUNTS = Path(__file__).with_name("english.json")
READ = (".py", ".md", ".ipynb")
LEFT_OUT = ("CHANGELOG.md", "tests/support/plain_english.py")
PIECE = re.compile(
    r'"""(.*?)"""|(?<!b)"((?:[^"\\\n]|\\.)*)"|(?:^|(?<=\s))# ([^\n]*)|\bdef test_(\w+)', re.DOTALL
)
"""A docstring, a string, a comment or the name of a test, as ruff formats them: the trees of all files take longer."""
IN_BRACES = re.compile(r"\{[^{}]*\}")


def counted(name: str) -> bool:
    """Return whether a file's English is counted."""
    return name.endswith(READ) and "_pb2" not in name and name not in LEFT_OUT


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of docstrings, longer strings, comments and names of tests, or of a page or notebook."""
    if name.endswith(".py"):
        number, at = 1, 0
        for piece in PIECE.finditer(text):
            number, at = number + text.count("\n", at, piece.start()), piece.start()
            said = piece[piece.lastindex or 0]
            if piece[4]:
                yield number, said.replace("_", " ")
            elif piece[3] or said.count(" ") > 2:
                yield from enumerate(IN_BRACES.sub("{}", said).split("\n"), number)
    elif name.endswith(".ipynb"):
        for number, cell in enumerate(json.loads(text)["cells"]):
            if cell["cell_type"] == "markdown":
                yield from ((number, line) for line in "".join(cell["source"]).split("\n"))
    else:
        code = False
        for number, line in enumerate(text.split("\n"), 1):
            code ^= line.startswith("```")
            if not code:
                yield number, line


def hits(name: str, text: str) -> list[tuple[int, str, str]]:
    """Return (line, pattern, text) of each hit in a file."""
    return [
        (number, pattern, line.strip())
        for number, line in prose(name, text)
        for pattern, rule, _ in RULES
        if rule.search(line)
    ]


def main(arguments: list[str]) -> None:
    """Print or lower the counts."""
    from tests.conftest import ROOT, Checkout

    texts = {name: text for name, text in Checkout(root=ROOT).files(*READ).items() if counted(name)}
    chosen = [argument for argument in arguments if argument != "--lower"]
    found = {
        name: hits(name, text) for name, text in texts.items() if not chosen or name.startswith(tuple(chosen))
    }
    if "--lower" in arguments:
        known: Mapping[str, int] = json.loads(COUNTS.read_text())
        lowered = {name: min(len(lines), known.get(name, 0)) for name, lines in sorted(found.items())}
        COUNTS.write_text(
            json.dumps({name: count for name, count in lowered.items() if count}, indent=0) + "\n"
        )
    for pattern, _, write in RULES:
        lines = [(name, *hit) for name, of_file in found.items() for hit in of_file if hit[1] == pattern]
        print(f"{len(lines):6}  {pattern}  ->  {write}")
        for name, number, _, text in lines if chosen else ():
            print(f"        {name}:{number}: {text[:110]}")
    print(f"{sum(map(len, found.values())):6}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
