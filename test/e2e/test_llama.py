"""llama.cpp's hosts and libmmx-mtmd.so between real daemons, over doubles of
libllama and libmtmd whose answer depends on every token, row and position and
on the attention: an answer is right if it equals that of the unsplit
program."""

import os
import re
import select
import subprocess
import time

from engine import LIMIT
from pair import BUILD, Case, eventually, sanitized

import mmx
from mmx import aux

HERE = os.path.join(BUILD, "test/llama")
STEPS = 6


def fields(dtype="f32", width=8):
    return f"embedding:{dtype}:{width}"


class Llama(Case):
    def setUp(self):
        super().setUp()
        self.dir = self.world.dir
        self.file("a", "4 3 5")
        self.file("b", "7 2 9")
        self.model("8 1 0")
        self.turn = 0

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="ascii") as f:
            f.write(text + "\n")
        return path

    def model(self, text):
        """Writes the double's model: its width, M-RoPE, attention in both
        directions."""
        self.model_path = self.file("model", text)

    def pair_of(self, dtype="f32", width=8, **more):
        return self.pair(fields=fields(dtype, width), block_rows=4, **more)

    def gone(self, *daemons):
        """Stops the daemons, so that others may have their names."""
        for d in daemons:
            self.assertEqual(d.stop(), 0)
            self.world.daemons.remove(d)

    def line(self, pictures="a", prompt="hello <__media__> what"):
        """Returns a line for a host. A room's name is for use once."""
        self.turn += 1
        paths = ",".join(os.path.join(self.dir, p) for p in pictures)
        return f"r{self.turn} {paths} {prompt}\n"

    def program(self, name, *words, **env):
        return subprocess.Popen(
            [os.path.join(HERE, name), *words], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={
                **os.environ, "FAKE_ENCODES": self.dir + f"/{name}.count",
                "MMX_WAIT_MS": "60000", **env})

    def encodes(self, name):
        try:
            return os.path.getsize(self.dir + f"/{name}.count")
        except FileNotFoundError:
            return 0

    def unsplit(self, *lines, batch=5, name="unsplit", **env):
        """Returns (answers, stderr) of a program without mmx."""
        p = self.program(name, self.model_path, self.model_path, str(batch),
                         str(STEPS), self.dir + "/logits", **env)
        out, said = p.communicate("".join(lines), timeout=LIMIT)
        self.assertEqual(p.returncode, 0, said)
        return re.findall(r" tokens (.*)", out), said

    def encode_host(self, encoded, *words, **env):
        return self.program("mmx-llama-encode", "--model", self.model_path,
                            "--mmproj", self.model_path, "--socket",
                            encoded.socket, *words, **env)

    def encoded_line(self, host, line):
        """Returns the host's answer to the line. An earlier request may fail
        in between, when its language host has given up."""
        host.stdin.write(line)
        host.stdin.flush()
        while True:
            got = host.stdout.readline()
            if not got or got.split()[0] == line.split()[0]:
                return got

    def end(self, host, code=0):
        out, said = host.communicate(timeout=LIMIT)
        self.assertEqual(host.returncode, code, out + said)
        return out + said

    def language_host(self, langd, *words, batch=5, **env):
        return self.program("mmx-llama-language", "--model", self.model_path,
                            "--socket", langd.socket, "--encoder", "enc0",
                            "--batch", str(batch), "--predict", str(STEPS),
                            "--no-stop", *words, **env)

    def language(self, langd, manifest, *words, batch=5):
        """Returns the language host's answers to the lines."""
        p = self.language_host(langd, *words, batch=batch)
        out, said = p.communicate(manifest, timeout=LIMIT)
        self.said = out + said
        return re.findall(r" tokens (.*)", out)


class Split(Llama):
    def split(self, pair, line, *words, batch=5):
        host = self.encode_host(pair[0])
        got = self.language(pair[1], self.encoded_line(host, line), *words,
                            batch=batch)
        self.end(host)
        self.assertEqual(got, self.unsplit(line, batch=batch)[0], self.said)

    def test_the_answer_is_that_of_one_process(self):
        two = "ab", "one <__media__> two <__media__> end"
        for model, batch in (("8 1 0", 5), ("8 0 0", 5), ("8 0 1", 64)):
            self.model(model)
            for dtype in ("f32", "bf16"):
                world = self.pair_of(dtype)
                for mode in ("view", "plan", "stream"):
                    for line in (self.line(), self.line(*two)):
                        self.split(world, line, "--mode", mode, batch=batch)
                self.gone(*world)

    def test_a_picture_larger_than_the_pool_passes_through(self):
        self.file("a", "40 30 5")
        pair = self.pair_of(encoded={"blocks": 400},
                            langd={"blocks": 8, "default_blocks": 2})
        self.split(pair, self.line(), "--mode", "stream", batch=16)

    def test_both_ways_needs_the_whole_picture_in_a_batch(self):
        self.model("8 0 1")
        e, d = self.pair_of()
        host = self.encode_host(e)
        manifest = self.encoded_line(host, self.line())
        self.assertEqual(self.language(d, manifest, batch=11), [])
        self.assertIn("raise --batch", self.said)
        host.communicate(timeout=LIMIT)

    def test_a_request_fails_and_the_next_is_served(self):
        e, d = self.pair_of()
        host = self.encode_host(e)
        bad = self.encoded_line(host, "r0 /nowhere hello <__media__> what\n")
        self.assertEqual(bad, "r0 error cannot read /nowhere\n")
        line = self.line()
        manifest = self.encoded_line(host, line)
        got = self.language(d, bad + "nonsense x\n" + manifest)
        self.assertEqual(got, self.unsplit(line)[0], self.said)
        self.assertIn("r0 error cannot read /nowhere", self.said)
        self.assertIn("nonsense error the line is not one of", self.said)
        self.end(host, code=1)

    def test_rows_of_another_engine_need_no_saved_chunk(self):
        e, d = self.pair_of()
        enc = self.world.engine(e)
        line = self.line()
        manifest = self.room(77, self.manifest_of(e, d, line))
        self.announce(enc, 77, aux.pack(
            modality="image", flags=aux.MROPE, grid=[(1, 6, 8)], merge=2))
        self.assertEqual(self.language(d, manifest), self.unsplit(line)[0],
                         self.said)
        enc.conn.wait(lambda: enc.rooms[77].ended, LIMIT)
        enc.release(77)

    def test_language_hosts_of_one_daemon_do_not_wait_for_each_other(self):
        """Each host has sequence ids and groups of its own."""
        e, d = self.pair_of()
        host, line = self.encode_host(e), self.line()
        manifest = self.encoded_line(host, line)
        first = self.language_host(d)
        # its room is not announced yet
        first.stdin.write(self.room(77, manifest))
        first.stdin.flush()
        eventually(lambda: any(r.get("state") == "held"
                               for r in d.show("sequences")),
                   "the first host has its sequence id")
        want = self.unsplit(line)[0]
        second = self.encoded_line(host, self.line())
        # the last one names the same request
        for manifest in (second, manifest):
            self.assertEqual(self.language(d, manifest), want, self.said)
        self.end(host)
        enc = self.world.engine(e)
        self.announce(enc, 77, aux.pack(
            modality="image", flags=aux.MROPE, grid=[(1, 6, 8)], merge=2))
        out, said = first.communicate(timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", out), want, out + said)
        enc.conn.wait(lambda: enc.rooms[77].ended, LIMIT)
        enc.release(77)

    def test_metadata_larger_than_an_aux(self):
        """The rest of an aux comes in rows of a Python encoder; the host joins
        it."""
        e, d = self.pair_of(encoded={"blocks": 9000}, langd={"blocks": 9000})
        enc, lm = self.world.engine(e), self.world.engine(d).conn
        host, line = self.encode_host(e), self.line()
        manifest = self.encoded_line(host, line)
        reference = mmx.Reference.read(re.findall(r"room:([\w-]+)", manifest)[0])
        with lm.request(reference, lm.pool(), "enc0").wait_ready(LIMIT) as room:
            chunk = aux.unpack(room.aux)["chunk"]
        self.end(host)
        cases = (  # frames, chunk, what is in rows, options, why not
            (12800, chunk, "rest", (), ""),  # 100 KiB
            (131072, chunk, "rest", (), ""),  # 1 MiB
            (12800, chunk, "rest", ("--mode", "stream"), "with --mode stream"),
            (12800, chunk[1:], "rest", (), "the saved chunk does not fit"),
            (12800, chunk, "zeros", (), "do not go on with its aux"),
            (12800, chunk, "", (), "claims more rows than the room has"))
        for number, (frames, saved, rest, words, why) in enumerate(cases, 77):
            says = aux.split(aux.pack(
                modality="image", flags=aux.MROPE, grid=[(1, 6, 8)], merge=2,
                times=range(frames), chunk=saved))
            self.assertNotIn("chunk", aux.unpack(says.aux))
            self.announce(
                enc, number, says.aux, 12 + bool(rest) * says.rows(enc.pool),
                says if rest == "rest" else None)
            got = self.language(d, self.room(number, manifest), *words)
            self.assertEqual(got, [] if why else self.unsplit(line)[0],
                             self.said)
            self.assertIn(why, self.said)
            enc.conn.wait(lambda: enc.rooms[number].ended, LIMIT)
            enc.release(number)

    @staticmethod
    def room(number, manifest):
        """Returns the line with another room, which has no secret."""
        return re.sub(r"room:[\w-]+", f"room:{number:016x}", manifest)

    def manifest_of(self, e, d, line):
        host = self.encode_host(e)
        manifest = self.encoded_line(host, line)
        self.language(d, manifest)
        self.end(host)
        return manifest

    def announce(self, enc, room, words, rows=12, says=None):
        """Announces a room with the rows of picture a, as the double makes
        them, and the rest of an aux."""
        import numpy as np
        values = (np.arange(12 * 8) * 31 + 5 * 7) % 251
        source = enc.conn.announce(room, enc.pool, rows, rows, aux=words)
        enc.rooms[room] = source
        enc.granted(room)
        source["embedding"][0:rows] = 0
        source["embedding"][0:12] = values.reshape(12, 8)
        if says:
            says.write(source, 12)
        source.commit(0, rows, final=True)

    def test_an_aux_that_does_not_fit_is_refused(self):
        e, d = self.pair_of()
        enc = self.world.engine(e)
        manifest = self.manifest_of(e, d, self.line())
        good = {"flags": aux.MROPE, "grid": [(1, 3, 4)]}
        cases = ((b"pickle", "the aux is not one of"),
                 (aux.pack(grid=[(1, 3, 4)]), "this model has M-RoPE"),
                 (aux.pack(**{**good, "flags": 6}), "of a newer release"),
                 (aux.pack(**{**good, "grid": [(1, 3, 3)]}), "needs a grid"),
                 (aux.pack(**good, merge=0), "other items than the prompt"),
                 (aux.pack(**{**good, "grid": [(1, 3, 4)] * 2}),
                  "other items than the prompt"),
                 (aux.pack(**good, rows=[11]), "other items than the prompt"),
                 (aux.pack(**good, chunk=b"123"), "the saved chunk"))
        for room, (words, why) in enumerate(cases, 100):
            self.announce(enc, room, words)
            got = self.language(d, self.room(room, manifest))
            self.assertEqual(got, [], why)
            self.assertIn(why, self.said)
            enc.conn.wait(lambda: enc.rooms[room].ended, LIMIT)
            enc.release(room)

    def test_a_pool_that_does_not_fit_ends_a_host_at_its_start(self):
        e, d = self.pair_of(width=9)
        self.assertIn("rows of this model are 8 wide, those of pool vit 9: "
                      "set its layout to embedding:f32:8 on both sides",
                      self.end(self.encode_host(e), code=1))
        self.assertEqual(self.language(d, ""), [])
        self.assertIn("set its layout", self.said)

    def test_a_picture_larger_than_the_encoders_pool_is_refused(self):
        self.file("a", "40 30 5")
        e, d = self.pair_of()
        host = self.encode_host(e)
        self.assertRegex(self.encoded_line(host, self.line()),
                         "r1 error a picture has more rows than the pool")
        self.end(host, code=1)

    def test_an_option_that_is_wrong_ends_a_host_with_what_is_right(self):
        for name, words, why in (
                ("encode", ("--threads", "0"), "a number from 1 to 1024"),
                ("encode", ("--bad",), "usage: mmx-llama-encode"),
                ("encode", ("more",), "--digest TAG"),
                ("encode", (), "--model and --mmproj are needed"),
                ("language", ("--batch", "1x"), "a number from 1 to 1048576"),
                ("language", ("--help",), "usage: mmx-llama-language"),
                ("language", ("--model", "x", "--mode", "y"), "is unknown")):
            p = self.program(f"mmx-llama-{name}", *words)
            self.assertIn(why, p.communicate(timeout=LIMIT)[1])
            self.assertIn(p.returncode, (1, 2))

    def test_no_daemon_is_one_line(self):
        e, d = self.pair_of()
        e.stop()
        self.assertRegex(self.end(self.encode_host(e), code=1),
                         r"^mmx-llama-encode: no daemon: .*mmxctl doctor\n$")


class Windows(Llama):
    """A long sound, or a video, is one room. libmtmd encodes it chunk by
    chunk, and each chunk is a window."""

    def setUp(self):
        super().setUp()
        self.file("sound", "4 3 5 3")
        self.file("video", "4 3 5 -3")

    def test_answers_are_those_of_one_process(self):
        lines = [(name, self.line([name])) for name in ("sound", "video")]
        lines.append(("both", self.line(
            ["video", "a", "sound"],
            "x <__media__> y <__media__><__media__> z")))
        for model, batch in (("8 1 0", 5), ("8 2 0", 5), ("8 0 0", 5),
                             ("8 0 1", 12)):
            self.model(model)
            want = self.unsplit(*(x for _, x in lines), batch=batch)[0]
            e, d = self.pair_of()
            for mode in ("auto", "view", "plan", "stream"):
                host = self.encode_host(e)
                for (name, line), answer in zip(lines, want):
                    manifest = self.encoded_line(host, line)
                    rooms = re.findall(r"room:([\w-]+)", manifest)
                    # A video's frames have a room each if their positions
                    # depend on the chunk.
                    one = 1 if model != "8 2 0" or name == "sound" else 3
                    self.assertEqual(
                        (len(rooms), len(set(rooms))),
                        (3, one) if name != "both" else (7, one + 2))
                    self.assertEqual(
                        self.language(d, manifest, "--mode", mode,
                                      batch=batch), [answer], self.said)
                self.end(host)
            self.gone(e, d)

    def test_the_most_windows_need_no_rest_of_an_aux(self):
        """With a rest of the aux, --mode stream would refuse the room."""
        self.file("video", "2 1 5 -1024")
        e, d = self.pair_of(encoded={"blocks": 600}, langd={"blocks": 600})
        line = self.line(["video"])
        host = self.encode_host(e)
        manifest = self.encoded_line(host, line)
        self.assertEqual(manifest.count(" room:"), 1024)
        self.assertEqual(self.language(d, manifest, "--mode", "stream"),
                         self.unsplit(line)[0], self.said)
        self.assertEqual(
            self.encoded_line(host, self.line(
                ["video", "a"], "<__media__> <__media__> x")),
            "r2 error too many pictures\n")
        self.end(host, code=1)

    def test_commits_that_a_daemon_is_too_slow_for(self):
        """What is left of the commits is sent while the host waits for a
        line."""
        self.file("video", "2 1 5 -1024")
        e, d = self.pair_of(encoded={"blocks": 600}, langd={"blocks": 600})
        hold = os.path.join(self.dir, "hold")
        os.mkfifo(hold)
        line = self.line(["video"])
        host = self.encode_host(e, FAKE_HOLD=hold)
        manifest = self.encoded_line(host, line)
        eventually(lambda: e.free()[0] == 600 - 512, "it is granted")
        with e.stopped():
            writer = os.open(hold, os.O_WRONLY)
            os.unlink(hold)
            os.close(writer)
            eventually(lambda: self.encodes("mmx-llama-encode") == 1024,
                       "all is encoded")
            time.sleep(0.1)  # the last commit is made meanwhile
        self.assertEqual(self.language(d, manifest, "--mode", "stream"),
                         self.unsplit(line)[0], self.said)
        self.end(host)

    def test_more_rows_than_a_stream_holds(self):
        """A batch, and a window that must be in one batch, have more than the
        12 rows that the pool can hold."""
        self.file("sound", "40 30 5 3")
        self.file("a", "40 3 5")
        for model in ("8 1 0", "8 0 1"):
            self.model(model)
            line = self.line(["sound", "a"], "<__media__> <__media__> x")
            e, d = self.pair_of(encoded={"blocks": 1200},
                                langd={"blocks": 6, "default_blocks": 2})
            host = self.encode_host(e)
            got = self.language(d, self.encoded_line(host, line), batch=1200)
            self.assertEqual(got, self.unsplit(line, batch=1200)[0], self.said)
            self.end(host)
            d.all_free()
            self.gone(e, d)

    def test_more_rooms_than_a_handle_has(self):
        """A request for which no cells are free waits for those before it."""
        self.model("8 2 0")  # each frame is a room
        self.file("video", "2 1 5 -1000")
        e, d = self.pair_of(encoded={"blocks": 1100}, langd={"blocks": 1100})
        host = self.encode_host(e)
        lines = [self.line(["video"]), self.line("ababababab" * 3,
                                                 "<__media__>" * 30 + " x")]
        first = self.encoded_line(host, lines[0])
        host.stdin.write(lines[1])
        host.stdin.flush()
        eventually(lambda: self.encodes("mmx-llama-encode") == 1000,
                   "all of the first are encoded")
        got = self.language(d, first)
        got += self.language(d, host.stdout.readline())
        self.assertEqual(got, self.unsplit(*lines)[0], self.said)
        self.end(host)

    def test_a_window_must_be_as_the_encoder_says(self):
        e, d = self.pair_of()
        host = self.encode_host(e)
        for old, new, why in (
                (":12", ":13", "another number of rows than the prompt"),
                (":12 room", ":11 room", "another number of rows"),
                (":12 text", ":24 text", "another number of rows")):
            manifest = self.encoded_line(host, self.line(["sound"]))
            self.assertEqual(self.language(d, manifest.replace(old, new)), [])
            self.assertIn(why, self.said)
        for sizes in (":11 :13 :12", ":36", ":12 :12 :6 :6"):
            manifest = self.encoded_line(host, self.line(["sound"]))
            room = re.search(r" room:[\w-]+", manifest)[0]
            manifest = re.sub(r" room:.*12 text", "".join(
                room + x for x in sizes.split()) + " text", manifest)
            self.assertEqual(self.language(d, manifest), [])
            self.assertIn("other items than the prompt", self.said)
        host.communicate(timeout=LIMIT)

    # --- an encoder that takes its time ---------------------------------------
    def held(self, encoded):
        """Starts an encode host that waits before each window."""
        self.hold = os.path.join(self.dir, f"pipe{self.turn}")
        os.mkfifo(self.hold)
        return self.encode_host(encoded, FAKE_HOLD=self.hold)

    def one_more(self, n):
        """Lets the host encode a window, and waits until it has begun window
        n."""
        with open(self.hold, "w", encoding="ascii"):
            pass
        eventually(lambda: self.encodes("mmx-llama-encode") == n,
                   f"window {n} is begun")

    def decoded(self):
        return self.encodes("rows")

    def first_window(self, e, d):
        """Starts both hosts; one window is prefilled, and no other is
        encoded."""
        line = self.line(["sound"])
        encode = self.held(e)
        # with its default mode it streams windows
        language = self.language_host(
            d, FAKE_ROWS=self.dir + "/rows.count")
        before = self.decoded()
        language.stdin.write(self.encoded_line(encode, line))
        language.stdin.flush()
        self.one_more(2)
        eventually(lambda: self.decoded() == before + 12,
                   "the first window is prefilled")
        return line, encode, language

    def test_windows_are_prefilled_while_the_next_is_encoded(self):
        e, d = self.pair_of()
        line, encode, language = self.first_window(e, d)
        self.one_more(3)
        eventually(lambda: self.decoded() == 24, "the second, too")
        self.one_more(3)
        out, said = language.communicate(timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", out),
                         self.unsplit(line)[0], said)
        self.end(encode)

    def test_an_encoder_dies_after_the_first_window(self):
        """Nothing of what was prefilled stays: the next requests, one of them
        with the same sequence id, are answered right."""
        e, d = self.pair_of()
        line, encode, language = self.first_window(e, d)
        encode.kill()
        encode.communicate()
        self.assertRegex(language.stdout.readline(),
                         "^r1 error engine-lost, advice ")
        again = self.encode_host(e)
        for _ in range(5):
            language.stdin.write(self.encoded_line(again, line))
        out, said = language.communicate(timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", out),
                         self.unsplit(line)[0] * 5, said)
        self.end(again)
        d.all_free()

    def test_langd_starts_again_while_rows_are_decoded(self):
        """The wait for the next rows finds the new run; the next requests are
        answered."""
        e, d = self.pair_of()
        hold = os.path.join(self.dir, "decode")
        os.mkfifo(hold)
        line, encode = self.line(["sound"]), self.held(e)
        language = self.language_host(
            d, FAKE_ROWS=self.dir + "/rows.count", FAKE_DECODE=hold)
        language.stdin.write(self.encoded_line(encode, line))
        language.stdin.flush()
        self.one_more(2)
        for rows in (5, 10):
            eventually(lambda: self.decoded() == rows, f"{rows} are decoded")
            with open(hold, "w", encoding="ascii"):
                pass
        eventually(lambda: self.decoded() == 12, "the window is decoded")
        d.kill()
        d.start()
        with open(hold, "w", encoding="ascii"):
            os.unlink(hold)
        self.assertRegex(language.stdout.readline(),
                         "^r1 error daemon-lost, advice ")
        encode.kill()
        encode.communicate()
        again = self.encode_host(e)
        eventually(lambda: d.show("engines"), "the host is connected")
        for _ in range(2):
            language.stdin.write(self.encoded_line(again, line))
        out, said = language.communicate(timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", out),
                         self.unsplit(line)[0] * 2, out + said)
        self.end(again)

    def test_no_window_is_encoded_for_a_request_that_has_gone(self):
        e, d = self.pair_of()
        _, encode, language = self.first_window(e, d)
        language.kill()
        language.communicate()
        eventually(lambda: e.stats()["rooms_failed"] == 1, "its room ends")
        self.one_more(2)
        self.assertIn(" error ", self.end(encode, code=1))
        self.assertEqual(self.encodes("mmx-llama-encode"), 2)
        d.all_free()


class Programs(Llama):
    """Programs without mmx in them. A test ends the encoder's daemon itself:
    rows with a key stay there until their space is needed."""

    def ask(self, langd, *lines, batched=False, **env):
        socket = langd if isinstance(langd, str) else langd.socket
        env = {"MMX_LANGD_SOCKET": socket, "MMX_ENCODER": "enc0",
               "MMX_MODEL": "tiny", **env}
        if batched:
            env["BATCHED"] = "1"
        name = "linked"
        if not sanitized(os.path.join(HERE, "unsplit")):
            name = "unsplit"
            env["LD_PRELOAD"] = os.path.join(HERE, "libmmx-mtmd.so")
        if os.path.exists(self.dir + f"/{name}.count"):
            os.unlink(self.dir + f"/{name}.count")
        got = self.unsplit(*lines, name=name, **env)
        self.own = self.encodes(name)
        return got

    def digest_host(self, encoded, line, **env):
        host = self.encode_host(encoded, "--digest", "tiny", **env)
        self.encoded_line(host, line)
        return host


class Preload(Programs):
    def test_rows_come_from_a_room(self):
        line = self.line("ab", "one <__media__> two <__media__> end")
        want = self.unsplit(line)[0]
        for dtype in ("f32", "bf16", "f16"):
            e, d = self.pair_of(dtype)
            for batched in (False, True):
                if dtype == "f16":  # the encode host writes no f16
                    break
                host = self.digest_host(e, line)
                got, said = self.ask(d, line, batched=batched)
                self.assertEqual(got, want, said)
                self.assertEqual(self.own, 0, said)
                self.assertEqual(said.count(" rows of "), 2, said)
                self.assertEqual(
                    "in place" in said, batched and dtype == "f32", said)
                self.end(host)
                d.all_free()
            self.gone(e, d)

    def test_the_library_may_be_linked(self):
        e, d = self.pair_of()
        line = self.line()
        host = self.digest_host(e, line)
        got, said = self.unsplit(
            line, name="linked", MMX_LANGD_SOCKET=d.socket,
            MMX_ENCODER="enc0", MMX_MODEL="tiny")
        self.assertEqual(got, self.unsplit(line)[0])
        self.assertEqual(self.encodes("linked"), 0, said)
        self.end(host)
        e.stop()

    def falls_back(self, langd, why, batched=False, **env):
        line = self.line("ab", "one <__media__> two <__media__> end")
        got, said = self.ask(langd, line, batched=batched, **env)
        self.assertEqual(got, self.unsplit(line)[0], said)
        self.assertEqual(self.own, 2, said)
        self.assertIn(why, said)
        return said

    def test_no_daemon(self):
        for batched in (False, True):
            said = self.falls_back(
                "/nowhere/langd.sock", "langd is away: /nowhere/langd.sock: "
                "No such file", batched, MMX_WAIT_MS="300")
            self.assertEqual(said.count("mmx:"), 1, said)

    def test_no_room(self):
        e, d = self.pair_of()
        for batched in (False, True):
            self.falls_back(d, "timeout", batched, MMX_WAIT_MS="300")

    def test_the_server_stands_for_a_moment_only(self):
        """All of llama-server's requests wait while one waits for its
        picture."""
        e, d = self.pair_of()
        began = time.monotonic()
        self.falls_back(d, "timeout", MMX_WAIT_MS="")
        self.assertLess(time.monotonic() - began, 5)

    def test_a_pool_that_does_not_fit(self):
        for field in (fields(width=9), fields("u8")):
            e, d = self.pair(fields=field)
            self.falls_back(d, "pictures are encoded here")
            self.gone(e, d)

    def test_rooms_may_have_a_secret(self):
        e, d = self.pair_of()
        line, secret = self.line(), {"MMX_SECRET": "5a" * 16}
        host = self.digest_host(e, line, **secret)
        got, said = self.ask(d, line, **secret)
        self.assertEqual(got, self.unsplit(line)[0], said)
        self.assertEqual(self.own, 0, said)
        self.end(host)
        self.falls_back(d, "encoding here", MMX_SECRET="00" * 16,
                        MMX_WAIT_MS="300")
        self.assertIn("MMX_SECRET is not", self.end(self.encode_host(
            e, "--digest", "tiny", MMX_SECRET="5a"), code=1))
        e.stop()

    def test_the_encoder_dies_while_its_rows_are_awaited(self):
        for batched in (False, True):
            e, d = self.pair_of()
            hold = os.path.join(self.dir, f"pipe{batched}")
            os.mkfifo(hold)
            line = self.line()
            host = self.digest_host(e, line, FAKE_HOLD=hold)
            env = {"MMX_LANGD_SOCKET": d.socket, "MMX_ENCODER": "enc0",
                   "MMX_MODEL": "tiny", "MMX_ROWS_MS": "600000"}
            if batched:
                env["BATCHED"] = "1"
            p = self.program("linked", self.model_path, self.model_path, "5",
                             str(STEPS), self.dir + "/logits", **env)
            p.stdin.write(line)
            p.stdin.flush()
            eventually(lambda: any(r.get("asked") for r in e.show("rooms")
                                   if not r.get("ended")),
                       "the room is asked for at its encoder")
            host.kill()
            host.communicate()
            out, said = p.communicate(timeout=LIMIT)
            self.assertEqual(re.findall(r" tokens (.*)", out),
                             self.unsplit(line)[0], said)
            self.assertIn("engine-lost", said)
            d.all_free()
            self.gone(e, d)

    def test_a_daemon_that_comes_later_is_used(self):
        e, d = self.pair_of()
        d.stop()
        p = self.program("linked", self.model_path, self.model_path, "5",
                         str(STEPS), self.dir + "/logits",
                         MMX_LANGD_SOCKET=d.socket, MMX_ENCODER="enc0",
                         MMX_MODEL="tiny", MMX_WAIT_MS="3000")
        p.stdin.write(self.line("a"))
        p.stdin.flush()
        p.stdout.readline()
        self.assertEqual(self.encodes("linked"), 1)
        d.start()
        line = self.line("b")
        host = self.digest_host(e, line)

        def fetched():
            before = self.encodes("linked")
            p.stdin.write(line)
            p.stdin.flush()
            self.assertEqual(re.findall(r" tokens (.*)", p.stdout.readline()),
                             want)
            return self.encodes("linked") == before
        want = self.unsplit(line)[0]
        eventually(fetched, "the daemon is used again")
        said = p.communicate(timeout=LIMIT)[1]
        self.assertIn("langd is away", said)
        self.assertIn("mmx: 14 rows of ", said)
        self.end(host)
        e.stop()

    def test_langd_starts_again_under_rows_in_place(self):
        """Another slot connects to the new run while the rows are read."""
        e, d = self.pair_of(encoded={"pools": [{
            "name": "vit", "blocks": 64, "block_rows": 4, "layout": fields(),
            # otherwise its map might get the old map's address
            "lend": "no"}]})
        line, pipe = self.line(), os.path.join(self.dir, "beside")
        os.mkfifo(pipe)
        host = self.digest_host(e, line)
        p = self.program("linked", self.model_path, self.model_path, "5",
                         str(STEPS), self.dir + "/logits", BATCHED="1",
                         BESIDE=pipe, MMX_LANGD_SOCKET=d.socket,
                         MMX_ENCODER="enc0", MMX_MODEL="tiny")
        p.stdin.write(line)
        p.stdin.flush()

        def connected():
            slots.write("x")
            slots.flush()
            self.assertEqual(p.stdout.readline(), "beside\n")
            return d.show("engines")
        with open(pipe, "w", encoding="ascii") as slots:
            d.kill()
            d.start()
            eventually(connected, "the program has found the new run")
            connected()
        want = self.unsplit(line)[0]
        self.assertEqual(re.findall(r" tokens (.*)", p.stdout.readline()),
                         want)
        self.encoded_line(host, line)  # the encoder keeps its rows
        got, said = p.communicate(line, timeout=LIMIT)
        self.assertEqual(re.findall(r" tokens (.*)", got), want, said)
        self.assertIn("rows of langd's last run are in use", said)
        self.assertEqual(said.count(" in place"), 2, said)
        host.kill()  # the host may not have heard of the first delivery
        host.communicate()
        e.stop()

    def test_the_same_picture_waits_for_its_last_delivery(self):
        e, d = self.pair_of()
        host = self.encode_host(e, "--digest", "tiny")
        lines = [self.line(), self.line()]
        self.encoded_line(host, lines[0])
        host.stdin.write(lines[1])
        host.stdin.flush()
        for line in lines:
            got, said = self.ask(d, line)
            self.assertEqual((got, self.own), (self.unsplit(line)[0], 0), said)
        self.end(host)
        e.stop()

    def test_a_picture_is_announced_before_it_is_printed(self):
        """Otherwise kept rows of the picture's last room would answer the
        request, and the new room would stay undelivered."""
        e, d = self.pair_of()
        host = self.encode_host(e, "--digest", "tiny")
        for line in (self.line(), self.line()):
            with e.stopped():
                host.stdin.write(line)
                host.stdin.flush()
                self.assertFalse(select.select([host.stdout], [], [], 0.3)[0])
            self.assertIn("room:", host.stdout.readline())
            self.assertEqual(self.ask(d, line)[0], self.unsplit(line)[0])
            self.assertEqual(self.own, 0)
        self.end(host)
        e.stop()

    def test_the_same_picture_is_encoded_once(self):
        e, d = self.pair_of()
        host = self.encode_host(e, "--digest", "tiny")
        for _ in range(3):
            line = self.line()
            self.encoded_line(host, line)
            got, said = self.ask(d, line)
            self.assertEqual(got, self.unsplit(line)[0], said)
            self.assertEqual(self.own, 0, said)
        self.end(host)
        self.assertEqual(self.encodes("mmx-llama-encode"), 1)
        e.stop()
