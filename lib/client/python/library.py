"""Puts the C library that MMX_LIBRARY names, and the programs in the folder
MMX_PROGRAMS, into a wheel, which is then one for this platform. Without the
first the wheel uses the library of the system.

A program lies in mmx/bin; the command of its name starts it. It is found by the
package, as pip may install commands elsewhere."""

import os
import sysconfig
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAM = """#!python
import importlib.util
import os
import sys

package = importlib.util.find_spec("mmx")
path = os.path.join(os.path.dirname(package.origin), "bin", "{name}")
if not os.path.exists(path):
    sys.exit("{name}: " + path + " is missing: another mmx comes before the "
             "wheel's, look at PYTHONPATH")
os.execv(path, ["{name}", *sys.argv[1:]])
"""
PACKAGE = """#!python
import sys

from mmx.__main__ import main

sys.exit(main())
"""


class Library(BuildHookInterface):
    def initialize(self, version, build_data):
        library = os.environ.get("MMX_LIBRARY")
        programs = os.environ.get("MMX_PROGRAMS")
        if not library:
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][library] = "mmx/libmmx.so.0"
        if programs:
            build_data["force_include"][programs] = "mmx/bin"
            self.commands(build_data["shared_scripts"], {"mmx": PACKAGE} | {
                name: PROGRAM.format(name=name) for name in os.listdir(programs)
                if os.path.isfile(os.path.join(programs, name))})

    def commands(self, scripts, texts):
        self.folder = tempfile.TemporaryDirectory()
        for name, text in sorted(texts.items()):
            path = os.path.join(self.folder.name, name)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o755)
            scripts[path] = name

    def finalize(self, version, build_data, artifact_path):
        if hasattr(self, "folder"):
            self.folder.cleanup()
