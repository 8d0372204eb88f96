"""A real JupyterLab, served for as long as a test looks at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import nbformat
import psutil

from tests.support.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 120.0
READY = """async () => {
    const context = window.jupyterapp.shell.currentWidget.sessionContext;
    await context.ready;
    await context.session.kernel.info;
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('runmenu:run-all') }"


@dataclass(frozen=True)
class Served:
    """A JupyterLab that is running."""

    url: str
    folder: Path
    token: str


@contextmanager
def lab(folder: Path, *, token: str = "") -> Iterator[Served]:
    """Serve a folder in JupyterLab; without a token everybody may come in."""
    port = free_port()
    options = (
        *(
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            f"--port={port}",
            f"--IdentityProvider.token={token}",
        ),
        *("--ServerApp.password=", "--LabApp.news_url=", "--LabApp.expose_app_in_browser=True"),
        f"--LabApp.user_settings_dir={folder / 'settings'}",
    )
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": found, "IPYTHONDIR": str(folder / "ipython"), "TMPDIR": str(folder)}
    with (folder / "lab.log").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *options],
            cwd=folder,
            env=os.environ | variables,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + GUARD_S
            while not _answers(f"{url}/api/status?token={token}"):
                assert process.poll() is None, (folder / "lab.log").read_text()
                assert time.monotonic() < deadline, (folder / "lab.log").read_text()
                time.sleep(0.2)
            yield Served(url, folder, token)
        except BaseException as error:
            error.add_note(f"JupyterLab said:\n{(folder / 'lab.log').read_text()[-10_000:]}")
            raise
        finally:
            process.terminate()
            process.wait(GUARD_S)


def dashboards() -> list[psutil.Process]:
    """Return the dashboards that Labs of this process have started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "dashboard" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def write_settings(folder: Path, theme: str) -> None:
    """Choose a theme, and no news."""
    for plugin, settings in (
        ("apputils-extension/themes", {"theme": f"JupyterLab {theme}"}),
        ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
    ):
        name, _, part = plugin.partition("/")
        path = folder / "settings" / "@jupyterlab" / name / f"{part}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))


@contextmanager
def notebook_page(
    browser: Browser, folder: Path, cells: Sequence[str], theme: str = "Light"
) -> Iterator[tuple[Page, list[str]]]:
    """Open a notebook of these cells in a Lab of its own; give the page, and what its console complains of."""
    folder.mkdir()
    write_settings(folder, theme)
    write_notebook(folder, cells)
    with lab(folder) as running, opened(browser, running, "tested.ipynb") as found:
        yield found


def write_notebook(folder: Path, cells: Sequence[str]) -> None:
    """Write `tested.ipynb` of these cells."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    code = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code, metadata=kernel), folder / "tested.ipynb")


@contextmanager
def opened(browser: Browser, running: Served, notebook: str) -> Iterator[tuple[Page, list[str]]]:
    """Open a notebook of a Lab in a window of its own, its kernel ready; give the page, and what its console says."""
    complaints: list[str] = []
    page = browser.new_context(viewport={"width": 1440, "height": 1200}).new_page()
    page.set_default_timeout(GUARD_S * 1000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((running.url, "data:", "blob:"))
            else complaints.append(f"asked of others: {request.url}")
        ),
    )
    # With no tab of an earlier window.
    page.goto(f"{running.url}/lab/tree/{notebook}?reset&token={running.token}")
    page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
    page.evaluate(READY)
    yield page, complaints
    page.context.close()
