"""The Object storage page without a browser: modelled places are compared, and a URL of another kind is refused."""

from __future__ import annotations

import pytest

from tests.views.waiting import eventually
from walkit.views.page import make_shell
from walkit.views.page_objects import ObjectsPage


def test_object_storage_is_compared_on_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare three models over two intervals: the figure has the medians of each, the table their prices."""
    monkeypatch.setattr("walkit.views.page_objects.VALUES", {"interval, ms": (0, 250)})
    shell = make_shell()
    try:
        shell.go("objects")
        page = shell.page
        assert isinstance(page, ObjectsPage)
        page.url.value = "objects:/elsewhere"
        page.real.clicks += 1
        assert "s3://" in page.status.object and "role='alert'" in page.status.object
        page.model.clicks += 1
        assert page.model.disabled
        eventually(lambda: not page.session.busy)
        page.refresh()
        curves = page.figure.object.data
        assert [curve.name for curve in curves[::5]] == ["s3-standard", "s3-express", "gp3"]
        drawn = {name: [c.y for c in curves if c.name == name] for name in ("s3-standard", "s3-express")}
        # p50, p99, records/s, requests and dollars, without waiting and with a quarter of a second
        for p50, p99, rate, requests, dollars in drawn.values():
            assert all(low <= high for low, high in zip(p50, p99, strict=True)) and min(rate) > 100
            assert requests[0] > 5 * requests[-1] and dollars[0] > dollars[-1]
        assert drawn["s3-express"][0][0] < 0.02 < 0.1 < drawn["s3-standard"][0][0]
        words = page.numbers.object
        assert "aws.amazon.com/s3/pricing" in words and "2025-04-10" in words
        assert "batching_sweep(places" in page.code()
    finally:
        shell.close()
