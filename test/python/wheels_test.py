"""The adapters, and what stands in for their engines, are compared with the
committed tables of the engines' real names, signatures and defaults."""

import builtins
import os
import re
import symtable
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "test/engines"))

import signatures  # noqa: E402

ADAPTER = os.path.join(ROOT, "lib/client/python/mmx/adapters/vllm_ec.py")
STAND_INS = os.path.join(HERE, "engines")


def words(signature):
    """Returns the names of a signature's parameters; kind first."""
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
            # A hook that no release calls is a mistake: it would never run.
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


class Readme(unittest.TestCase):
    def test_two_commands_a_side_for_each_engine(self):
        """The parts `readme` run these commands."""
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
