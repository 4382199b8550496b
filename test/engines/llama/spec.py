"""The functions that our hosts for llama.cpp call, by header of its sources:
those that the doubles in test/double/llama declare."""

import os
import re

TESTED = ("llama-cpp-py-sync==0.11739",)
MAIN = "ggml-org/llama.cpp/master/"
WHEEL_BYTES = 10**9
IN_WHEEL = "llama_cpp_py_sync/_cffi_bindings.py"  # the file with all headers

HERE = os.path.dirname(os.path.abspath(__file__))
DOUBLES = os.path.join(HERE, "../../double/llama")
FILES = ("include/llama.h", "tools/mtmd/mtmd.h", "tools/mtmd/mtmd-helper.h")
# Deprecated prototypes are a macro's parameter, and so end with a comma.
PROTOTYPE = re.compile(
    r"([\w\s*]+?)\b((?:llama|mtmd)_\w+)\s*\(([^()]*)\)\s*[;,]")


def types(words):
    """Returns a type without spaces and without the parameter's name."""
    words = [w for w in re.findall(r"\w+|\*", words)
             if w not in ("struct", "enum") and not w.endswith("_API")]
    named = len(words) > 1 and words[-1] not in ("*", "const") and \
        words[-2:] != ["const", words[-1]]
    return " ".join(words[:-1] if named else words)


def prototypes(text):
    """Returns {function: "result(types)"} of each prototype in the text; calls
    are left out."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    found = {}
    for result, name, args in PROTOTYPE.findall(text):
        if result.strip() not in ("", "return"):
            found.setdefault(name, f"{types(result + ' x')}("
                             f"{', '.join(map(types, args.split(',')))})")
    return found


def names(text, wanted):
    """As signatures.names, for a header."""
    found = prototypes(text)
    return {name: found.get(name) for name in wanted}


def committed():
    """Returns the table, as signatures.committed does."""
    table = {}
    for path in FILES:
        with open(os.path.join(DOUBLES, os.path.basename(path)),
                  encoding="utf-8") as f:
            table[path] = prototypes(f.read())
    return {TESTED[0].replace("==", " "): table}


NAMES = {path: list(found)
         for table in committed().values() for path, found in table.items()}
