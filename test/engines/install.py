"""Installs an engine's package into a virtual environment of its own: whole,
or not at all."""

import email
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile


class Refused(Exception):
    """An error of one line: what is wrong, and what to do."""


def gb(size):
    return f"{size / 1e9:.1f} GB"


def room_for(path, need):
    """Checks the disk's free space before anything is fetched or made."""
    at = os.path.abspath(path)
    while not os.path.exists(at):
        at = os.path.dirname(at)
    free = shutil.disk_usage(at).free
    if free < need:
        raise Refused(f"{gb(need)} are needed under {path}, {gb(free)} are "
                      "free: make room, or name another folder by --at")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as e:
        raise Refused(f"{path} cannot be made ({e.strerror}): name another "
                      "folder by --at") from None


def pip(venv, *words):
    """Runs pip; raises Refused with the last error line."""
    got = subprocess.run(
        [os.path.join(venv, "bin/pip"), "--disable-pip-version-check",
         *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if got.returncode:
        errors = [line for line in got.stdout.splitlines()
                  if line.startswith("ERROR")]
        raise Refused(f"pip {words[0]} {words[-1]}: "
                      f"{(errors or [got.stdout.strip()])[-1][:300]}")


def follow(words):
    """Runs a table's program; returns its exit status. If this program is
    ended, it ends the table's program, which ends its children."""
    child = subprocess.Popen(words)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child.wait()


def metadata(wheel):
    """Returns the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist()
                    if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(z.read(name))


def fetch(venv, wanted, folder):
    """Downloads one package without its dependencies; returns the file."""
    os.makedirs(folder, exist_ok=True)
    try:
        pip(venv, "download", "--quiet", "--no-deps", "--dest", folder,
            wanted)
    except Refused as e:
        raise Refused(f"{wanted} cannot be had: {e}") from None
    return max(glob.glob(os.path.join(folder, "*")), key=os.path.getmtime)


def make_venv(path):
    if not os.path.exists(os.path.join(path, "bin/pip")):
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
    return path


def plain(requirement):
    """Returns a requirement without the local part of its version, such as
    "+cpu", which only another index has."""
    return re.sub(r"(==[\w.]+)\+\w+", r"\1", requirement)


def install(engine, folder):
    """Returns the folder, with the engine in folder/venv. Removes first what
    an earlier run left unfinished, or another version; removes what fails.
    Leaves a folder alone that is not ours."""
    done, begun = (os.path.join(folder, x) for x in ("installed", "begun"))
    wanted = f"{engine.PACKAGE}=={engine.VERSION}"
    if os.path.exists(done):
        with open(done, encoding="utf-8") as f:
            if f.read().strip() == wanted:
                return folder
    if os.path.isdir(folder) and os.listdir(folder) and \
            not any(map(os.path.exists, (done, begun))):
        raise Refused(f"{folder} is there and not of make engines: remove it, "
                      "or name another folder by --at")
    shutil.rmtree(folder, ignore_errors=True)
    room_for(folder, engine.NEED_BYTES)
    with open(begun, "w", encoding="utf-8"):
        pass
    print(f"engines: installs {wanted} under {folder}", flush=True)
    try:
        venv = make_venv(os.path.join(folder, "venv"))
        wheel = fetch(venv, wanted, os.path.join(folder, "wheels"))
        needs = os.path.join(folder, "needs.txt")
        with open(needs, "w", encoding="utf-8") as f:
            f.write("\n".join(engine.requirements(metadata(wheel))) + "\n")
        pip(venv, "install", "--quiet", "-r", needs)
        pip(venv, "install", "--quiet", "--no-deps", wheel)
        engine.after(folder)
    except BaseException as e:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(e, (Refused, KeyboardInterrupt)):
            raise
        raise Refused(f"{wanted} was not installed: {e}") from e
    with open(done, "w", encoding="utf-8") as f:
        f.write(wanted + "\n")
    os.unlink(begun)
    return folder
