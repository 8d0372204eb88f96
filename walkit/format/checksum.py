"""CRC-32C (Castagnoli), in hardware, over any buffer without a copy.

`import crc32c` brings its command line and the metadata of its own version: 70 modules, a tenth of `import walkit`. So
its extension module is loaded alone, under its own name; if the package's layout differs, the package is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

from walkit.record import Buffer

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c

__all__ = ["crc32c", "crc32c_of"]

_EXTENSION = "crc32c._crc32c"


def _load_extension() -> None:
    """Put the extension module where `from crc32c._crc32c import` finds it, if it is not there yet."""
    package = PathFinder.find_spec("crc32c")
    spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations) if package else None
    if spec is not None and spec.loader is not None and _EXTENSION not in sys.modules:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_EXTENSION] = module


if not TYPE_CHECKING:
    _load_extension()
    crc32c = getattr(sys.modules.get(_EXTENSION), "crc32c", None)
    if crc32c is None:
        from crc32c import crc32c


def crc32c_of(buffers: Iterable[Buffer]) -> int:
    """Return the CRC-32C of several buffers as if they were one."""
    value = 0
    for buffer in buffers:
        value = crc32c(buffer, value)
    return value
