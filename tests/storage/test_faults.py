"""FaultyStorage: the shared suite through it, and every kind of fault over both storages."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_backends import FileHooks, MemoryHooks

from walkit.errors import OptionsError
from walkit.storage import FaultyStorage, FileStorage, MemoryStorage, Operation, Storage
from walkit.testing.storage_hooks import Refused
