"""Read a page as a browser's parser would: tables by id, scripts, texts."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What tests look at: cells of tables by id, every tag with its attributes, the contents of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._table = ""
        self._cell: list[str] | None = None
        self._script: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "table":
            self._table = found.get("id") or f"table {len(self.tables)}"
            self.tables[self._table] = []
        elif tag == "tr" and self._table:
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self._cell = []
        elif tag == "script":
            self._script = found

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[self._table][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None
        elif tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
        elif self._cell is not None:
            self._cell.append(f" {data}")

    def parts(self, prefix: str) -> dict[str, list[list[str]]]:
        """Return the rows of the results tables with such ids by the heading above them."""
        found: dict[str, list[list[str]]] = {}
        title = ""
        rows = (row for name, table in self.tables.items() if name.startswith(f"{prefix}-") for row in table[3:])
        for row in rows:
            if len(row) == 1:
                title = row[0]
                found[title] = []
            else:
                found[title].append(row)
        return found
