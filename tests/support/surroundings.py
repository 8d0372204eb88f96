"""The state that tests start from, wherever they are started: a terminal's signals, and no variable of a user's."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

FOREIGN = (
    *("BOKEH_", "GRPC_", "HADOOP_", "IPYTHON", "JUPYTER_", "PANEL_", "PYSPARK_", "SPARK_", "WALKIT_"),
    *("PYTHONBREAKPOINT", "PYTHONDONTWRITEBYTECODE", "PYTHONINSPECT", "PYTHONOPTIMIZE"),
    *("PYTHONSTARTUP", "PYTHONWARNINGS"),
    *("_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"),
    *("CLICOLOR", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR"),
)
"""Variables, by their beginning, that change what the things under test do or print."""
LOCAL = "localhost,127.0.0.1,::1"


def settle() -> None:
    """Give this process, and so each child that it starts, the signals and the environment that tests expect.

    A background job of a script, nohup and some CI runners start programs with SIGINT ignored; a child inherits that,
    and its Ctrl-C does nothing.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    os.environ["LC_ALL"] = "C.UTF-8"
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), LOCAL)))
    home = os.environ.get("HOME", "")
    if not (home and os.access(home, os.W_OK | os.X_OK)):
        os.environ["HOME"] = tempfile.mkdtemp(prefix="walkit-tests-home-")
        atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)
