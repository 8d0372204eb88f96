"""scripts/setup.sh: when it makes, repairs or keeps the environment, and its messages.

Only what would need a network or another machine is replaced: the interpreters and tools on PATH are small scripts
that write down how they were called. The set-up script itself is the real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Checkout

PYTHON_NAMES = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")

# Answers questions (-c, --version) as the real interpreter does; notes all else. `-m venv DIR` makes the few files that
# the set-up looks for, and uv inside is one more such script: with NO_CACHE it cannot work offline, with NO_NETWORK not
# at all. With NO_PIP the environment has no pip, like one that `uv venv` made. pip answers only if it has a file.
PYTHON_SHIM = """#!/bin/sh
case "$*" in
    *"import ensurepip"*) [ -e "$VENV_MODULE" ]; exit ;;
    -c* | --version) exec "$REAL" "$@" ;;
    "-m pip config"*) [ -e "$HOME/.pip/pip.conf" ] && exec "$REAL" "$@"; exit 1 ;;
    "-m pip --version") [ -z "$NO_PIP" ]; exit ;;
esac
echo "python $*" | sed "s#$PWD/##g" >>"$CALLS"
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    cp "$UV_SHIM" "$3/bin/uv"
    echo "VIRTUAL_ENV=$3" >"$3/bin/activate"
fi
"""
UV_SHIM = """#!/bin/sh
echo "uv $*" | sed -e "s#$PWD/##g" -e "s# --python .venv/bin/python##" >>"$CALLS"
[ -z "$NO_NETWORK" ] || { echo "no route to the index" >&2; exit 1; }
case "$*" in
    *-e\\ .*) touch .venv/bin/walkit && chmod +x .venv/bin/walkit ;;
    *--offline*) [ -z "$NO_CACHE" ] ;;
esac
"""
APT_SHIM = """#!/bin/sh
echo "apt-get $*" >>"$CALLS"
[ -n "$NO_NETWORK" ] || touch "$VENV_MODULE"
"""
TOO_OLD = """#!/bin/sh
[ "$1" = --version ] && echo "Python 3.9.2"
"""

INSTALL = (
    "uv pip install --quiet --compile-bytecode --build-constraints requirements.lock -r requirements.lock"
)
WALKIT = "uv pip install --quiet --offline --no-deps --no-build-isolation -e ."
VENV = "python -m venv .venv"
PIP = "python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/walkit-uv.txt"
COMPILED = "python -m compileall -q walkit pyspark_walkit pytest_walkit"
FROM_CACHE = [VENV, PIP, f"{INSTALL} --offline", WALKIT, COMPILED]
MENDED = FROM_CACHE[1:]


@dataclass(kw_only=True)
class Machine:
    """A folder with a checkout in it, and the tools that its PATH finds first."""

    folder: Path
    checkout: Path
    user: str = "0"

    def tool(self, name: str, text: str) -> Path:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def setup(self, **variables: str) -> tuple[int, list[str], str]:
        """Exit code, calls, and output."""
        calls = self.folder / "calls"
        calls.write_text("")
        self.tool("id", f"#!/bin/sh\necho {self.user}\n")
        given = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "CALLS": str(calls),
            "REAL": sys.executable,
            "UV_SHIM": str(self.folder / "uv-shim"),
            "VENV_MODULE": str(self.folder / "has-venv"),
            "HOME": str(self.folder),
        }
        done = subprocess.run(
            ["sh", str(self.checkout / "scripts" / "setup.sh")],
            env=given | {"NO_CACHE": "", "NO_NETWORK": "", "NO_PIP": ""} | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.stdout == ""
        return done.returncode, calls.read_text().splitlines(), done.stderr


@pytest.fixture
def machine(checkout: Checkout, tmp_path: Path) -> Machine:
    """Root's machine with a good python3 that has venv, and a fresh checkout in a folder with a space."""
    (tmp_path / "bin").mkdir()
    there = tmp_path / "a checkout"
    shutil.copytree(checkout.root / "scripts", there / "scripts")
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(checkout.root / name, there / name)
    made = Machine(folder=tmp_path, checkout=there)
    made.tool("../uv-shim", UV_SHIM)
    made.tool("apt-get", APT_SHIM)
    for name in PYTHON_NAMES:
        made.tool(name, PYTHON_SHIM)
    (tmp_path / "has-venv").touch()
    return made


def test_a_fresh_checkout_is_set_up_once(machine: Machine) -> None:
    """From nothing: venv, pinned uv by pip, the lock, walkit; asked again: not one call."""
    code, calls, said = machine.setup()
    assert (code, calls) == (0, FROM_CACHE), said
    assert machine.setup() == (0, [], "")


def test_uv_is_pinned_by_the_lock_with_hashes(machine: Machine, checkout: Checkout) -> None:
    """The file that pip gets is the lock's own lines for uv, and nothing else."""
    machine.setup()
    lines = (machine.checkout / ".venv" / "walkit-uv.txt").read_text().splitlines()
    assert lines[0].startswith("uv==")
    assert lines[0].endswith("\\")
    assert len(lines) > 1
    assert all(line.startswith("    --hash=sha256:") for line in lines[1:])
    assert "\n".join(lines) in (checkout.root / "requirements.lock").read_text()


def test_an_environment_without_pip_gets_it(machine: Machine) -> None:
    """`uv venv` makes environments without pip: the one that is there is kept and completed."""
    machine.setup()
    (machine.checkout / ".venv" / "walkit-setup").unlink()
    assert machine.setup(NO_PIP="1")[:2] == (0, ["python -m ensurepip", *MENDED])


def test_packages_that_the_cache_lacks_are_fetched(machine: Machine) -> None:
    """If uv cannot install offline it is called again online, after a line that announces it."""
    code, calls, said = machine.setup(NO_CACHE="1")
    assert (code, calls) == (0, [VENV, PIP, f"{INSTALL} --offline", INSTALL, WALKIT, COMPILED]), said
    assert "fetching packages" in said


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml", "scripts/setup.sh"])
def test_a_change_of_a_dependency_updates_it(machine: Machine, name: str) -> None:
    """One more line in the lock, the metadata or the script: installed again into the same environment, once."""
    machine.setup()
    with (machine.checkout / name).open("a") as file:
        file.write("# one more line\n")
    code, calls, said = machine.setup()
    assert (code, calls) == (0, MENDED), said
    assert machine.setup() == (0, [], "")


def test_an_interrupted_setup_is_done_again(machine: Machine) -> None:
    """A first set-up whose network fails reports it and is done again, as is a later one cut short."""
    code, calls, said = machine.setup(NO_NETWORK="1")
    assert code == 1
    assert calls == [VENV, PIP, f"{INSTALL} --offline", INSTALL]
    assert "no route to the index" in said
    assert "run make again" in said
    assert machine.setup()[:2] == (0, FROM_CACHE)
    (machine.checkout / ".venv" / "walkit-unfinished").touch()
    assert machine.setup()[:2] == (0, FROM_CACHE)
    assert machine.setup() == (0, [], "")


def test_a_moved_checkout_is_set_up_again(machine: Machine) -> None:
    """The scripts of an environment name its old place, so it is rebuilt in the new one."""
    machine.setup()
    machine.checkout = machine.checkout.rename(machine.folder / "elsewhere")
    assert machine.setup()[:2] == (0, FROM_CACHE)


def test_another_interpreter_makes_another_environment(machine: Machine) -> None:
    """The same version from another place is another interpreter."""
    machine.setup()
    other = machine.tool(
        "other", PYTHON_SHIM.replace('exec "$REAL"', 'echo "3.13 elsewhere"; exit 0; exec "$REAL"')
    )
    assert machine.setup(PYTHON=str(other))[:2] == (0, FROM_CACHE)


def test_a_lost_environment_is_made_again(machine: Machine) -> None:
    """Without .venv, or with its command gone, the stamp is not believed."""
    machine.setup()
    (machine.checkout / ".venv" / "bin" / "walkit").unlink()
    assert machine.setup()[:2] == (0, MENDED)
    shutil.rmtree(machine.checkout / ".venv")
    assert machine.setup()[:2] == (0, FROM_CACHE)


def test_an_index_known_to_pip_alone_reaches_uv(machine: Machine) -> None:
    """An index of pip's file or of PIP_INDEX_URL becomes uv's for this run only; an index of uv's own is left alone."""
    machine.tool("../uv-shim", UV_SHIM.replace('echo "uv $*"', 'echo "uv to $UV_DEFAULT_INDEX"'))
    index = "file:///index"
    assert machine.setup(PIP_INDEX_URL=index)[1][2:4] == ["uv to file:///index"] * 2
    shutil.rmtree(machine.checkout / ".venv")
    (machine.folder / ".pip").mkdir()
    (machine.folder / ".pip" / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
    assert machine.setup()[1][2:4] == ["uv to file:///index"] * 2
    shutil.rmtree(machine.checkout / ".venv")
    assert (
        machine.setup(PIP_INDEX_URL=index, UV_DEFAULT_INDEX="file:///own")[1][2:4]
        == ["uv to file:///own"] * 2
    )


@pytest.mark.parametrize("given", [{}, {"PYTHON": "python3.9"}])
def test_an_old_python_is_refused_in_one_sentence(machine: Machine, given: dict[str, str]) -> None:
    """With no interpreter of 3.11 or newer, found or named, one line reports it and nothing is made."""
    for name in (*PYTHON_NAMES, "python3.9"):
        machine.tool(name, TOO_OLD)
    code, calls, said = machine.setup(**given)
    assert (code, calls) == (1, [])
    assert said.count("\n") == 1
    assert "3.11" in said
    assert ("PYTHON=python3.9" if given else "Python 3.9.2") in said
    assert not (machine.checkout / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine) -> None:
    """python3 is too old and python3.13 is not: the latter is taken."""
    for name in ("python3", "python3.11", "python3.12"):
        machine.tool(name, TOO_OLD)
    assert machine.setup()[:2] == (0, FROM_CACHE)


def test_root_gets_the_venv_module(machine: Machine) -> None:
    """Without ensurepip, root's set-up asks apt-get for python3-venv and goes on."""
    (machine.folder / "has-venv").unlink()
    code, calls, said = machine.setup()
    assert code == 0, said
    assert calls == ["apt-get update", "apt-get install -y --no-install-recommends python3-venv", *FROM_CACHE]


@pytest.mark.parametrize(("user", "variables"), [("1000", {}), ("0", {"NO_NETWORK": "1"})])
def test_a_python_without_venv_is_refused_with_the_remedy(
    machine: Machine, user: str, variables: dict[str, str]
) -> None:
    """Without ensurepip, a user who is not root, or whose apt-get did not help, gets the command to run."""
    (machine.folder / "has-venv").unlink()
    machine.user = user
    code, calls, said = machine.setup(**variables)
    assert code == 1
    assert [call for call in calls if not call.startswith("apt-get")] == []
    assert (calls == []) is (user != "0")
    assert "install it (on Debian as root: apt-get install python3-venv)" in said.splitlines()[-1]
    assert not (machine.checkout / ".venv").exists()


def test_the_scripts_can_be_run() -> None:
    """Each script is executable and parses as the shell its first line names."""
    scripts = sorted((Path(__file__).parent.parent / "scripts").glob("*.sh"))
    assert scripts
    for script in scripts:
        assert os.access(script, os.X_OK)
        shell = script.read_text().partition("\n")[0].removeprefix("#!/bin/")
        assert shell in ("sh", "bash")
        subprocess.run([shell, "-n", str(script)], check=True)
