"""A progress bar with the name of the job and a button that ends it; visible only during a job."""

from __future__ import annotations

from collections.abc import Callable

from walkit._internal.html import tag
from walkit.views.jobs import Job
from walkit.views.parts import Button, View, pn

BAR_CSS = "progress { width: min(24em, 60%); accent-color: var(--accent); margin-right: 0.8em; }"


class JobBar(View):
    """Shows a job. Used by one thread."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        super().__init__()
        self.text = pn.pane.HTML("", sizing_mode="stretch_width", stylesheets=[BAR_CSS])
        self.cancel = Button(label="Cancel", width=90)
        self.cancel.on_click(lambda _: cancel())
        self._layout = pn.Row(self.text, self.cancel, visible=False, sizing_mode="stretch_width")

    def tell(self, job: Job | None) -> None:
        """Show a job that is under way; None, or one that has ended, hides the bar."""
        under_way = job is not None and not job.ended
        if under_way and job is not None:
            words = str(job)
            known = {} if not job.total else {"value": min(job.done, job.total), "max": job.total}
            html = tag("progress", "", aria_label=job.title, **known) + tag(
                "span", f"{words[:1].upper()}{words[1:]}", role="status"
            )
            self.text.object = html
        self._layout.visible = under_way
