"""Makes a prefix with include and lib of a prebuilt llama.cpp out of the
package llama-cpp-py-sync.

    prefix.py FOLDER PREFIX

FOLDER is where the package lies. It has the libraries and, for cffi, the text
of the three headers; its numbers of enum llama_rope_type are wrong and put
right here. It is made for glibc 2.38. On an older glibc, symbols of that
version are bound to an earlier version, and isoc23.c has the functions that are
missing."""

import glob
import os
import platform
import re
import shutil
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROPE = {"NEOX": 2, "MROPE": 8, "IMROPE": 40, "VISION": 24}


def header(package):
    with open(f"{package}/_cffi_bindings.py", encoding="utf-8") as f:
        text = f.read()
    parts = re.findall(r'_CDEF = """\n(.*?)"""', text, re.S)
    if not parts:
        sys.exit(f"prefix: no C declarations in {package}")
    body = "\n".join(parts)
    for name, number in ROPE.items():
        body = re.sub(rf"(LLAMA_ROPE_TYPE_{name}),", rf"\1 = {number},", body)
    return ("#ifndef LLAMA_OF_WHEEL_H\n#define LLAMA_OF_WHEEL_H\n"
            "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"
            f"#include <stdio.h>\n{body}\n#endif\n")


def replace_version(path, version):
    """Replaces the required version of a library by another one that the same
    file requires, too."""
    with open(path, "rb") as f:
        b = bytearray(f.read())
    table, = struct.unpack_from("<Q", b, 40)
    count = struct.unpack_from("<H", b, 60)[0]
    for i in range(count):
        h = struct.unpack_from("<IIQQQQIIQQ", b, table + 64 * i)
        if h[1] != 0x6ffffffe:  # SHT_GNU_verneed
            continue
        names = struct.unpack_from("<IIQQQQIIQQ", b, table + 64 * h[6])[4]
        at = h[4]
        for _ in range(h[7]):
            _, n, _, aux, following = struct.unpack_from("<HHIII", b, at)
            found, other, a = None, None, at + aux
            for _ in range(n):
                number, _, _, name, after = struct.unpack_from("<IHHII", b, a)
                start = names + name
                if b[start:b.index(0, start)] == version:
                    found = a
                else:
                    other = number, name
                a += after
            if found and other:
                struct.pack_into("<I", b, found, other[0])
                struct.pack_into("<I", b, found + 8, other[1])
            at += following
    with open(path, "wb") as f:
        f.write(b)


def old_glibc():
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(map(int, version.split("."))) < (2, 38)


def main():
    wheel, prefix = sys.argv[1:3]
    package = f"{wheel}/llama_cpp_py_sync"
    for folder in ("include", "lib"):
        os.makedirs(f"{prefix}/{folder}", exist_ok=True)
    with open(f"{prefix}/include/llama.h", "w", encoding="utf-8") as f:
        f.write(header(package))
    for name in ("mtmd.h", "mtmd-helper.h"):
        with open(f"{prefix}/include/{name}", "w", encoding="utf-8") as f:
            f.write("#include <llama.h>\n")
    libraries = glob.glob(f"{package}/*.so*")
    for path in libraries:
        shutil.copy(path, f"{prefix}/lib")
    # The wheel lacks the name that programs are linked to.
    if not os.path.lexists(f"{prefix}/lib/libmtmd.so.0"):
        os.symlink("libmtmd.so", f"{prefix}/lib/libmtmd.so.0")
    if not old_glibc():
        return
    for path in libraries:
        replace_version(f"{prefix}/lib/{os.path.basename(path)}",
                        b"GLIBC_2.38")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"{HERE}/isoc23.c",
                    "-Wl,-soname,libisoc23.so", "-o",
                    f"{prefix}/lib/libisoc23.so"], check=True)


if __name__ == "__main__":
    main()
