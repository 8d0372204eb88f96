"""The history of one key, as the States page shows it: searched for in one log or two, each record with its frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from walkit.views.frame_search import KeySearch, find_key
from walkit.views.inspector_parts import html_pane, wanted_of
from walkit.views.jobs import Job
from walkit.views.log_outline import Outline
from walkit.views.looking import Apply
from walkit.views.parts import Button, TextInput, View, pn, sentence_html
from walkit.views.pick_table import PickTable
from walkit.views.state_rows import HISTORY_HEAD, history_rows

Ask = Callable[[str, Callable[[Job], Apply]], None]


class KeyHistory(View):
    """A key's records with the LSNs that they held to. Used by one thread."""

    def __init__(self, ask: Ask, inspect: Callable[[str, int], None]) -> None:
        """`ask` reads off this thread; `inspect(log, position)` is called with the frame that a person picks."""
        super().__init__()
        self.found: list[tuple[str, KeySearch]] = []
        self._logs: Sequence[tuple[str, Outline]] = ()
        self._ask, self._inspect = ask, inspect
        self.key = TextInput(label="key", placeholder="text, or hex after 0x", width=260)
        self.find = Button(label="Show its history", width=150)
        self.more = Button(label="Search on", width=110, visible=False)
        self.words = html_pane()
        self.table = PickTable("history of the key", HISTORY_HEAD, self._pick, right=(0, 4, 5, 6))
        self.key.param.watch(lambda _: self._find(), "enter_pressed")
        self.find.on_click(lambda _: self._find())
        self.more.on_click(lambda _: self._search_on())
        self._layout = pn.Column(
            pn.FlexBox(self.key, self.find, align_items="end"),
            self.words,
            self.table,
            self.more,
            sizing_mode="stretch_width",
            margin=0,
        )

    def tell(self, logs: Sequence[tuple[str, Outline]]) -> None:
        """Search these logs, by name, from now on; what was found before is forgotten."""
        self._logs = logs
        self._take([])

    def show_key(self, key: bytes) -> None:
        """Show the history of a key."""
        self.key.value = f"0x{key.hex()}"
        self._search(key, None)

    def _find(self) -> None:
        text = (self.key.value or "").strip()
        try:
            key = wanted_of("key", text)
        except ValueError as error:
            self.words.object = sentence_html("", problem=f"{text[:80]!r} is no key: {error}.")
            return
        if isinstance(key, bytes):
            self._search(key, None)

    def _search_on(self) -> None:
        if self.found:
            key = self.found[0][1].key
            self._search(key, {name: s.next_lsn for name, s in self.found if s.next_lsn is not None})

    def _search(self, key: bytes, starts: Mapping[str, int] | None) -> None:
        """Find a key's records in each log, or from where a search before has stopped."""
        logs = self._logs

        def read(job: Job) -> Apply:
            found = [
                (name, find_key(outline, key, (starts or {}).get(name, outline.first_lsn), job))
                for name, outline in logs
                if starts is None or name in starts
            ]
            return lambda: self._take(found)

        self._ask("searching for the key", read)

    def _take(self, found: list[tuple[str, KeySearch]]) -> None:
        self.found = found
        rows = history_rows(found)
        self.table.tell(rows)
        self.words.object = sentence_html("No record has this key.") if found and not rows else ""
        self.more.visible = any(search.next_lsn is not None for _, search in found)

    def _pick(self, row_id: str, _: bool) -> None:
        for log, search in self.found:
            for hit in search.hits:
                if f"{log}/{hit.record.lsn}" == row_id:
                    self._inspect(log, hit.position)
                    return
