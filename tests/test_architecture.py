"""The house rules that a program can see."""

from __future__ import annotations

import ast
import gc
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from tests.support.code_lines import BUDGETS, code_lines, over_budget, room_lines
from tests.support.import_graph import import_graph, imported, parsed, statements, trees

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Checkout

# In this order: a room knows only itself and the rooms before it. walkit/__init__.py is the front door: it may import
# every room, and only what stands above the rooms may come in through it.
ROOMS = (
    *(
        "errors",
        "_internal",
        "events",
        "_main_thread",
        "metrics",
        "record",
        "config",
    ),
    *("format", "storage", "commit", "policy", "segments", "recovery", "read", "log"),
    *("links", "objects", "copier", "state", "compaction", "store", "replication", "spark"),
    *("models", "measure", "simulate", "workload", "bench", "crashlab", "plots", "views", "demo", "cli"),
)
UPSTAIRS = ("testing", "__main__")  # may import every room; no room imports them
THROUGH_THE_FRONT_DOOR = ("demo", "cli", *UPSTAIRS)
# Within a room the same: a sub-package knows only itself and those before it. Modules beside them may know them all.
SUB_PACKAGES = {
    "walkit.replication": ("protocol", "core", "transport", "logs", "delta", "primary", "replica", "healing"),
}
DELTA_CORES = tuple(
    f"walkit/replication/delta/{name}.py" for name in ("polls", "session", "buffer", "poller", "replayer")
)
CORES = ("walkit/replication/core/", *DELTA_CORES)
"""State machines of replication: they take the time and events, and return steps."""
NO_CORE_HAS = (
    *("asyncio", "grpc", "os", "queue", "selectors", "socket", "subprocess", "threading", "time"),
    *("walkit._internal.threads", "walkit.storage", "walkit.replication.transport"),
)
HEAVY = (
    "pyspark",
    "panel",
    "bokeh",
    "plotly",
    "grpc",
    "pandas",
    "IPython",
    "hdrh",
    "tqdm.notebook",
    "opentelemetry",
    "obstore",
)
# What `import walkit` may do without, and what appending and reading do without after it.
LATER = ("crc32c", "walkit.compaction", "walkit.state", "walkit.storage.memory", "walkit.store")
NEVER_FOR_RECORDS = ("asyncio", "pandas", "pyarrow.compute", *LATER)
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
MEASURED = ("walkit/", "pyspark_walkit/", "dashboards/", "scripts/")


def room_of(path: str) -> str | None:
    """The room of walkit/<room>.py or walkit/<room>/...; None for the front door."""
    name = path.split("/")[1].removesuffix(".py")
    return None if name == "__init__" else name


def misdirected(files: Mapping[str, str]) -> list[str]:
    """Imports that go up the corridor, as "file:line: what"."""
    found = []
    for path, source in files.items():
        room = room_of(path)
        if room is None:
            continue
        if room not in (*ROOMS, *UPSTAIRS):
            found.append(f"{path}:1: walkit/{room} is not a room")
            continue
        known = ROOMS if room in UPSTAIRS else ROOMS[: ROOMS.index(room) + 1]
        for line, name in imported(path, source):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if top != "walkit" or target == room:
                continue
            if target in (*ROOMS, *UPSTAIRS):
                if target not in known:
                    found.append(f"{path}:{line}: {room} imports {target}")
            elif room not in THROUGH_THE_FRONT_DOOR:
                found.append(f"{path}:{line}: {room} imports {name} through the front door")
    return found


def misdirected_within(files: Mapping[str, str], room: str, order: tuple[str, ...]) -> list[str]:
    """Imports of a room's sub-packages that go back up, or to modules beside them, as "file:line: what"."""
    folder, found = room.replace(".", "/") + "/", []
    for path, source in files.items():
        own, slash, _ = path.removeprefix(folder).partition("/")
        if not path.startswith(folder) or not slash:
            continue
        if own not in order:
            found.append(f"{path}:1: {own} is not a sub-package of {room}")
            continue
        for line, name in imported(path, source):
            if not f"{name}.".startswith(f"{room}."):
                continue
            target = name.removeprefix(room).removeprefix(".").split(".")[0]
            if target not in order[: order.index(own) + 1]:
                found.append(f"{path}:{line}: {own} imports {name}")
    return found


def impure(files: Mapping[str, str]) -> list[str]:
    """Imports with which a core could do I/O, wait or look at a clock, as "file:line: what"."""
    return [
        f"{path}:{line}: {name}"
        for path, source in files.items()
        for line, name in imported(path, source)
        if any(f"{name}.".startswith(f"{other}.") for other in NO_CORE_HAS)
    ]


def in_a_circle(files: Mapping[str, str]) -> list[str]:
    """Modules that import themselves by way of others, in order of their names; imports in functions count, too."""
    wanted = import_graph(files)
    while True:  # what imports nothing that is left is in no circle, and goes
        free = {name for name, others in wanted.items() if not others & wanted.keys()}
        free |= wanted.keys() - {other for others in wanted.values() for other in others}
        if not free:
            return sorted(wanted)
        wanted = {name: others - free for name, others in wanted.items() if name not in free}


LOCK_ROOMS = ROOMS[: ROOMS.index("store") + 1]
LOCKS = re.compile(r"(^|_)lock$")
LOCK_MAKERS = re.compile(r"\w*Lock|Condition|allocate_lock")
NAMES_A_LOCK = re.compile(r"lock\b|Lock\b|Condition\b")
SOME_LOCKS = """
class A:
    def __init__(self, other):
        # Guards x.
        self.a = threading.RLock()
        self.b: Any = Lock()
        self.c, self.d = allocate_lock(), other.lock
        self.e = other.commit_lock  # the other's

    def forget(self):
        self.a = threading.RLock()
        found = FileLock()

_lock = FolderLock()
"""


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _gives_lock(value: ast.expr | None) -> bool:
    """Whether a value is a new lock, another object's, or a tuple with one."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    made = [
        _name(node.func) for part in parts if part for node in ast.walk(part) if isinstance(node, ast.Call)
    ]
    return any(map(LOCK_MAKERS.fullmatch, made)) or any(LOCKS.search(_name(part)) for part in parts if part)


def locks_without_comment(files: Mapping[str, str]) -> list[str]:
    """Fields and module names that get a lock, with a comment or docstring at none of their assignments."""
    found: dict[tuple[str, str, str], str] = {}
    explained = set()
    for path, source in files.items():
        if not NAMES_A_LOCK.search(source):
            continue
        lines, tree = [*source.splitlines(), ""], parsed(source)
        steps: list[tuple[str, ast.AST]] = [("", step) for step in tree.body]
        steps += [(c.name, step) for c in tree.body if isinstance(c, ast.ClassDef) for step in ast.walk(c)]
        for owner, step in steps:
            if not isinstance(step, ast.Assign | ast.AnnAssign):
                continue
            above, here, below = lines[step.lineno - 2], lines[step.lineno - 1], lines[step.end_lineno or 0]
            targets = step.targets if isinstance(step, ast.Assign) else [step.target]
            for target in [each for t in targets for each in (t.elts if isinstance(t, ast.Tuple) else [t])]:
                place = (path, owner, ast.unparse(target))
                if re.fullmatch(r"self\.\w+" if owner else r"\w+", place[2]):
                    if _gives_lock(step.value):
                        found.setdefault(place, f"{path}:{step.lineno}: {place[2]}")
                    if above.lstrip().startswith("#") or "#" in here or below.lstrip().startswith('"""'):
                        explained.add(place)
    return [line for place, line in found.items() if place not in explained]


BEGINS_WITH_WORDS = re.compile(r'(#.*\n|\s)*r?"""\S')


def too_long(files: Mapping[str, str]) -> list[str]:
    """Modules and functions over their limits."""
    found = []
    for path, source in files.items():
        lines = source.count("\n") + (not source.endswith("\n"))
        if lines > MODULE_LINES_MAX:
            found.append(f"{path}: {lines} lines")
        for node in statements(parsed(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    found.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    return found


def without_docstring(files: Mapping[str, str]) -> list[str]:
    """Modules without a docstring."""
    return [path for path, source in files.items() if not BEGINS_WITH_WORDS.match(source)]


WITH_GOAL = re.compile(r'def test_\w+\((?:.*|\n(?: .*\n)*? *)\)(?: -> \S+)?:\n +"""\S.*"""\n')
"""The head of a test function with a docstring of one line; a file that has no other `def test_` is not parsed."""


def without_goal(files: Mapping[str, str]) -> list[str]:
    """Tests whose docstring is absent or more than one line."""
    found = []
    for path, source in files.items():
        if source.count("def test_") == len(WITH_GOAL.findall(source)):
            continue
        for node in statements(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                goal = ast.get_docstring(node)
                if not goal or "\n" in goal:
                    found.append(f"{path}:{node.lineno}: {node.name}")
    return found


IMPORTS = {
    "walkit/log/wal.py": "from walkit.errors import WalkitError\ndef f():\n    import walkit.cli\n",
    "walkit/log/a/b.py": "from ...views import x\nfrom . import c\n",
    "walkit/format/frame.py": "if TYPE_CHECKING:\n    from walkit.log import x\n",
    "walkit/state/table.py": "import importlib\nimportlib.import_module('walkit.plots')\n",
    "walkit/spark/source.py": "from walkit import open\n",
    "walkit/testing/suite.py": "from walkit import open\nimport walkit.cli\n",
    "walkit/attic/__init__.py": "",
}
"""A wrong import of each kind, and right ones."""


def test_an_import_that_goes_up_is_named_however_it_is_written() -> None:
    """Import upwards in a function, relatively, for types, by name, through the front door: each has its line."""
    assert misdirected(IMPORTS) == [
        "walkit/log/wal.py:3: log imports cli",
        "walkit/log/a/b.py:1: log imports views",
        "walkit/format/frame.py:2: format imports log",
        "walkit/state/table.py:2: state imports plots",
        "walkit/spark/source.py:1: spark imports walkit.open through the front door",
        "walkit/attic/__init__.py:1: walkit/attic is not a room",
    ]


SENTENCE = re.compile(r"([A-Z0-9`\"'(]|walkit|pyarrow|gRPC).*\.")
"""A capital or a name as it is written, and a period at the end."""


def first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the first line of a docstring, "None." without one."""
    said = ast.get_docstring(node, clean=False)
    return said.strip().splitlines()[0] if said else "None."


@pytest.fixture(scope="module", autouse=True)
def parsed_once(checkout: Checkout) -> Iterator[None]:
    """Parse each module once for all tests of this file; a collection of garbage would only look through the trees."""
    gc.disable()
    trees.update((source, ast.parse(source)) for source in python_files(checkout, *MEASURED).values())
    yield
    trees.clear()
    gc.enable()


def python_files(checkout: Checkout, *roots: str) -> dict[str, str]:
    files = {path: source for path, source in checkout.files(".py").items() if path.startswith(roots)}
    assert files, f"no Python files under {roots}"
    return files


def test_each_room_knows_only_the_rooms_before_it(checkout: Checkout) -> None:
    """Every import of every module of walkit goes to its own room or an earlier one."""
    found = misdirected(python_files(checkout, "walkit/"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", SUB_PACKAGES)
def test_each_sub_package_knows_only_those_before_it(room: str, checkout: Checkout) -> None:
    """Every import within a room that is cut into sub-packages goes to the same one or an earlier one."""
    found = misdirected_within(python_files(checkout, "walkit/"), room, SUB_PACKAGES[room])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", SUB_PACKAGES)
def test_a_room_describes_its_sub_packages(room: str, checkout: Checkout) -> None:
    """The docstring has the sub-packages in order, and files and names that are there; theirs name each module."""
    folder = room.replace(".", "/") + "/"
    files = python_files(checkout, folder)
    said = ast.get_docstring(ast.parse(files[f"{folder}__init__.py"])) or ""
    assert tuple(re.findall(r"^- `(\w+)` ", said, re.MULTILINE)) == SUB_PACKAGES[room]
    assert {path.split("/")[2] for path in files if path.count("/") > 2} == {*SUB_PACKAGES[room]}
    for part in SUB_PACKAGES[room]:
        modules = {
            path.split("/")[3].removesuffix(".py") for path in files if path.startswith(f"{folder}{part}/")
        }
        named = re.findall(r"`(\w+)`", files[f"{folder}{part}/__init__.py"])
        assert {*named} == modules - {"__init__"}, part
    for step in re.split(r"^\d+\. ", said, flags=re.MULTILINE)[1:]:
        paths = re.findall(r"`(\w+/\w+\.py)`", step)
        assert paths and all(folder + path in files for path in paths), step
        sources = "".join(files[folder + path] for path in paths)
        assert all(re.search(rf"\b{name}\b", sources) for name in re.findall(r"`(?:\w+\.)?(\w+)`", step)), (
            step
        )


def test_the_cores_of_replication_do_no_io(checkout: Checkout) -> None:
    """No module of the state machines imports a clock, a thread, a socket, a file or gRPC."""
    assert impure(python_files(checkout, "walkit/replication/transport/"))
    found = impure(python_files(checkout, *CORES))
    assert not found, "\n".join(found)


def test_no_module_imports_itself_by_way_of_others(checkout: Checkout) -> None:
    """Take away, again and again, what imports nothing that is left or is imported by nothing: no module stays."""
    found = in_a_circle(python_files(checkout, "walkit/"))
    assert not found, "\n".join(found)


def test_modules_and_functions_keep_their_length(checkout: Checkout) -> None:
    """Every module has at most 800 lines and every function at most 70, without tests."""
    assert too_long({"a.py": "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX}) == ["a.py:1: f has 71 lines"]
    found = too_long(python_files(checkout, *MEASURED))
    assert not found, "\n".join(found)


A_FEW_LINES = '''"""A docstring
of two lines."""

# a comment
LIMIT = 3  # at its line
"""What it is."""


def f() -> str:
    """Return it."""
    return """as many lines
as the string has"""
'''
"""Four lines with code: the constant, the head of the function, two of its string."""


def test_each_room_keeps_its_budget_of_code(checkout: Checkout) -> None:
    """Count the lines with code of each room: none is over its budget, none is without one, and none is left over."""
    assert code_lines(A_FEW_LINES) == 4
    few = room_lines({"walkit/a/b.py": A_FEW_LINES, "walkit/c.py": A_FEW_LINES, "tests/d.py": A_FEW_LINES})
    assert few == {"a": 4, "(root)": 4}
    assert len(over_budget(few, {"a": 3, "b": 10})) == 3
    found = over_budget(room_lines(checkout.files(".py")), json.loads(BUDGETS.read_text()))
    assert not found, "\n".join(found)


def test_each_lock_has_a_comment_at_its_field(checkout: Checkout) -> None:
    """Find each field that is assigned a lock, in the rooms up to the store: it has a comment or docstring."""
    bare = locks_without_comment({"a.py": SOME_LOCKS})
    assert bare == ["a.py:14: _lock", "a.py:6: self.b", "a.py:7: self.c", "a.py:7: self.d"]
    rooms = {
        path: text for path, text in python_files(checkout, "walkit/").items() if room_of(path) in LOCK_ROOMS
    }
    found = locks_without_comment(rooms)
    assert not found, "\n".join(found)


def test_every_module_has_a_docstring(checkout: Checkout) -> None:
    """Every module of the package, and every file of tests, has a docstring at its top."""
    found = without_docstring(python_files(checkout, *MEASURED, "tests/"))
    assert not found, "\n".join(found)


def test_the_first_line_of_a_docstring_is_a_sentence(checkout: Checkout) -> None:
    """Read every docstring of the package: its first line has a capital or a name in front and a period at the end."""
    first = [
        f"{path}: {first_line(node)}"
        for path, source in python_files(checkout, "walkit/").items()
        if not path.endswith(("_pb2.py", "_pb2_grpc.py"))
        for tree in (parsed(source),)
        for node in (tree, *statements(tree))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(first) > 5_000
    assert [line for line in first if not SENTENCE.fullmatch(line.partition(": ")[2])] == []


def test_every_test_has_its_goal(checkout: Checkout) -> None:
    """Every test function has a docstring of exactly one line."""
    wrong = 'def test_a():\n    """Two\n    lines."""\nasync def test_b(\n    x: int\n) -> None:\n    pass\n'
    assert without_goal({"a.py": wrong}) == ["a.py:1: test_a", "a.py:4: test_b"]
    found = without_goal(python_files(checkout, "tests/"))
    assert not found, "\n".join(found)


WHAT_AN_IMPORT_STARTS = """
import json, sys, threading
import psutil
process = psutil.Process()
threads = threading.active_count()
import walkit
print(json.dumps({
    "from": walkit.__file__,
    "modules": sorted(sys.modules),
    "threads": threading.active_count() - threads,
    "children": [child.name() for child in process.children()],
    "files": [file.path for file in process.open_files()],
    "sockets": len(process.net_connections()),
}))
"""


def test_importing_walkit_starts_nothing(checkout: Checkout) -> None:
    """A new interpreter imports walkit: no heavy package, thread, child, open file or socket comes with it."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_AN_IMPORT_STARTS],
        cwd=checkout.root,
        check=True,
        capture_output=True,
        text=True,
    )
    seen = json.loads(done.stdout)
    assert seen.pop("from") == str(checkout.root / "walkit" / "__init__.py")
    modules = seen.pop("modules")
    assert "numpy" in modules, "the probe saw no modules at all"
    assert [name for name in modules if name in (*HEAVY, *NEVER_FOR_RECORDS, "pyarrow")] == []
    assert seen == {"threads": 0, "children": [], "files": [], "sockets": 0}


WHAT_RECORDS_LOAD = """
import json, sys
import walkit
loaded = [sorted(sys.modules)]
with walkit.open(sys.argv[1]) as log:
    log.append(b"v", key=b"k", timestamp=1)
    log.submit_many([b"a", b"b"]).result()
    loaded.append(sorted(sys.modules))
    assert [record.value for record in log.read()] == [b"v", b"a", b"b"]
    assert log.to_arrow().num_rows == 3
    loaded.append(sorted(sys.modules))
print(json.dumps(loaded))
"""


def test_the_cost_of_an_import_is_not_moved_into_the_first_record(checkout: Checkout, tmp_path: Path) -> None:
    """A new process opens a log, appends and reads: it loads pyarrow for reading, and nothing else that is heavy."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_RECORDS_LOAD, str(tmp_path / "log")],
        cwd=checkout.root,
        check=True,
        capture_output=True,
        text=True,
    )
    imported_then, appended, read = (set(names) for names in json.loads(done.stdout))
    assert "pyarrow" in read - appended
    assert [name for name in NEVER_FOR_RECORDS if name in read] == []
    ours = {name for name in appended - imported_then if name.startswith(("walkit", "numpy", "pyarrow"))}
    assert ours == set()
