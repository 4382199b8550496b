"""Shows what the newest of each engine has changed: compares the newest
releases of its packages and the files of its main branch with the table of
names, and runs the newest release's short truth table.

Files of main branches are read from GitHub, or from what MMX_ENGINES_MAIN names
with the same folders in it (a URL). What cannot be reached is named and
counted, and is no failure."""

import os
import tempfile
import urllib.error
import urllib.request

import install
import signatures

PARTS = ("names", "truth")
SITE = os.environ.get("MMX_ENGINES_MAIN", "https://raw.githubusercontent.com")
LIMIT_S = 20  # limit for a file


class Count:
    """Prints findings, and counts them."""

    def __init__(self):
        self.held = self.changed = self.away = 0

    def names(self, what, against, lines):
        lines = list(lines)
        self.held += not lines
        self.changed += bool(lines)
        print(f"{what}: " + (f"{len(lines)} changes since {against}" if lines
                             else f"as {against}"))
        for line in lines:
            print(f"    {line}", flush=True)

    def not_reachable(self, what, why):
        self.away += 1
        print(f"{what}: not reachable ({why})", flush=True)

    def end(self):
        """Returns the exit status: also 1 if nothing could be compared."""
        print(f"engines-matrix: {self.held} as tested, {self.changed} changed,"
              f" {self.away} not reachable")
        return 1 if self.changed or not self.held else 0


def packages(name):
    """Returns {package: (release, its table)} with the newest tested release
    of each."""
    return {release.split()[0]: (release, table)
            for release, table in signatures.committed(name).items()}


def newest(package, tmp):
    """Returns the newest release's wheel and version."""
    wheel = install.fetch(install.make_venv(os.path.join(tmp, "venv")),
                          package, os.path.join(tmp, package))
    return wheel, install.metadata(wheel)["Version"]


def releases(name, tmp, count):
    spec = signatures.spec_of(name)
    for package, (release, table) in packages(name).items():
        try:
            wheel, version = newest(package, tmp)
        except install.Refused as e:
            count.not_reachable(f"{package}, newest release", e)
            continue
        with signatures.wheel(wheel, spec) as get:
            count.names(f"{package} {version}, newest release", release,
                        signatures.differences(table,
                                               signatures.read(get, spec)))


def file_of_main(spec, path):
    """Returns a file's bytes; None: the branch has no such file."""
    try:
        with urllib.request.urlopen(f"{SITE}/{spec.MAIN}{path}",
                                    timeout=LIMIT_S) as r:
            return r.read()
    except urllib.error.HTTPError as e:
        if e.code != 404:
            raise
    except urllib.error.URLError as e:
        if not isinstance(e.reason, FileNotFoundError):  # of file:// URLs
            raise
    return None


def main_branch(name, count):
    spec = signatures.spec_of(name)
    what = f"{name}, {spec.MAIN.split('/')[2]} branch"
    release, table = list(signatures.committed(name).items())[-1]
    try:
        found = signatures.read(lambda path: file_of_main(spec, path), spec)
    except OSError as e:  # HTTPError and URLError are OSErrors
        return count.not_reachable(what, e)
    if not any(found.values()):
        return count.not_reachable(what, "it has none of the files")
    return count.names(what, release, signatures.differences(table, found))


def truth(name, engine, at, tmp, count):
    """Runs the engine's short table with its newest release, in a folder of
    its own if that is not the tested release."""
    tested = engine.VERSION
    try:
        _, engine.VERSION = newest(engine.PACKAGE, tmp)
        folder = install.install(engine, os.path.join(
            at, *([] if engine.VERSION == tested else ["newest"]), name))
    except install.Refused as e:
        return count.not_reachable(f"{engine.PACKAGE}, truth table", e)
    failed = engine.run(folder, list(engine.SHORT))
    return count.names(f"{engine.PACKAGE} {engine.VERSION}, truth table",
                       "unsplit", ["answers differ"] if failed else [])


def run(engines, at, parts):
    """Compares {name: engine}; returns the exit status."""
    count = Count()
    for name, engine in engines.items():
        install.room_for(at, signatures.spec_of(name).WHEEL_BYTES)
        with tempfile.TemporaryDirectory(dir=at) as tmp:
            if not parts or "names" in parts:
                releases(name, tmp, count)
                main_branch(name, count)
            if not parts or "truth" in parts:
                truth(name, engine, at, tmp, count)
    return count.end()
