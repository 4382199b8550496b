"""The rows of an engine's table as a page: what a run printed, and nothing
else. A part that runs again replaces its rows; a part with a failed row has
none."""

import json
import os
import re
import time

HEAD = """# What `make engines ENGINE={engine}` printed

Written by `test/engines/run {engine} --table`, never by hand; {package}, on a CPU.
"""
LONGEST = 160  # characters of a row's text


class Page:
    def __init__(self, folder):
        """folder: where the engine is installed."""
        self._path = os.path.join(folder, "table.json")
        try:
            with open(self._path, encoding="utf-8") as f:
                self._parts = json.load(f)
        except FileNotFoundError:
            self._parts = {}
        self._rows = []

    def begin(self, part):
        self._parts.pop(part, None)
        self._part, self._rows = part, []
        self._keep()

    def row(self, good, case, said):
        self._rows.append((bool(good), case, said))

    def end(self):
        """Keeps the part's rows, unless one of them failed."""
        if self._rows and all(good for good, _, _ in self._rows):
            self._parts[self._part] = {
                "on": time.strftime("%d %b %Y"), "cores": os.cpu_count(),
                "load": round(os.getloadavg()[0]),
                "rows": [row[1:] for row in self._rows]}
        self._keep()

    def _keep(self):
        with open(self._path, "w", encoding="utf-8") as f:
            json.dump(self._parts, f)

    def text(self, engine, package):
        """Returns the page of all parts with rows."""
        out = [HEAD.format(engine=engine, package=package)]
        for part, of in self._parts.items():
            out.append(f"## {part}\n\n{of['on']}, {of['cores']} cores, "
                       f"load {of['load']}\n\n| case | result |\n|---|---|")
            out += ["| " + " | ".join(cell(c) for c in row) + " |"
                    for row in of["rows"]]
            out.append("")
        return "\n".join(out)


def cell(text):
    """Returns a cell: shortened, and without folders of this machine."""
    text = re.sub(r"(?<!\w)/(?:\S+/)+", ".../", " ".join(text.split()))
    text = text.replace("|", "\\|")
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."
