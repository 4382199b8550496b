"""Puts the C library that MMX_LIBRARY names, and the programs in the folder
MMX_PROGRAMS, into a wheel, which is then one for this platform. Without the
first the wheel uses the library of the system.

A program lies in mmx/bin; the command of its name starts it. Commands are entry
points, since pip starts these from any path, also one with a space."""

import os
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

COMMANDS = "mmx_programs.py"


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
            build_data["force_include"][
                os.path.join(self.root, COMMANDS)] = COMMANDS


class Commands(MetadataHookInterface):
    def update(self, metadata):
        at = os.environ.get("MMX_PROGRAMS")
        if at:
            metadata["scripts"] = {"mmx": "mmx.__main__:main"} | {
                name: "mmx_programs:main" for name in sorted(os.listdir(at))
                if os.path.isfile(os.path.join(at, name))}
