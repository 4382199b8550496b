"""make engines-matrix over an index and main branches that are folders: what a
release has changed is said by name, what cannot be reached is counted."""

import contextlib
import io
import os
import runpy
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
import matrix  # noqa: E402
import signatures  # noqa: E402

SOURCE = '''class A:
    x: int = 5
    def __init__(self): self.n = 1
    def f(self, a, b=(2, 3), *, c): pass
    @classmethod
    def g(cls, **k): pass
class B:
    def h(self): pass
def i(a, *b): pass
'''
WANTED = ["A.*", "A.self.n", "B.h", "i"]
HEADER = '''
#define THING_API __attribute__((visibility("default")))
typedef struct mtmd_thing mtmd_thing;
// mtmd_thing_free(mtmd_other * x);
THING_API const mtmd_thing * mtmd_thing_get (mtmd_thing * t,
                                             size_t n);
THING_API void mtmd_thing_free(struct mtmd_thing * t);
DEPRECATED(LLAMA_API int32_t llama_thing(const struct llama_model * m),
           "use another one");
struct deleter { void operator()(mtmd_thing * v) { mtmd_thing_free(v); } };
static bool mine(mtmd_thing * v) { return mtmd_thing_free(v); }
'''


def table(source):
    return {"m.py": signatures.names(source, WANTED)}


class Differences(unittest.TestCase):
    def of(self, *change):
        return list(signatures.differences(
            table(SOURCE), table(SOURCE.replace(*change))))

    def test_what_the_table_has(self):
        self.assertEqual(table(SOURCE)["m.py"], {
            "A.x": "= 5", "A.f": "(self, a, b=(2, 3), *, c)",
            "A.self.n": "attribute", "A.g": "classmethod (cls, **k)",
            "B.h": "(self)", "i": "(a, *b)"})

    def test_each_change_is_said_by_name(self):
        for change, said in (
                (("nothing", ""), []),
                (("def i(", "def j("), ["call i is gone"]),
                (("class B", "class C"), ["class B is gone"]),
                (("x: int = 5", "x: int = 6"), ["value A.x: = 5, now = 6"]),
                (("self.n", "self.o"), ["value A.self.n is gone"]),
                (("a, b=(2, 3)", "a, b=7"),
                 ["parameter b=(2, 3) of A.f is b=7 now"]),
                (("self, a, b", "self, b"), ["parameter a of A.f is gone"]),
                (("*, c", "*, c, d"), ["parameter d of A.f is new"]),
                (("a, *b", "a, *c"), ["parameter *b of i is gone",
                                      "parameter *c of i is new"]),
                (("self, a, b=(2, 3), *, c", "self, c, a, b=(2, 3)"),
                 ["call A.f: (self, a, b=(2, 3), *, c), now "
                  "(self, c, a, b=(2, 3))"]),
                (("    @classmethod\n", ""),
                 ["call A.g: classmethod (cls, **k), now (cls, **k)"]),
                (("    x:", "    def y(self): pass\n    x:"),
                 ["A.y(self) is new"])):
            with self.subTest(change):
                self.assertEqual(self.of(*change),
                                 [f"m.py: {line}" for line in said])

    def test_a_file_that_is_gone(self):
        self.assertEqual(list(signatures.differences(
            table(SOURCE), {"m.py": None})), ["m.py is gone"])

    def test_declarations_of_a_header_are_told_from_calls(self):
        spec = signatures.spec_of("llama")
        self.assertEqual(spec.prototypes(HEADER), {
            "mtmd_thing_get": "const mtmd_thing *(mtmd_thing *, size_t)",
            "mtmd_thing_free": "void(mtmd_thing *)",
            "llama_thing": "int32_t(const llama_model *)"})
        self.assertGreater(sum(map(len, spec.NAMES.values())), 60)


class Matrix(unittest.TestCase):
    """One engine, whose index and main branch are in a folder."""

    def setUp(self):
        there = tempfile.TemporaryDirectory(prefix="mmx-matrix-")
        self.addCleanup(there.cleanup)
        self.at = there.name
        self.index = {}  # package: (version, source)
        self.site = os.path.join(self.at, "site")
        self.ran, self.need = [], 1
        spec = types.SimpleNamespace(
            NAMES={"m.py": WANTED}, MAIN="some/one/main/", WHEEL_BYTES=1,
            committed=lambda: {"one 1.0": table(SOURCE)})
        for patch in (
                unittest.mock.patch.object(signatures, "spec_of",
                                           lambda name: spec),
                unittest.mock.patch.object(matrix, "SITE",
                                           f"file://{self.site}"),
                unittest.mock.patch.multiple(
                    install, pip=self.pip,
                    make_venv=lambda path: os.makedirs(
                        path, exist_ok=True) or path)):
            patch.start()
            self.addCleanup(patch.stop)

    def pip(self, venv, *words):
        if words[0] == "download":
            package = words[-1].split("==")[0]
            if package not in self.index:
                raise install.Refused("ERROR: no network")
            version, source = self.index[package]
            path = os.path.join(words[words.index("--dest") + 1], "x.whl")
            with zipfile.ZipFile(path, "w") as z:
                z.writestr("x.dist-info/METADATA", f"Version: {version}\n")
                z.writestr("m.py", source)

    def main(self, source):
        folder = os.path.join(self.site, "some/one/main")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "m.py"), "w", encoding="utf-8") as f:
            f.write(source)

    def play(self, *parts, failed=0):
        """Returns the exit status and what was printed."""
        def run(folder, words):
            self.ran.append((os.path.relpath(folder, self.at), words))
            return failed
        engine = types.SimpleNamespace(
            PACKAGE="one", VERSION="1.0", NEED_BYTES=self.need, SHORT=("truth",),
            requirements=lambda meta: [], after=lambda folder: None, run=run)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = matrix.run({"one": engine}, self.at, parts)
        return code, said.getvalue().splitlines()

    def test_all_as_tested(self):
        self.index["one"] = "1.0", SOURCE
        self.main(SOURCE)
        self.assertEqual(self.play("names"), (0, [
            "one 1.0, newest release: as one 1.0",
            "one, main branch: as one 1.0",
            "engines-matrix: 2 as tested, 0 changed, 0 not reachable"]))

    def test_what_has_changed_fails(self):
        self.index["one"] = "1.1", SOURCE.replace("class B", "class C")
        self.main(SOURCE.replace("a, *b", "a"))
        self.assertEqual(self.play("names"), (1, [
            "one 1.1, newest release: 1 changes since one 1.0",
            "    m.py: class B is gone",
            "one, main branch: 1 changes since one 1.0",
            "    m.py: parameter *b of i is gone",
            "engines-matrix: 0 as tested, 2 changed, 0 not reachable"]))

    def test_what_cannot_be_reached_is_counted(self):
        self.index["one"] = "1.0", SOURCE
        code, said = self.play("names")
        self.assertEqual((code, said[1:]), (0, [
            "one, main branch: not reachable (it has none of the files)",
            "engines-matrix: 1 as tested, 0 changed, 1 not reachable"]))

    def test_where_nothing_is_reached_nothing_holds(self):
        code, said = self.play()
        self.assertEqual((code, said[-1]), (1, "engines-matrix: 0 as tested,"
                                            " 0 changed, 3 not reachable"))
        self.assertIn("one, newest release: not reachable (one cannot be had:"
                      " ERROR: no network)", said)

    def test_the_truth_of_the_tested_release_and_of_a_newer_one(self):
        for version, folder in (("1.0", "one"), ("1.1", "newest/one")):
            self.index["one"] = version, SOURCE
            self.assertEqual(self.play("truth")[0], 0)
            self.assertEqual(self.ran[-1], (folder, ["truth"]))
            with open(os.path.join(self.at, folder, "installed"),
                      encoding="utf-8") as f:
                self.assertEqual(f.read(), f"one=={version}\n")
        code, said = self.play("truth", failed=1)
        self.assertEqual((code, said[1:]), (1, [
            "    answers differ",
            "engines-matrix: 0 as tested, 1 changed, 0 not reachable"]))

    def test_a_release_that_cannot_be_installed_does_not_end_it(self):
        self.index["one"], self.need = ("1.0", SOURCE), 1 << 60
        code, said = self.play()
        self.assertEqual((code, said[-1]), (0, "engines-matrix: 1 as tested,"
                                            " 0 changed, 2 not reachable"))
        self.assertRegex(said[-2], r"^one, truth table: not reachable "
                         r"\(.* GB are needed under .*\)$")


class Specs(unittest.TestCase):
    def test_what_is_installed_is_in_the_table_of_names(self):
        for name in ("vllm", "sglang", "llama", "dynamo"):
            engine = runpy.run_path(os.path.join(
                ROOT, "test/engines", name, "engine.py"))
            self.assertIn(f"{engine['PACKAGE']} {engine['VERSION']}",
                          signatures.committed(name))
            self.assertLessEqual(set(engine["SHORT"]), set(engine["PARTS"]))
            self.assertRegex(signatures.spec_of(name).MAIN, "^[^/].*/$")
