"""The manual pages and completions: complete, and clean by mandoc and bash."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from pair import BUILD, ROOT

sys.path.insert(0, os.path.join(ROOT, "scripts"))

import surface  # noqa: E402
import tables  # noqa: E402

PAGES = ("mmx-encoded.8", "mmx-langd.8", "mmx.yaml.5", "mmx.7", "mmxctl.1",
         "libmmx.3")
# Pages of programs that are built only where their libraries are.
MORE = [p + ".8" for p in ("mmx-exporter", "mmx-otel")
        if os.path.exists(os.path.join(BUILD, p))]
HISTOGRAMS = "lib/core/histogram/histograms.def"


class Manuals(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        subprocess.run(
            [os.path.join(ROOT, "scripts", "manuals"), "--build", BUILD,
             "--out", self.dir.name], check=True, stdout=subprocess.DEVNULL)

    def read(self, name):
        with open(os.path.join(self.dir.name, name), encoding="utf-8") as f:
            return f.read()

    def test_every_key_and_counter(self):
        yaml, ctl = self.read("mmx.yaml.5"), self.read("mmxctl.1")
        for _, a in tables.rows(os.path.join(ROOT, "lib/core/conf/conf.def")):
            self.assertTrue(f".It Cm {a[1]} :" in yaml, a[1])
        for f in ("lib/core/stats.def", "lib/node/stats.def", HISTOGRAMS):
            for _, a in tables.rows(os.path.join(ROOT, f)):
                self.assertTrue(f".It Cm {a[0]}\n" in ctl, a[0])
        if not os.path.exists(os.path.join(BUILD, "mmx-exporter")):
            return
        exporter = self.read("mmx-exporter.8")
        for name in surface.own_metrics(os.path.join(ROOT, surface.METRICS)):
            self.assertTrue(f".It Cm {name}\n" in exporter, name)
        for _, a in tables.rows(os.path.join(ROOT, HISTOGRAMS)):
            unit = {"US": "seconds", "BYTES": "bytes"}[a[2]]
            self.assertTrue(f".It Cm mmx_{a[0]}_{unit}\n" in exporter, a[0])

    def test_every_option(self):
        for name in ("mmx-encoded.8", "mmx-langd.8", "mmxctl.1", *MORE):
            told = subprocess.run(
                [os.path.join(BUILD, name[:-2]), "--help"], check=True,
                text=True, stdout=subprocess.PIPE).stdout
            page = self.read(name)
            for word in told.split():
                word = word.strip("[];,.")
                if word.startswith("--"):
                    self.assertTrue(f".It Fl -{word[2:]}" in page
                                    or word in page, f"{name}: {word}")

    def test_each_exit_status_once(self):
        for name in ("mmx-encoded.8", "mmx-langd.8", "mmxctl.1", *MORE):
            told = self.read(name).split(".Sh EXIT STATUS\n")[1]
            items = re.findall(r"^\.It (.*)\n(.*)",
                               told.split(".Sh")[0], re.M)
            self.assertEqual([t for t, _ in items], {
                "mmx-encoded.8": ["0", "1", "64", "78"],
                "mmx-langd.8": ["0", "1", "64", "78"],
                "mmxctl.1": ["0", "1", "2", "64", "Cm conf-diff"],
            }.get(name, ["0", "1", "64"]), name)
            if name == "mmxctl.1":
                self.assertEqual(items[3:], [
                    ("64", "Bad command line."),
                    ("Cm conf-diff",
                     "0 nothing would change, 1 something, 2 trouble.")])

    def test_every_call(self):
        page = self.read("libmmx.3")
        told = subprocess.run(
            ["nm", "-D", "--defined-only", f"{BUILD}/libmmx.so.0"],
            check=True, text=True, stdout=subprocess.PIPE).stdout
        calls = [line.split()[-1].split("@")[0] for line in told.splitlines()
                 if " T mmx_" in line and line.endswith("@@MMX_0")]
        self.assertEqual(len(calls), told.count(" T "), told)
        self.assertIn("Library soname: [libmmx.so.0]", subprocess.run(
            ["readelf", "-d", f"{BUILD}/libmmx.so.0"], check=True, text=True,
            stdout=subprocess.PIPE).stdout)
        self.assertGreater(len(calls), 30)
        for call in calls:
            self.assertTrue(call + "(" in page, call)
            self.assertTrue(call + "(" in self.read(call + ".3"), call)

    def test_the_smallest_file_is_one(self):
        page = self.read("mmx.yaml.5")
        at = page.index(".Bd -literal -offset indent\n") + 28
        key = os.path.join(self.dir.name, "fleet.key")
        file = os.path.join(self.dir.name, "langd.yaml")
        subprocess.run([os.path.join(BUILD, "mmxctl"), "keygen", key],
                       check=True, stdout=subprocess.DEVNULL)
        with open(file, "w", encoding="utf-8") as f:
            f.write(page[at:page.index(".Ed", at)].replace("fleet.key", key))
        subprocess.run([os.path.join(BUILD, "mmx-langd"), "--config", file,
                        "--check-config"], check=True,
                       stdout=subprocess.DEVNULL)

    def test_mandoc(self):
        if not shutil.which("mandoc"):
            self.skipTest("no mandoc")
        calls = [name for name in os.listdir(self.dir.name)
                 if name.endswith(".3") and name not in PAGES]
        self.assertGreater(len(calls), 30)
        for name in (*PAGES, *MORE, *calls):
            # mandoc does not find pages that are not installed yet.
            said = subprocess.run(
                ["mandoc", "-Tlint", os.path.join(self.dir.name, name)],
                text=True, stdout=subprocess.PIPE).stdout.splitlines()
            self.assertEqual([], [
                s for s in said if "referenced manual not found" not in s])

    # The words typed, the last one incomplete; the completions offered.
    TYPED = ((("st",), {"status", "stats"}), (("trace", ""), set()),
             (("--socket", "s", "--json", "ke"), {"keygen"}),
             (("--wait", ""), set()), (("health", "--l"), {"--langd", "--live"}),
             (("keygen", "{}/mmxc"), {"{}/mmxctl.1"}),
             (("--config", "{}/mmx-l"), {"{}/mmx-langd.8"}))

    def test_bash(self):
        for typed, offered in self.TYPED:
            words = [w.format(self.dir.name) for w in typed]
            said = subprocess.run(
                ["bash", "-c", f". {self.dir.name}/mmx.bash; "
                 'COMP_WORDS=(mmxctl "$@"); COMP_CWORD=$#; _mmxctl; '
                 "echo ${COMPREPLY[@]}", "bash", *words],
                check=True, text=True, stdout=subprocess.PIPE).stdout
            self.assertEqual(set(said.split()), {
                w.format(self.dir.name) for w in offered}, words)

    def test_words_are_offered_once(self):
        words = re.search(r"'1:what:\((.*)\)'", self.read("_mmx"))[1].split()
        self.assertIn("trace", words)
        self.assertEqual(len(words), len(set(words)))

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        path = os.path.join(self.dir.name, "_mmx")
        subprocess.run(["zsh", "-n", path], check=True)
        # Prints what zsh's own functions are called with.
        ask = ('_arguments() { line=("${words[@]}"); return 1 }; '
               "_files() { print files }; compadd() { print -- $@ }; "
               f'service=mmxctl; complete() {{ words=("$@"); . {path} }}; ')
        for typed, offered in (("trace ''", ""), ("keygen ''", "files"),
                               ("pools ''", "")):
            said = subprocess.run(["zsh", "-f", "-c", f"{ask} complete {typed}"],
                                  text=True, stdout=subprocess.PIPE).stdout
            self.assertEqual(said.strip(), offered, typed)
