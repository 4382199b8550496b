"""The page that mmx-exporter serves for people: whole, without ids or anything
from elsewhere, and as Chromium shows it."""

import html.parser
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zlib

import test_exporter
from engine import LIMIT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ROOM = 918273645546372819  # nothing else on the page looks like it
# What style.c has for the bars' last stretch, and for what lies around.
LIGHT = {"done": (0x1c, 0x9a, 0x6c), "around": (0xf5, 0xf6, 0xf8),
         "card": (0xff, 0xff, 0xff), "line": (0xe2, 0xe6, 0xec)}
DARK = {"done": (0x35, 0xb5, 0x85), "around": (0x12, 0x16, 0x1c),
        "card": (0x1a, 0x20, 0x29), "line": (0x2b, 0x33, 0x3f)}


class Tags(html.parser.HTMLParser):
    """Every tag that is opened is closed, in order."""
    VOID = ("meta", "wbr")

    def __init__(self):
        super().__init__()
        self.open, self.links, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.seen.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "style")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


def pixels(png):
    """Rows of (red, green, blue) of a PNG of 8 bits without interlace."""
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(
                ">IIBB", png, at + 8)
            assert depth == 8 and colour in (2, 6), (depth, colour)
        if kind == b"IDAT":
            data += png[at + 8:at + 8 + size]
        at += 12 + size
    data, step = zlib.decompress(data), 3 if colour == 2 else 4
    before, out = bytes(width * step), []
    for y in range(height):
        a = y * (width * step + 1)
        line = unfiltered(data[a], bytearray(data[a + 1:a + 1 + width * step]),
                          before, step)
        out.append([tuple(line[x:x + 3]) for x in range(0, len(line), step)])
        before = line
    return out


def unfiltered(kind, line, up, step):
    for i in range(len(line)) if kind else ():
        a = line[i - step] if i >= step else 0
        b, c = up[i], up[i - step] if i >= step else 0
        if kind == 1:
            add = a
        elif kind == 2:
            add = b
        elif kind == 3:
            add = (a + b) // 2
        else:
            pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
            add = a if pa <= pb and pa <= pc else b if pb <= pc else c
        line[i] = (line[i] + add) & 255
    return line


class Page(test_exporter.Scraped):
    limit_s = 12 * LIMIT  # Chromium's first start reads much from the disk

    def served(self):
        e, d = self.pair()
        enc, lm = self.engines(e, d)
        for room in range(ROOM, ROOM + 3):
            self.deliver(enc, lm, room, 300)
        enc.announce(ROOM + 3, 10)
        enc.abort(ROOM + 3)
        enc.release(ROOM + 3)
        return self.start("--encoded", e.socket, "--langd", d.socket)

    def test_what_it_says(self):
        page = self.get(self.served() + "/")
        tags = Tags()
        tags.feed(page)
        self.assertEqual((tags.open, tags.links), ([], []))
        self.assertNotIn("script", tags.seen)
        for text in ("mmx-encoded", "mmx-langd", "lang0", "enc0", "vit",
                     "aborted", "until all rows had landed",
                     "commit to ready", "destination wait", "300 rows"):
            self.assertIn(text, page)
        # Three rooms of langd, four of encoded, and no more.
        self.assertEqual(page.count('<tr><td class="ago">'), 7)
        self.assertIsNone(re.search("918\\D*273\\D*645", page))

    def shown(self, size, scheme):
        """How Chromium shows it, in a window of the size; rows of pixels."""
        if not CHROMIUM:
            self.skipTest("no Chromium")
        url = self.served()
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        picture = os.path.join(folder.name, "page.png")
        subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
             f"--user-data-dir={folder.name}/profile",
             f"--window-size={size}", f"--screenshot={picture}",
             f"--blink-settings=preferredColorScheme={scheme}", url + "/"],
            check=True, timeout=10 * LIMIT, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": folder.name})
        with open(picture, "rb") as f:
            return pixels(f.read())

    def look(self, rows, colours):
        self.assertEqual(rows[1][1], colours["around"])
        flat = [p for row in rows for p in row]
        for name in colours:
            self.assertGreater(flat.count(colours[name]), 20, name)
        # Cards end before the right edge, and nothing reaches beyond them.
        for row in rows:
            self.assertEqual(set(row[-8:]), {colours["around"]})

    def test_wide_and_light(self):
        rows = self.shown("1280,1400", 1)
        self.look(rows, LIGHT)

    def test_narrow_and_dark(self):
        self.look(self.shown("400,1600", 0), DARK)
