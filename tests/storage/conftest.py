"""Shows the values in the shipped suite's failed assertions, as pytest does for test modules."""

import pytest

pytest.register_assert_rewrite(
    "walkit.testing.storage_crash",
    "walkit.testing.storage_files",
    "walkit.testing.storage_hooks",
    "walkit.testing.storage_machines",
    "walkit.testing.storage_names",
    "walkit.testing.storage_sharing",
)
