"""What has changed in a release of an engine is named."""

import os
import runpy
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "test/engines"))

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


class Specs(unittest.TestCase):
    def test_what_is_installed_is_in_the_table_of_names(self):
        for name in ("vllm", "sglang", "llama", "dynamo"):
            engine = runpy.run_path(os.path.join(
                ROOT, "test/engines", name, "engine.py"))
            self.assertIn(f"{engine['PACKAGE']} {engine['VERSION']}",
                          signatures.committed(name))
            self.assertLessEqual(set(engine["SHORT"]), set(engine["PARTS"]))
            self.assertRegex(signatures.spec_of(name).MAIN, "^[^/].*/$")
