"""The page that mmx-exporter serves for people: what it says, that it is
complete, loads nothing from elsewhere, and fits a telephone."""

import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import tempfile

import test_exporter
from engine import LIMIT
from pair import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ROOM = 918273645546372819  # no other text of the page looks like it


class Tags(html.parser.HTMLParser):
    """Checks that every tag is closed, in order."""
    VOID = ("meta",)

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


class Page(test_exporter.Scraped):
    limit_s = 12 * LIMIT  # Chromium's first start reads much from the disk

    def served(self, *more):
        self.e, self.d = self.pair()
        self.enc, self.lm = self.engines(self.e, self.d)
        for room in range(ROOM, ROOM + 7):
            self.deliver(self.enc, self.lm, room, 300)
        for room in range(ROOM + 100, ROOM + 103):
            self.enc.announce(room, 10)
            self.enc.abort(room)
            self.enc.release(room)
        return self.start("--encoded", self.e.socket, "--langd", self.d.socket,
                          *more)

    def part(self, page, title):
        """Returns the rows below a heading, for each daemon in turn."""
        return [re.findall("<li>.*?</li>", text, re.S) for text in re.findall(
            f"<h3>{title}</h3>\n<ul>(.*?)</ul>", page, re.S)]

    def test_what_it_says(self):
        page = self.get(self.served() + "/")
        tags = Tags()
        tags.feed(page)
        self.assertEqual((tags.open, tags.links), ([], []))
        self.assertNotIn("script", tags.seen)
        for text in ("mmx-encoded", "mmx-langd", "lang0", "enc0", "vit",
                     "commit_to_ready", "destination_wait", "300 rows"):
            self.assertIn(text, page)
        # These would hide a part of a row, or keep it from breaking.
        for word in ("overflow-x", "overflow:", "nowrap", "<table"):
            self.assertNotIn(word, page)
        heads = re.findall("<h[23]\\b[^>]*>([^<]*)", page)
        self.assertEqual([text.split(" ")[0] for text in heads[:5]],
                         ["mmx-encoded", "Slow", "Pools", "Peers", "Times"])

    def test_rooms(self):
        """Equal failures are one row, fast rooms have none; no ids."""
        page = self.get(self.served() + "/")
        encoded, langd = self.part(page, "Slow and failed rooms since the "
                                   "start")
        self.assertEqual([r.count("good") for r in encoded],
                         [0, 0, 1, 1, 1, 1, 1])
        self.assertIn(">aborted</span><span>3 times, the last:", encoded[1])
        self.assertEqual(len(langd), 6)
        self.assertRegex(langd[1], r"\d ms|\d µs")
        self.assertIsNone(re.search("918\\D*273\\D*645", page))

    def test_ids(self):
        page = self.get(self.served("--ids") + "/")
        self.assertEqual(page.count(f"<code>{ROOM + 102}</code>"), 1)
        self.assertEqual(len(re.findall(f"<code>{ROOM // 1000}", page)), 11)
        self.assertIn("mmxctl trace ID", page)

    def test_sizes_are_known_by_their_bucket(self):
        page = self.get(self.served() + "/")
        for rows in self.part(page, "Times and sizes since the start"):
            size, = [r for r in rows if "room_size" in r]
            self.assertEqual(size.count("%: 16 to 32 KiB<"), 2)

    def test_peers(self):
        url = self.served()
        self.assertEqual([len(rows) for rows in self.part(
            self.get(url + "/"), "Peers")], [1, 1])
        self.d.kill()
        eventually(lambda: re.search(
            r"lang0</strong><span class=\"state bad\">(away|unreachable)"
            r"</span><span>for \d+ (s|ms|µs)</span>", self.get(url + "/")),
            "the peer is shown to be down, and since when")

    def test_health(self):
        url = self.served()
        self.assertEqual(self.get(url + "/healthz"),
                         "mmx-encoded: ready; mmx-langd: ready\n")
        self.e.ctl("drain")
        status, text = self.status(url + "/healthz")
        self.assertEqual(status, 503)
        self.assertRegex(text, r"\Ammx-encoded: draining.*; mmx-langd: .*\n\Z")
        self.d.kill()
        self.assertIn("; mmx-langd: does not answer\n",
                      self.status(url + "/healthz")[1])

    def measured(self, width, dark):
        """Returns what Chromium renders at a width: the document's width, the
        right edge of the element that extends farthest, and the background
        colour."""
        if not CHROMIUM:
            self.skipTest("no Chromium")
        page = self.get(self.served("--ids") + "/")
        page = re.sub("<meta http-equiv[^>]*>", "", page)
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        # A window has a minimal width, a frame has none.
        with open(os.path.join(folder.name, "frame.html"), "w") as f:
            f.write(f"""<!DOCTYPE html><iframe width={width} height=3000
                style="border:0" srcdoc="{html.escape(page)}"></iframe>
                <pre></pre><script>
                onload = () => {{
                  const d = document.querySelector("iframe").contentDocument;
                  const all = [...d.body.querySelectorAll("*")];
                  document.querySelector("pre").textContent = JSON.stringify({{
                    width: d.documentElement.scrollWidth,
                    right: Math.max(...all.map(
                      e => e.getBoundingClientRect().right)),
                    cut: all.filter(e => e.scrollWidth > e.clientWidth + 1
                      && e.clientWidth > 0).map(e => e.outerHTML),
                    around: getComputedStyle(d.body).backgroundColor}});
                }}</script>""")
        got = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--dump-dom",
             "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={folder.name}/profile",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}",
             f"file://{f.name}"], check=True, timeout=10 * LIMIT,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "HOME": folder.name}).stdout
        return json.loads(html.unescape(
            re.search("<pre>(.*?)</pre>", got, re.S)[1]))

    def test_on_a_telephone_in_the_dark(self):
        got = self.measured(390, True)
        self.assertLessEqual(got["width"], 390)
        self.assertLessEqual(got["right"], 390)
        self.assertEqual(got["cut"], [])
        self.assertEqual(got["around"], "rgb(18, 22, 28)")

    def test_on_a_wide_screen(self):
        got = self.measured(1280, False)
        self.assertLessEqual(got["right"], 1280)
        self.assertEqual(got["cut"], [])
        self.assertEqual(got["around"], "rgb(245, 246, 248)")
