"""Shows the values in the shipped suite's failed assertions, as pytest does for test modules."""

import pytest

pytest.register_assert_rewrite("walkit.testing.state")
