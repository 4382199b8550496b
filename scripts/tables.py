"""tables.py - read the .def tables and the constants of headers.

The tables are X-macro rows, one row a line: NAME(a, b, "text"). This module
understands only such rows, and raises an error when a line is something else,
so that no row is overlooked. Used by check-docs and fuzz-seeds."""

import re
from typing import NamedTuple, Optional

ROW = re.compile(r"^([A-Z_]+)\((.*)\)$")
PART = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,"]+)\s*(?:,|$)')
DEFINE = re.compile(r"^#define\s+([A-Z][A-Z0-9_]*)\s+(\S.*?)\s*(?:/\*.*)?$")


class TableError(Exception):
    pass


class Field(NamedTuple):
    name: str
    kind: str  # u8 u16 u32 u64 key text blob
    limit: Optional[int]  # bytes of a text or blob
    doc: str


def strip_comments(text):
    """Comments become blank, line numbers stay."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    return re.sub(r"/\*.*?\*/", blank, text, flags=re.S)


def rows(path):
    """(macro, [arguments]) of every row; strings without their quotes."""
    with open(path, encoding="utf-8") as f:
        text = strip_comments(f.read())
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        m = ROW.match(line)
        if not m:
            raise TableError(f"{path}:{number}: not a row: {line}")
        args = [a.strip() for a in PART.findall(m.group(2))]
        yield m.group(1), [
            a[1:-1].replace('\\"', '"') if a.startswith('"') else a
            for a in args
        ]


def messages(path):
    """[{name, number, doc, fields: [Field]}] of a wire."""
    out, current = [], None
    for macro, a in rows(path):
        if macro == "MESSAGE":
            current = {"name": a[0], "number": int(a[2]), "doc": a[3],
                       "fields": []}
            out.append(current)
        elif macro == "FIELD":
            current["fields"].append(Field(a[0], a[1], None, a[2]))
        elif macro == "FLAGS":
            current["fields"].append(Field(a[0], a[1], None, a[3]))
        elif macro in ("TEXT", "BLOB"):
            current["fields"].append(
                Field(a[0], macro.lower(), int(a[1]), a[2]))
        elif macro != "END":
            raise TableError(f"{path}: unknown row {macro}")
    return out


def defines(path):
    """{name: value as written} of the plain constants of a header."""
    out = {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            m = DEFINE.match(line.rstrip("\n"))
            if m and not m.group(2).endswith("\\"):
                value = m.group(2)
                value = re.sub(r"U?INT\d+_C\((\w+)\)", r"\1", value)
                out[m.group(1)] = value
    return out
