"""suite.py - what gpu-suite and rdma-suite have in common: they run steps one
after another, print a row for each, and write a report into one file.

A suite is for a machine that we do not have. It goes on after a step that
fails, so that one run shows everything."""

import datetime
import json
import os
import platform
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 1800  # seconds of a step


def first_line(*command, env=None):
    """The first line that a program prints, or nothing without it."""
    try:
        out = subprocess.run(command, capture_output=True, text=True,
                             env=env).stdout.strip()
        return out.split("\n")[0]
    except OSError:
        return ""


class Suite:
    """build: of the daemons and tests; dry: what is measured means nothing."""

    def __init__(self, build, dry):
        self.rows, self.failed, self.dry = [], [], dry
        self.build = os.path.abspath(build)
        self.env = dict(os.environ, B=os.path.relpath(self.build, ROOT),
                        MMX_LIBRARY=os.path.join(self.build, "libmmx.so.0"),
                        PYTHON=sys.executable)
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
            self.env.pop(name, None)

    def row(self, what, result, good, note=""):
        self.rows.append((what, result, "ok" if good else "FAILED", note))
        if not good:
            self.failed.append(what)
        print(f"{'ok  ' if good else 'FAIL'} {what}: {result} {note}".rstrip(),
              flush=True)

    def run(self, *command, limit=LIMIT, **env):
        print("+ " + " ".join(command), flush=True)
        try:
            return subprocess.run(command, cwd=ROOT, env=dict(self.env, **env),
                                  text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=limit)
        except subprocess.TimeoutExpired as e:
            out = e.stdout.decode(errors="replace") if e.stdout else ""
            return subprocess.CompletedProcess(
                command, 124, out + f"\nnot over after {limit} s\n")

    def compile(self, make, against, *targets):
        got = self.run(make, "-s", f"-j{os.cpu_count()}",
                       f"PYTHON={sys.executable}", "all",
                       *(f"{self.env['B']}/{t}" for t in targets))
        if got.returncode:
            print(got.stdout)
        self.row("build", f"against {against}", got.returncode == 0)
        return got.returncode == 0

    def counted(self, what, *command, **env):
        """A test program: its last line begins `N passed, N failed`."""
        got = self.run(*command, **env)
        last = (got.stdout.strip().split("\n") or [""])[-1]
        if got.returncode:
            print(got.stdout)
        self.row(what, last or f"exit {got.returncode}", got.returncode == 0)

    def e2e(self, what, *arguments, **env):
        self.counted(what, sys.executable, "test/e2e/run", "--build",
                     self.build, *arguments, **env)

    def measured(self, what, *command):
        """A script that prints one JSON object a line."""
        got = self.run(*command)
        for line in got.stdout.splitlines():
            if line.startswith("{"):
                self.line(json.loads(line))
        if got.returncode:
            print(got.stdout)
            self.row(what, f"exit {got.returncode}", False)

    def line(self, r):
        value = r.get("value")
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        text = f"{text} {r.get('unit', '')}".strip()
        good, note = r.get("passed", True), r.get("note", "")
        if "ratio" in r:
            good = self.dry or r["ratio"] >= r["target"]
            note = (f"{r['ratio']:.2f} of {r['against']} "
                    f"({r['yard']:.2f} GB/s), target {r['target']:.2f}"
                    + (f"; {note}" if note else ""))
        self.row(r["what"], text, good, note)

    def report(self, title, machine, path):
        """Writes and prints it; machine: [(what, which)]. Returns the exit
        status."""
        lines = [f"# {title}", "", "| | |", "|---|---|"]
        lines += [f"| {k} | {v} |" for k, v in (
            ("date", datetime.date.today().isoformat()), *machine,
            ("kernel", platform.release()), ("cores", str(os.cpu_count())),
            ("compiler", first_line("cc", "--version")))]
        lines += ["", "| what | result | | |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(r) + " |" for r in self.rows]
        good = sum(r[2] == "ok" for r in self.rows)
        lines += ["", f"{good} ok, {len(self.failed)} failed."]
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        print("", *lines, "", f"report in {os.path.relpath(path)}",
              f"{good} passed, {len(self.failed)} failed", sep="\n")
        return 1 if self.failed or not self.rows else 0
