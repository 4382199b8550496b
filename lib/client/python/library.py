"""Puts the C library that MMX_LIBRARY names into a wheel, which is then one for
this platform. Without it the wheel uses the library of the system."""

import os
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Library(BuildHookInterface):
    def initialize(self, version, build_data):
        library = os.environ.get("MMX_LIBRARY")
        if not library:
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][library] = "mmx/libmmx.so.0"
