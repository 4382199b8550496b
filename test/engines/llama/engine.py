"""llama.cpp: prebuilt libraries for CPUs of a wheel, and what is run of it."""

import glob
import os
import re
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import install  # noqa: E402
import prefix  # noqa: E402
from prepare import PARTS  # noqa: E402,F401

PACKAGE, VERSION = "llama-cpp-py-sync", "0.11739"  # llama.cpp b11739
NEED_BYTES = 10**9
DOUBLES = os.path.join(ROOT, "test/double/llama")
PROTOTYPE = re.compile(r"([\w\s*]+?)\b((?:llama|mtmd)_\w+)\s*\(([^()]*)\)\s*;")


def requirements(meta):
    """Returns what our scripts need; the package's Python part is not run."""
    return ["numpy", "gguf"]


def after(folder):
    pass


def run(folder, parts):
    """Prints the table; returns 0 if all of it is well."""
    return install.follow(
        [os.path.join(folder, "venv/bin/python"), "-B",
         os.path.join(HERE, "run.py"), folder, *parts])


# --- names and types ------------------------------------------------------

def types(words):
    """Returns a type without spaces, and without the name behind it."""
    words = [w for w in re.findall(r"\w+|\*", words)
             if w not in ("struct", "enum")]
    named = len(words) > 1 and words[-1] not in ("*", "const") and \
        words[-2:] != ["const", words[-1]]
    return " ".join(words[:-1] if named else words)


def prototypes(text):
    """Returns {function: "result(types)"}."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return {name: f"{types(result + ' x')}("
            f"{', '.join(types(a) for a in args.split(','))})"
            for result, name, args in PROTOTYPE.findall(text)}


def refresh(at, newest):
    """Holds the headers of the doubles, which are all that our hosts use,
    against a wheel's; newest: of the newest release."""
    ours = {}
    for path in glob.glob(f"{DOUBLES}/*.h"):
        with open(path, encoding="utf-8") as f:
            ours.update(prototypes(f.read()))
    install.room_for(at, NEED_BYTES)
    with tempfile.TemporaryDirectory(dir=at) as tmp:
        venv = install.make_venv(os.path.join(tmp, "venv"))
        wheel = install.fetch(venv, PACKAGE if newest else
                              f"{PACKAGE}=={VERSION}", f"{tmp}/wheel")
        with zipfile.ZipFile(wheel) as z:
            z.extractall(f"{tmp}/package")
        theirs = prototypes(prefix.header(f"{tmp}/package/llama_cpp_py_sync"))
        version = install.metadata(wheel)["Version"]
    wrong = [f"{name}: {theirs.get(name, 'gone')}, the double has {what}"
             for name, what in sorted(ours.items())
             if theirs.get(name) != what]
    print(f"{PACKAGE} {version}: {len(ours)} functions, "
          f"{len(wrong)} differ from test/double/llama")
    print("\n".join(wrong))
    return 1 if wrong else 0
