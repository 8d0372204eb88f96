#!/bin/sh
# Makes sure that there is a browser for the tests of the dashboard and for its screenshots: Debian's chromium, as root.
# If it cannot be had this reports it and continues: the tests that need one skip with a sentence, and in CI they fail.
set -eu

say() { printf 'browser: %s\n' "$*" >&2; }

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing Debian's chromium for the tests of the dashboard (110 MB)"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } \
        </dev/null >&2 || say "apt-get could not install chromium: see its words above."
else
    say "there is no Chromium; install it to test the dashboard (on Debian as root: apt-get install chromium)"
fi
