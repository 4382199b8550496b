"""The demo: what it leaves behind when it is killed or stopped, and that it
needs no numpy."""

import glob
import os
import signal
import subprocess
import sys

from pair import BUILD, ROOT, Case, eventually

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PACKAGE = os.path.join(ROOT, "lib/client/python")
NO_HANGUP = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")


class Demo(Case):
    def start(self, *words, before=(), **env):
        """Starts it, with a folder for the folders that it makes."""
        self.at = os.path.join(self.world.dir, "tmp")
        os.makedirs(self.at, exist_ok=True)
        demo = subprocess.Popen(
            [*before, sys.executable, "-m", "mmx", "demo", "--programs", BUILD,
             "--picture", os.path.join(self.world.dir, "demo.png"), *words],
            env={**os.environ, "TMPDIR": self.at, "PYTHONPATH": PACKAGE, **env},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(demo.kill)
        return demo

    def running(self):
        """Returns the command lines that name a folder of the demo."""
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, encoding="utf-8", errors="replace") as f:
                    words = f.read().replace("\0", " ")
            except OSError:
                continue
            if self.at + "/mmx-demo-" in words:
                found.append(words)
        return found

    def both_daemons(self):
        eventually(lambda: all(any(f"mmx-{role} --config {self.at}" in one
                                   for one in self.running())
                               for role in ("encoded", "langd")),
                   "both daemons run", 10)

    def test_a_signal_ends_all(self):
        for which in ENDS:
            with self.subTest(which.name):
                demo = self.start()
                self.both_daemons()
                while demo.poll() is None:  # also while it cleans up
                    demo.send_signal(which)
                _, said = demo.communicate()
                self.assertEqual((demo.returncode, said), (128 + which, ""))
                self.assertEqual((self.running(), os.listdir(self.at)),
                                 ([], []))

    def test_killed(self):
        demo = self.start()
        self.both_daemons()
        demo.kill()
        demo.communicate()
        eventually(lambda: not self.running(), "nothing of it runs")

    def test_without_a_terminal(self):
        """An ignored hangup, as under nohup, stays ignored."""
        demo = self.start(before=NO_HANGUP)
        self.both_daemons()
        demo.send_signal(signal.SIGHUP)
        out, said = demo.communicate()
        self.assertEqual((demo.returncode, said), (0, ""), out)

    def without(self, module):
        """Returns a PYTHONPATH where the module cannot be imported."""
        at = os.path.join(self.world.dir, "none")
        os.makedirs(at)
        with open(os.path.join(at, module + ".py"), "w") as f:
            f.write("raise ImportError('none here')\n")
        return f"{at}:{PACKAGE}"

    def test_a_file_without_pillow(self):
        demo = self.start("--image", "x.png", PYTHONPATH=self.without("PIL"))
        out, said = demo.communicate()
        self.assertEqual((demo.returncode, said), (1, ""))
        self.assertRegex(out, "^demo: failed: .* python3-pil.*none here\n$")

    def test_kept_and_without_numpy(self):
        demo = self.start("--keep", PYTHONPATH=self.without("numpy"))
        out, said = demo.communicate()
        self.assertEqual((demo.returncode, said), (0, ""), out)
        *kept, last = out.splitlines()
        self.assertRegex(last, "^demo: ok ")
        self.assertEqual({line.split()[-1] for line in kept},
                         {os.path.join(self.at, name)
                          for name in os.listdir(self.at)})
        for path in glob.glob(self.at + "/*/*.log"):
            if os.path.basename(path) in ("encode.log", "language.log"):
                with open(path) as f:
                    self.assertEqual(f.read(), "", path)
