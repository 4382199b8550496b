"""Every command of the pages is run as it is written, in a clone of the tree
whose build folder is relative: against real daemons if it talks to some. If it
installs something, needs an engine or builds for minutes, a stand-in for the
program records its words instead. A command that no row matches fails, and so
does a row without a command."""

import builtins
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent import futures

import numpy as np
from engine import LIMIT
from pair import BUILD, ROOT, Case, eventually, keygen, sanitized

import mmx

sys.path.append(os.path.join(ROOT, "scripts"))

import tables  # noqa: E402

# pages with both sides of a room
EXAMPLES = ("README.md", "lib/client/README.md")
PAGES = (*EXAMPLES, "cmd/README.md", "lib/client/llama/README.md",
         "test/README.md")
FIELDS = "embedding:bf16:2352"  # of the samples, which the pages are about
CONF = "a daemon's configuration"
# How blocks begin that are not commands.
OTHER = (
    (r"(import|from) \w|with mmx", "Python"),
    (r"(#include|struct) ", "C"),
    (r"encode engine +mmx-encoded", "a drawing"),
    (r"for attempt in range", "Python, inside a function of the reader's"),
    (r"lang0 \(langd\), up", "what mmxctl top prints"),
    (r"modality image, ", "the values of an aux"),
    (r"[0-9a-f]{48,64}$", "its bytes"),
    (r"# pod, daemon", "YAML of a pod"),
    (r"name: ", CONF),
)
PYTHON = r"with mmx\.connect\("  # one side of a complete example
# How commands begin, and the check of the words that their stand-in got; None:
# the command itself runs; a text: why it is not run.
ROWS = (
    (r"make (demo|check)$", None),  # make -n: each of them takes minutes
    (r"make deb && sudo apt ", "packages"),
    (r"make llama LLAMA=", None),  # make -n: its programs are those of tests
    (r"make sim SEEDS=", None),
    (r"sudo systemctl ", "units"),
    (r"sudo usermod -aG mmx-engine ", "not run: the users are this host's"),
    (r"sudo install ", "dropin"),
    (r"mmxctl( |$)", None),
    (r"scp -p ", "copied"),
    (r"python3 -m venv venv$", None),
    (r"(venv/bin/)?pip install ", "wheel"),
    (r"venv/bin/mmx demo$", None),
    (r"python -m mmx(\.adapters\.dynamo)? ", None),
    (r"python -m dynamo\.frontend$", "not run: is no word of ours"),
    (r"python test/engines/vllm/router.py ", None),
    (r"build/llama/mmx-llama-encode ", None),
    (r"vllm serve ", "vllm"),
    (r"sglang serve ", "sglang"),
    (r"LD_PRELOAD=\S+ \S+ llama-server ", "preloaded"),
    (r"(docker|podman) run .* \.\.\.$", "not run: has neither an image nor a "
     "container's runtime"),
)
# Of the reader's host, and of networks that are none of ours.
ELSEWHERE = (("/etc/mmx/", "{}/etc/"), ("10.0.0.7", "127.0.0.1"),
             ("192.0.2.1", "127.0.0.1"), ("devices: eth1", "devices: all"))
STANDS_IN = """#!{python}
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open({log!r}, "a") as f:
    f.write(json.dumps([name, words, os.environ.get("LD_PRELOAD")]) + "\\n")
if name == "sudo":
    os.execvp(words[0], words)
"""
# As on a host with both daemons, but for the paths of the sockets: a report
# shows both, and an order has to name one.
MMXCTL = """#!/bin/sh
at='--socket={encoded} --socket={langd}'
for word; do
    shift
    case $word in
    --encoded) at=--socket={encoded} ;;
    --langd) at=--socket={langd} ;;
    peer) at=--socket={langd}; set -- "$@" peer ;;
    *) set -- "$@" "$word" ;;
    esac
done
exec {build}/mmxctl $at "$@"
"""
AIOHTTP = """
class web:
    class Application:
        def __init__(self, **_): self.router, self.cleanup_ctx = self, []
        def add_post(self, *_): pass
    @staticmethod
    def run_app(app, host, port, **_): print("serves", host, port)
sys = __import__("sys")
sys.modules["aiohttp.web"] = web
"""
CONFIG = {"model_type": "qwen2_vl", "hidden_size": 1536,
          "torch_dtype": "bfloat16"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def blocks(page):
    """Yields (kind, lines) of the indented blocks of a page. kind: what the
    block is, or what the block above is if only an empty line is between; "":
    commands."""
    for group in re.findall(r"(?:^    .*\n|^\n(?=    ))+", read(page), re.M):
        kind = ""
        for block in group.strip("\n").split("\n\n"):
            lines = [line[4:] for line in block.splitlines()]
            kind = next((kind for begin, kind in OTHER
                         if re.match(begin, lines[0].strip())), kind)
            yield kind, lines


def commands(lines):
    """Yields the commands of a block. Lines that end in a backslash are
    joined; comments, optional words, and descriptions beside a command are
    left out."""
    for line in re.sub(r" *\\\n +", " ", "\n".join(lines)).splitlines():
        # A text that goes on is further in; the longest name has one space.
        line = re.sub(r"^(mmxctl histograms) .*|^ {8}.*|^#.*", r"\1", line)
        line = re.split(r" {2,}| # | \[[A-Z]", line)[0].strip()
        if line:
            yield line


def row_of(command):
    """Returns (beginning of the command, check) of its row."""
    found = [row for row in ROWS if re.match(row[0], command)]
    if len(found) != 1:
        raise AssertionError(f"`{command}`: {len(found)} rows of ROWS know it; "
                             "one has to say how it is run")
    return found[0]


def here(text, at):
    """Returns the text with paths and addresses of this test."""
    for theirs, ours in ELSEWHERE:
        text = text.replace(theirs, ours.format(at))
    return text


class Names(dict):
    """The names that both sides of an example share. The sides run at once: a
    read of a name waits until it is set."""

    def __missing__(self, name):
        if hasattr(builtins, name):
            raise KeyError(name)
        return eventually(lambda: (self.get(name),) * (name in self),
                          f"{name} is set")[0]


class Docs(Case):
    def script(self, name, text):
        path = self.file(f"bin/{name}", text)
        os.chmod(path, 0o755)

    def file(self, name, text=""):
        path = os.path.join(self.world.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def clone(self):
        """Makes a clone whose build folder links to what was built."""
        known = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"],
            capture_output=True, text=True)
        if known.returncode:
            self.skipTest("git knows no files here")
        at = os.path.join(self.world.dir, "clone")
        for name in known.stdout.splitlines():
            if os.path.isfile(f"{ROOT}/{name}"):
                os.makedirs(os.path.dirname(f"{at}/{name}"), exist_ok=True)
                shutil.copy2(f"{ROOT}/{name}", f"{at}/{name}")
        os.mkdir(f"{at}/build")
        for name in set(os.listdir(BUILD)) - {"llama", "deb"}:
            os.symlink(os.path.join(BUILD, name), f"{at}/build/{name}")
        os.symlink("test/llama", f"{at}/build/llama")
        self.file("clone/config.json", json.dumps(CONFIG))
        self.file("clone/requests")
        os.mkdir(f"{at}/etc")
        return at

    def programs(self, encoded, langd):
        """Makes the stand-ins for programs of the host."""
        self.log = self.file("log")
        for name in ("sudo", "apt", "systemctl", "install", "scp", "pip",
                     "vllm", "sglang", "llama-server"):
            self.script(name, STANDS_IN.format(python=sys.executable,
                                               log=self.log))
        self.script("make", f'#!/bin/sh\nexec {shutil.which("make")} -n "$@"\n')
        self.script("python3", "#!/bin/sh\nmkdir -p $3/bin\n"
                    f"ln -s {self.world.dir}/bin/pip {self.world.dir}/bin/mmx "
                    "$3/bin\n")
        self.script("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        self.script("mmx", f'#!/bin/sh\nexec {sys.executable} -m mmx "$@" '
                    f"--programs {BUILD} --picture {self.world.dir}/demo.png\n")
        self.script("mmxctl", MMXCTL.format(
            build=BUILD, encoded=encoded.socket, langd=langd.socket))
        self.file("lib/aiohttp/__init__.py", AIOHTTP)

    def told(self):
        """Returns what the stand-ins recorded: name, words, LD_PRELOAD."""
        with open(self.log, encoding="utf-8") as f:
            said = [json.loads(line) for line in f]
        self.file("log")
        return said

    def test_every_command_runs(self):
        e = self.world.encoded(name="encoded-0", fields=FIELDS)
        d = self.world.langd([e], fields=FIELDS)
        wide = self.world.encoded(name="wide", fields="embedding:f32:8")
        near = self.world.langd([wide], name="near", fields="embedding:f32:8")
        at, top = self.clone(), self.world.dir
        self.programs(e, d)
        self.langd, self.lm = d, self.world.engine(d)
        env = {**os.environ, "PATH": f"{top}/bin:{os.environ['PATH']}",
               "PYTHONPATH": f"{ROOT}/lib/client/python:{top}/lib:"
               f"{ROOT}/test/python/engines",
               "MMX_ENCODED_SOCKET": wide.socket,
               "MMX_LANGD_SOCKET": near.socket, "B": "build",
               "MODEL": self.file("model", "8 1 0"), "LLAMA": top}
        env["MMPROJ"] = env["MODEL"]
        left = {begin for begin, _ in ROWS}
        for page in PAGES:
            for kind, lines in blocks(page):
                for command in () if kind else commands(lines):
                    with self.subTest(command):
                        begin, check = row_of(command)
                        left.discard(begin)
                        if not (check or "").startswith("not run: "):
                            self.runs(command, check, at, env)
        self.assertEqual(left, set(), "rows without a command")

    def runs(self, command, check, at, env):
        if check == "preloaded" and sanitized(f"{BUILD}/mmx-langd"):
            return  # Python has not loaded the sanitizer's runtime
        if command.endswith(" kill 4711"):
            self.asked(4711)
        command = here(command, at)
        got = subprocess.run(["bash", "-euo", "pipefail", "-c", command],
                             cwd=at, env=env, capture_output=True, text=True,
                             timeout=LIMIT)
        # mmxctl doctor may warn or fail on any host.
        fine = (0, 1) if command == "mmxctl doctor" else (0,)
        self.assertIn(got.returncode, fine, got.stdout + got.stderr)
        if check:
            last = self.told()[-1]
            getattr(self, check)(at, got.stdout, last[1], last[2])

    def asked(self, room):
        """Opens a room at langd, once encoded takes rooms again."""
        self.langd.ctl("health", "--wait", str(LIMIT))
        self.lm.request(room, "encoded-0")

    # --- what a command was called with, checked ---------------------------
    def packages(self, at, said, words, _):
        """apt installs from the folder that make deb writes."""
        self.assertIn("scripts/deb/build build/deb", said)
        self.assertEqual(words, ["install", "./build/deb/*.deb"])

    def units(self, at, said, words, _):
        if words[0] == "try-restart":
            words = ["enable", "--now"] + words[1:]
            self.assertEqual(len(words), 4)
        elif words != ["daemon-reload"]:
            self.assertEqual(words[:2], ["enable", "--now"])
            self.assertIn(len(words), (3, 7))  # one unit or all of them
        for unit in words[2:]:
            unit += "" if "." in unit else ".service"
            self.assertTrue(os.path.exists(f"{at}/systemd/{unit}"), unit)

    def dropin(self, at, said, words, _):
        self.assertEqual(words[:3], ["-Dm644", "-t", "/etc/systemd/system/"
                                     "mmx-langd.service.d"])
        for path in words[3:]:
            folder, name = os.path.split(path)
            self.assertEqual(folder, "/usr/share/mmx")
            self.assertTrue(os.path.exists(f"{at}/systemd/{name}"), name)

    def copied(self, at, said, words, _):
        """scp copies the key that an installation has made."""
        self.assertEqual(words[0], "-p")
        self.assertEqual(words[1], f"{at}/etc/fleet.key")

    def wheel(self, at, said, words, _):
        self.assertEqual(words[0], "install")
        self.assertRegex(words[1], r"^build/mmx-[0-9*]\S*\.whl$")

    def vllm(self, at, said, words, _):
        options = dict(zip(words[2::2], words[3::2]))
        config = "--ec-transfer-config."
        self.assertIn(options[config + "ec_role"],
                      ("ec_producer", "ec_consumer"))
        module = importlib.import_module(
            options[config + "ec_connector_module_path"])
        self.assertTrue(hasattr(module, options[config + "ec_connector"]))
        if "--middleware" in options:
            module, name = options["--middleware"].rsplit(".", 1)
            self.assertTrue(hasattr(importlib.import_module(module), name))

    def sglang(self, at, said, words, _):
        self.assertEqual(words[words.index("--encoder-transfer-backend") + 1],
                         "mmx")
        self.assertEqual(len({"--encoder-only", "--language-only"} &
                             {*words}), 1)

    def preloaded(self, at, said, words, preload):
        self.assertTrue(os.path.samefile(
            preload, os.path.join(BUILD, "test/llama/libmmx-mtmd.so")))

    def test_configurations_are_good(self):
        at = self.world.dir
        os.mkdir(f"{at}/etc")
        keygen(f"{at}/etc/fleet.key")
        found = ["\n".join(lines) + "\n" for page in PAGES
                 for kind, lines in blocks(page) if kind == CONF]
        for text in found:
            role = "langd" if "peers:" in text else "encoded"
            got = subprocess.run(
                [os.path.join(BUILD, f"mmx-{role}"), "--check-config",
                 self.file(f"{role}.yaml", here(text, at))],
                env={**os.environ, "CREDENTIALS_DIRECTORY": f"{at}/etc"},
                capture_output=True, text=True)
            self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(len(found), 2)

    # --- Python -----------------------------------------------------------
    def test_the_examples_move_their_rows(self):
        e = self.world.encoded(name="encoded-0", fields=FIELDS)
        d = self.world.langd([e], fields=FIELDS)
        os.environ.update(MMX_ENCODED_SOCKET=e.socket,
                          MMX_LANGD_SOCKET=d.socket)
        self.addCleanup(lambda: [os.environ.pop(f"MMX_{n}_SOCKET")
                                 for n in ("ENCODED", "LANGD")])
        for page in EXAMPLES:
            got = []
            names = Names(mmx=mmx, np=np, use=lambda *rows: got.append(rows),
                          values=np.ones((500, 2352), np.float32))
            sides = ["\n".join(lines) for _, lines in blocks(page)
                     if re.match(PYTHON, lines[0])]
            self.assertEqual(len(sides), 2)
            with futures.ThreadPoolExecutor() as pool:
                for done in [pool.submit(exec, side, {}, names)
                             for side in sides]:
                    done.result(LIMIT)
            self.assertEqual(dict.get(names, "rows").shape, (500, 2352))
            self.assertEqual(bytes(names["room"].aux), b"grid")

    # --- names in the text ------------------------------------------------
    def test_what_mmxctl_is_said_to_do_it_does(self):
        known = {a[1] for name in ("show", "command")
                 for _, a in tables.rows(f"{ROOT}/lib/wire/{name}.def")}
        got = subprocess.run([os.path.join(BUILD, "mmxctl"), "--help"],
                             capture_output=True, text=True)
        known |= set(re.findall(r"^  ([a-z-]+) ", got.stdout, re.M))
        named = set()
        pages = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"],
                               capture_output=True, text=True).stdout
        for page in pages.split() or PAGES:
            named |= set(re.findall(r"`(?:sudo )?mmxctl ([a-z-]+)",
                                    read(page)))
        self.assertGreater(len(named), 10)
        self.assertEqual(named - known, set())
