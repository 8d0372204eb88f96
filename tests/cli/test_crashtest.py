"""`walkit crashtest`: what it prints where every rule holds, where a bug is put back, and what it saves."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

import walkit
from walkit.crashlab import MUTANTS_NAMES, PROFILES, RULES, SCENARIOS, explore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run
