"""The adapters and what stands in for their engines, held against the
committed tables of the engines' real names, signatures and defaults; and what
refuses to install an engine."""

import builtins
import os
import re
import subprocess
import symtable
import sys
import tempfile
import types
import unittest
import unittest.mock
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "test/engines"))

import install  # noqa: E402
import signatures  # noqa: E402

ADAPTER = os.path.join(ROOT, "lib/client/python/mmx/adapters/vllm_ec.py")
STAND_INS = os.path.join(HERE, "engines")


def words(signature):
    """Returns the names of the parameters in a signature, kind first."""
    return [p.split("=")[0] for p in
            signature[signature.index("(") + 1:-1].split(", ")]


def module(path, wanted):
    with open(path, encoding="utf-8") as f:
        return signatures.names(f.read(), wanted)


class Vllm(unittest.TestCase):
    def setUp(self):
        self.table = signatures.committed("vllm")

    def test_tested_releases_have_all_that_is_needed(self):
        self.assertEqual(signatures.lacking("vllm"), [])

    def hooks(self, path, name):
        return {k.split(".")[1]: v for k, v in
                module(path, [f"{name}.*", f"{name}.__init__"]).items()}

    def test_the_adapter_fits_each_release(self):
        ours = self.hooks(ADAPTER, "MmxECConnector")
        for release, files in self.table.items():
            base = next(v for k, v in files.items() if k.endswith("base.py"))
            theirs = {k.split(".")[1]: v for k, v in base.items()
                      if k.startswith("ECConnectorBase.")}
            for name, what in theirs.items():
                with self.subTest(release=release, hook=name):
                    if what.startswith("abstractmethod"):
                        self.assertIn(name, ours)
                    if name not in ours:
                        continue
                    have, want = ours[name], words(what)
                    self.assertEqual(words(have)[:len(want)], want)
                    for more in have[have.index("(") + 1:-1].split(
                            ", ")[len(want):]:
                        self.assertRegex(more, "=|^\\*")
                    self.assertEqual("classmethod" in have,
                                     "classmethod" in what)
            # A hook that no release calls would never run.
            self.assertEqual(set(ours) - set(theirs), set(), release)

    def test_what_stands_in_says_what_the_real_ones_say(self):
        for path, names in list(self.table.values())[0].items():
            there = os.path.join(STAND_INS, path)
            if not os.path.exists(there):
                continue
            ours = module(there, list(names))
            for name, what in names.items():
                if ours[name] is not None and \
                        what.endswith(")") and what[0] != "=":
                    with self.subTest(name):
                        self.assertEqual(words(ours[name]), words(what))
        base = next(p for p in names_of(self.table) if p.endswith("base.py"))
        ours = module(os.path.join(STAND_INS, base),
                      list(names_of(self.table)[base]))
        self.assertNotIn(None, ours.values())


def names_of(table):
    return list(table.values())[0]


class Install(unittest.TestCase):
    def run_(self, *words_):
        return subprocess.run(
            [sys.executable, "-B", os.path.join(ROOT, "test/engines/run"),
             *words_], capture_output=True, text=True)

    def engine(self, **more):
        return types.SimpleNamespace(**{
            "PACKAGE": "mmx-has-no-such-engine", "VERSION": "1",
            "NEED_BYTES": 1, "requirements": lambda meta: [], **more})

    def test_an_unknown_engine(self):
        got = self.run_("abacus")
        self.assertEqual(got.returncode, 2)
        self.assertRegex(got.stderr, r"^engines: there is no engine "
                         r"'abacus'; ENGINE is one of .*vllm\n$")

    def test_an_unknown_part_is_refused_before_anything_is_fetched(self):
        with tempfile.TemporaryDirectory() as at:
            for name in ("vllm", "sglang", "llama", "dynamo"):
                got = self.run_(name, "--at", at, "abacus")
                self.assertEqual(got.returncode, 1)
                self.assertRegex(got.stderr, f"^engines: {name} has no part "
                                 r"'abacus'; its parts are .*(readme|transfer).*\n$")
            self.assertEqual(os.listdir(at), [])

    def test_too_little_disk_is_seen_before_anything_is_fetched(self):
        with tempfile.TemporaryDirectory() as at:
            with self.assertRaisesRegex(install.Refused, "GB are needed"):
                install.install(self.engine(NEED_BYTES=1 << 60),
                                os.path.join(at, "e"))
            self.assertEqual(os.listdir(at), [])

    def test_a_folder_that_cannot_be_made(self):
        with tempfile.NamedTemporaryFile() as f, self.assertRaisesRegex(
                install.Refused, "cannot be made .*--at"):
            install.install(self.engine(), os.path.join(f.name, "e"))

    def test_a_folder_of_something_else_is_left_alone(self):
        with tempfile.TemporaryDirectory() as at:
            with open(os.path.join(at, "mine"), "w", encoding="utf-8"):
                pass
            with self.assertRaisesRegex(install.Refused, "remove it, or"):
                install.install(self.engine(), at)
            self.assertEqual(os.listdir(at), ["mine"])

    def test_a_package_that_cannot_be_had_leaves_nothing(self):
        def fail(venv, *words_):
            raise install.Refused("pip download: no")
        with tempfile.TemporaryDirectory() as at, \
                unittest.mock.patch.multiple(
                    install, pip=fail,
                    make_venv=lambda path: os.makedirs(path) or path):
            with self.assertRaisesRegex(install.Refused,
                                        "engine==1 cannot be had"):
                install.install(self.engine(), os.path.join(at, "e"))
            self.assertEqual(os.listdir(at), [])

    def test_what_was_left_unfinished_is_made_again(self):
        def pip(venv, *words_):
            if words_[0] == "download":
                path = os.path.join(words_[words_.index("--dest") + 1],
                                    "x.whl")
                with zipfile.ZipFile(path, "w") as z:
                    z.writestr("x-1.dist-info/METADATA", "Name: x\n")
        seen = []
        with tempfile.TemporaryDirectory() as at, \
                unittest.mock.patch.multiple(
                    install, pip=pip,
                    make_venv=lambda path: os.makedirs(path) or path):
            folder = os.path.join(at, "e")
            for name in ("begun", "half"):
                os.makedirs(os.path.join(folder, name))
            engine = self.engine(after=seen.append)
            for _ in range(2):
                install.install(engine, folder)
            self.assertEqual(sorted(os.listdir(folder)),
                             ["installed", "needs.txt", "venv", "wheels"])
        self.assertEqual(seen, [folder])

    def test_versions_without_their_local_part(self):
        self.assertEqual(install.plain('torch==2.13.0+cpu; x == "y"'),
                         'torch==2.13.0; x == "y"')
        self.assertEqual(install.plain("a>=1"), "a>=1")


class Readme(unittest.TestCase):
    def test_two_commands_a_side_for_each_engine(self):
        """Which the parts `readme` run."""
        sys.path.insert(1, os.path.join(ROOT, "test/e2e"))
        from servers import blocks
        for page, heading in (("README.md", "vLLM"), ("README.md", "SGLang"),
                              ("llama/README.md", "llama-server")):
            with self.subTest(heading):
                sides = blocks(f"lib/client/{page}", heading)[:2]
                self.assertEqual(len(sides), 2)
                for side in sides:
                    self.assertEqual(len(side), 2, side)
                    self.assertRegex(side[0], "^(pip install|make llama) ")
                    for name in re.findall(r"mmx[.]adapters[.](\w+)", side[1]):
                        self.assertTrue(os.path.exists(os.path.join(
                            os.path.dirname(ADAPTER), f"{name}.py")), name)


class Parsed(unittest.TestCase):
    """Files of engines, which run with the engine only."""

    def unknown(self, scope, known):
        """Yields the names of a scope that neither it nor its file has."""
        for x in scope.get_symbols():
            if x.is_global() and x.is_referenced() and \
                    x.get_name() not in known:
                yield x.get_name()
        for inner in scope.get_children():
            yield from self.unknown(inner, known)

    def test_each_is_python_and_has_the_names_that_it_uses(self):
        for folder, _, names in os.walk(os.path.join(ROOT, "test/engines")):
            for name in names:
                path = os.path.join(folder, name)
                if not name.endswith(".py"):
                    continue
                with open(path, encoding="utf-8") as f, self.subTest(path):
                    top = symtable.symtable(f.read(), path, "exec")
                    known = {*dir(builtins), "__file__", *(
                        x.get_name() for x in top.get_symbols()
                        if x.is_assigned() or x.is_imported())}
                    self.assertEqual(list(self.unknown(top, known)), [])
