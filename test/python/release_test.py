"""A release: what it says of the libraries in it (scripts/linked, for the
programs that were built here), and what scripts/release refuses."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.path.join(ROOT, os.environ.get("B", "build"), "mmx-encoded")


def linked(*words, **env):
    return subprocess.run([os.path.join(ROOT, "scripts/linked"), *words],
                          check=True, text=True, env={**os.environ, **env},
                          stdout=subprocess.PIPE).stdout


def packages(*names):
    """Returns {package: version} of the libraries with these names; a
    package's name differs between releases."""
    paths = subprocess.run(["ldd", PROGRAM], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    found = {}
    for name in names:
        path, = re.findall(rf"=> (/\S*/{re.escape(name)}\.so\S*)", paths)
        owner = subprocess.run(
            ["dpkg-query", "-S", "*/" + os.path.basename(path)], check=True,
            text=True, stdout=subprocess.PIPE).stdout.split(":")[0]
        found[owner] = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", owner], check=True,
            text=True, stdout=subprocess.PIPE).stdout
    return found


@unittest.skipUnless(shutil.which("dpkg-query"), "no dpkg here")
class Linked(unittest.TestCase):
    def test_packages(self):
        rows = dict(line.split()[:2] for line in linked(PROGRAM).splitlines())
        known = packages("libzmq", "libuv", "libssl")
        self.assertEqual(known, {name: rows.get(name) for name in known})
        self.assertNotIn("libc6", rows)

    def test_a_root_behind_a_link(self):
        with tempfile.TemporaryDirectory() as folder:
            root = os.path.join(folder, "root")
            emulator = os.path.join(folder, "emulator")
            os.symlink("/", root)
            with open(emulator, "w", encoding="utf-8") as f:
                f.write('#!/bin/sh\nexec env "$2" "$3"\n')
            os.chmod(emulator, 0o700)
            self.assertEqual(
                linked(PROGRAM, SYSROOT=root, EMULATOR=emulator),
                linked(PROGRAM))

    def test_licences(self):
        with tempfile.TemporaryDirectory() as folder:
            linked("--licences", folder, PROGRAM)
            self.assertLessEqual({*packages("libzmq", "libssl"), "LGPL-2.1"},
                                 set(os.listdir(folder)))

    def test_spdx(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mmx-9.whl")
            with zipfile.ZipFile(path, "w") as z:
                z.writestr("mmx/bin/licences/carried", "libzmq5 1 zeromq3\n")
            found = json.loads(linked("--spdx", "9", folder, PROGRAM))
        ids = [p["SPDXID"] for p in found["packages"]]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(found["packages"][0]["packageFileName"], "mmx-9.whl")
        links = {(r["spdxElementId"], r["relationshipType"],
                  r["relatedSpdxElement"]) for r in found["relationships"]}
        wheel = "SPDXRef-mmx-9.whl"
        self.assertLessEqual({
            ("SPDXRef-DOCUMENT", "DESCRIBES", wheel),
            (wheel, "CONTAINS", "SPDXRef-libzmq5"),
            (wheel, "DEPENDS_ON", "SPDXRef-libc6")}, links)
        self.assertNotIn((wheel, "CONTAINS", "SPDXRef-libucx0"), links)
        self.assertLessEqual({e for a, _, b in links for e in (a, b)},
                             {"SPDXRef-DOCUMENT", *ids})


@unittest.skipUnless(shutil.which("git"), "no git here")
class Release(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for name in ("Makefile", "scripts/release"):
            os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), self.at(name))
        self.git("init", "-q")
        self.git("add", ".")
        self.git("-c", "user.name=x", "-c", "user.email=x@x.invalid",
                 "commit", "-qm", "x")

    def at(self, name):
        return os.path.join(self.folder.name, name)

    def git(self, *words):
        subprocess.run(["git", "-C", self.folder.name, *words], check=True)

    def refused(self, *words):
        got = subprocess.run([self.at("scripts/release"), *words], text=True,
                             capture_output=True)
        self.assertEqual(got.returncode, 1, got.stderr)
        self.assertFalse(os.path.exists(self.at("build")))
        return got.stderr

    def test_changes(self):
        with open(self.at("more"), "w"):
            pass
        self.assertIn("there are changes", self.refused())

    def test_a_tag_of_another_version(self):
        self.git("tag", "v9.9.9")
        self.assertIn("tag v9.9.9, but the Makefile has", self.refused())

    def versions(self):
        return subprocess.run(
            [self.at("scripts/release"), "--version"], check=True, text=True,
            stdout=subprocess.PIPE).stdout.split()

    def test_without_a_tag_it_is_older_than_with_one(self):
        deb, wheel = self.versions()
        self.git("tag", "v0.1.0")
        self.assertEqual(self.versions(), ["0.1.0", "0.1.0"])
        subprocess.run(["dpkg", "--compare-versions", deb, "lt", "0.1.0"],
                       check=True)
        self.assertRegex(wheel, r"^0\.1\.0\.dev[0-9]{12}\+g[0-9a-f]{8}$")

    def test_a_folder_of_something_else(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "other")
            with open(other, "w"):
                pass
            self.assertIn("no SHA256SUMS", self.refused(folder))
            self.assertTrue(os.path.exists(other))


class Source(unittest.TestCase):
    def source(self, folder):
        """Runs scripts/deb/build --tree in a tree without git."""
        shutil.copytree(os.path.join(ROOT, "scripts/deb"),
                        os.path.join(folder, "scripts/deb"))
        shutil.copy(os.path.join(ROOT, "Makefile"), folder)
        os.makedirs(os.path.join(folder, "build/old"))
        return subprocess.run(
            [os.path.join(folder, "scripts/deb/build"), "--tree"],
            env={**os.environ, "SOURCE_DATE_EPOCH": "86400"}, text=True,
            capture_output=True)

    def test_packages_without_git(self):
        with tempfile.TemporaryDirectory() as folder:
            got = self.source(folder)
            self.assertEqual(got.returncode, 0, got.stderr)
            tree = os.path.join(folder, got.stdout.strip())
            self.assertEqual(set(os.listdir(tree)),
                             {"Makefile", "scripts", "debian"})
            with open(os.path.join(tree, "debian/changelog")) as f:
                self.assertIn("Fri, 02 Jan 1970 00:00:00 +0000", f.read())

    def test_packages_in_a_path_with_a_space(self):
        with tempfile.TemporaryDirectory(suffix=" x") as folder:
            got = self.source(folder)
            self.assertEqual((got.returncode, got.stdout), (1, ""))
            self.assertIn("must not have spaces", got.stderr)


if __name__ == "__main__":
    unittest.main()
