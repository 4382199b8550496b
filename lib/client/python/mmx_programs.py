"""The commands of the wheel: each is this, by its own name. Not in the package,
whose import takes longer than most calls of mmxctl."""

import importlib.util
import os
import sys


def main() -> None:
    name = os.path.basename(sys.argv[0])
    package = importlib.util.find_spec("mmx")
    path = os.path.join(os.path.dirname(package.origin), "bin", name)
    if not os.path.exists(path):
        sys.exit(f"{name}: {path} is missing: another mmx comes before the "
                 "wheel's, look at PYTHONPATH")
    os.execv(path, [name, *sys.argv[1:]])
