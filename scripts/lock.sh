#!/bin/sh
# Makes requirements.lock: one version of each package for every platform and every Python from 3.11 on, with hashes.
# The lock names no package index: where packages come from is the business of each machine's own configuration.
# Arguments go to `uv pip compile`. UV names another uv than the environment's.
set -eu
cd "$(dirname "$0")/.."
UV_PYTHON_DOWNLOADS=never
export UV_PYTHON_DOWNLOADS

"${UV:-.venv/bin/uv}" pip compile pyproject.toml --extra all --universal --python-version 3.11 --fork-strategy fewest \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock' \
    --output-file requirements.lock --quiet "$@"
echo "requirements.lock: $(grep -c '==' requirements.lock) packages"
