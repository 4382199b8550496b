"""llama.cpp unsplit against llama.cpp split by mmx: the answers of one and the
same prompt, case by case.

    run.py FOLDER [--build BUILD] [--hf CHECKPOINT --python PYTHON] [PART ...]

Prints for each case whether the tokens are equal, the largest difference of
log-probabilities over all tokens and steps, and what else it shows. A part is
split, first (token), preload, server or readme (the README's lines). Without a
part all run; but the last two, which test llama-server, run only if it is
there. When named, either of them builds it. --hf names a checkpoint of
transformers, of a Qwen2-VL, and --python a Python that has transformers: its
encoder feeds our language host. The exit status is 0 if every case is as it
should be."""

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time

import prepare
from install import Refused
from prepare import PARTS, ROOT

STEPS = 12
ROUNDS = 5  # of measured times
PROMPT = "hello <__media__> what is this?"
TWO = "first <__media__> second <__media__> compare"


def log_probabilities(path):
    import numpy as np
    logits = np.fromfile(path, "f4").reshape(STEPS, -1).astype("f8")
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))


class Cases:
    def __init__(self, out, build):
        self.out, self.build, self.bad = out, build, 0
        self.refs = {}

    def path(self, name):
        return os.path.join(self.out, name)

    def model(self, kind, part=""):
        return self.path(f"models/{kind}{part}.gguf")

    # --- programs -----------------------------------------------------------
    def reference(self, kind, line, name="ref", preload=None, batched=False,
                  batch=256):
        """Runs an unsplit program; returns (tokens, logits, stderr,
        seconds)."""
        env = dict(os.environ, **(preload or {}))
        if batched:
            env["BATCHED"] = "1"
        since = time.monotonic()
        p = subprocess.run(
            [self.path("reference"), self.model(kind),
             self.model(kind, "-mmproj"), str(batch), str(STEPS),
             self.path(f"{name}.bin")], input=line + "\n", env=env,
            text=True, capture_output=True, check=False)
        if p.returncode:
            raise Refused(f"reference: {p.stderr.strip()[-300:]}")
        return (p.stdout.split("tokens")[1].split(),
                log_probabilities(self.path(f"{name}.bin")), p.stderr,
                time.monotonic() - since)

    def truth(self, kind, line):
        if (kind, line) not in self.refs:
            self.refs[kind, line] = self.reference(kind, line)[:2]
        return self.refs[kind, line]

    def encode_host(self, kind, daemon, *more, stdout=subprocess.PIPE, **env):
        return subprocess.Popen(
            [f"{self.build}/llama/mmx-llama-encode", "--model",
             self.model(kind), "--mmproj", self.model(kind, "-mmproj"),
             "--socket", daemon.socket, "--threads", "1", *more],
            stdin=subprocess.PIPE, stdout=stdout, text=True,
            stderr=subprocess.PIPE, env={**os.environ, **env})

    @staticmethod
    def end(encode):
        """Ends an encode host; returns its stderr."""
        if not encode.stdin.closed:
            encode.stdin.close()
        if encode.stdout:
            encode.stdout.close()
        said = encode.stderr.read()
        encode.wait()
        return said

    def language_host(self, kind, daemon, line, *more, name="got"):
        """Runs a language host on one line; returns (stdout, logits or
        None)."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(f"{name}.bin"))
        p = subprocess.run(
            [f"{self.build}/llama/mmx-llama-language", "--model",
             self.model(kind), "--socket", daemon.socket, "--encoder", "enc0",
             "--batch", "256", "--predict", str(STEPS), "--no-stop",
             "--threads", "1", "--logits", self.path(f"{name}.bin"), *more],
            input=line, text=True, errors="replace",
            capture_output=True, check=False)
        if p.returncode:
            return p.stdout or p.stderr, None
        return p.stdout, log_probabilities(self.path(f"{name}.bin"))

    # --- verdicts -----------------------------------------------------------
    def row(self, case, ok, same, difference, note=""):
        self.bad += not ok
        print(f"| {case} | {'equal' if same else 'DIFFER'} | "
              f"{difference:.3g} | {note} |{'' if ok else ' WRONG'}",
              flush=True)

    def compare(self, case, truth, tokens, got, note="", limit=0.0, ok=True):
        difference = abs(truth[1] - got).max() if got is not None else 9
        same = tokens == truth[0]
        self.row(case, ok and same and difference <= limit, same, difference,
                 note)

    def split(self, case, pair, kind, line, *more, limit=0.0):
        """Runs an encode host, then a language host."""
        encode = self.encode_host(kind, pair[0])
        encode.stdin.write(line + "\n")
        encode.stdin.close()
        manifest = encode.stdout.readline()
        said, got = self.language_host(kind, pair[1], manifest, *more)
        note = self.end(encode)
        if encode.returncode:
            self.row(case, False, False, 9, note.strip()[-200:])
            return
        tokens = re.search(r"tokens (.*)", said)
        self.compare(case, self.truth(kind, line),
                     tokens[1].split() if tokens else said, got, limit=limit)


def worlds():
    from pair import World
    return World()


def pools(kind, rows=64, blocks=64):
    return {"fields": f"embedding:{kind}:256", "blocks": blocks,
            "block_rows": rows}


def split_cases(c):
    a, b = c.path("a.png"), c.path("b.png")
    one, two = f"r {a} {PROMPT}", f"r {a},{b} {TWO}"
    turn = iter(range(1000))

    def fresh(line):  # a room name is for one use
        return f"r{next(turn)}-{time.time_ns()}{line[1:]}"

    other = c.truth("qwen", f"r {b} {PROMPT}")
    # the answers differ: the model sees the pictures
    c.bad += (other[1] == c.truth("qwen", one)[1]).all()
    sound = f"r {c.path('sound.wav')} {PROMPT}"
    for kind, what in (("qwen", "M-RoPE"), ("gemma", "both ways"),
                       ("sound", "a sound")):
        lines = {"sound": sound} if kind == "sound" else {
            "one": one, "two": two}
        truths = {line: c.truth(kind, line) for line in lines.values()}
        for dtype, limit in (("f32", 0.0), ("bf16", 0.2)):
            w = worlds()
            try:
                e = w.encoded(**pools(dtype))
                pair = e, w.langd([e], **pools(dtype))
                for mode in ("view", "plan", "stream"):
                    if kind == "gemma" and mode == "stream":
                        continue
                    for name, line in lines.items():
                        asked = fresh(line)
                        c.refs[kind, asked] = truths[line]
                        c.split(f"split, {what}, {dtype}, {mode}, {name}",
                                pair, kind, asked, "--mode", mode,
                                limit=limit)
                w.all_free()
            finally:
                w.close()
    w = worlds()
    try:
        e = w.encoded(**pools("f32", 16))
        pair = e, w.langd([e], default_blocks=2, **pools("f32", 16, 8))
        asked = fresh(one)
        c.refs["qwen", asked] = c.reference("qwen", one, batch=48)[:2]
        c.split("split, a pool smaller than the picture", pair, "qwen", asked,
                "--mode", "stream", "--batch", "48")
        grid_case(c, fresh(one), c.truth("qwen", one))
        w.all_free()
    finally:
        w.close()


def renamed(manifest, reference):
    """Returns the line with another room."""
    return re.sub(r"room:[\w-]+:", f"room:{reference}:", manifest)


def language_process(c, lang, mode, steps):
    """Starts a language host of the sound's model that stays."""
    return subprocess.Popen(
        [f"{c.build}/llama/mmx-llama-language", "--model", c.model("sound"),
         "--socket", lang.socket, "--encoder", "enc0", "--batch", "256",
         "--predict", str(steps), "--no-stop", "--threads", "1", "--mode",
         mode], text=True, errors="replace", stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def slow_encoder(c, e, ms):
    """Starts an encoder that sleeps before each window."""
    return c.encode_host("sound", e, LD_PRELOAD=c.path("slow.so"),
                         SLOW_MS=str(ms))


def asks(host, line):
    """Gives a line to a host; returns the first line of the answer."""
    host.stdin.write(line)
    host.stdin.flush()
    return host.stdout.readline()


def first_token_cases(c):
    """Measures the time to the first token from the encode host's line on,
    when the sound is cut and not encoded yet: with rows prefilled as they
    land, and with the whole item, in turn."""
    sound = f"{c.path('sound.wav')} {PROMPT}\n"
    w, started = worlds(), []
    try:
        e = w.encoded(**pools("f32"))
        lang = w.langd([e], **pools("f32"))
        for ms in (0, 400):
            took, answers, windows = {"stream": [], "view": []}, set(), 0
            encode = slow_encoder(c, e, ms)
            hosts = {m: language_process(c, lang, m, 1) for m in took}
            started += [encode, *hosts.values()]
            # the first two rounds load models
            for turn in range(2 * ROUNDS + 2):
                mode = ("stream", "view")[turn % 2]
                manifest = asks(encode, f"r{turn} {sound}")
                windows = manifest.count(" room:")
                since = time.monotonic()
                answers.add(asks(hosts[mode], manifest).split(" ", 1)[1])
                if turn > 1:
                    took[mode].append(time.monotonic() - since)
                hosts[mode].stdout.readline()
            c.row(f"first token, {windows} windows, {ms} ms more for each",
                  len(answers) == 1 and windows > 2, len(answers) == 1, 0,
                  "; ".join([f"{what} {statistics.median(t):.2f} s, least "
                             f"{min(t):.2f}" for what, t in zip(
                                 ("stream", "whole"), took.values())] +
                            [f"load {os.getloadavg()[0]:.0f}"]))
            while started:
                p = started.pop()
                p.stdin.close()
                p.wait()
        dies_case(c, e, lang, sound, started)
        w.all_free()
    finally:
        for p in started:
            p.kill()
            p.wait()
        w.close()


def dies_case(c, e, lang, sound, started):
    """An encode host is killed after its first window has landed."""
    from pair import eventually
    language = language_process(c, lang, "stream", STEPS)
    encode = slow_encoder(c, e, 2000)
    started += [language, encode]
    language.stdin.write(asks(encode, f"dies {sound}"))
    language.stdin.flush()
    eventually(lambda: any(r.get("landed") for r in lang.show("rooms")),
               "a window has landed")
    encode.kill()
    said = language.stdout.readline()
    again = c.encode_host("sound", e)
    started.append(again)
    want = c.truth("sound", f"r {sound[:-1]}")[0]
    same = True
    for _ in range(2):
        got = asks(language, asks(again, f"again {sound}"))
        language.stdout.readline()
        same = same and got.split()[2:] == want
    c.row("an encoder killed between windows, then again",
          same and said.startswith("dies error engine-lost"), same, 0,
          said.strip()[:60])
    for p in (language, again):
        p.stdin.close()
        p.wait()


def grid_case(c, line, truth):
    """Rows as from another engine: the aux has the grid and no saved chunk."""
    import mmx
    from mmx import aux
    w = worlds()
    try:
        e = w.encoded(**pools("f32"))
        pair = e, w.langd([e], **pools("f32"))
        encode = c.encode_host("qwen", e)
        encode.stdin.write(line + "\n")
        encode.stdin.close()
        manifest = encode.stdout.readline()
        text, rows = re.search(r"room:([\w-]+):(\d+)", manifest).groups()
        rows = int(rows)
        with mmx.connect("langd", pair[1].socket, name="relay") as lm:
            room = lm.request(mmx.Reference.read(text), lm.pool("vit"),
                              "enc0")
            with room.wait_ready(timeout=30):
                values, says = room.gather("embedding"), aux.unpack(room.aux)
        c.end(encode)
        t, h, wide = says["grid"][0]
        with mmx.connect("encoded", e.socket, name="other") as enc:
            src = enc.announce(
                None, enc.pool("vit"), rows, rows, aux=aux.pack(
                    modality="image", flags=aux.MROPE, merge=2,
                    grid=[(t, 2 * h, 2 * wide)]))
            src.wait_granted(timeout=30)
            src["embedding"][0:rows] = values
            src.commit(0, rows, final=True)
            said, got = c.language_host(
                "qwen", pair[1], renamed(manifest, src.reference))
            src.wait_done(timeout=30)
            src.release()
        tokens = re.search(r"tokens (.*)", said)
        c.compare("positions from the grid, no chunk", truth,
                  tokens[1].split() if tokens else said, got)
    finally:
        w.close()


def other_case(c, checkpoint, python):
    """transformers' encoder with llama.cpp's language model, and both engines
    alone, on one checkpoint."""
    import mmx
    a, room = c.path("a.png"), str(mmx.Reference.draw())
    line = f"r {a} {PROMPT}"
    truth = c.truth("qwen", line)
    w = worlds()
    try:
        e = w.encoded(**pools("f32"))
        lang = w.langd([e], **pools("f32"))
        encode = c.encode_host("qwen", e)
        encode.stdin.write(f"unused{line[1:]}\n")
        encode.stdin.flush()
        manifest = encode.stdout.readline()
        encode.kill()
        c.end(encode)
        before, behind = re.search(r"text:(\S+) room:\S+ text:(\S+)",
                                   manifest).groups()
        other = subprocess.Popen(
            [python, "-B", os.path.join(prepare.HERE, "other.py"), checkpoint,
             a, e.socket, room, str(STEPS), before, behind], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Its libraries take a minute to load, so the room is requested later.
        theirs = other.stdout.readline().split()[1:]
        said, got = c.language_host(
            "qwen", lang, renamed(manifest, room))
        if other.wait():
            raise Refused(f"other.py: {other.stderr.read()[-300:]}")
        tokens = re.search(r"tokens (.*)", said)
        c.compare("transformers encodes, llama.cpp answers", truth,
                  tokens[1].split() if tokens else said, got,
                  "transformers alone: " + (
                      "the same tokens" if theirs == truth[0]
                      else " ".join(theirs)), 0.05)
    finally:
        w.close()


def preload_cases(c):
    a, b = c.path("a.png"), c.path("b.png")
    two = f"r {a},{b} {TWO}"
    truth = c.truth("qwen", two)
    base = {"LD_PRELOAD": os.path.abspath(
        f"{c.build}/llama/libmmx-mtmd.so"), "MMX_ENCODER": "enc0",
        "MMX_MODEL": "tiny", "MMX_WAIT_MS": "2000"}

    def case(name, env, batched, want, local, limit=0.0):
        tokens, got, said, took = c.reference(
            "qwen", two, "pre", {**base, **env}, batched)
        lines = [s for s in said.splitlines() if s.startswith("mmx: ")]
        own = not any(re.match(r"mmx: \d+ rows of", s) for s in lines)
        shown = lines[0] if lines else "said nothing"
        c.compare(f"preload, {name}", truth, tokens, got,
                  f"{took:.1f} s; {shown[:60]}", limit,
                  any(want in s for s in lines) and own == local)

    case("daemon away", {"MMX_LANGD_SOCKET": "/nonexistent/langd.sock"},
         False, "langd is away", True)
    w = worlds()
    try:
        e = w.encoded(**pools("f32"))
        lang = w.langd([e], **pools("f32"))
        case("room unknown", {"MMX_LANGD_SOCKET": lang.socket}, False,
             "timeout", True)
        w.all_free()
    finally:
        w.close()
    for dtype, batched, limit in (("f32", False, 0.0), ("f32", True, 1e-3),
                                  ("bf16", True, 0.2)):
        w = worlds()
        try:
            e = w.encoded(**pools(dtype))
            lang = w.langd([e], **pools(dtype))
            env = {"MMX_LANGD_SOCKET": lang.socket}
            encode = c.encode_host("qwen", e, "--digest", "tiny")
            encode.stdin.write(two + "\n")
            encode.stdin.flush()
            encode.stdout.readline()
            case(f"{dtype}{', batch calls' if batched else ''}", env, batched,
                 " rows of ", False, limit)
            c.end(encode)
            lang.all_free()  # the encoder keeps rooms that have a key
        finally:
            w.close()
    w = worlds()
    try:
        wrong = {"fields": "embedding:f32:128"}
        e = w.encoded(**wrong)
        lang = w.langd([e], **wrong)
        case("wrong width", {"MMX_LANGD_SOCKET": lang.socket}, False,
             "this model's f32, bf16 or f16 of 256", True)
    finally:
        w.close()
    killed_case(c, two, case)


def full_pipe():
    """Returns a full pipe: a writer waits."""
    there, here = os.pipe()
    os.set_blocking(here, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(here, bytes(4096))
    os.set_blocking(here, True)
    return there, here


def killed_case(c, two, case):
    """The encode host is stopped between announce and encode, and killed while
    the language side waits."""
    from pair import eventually
    w = worlds()
    try:
        e = w.encoded(**pools("f32"))
        lang = w.langd([e], **pools("f32"))
        there, here = full_pipe()
        encode = c.encode_host("qwen", e, "--digest", "tiny", stdout=here)
        encode.stdin.write(two + "\n")
        encode.stdin.flush()

        def announced():
            return [r for r in e.show("rooms") if not r.get("ended")]
        eventually(lambda: len(announced()) == 2, "two rooms are announced")
        encode.send_signal(signal.SIGKILL)
        c.end(encode)
        case("encode host killed", {"MMX_LANGD_SOCKET": lang.socket}, False,
             "", True)
        os.close(there)
        os.close(here)
        lang.all_free()
    finally:
        w.close()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("folder")
    p.add_argument("parts", nargs="*")
    p.add_argument("--build", default=os.path.join(
        ROOT, os.environ.get("B", "build")))
    p.add_argument("--hf")
    p.add_argument("--python")
    args = p.parse_intermixed_args()
    out, build = map(os.path.abspath, (args.folder, args.build))
    os.environ["MMX_BUILD"] = build
    sys.path[:0] = [os.path.join(ROOT, "test/e2e"),
                    os.path.join(ROOT, "lib/client/python")]
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        raise Refused(f"no part {min(unknown)}: {', '.join(PARTS)}")
    at = prepare.everything(out, build, args.hf)
    c = Cases(out, build)
    print("| llama.cpp b11739 | tokens | log-prob difference | |\n"
          "|---|---|---|---|")
    if args.hf and args.python:
        other_case(c, args.hf, args.python)
    if not args.parts or "split" in args.parts:
        split_cases(c)
    if not args.parts or "first" in args.parts:
        first_token_cases(c)
    if not args.parts or "preload" in args.parts:
        preload_cases(c)
    built = os.path.exists(prepare.server_path(out))
    if not args.parts and not built:
        print("llama-server is not built: ENGINE_PARTS=\"server readme\" does, "
              "in a quarter of an hour")
    if "server" in args.parts or not args.parts and built:
        import server
        server.cases(c, prepare.server(out))
    if "readme" in args.parts or not args.parts and built:
        import readme
        readme.cases(c, prepare.server(out), at)
    print(f"{c.bad} cases are wrong")
    return 1 if c.bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Refused as e:
        sys.exit(f"engines: {e}")
