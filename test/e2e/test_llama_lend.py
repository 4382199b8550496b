"""llama.cpp's language side, between real daemons of one host, where the rows
that it reads are in the encoder's pool."""

import re

from pair import eventually
from test_llama import STEPS, Programs


class Lent(Programs):
    # RULES 6.7
    def test_a_language_host_reads_where_the_encoder_has_the_rows(self):
        """As soon as the host has mapped the encoder's pool; also rows in
        bf16."""
        for dtype in ("f32", "bf16"):
            e, d = self.pair_of(dtype, transfer={"same_host": "lend"})
            want = self.unsplit(self.line())[0]
            for mode in ("auto", "view", "plan"):
                host = self.encode_host(e)
                p = self.language_host(d, "--mode", mode)
                before = d.stats()["rooms_lent"]

                def lent():
                    p.stdin.write(self.encoded_line(host, self.line()))
                    p.stdin.flush()
                    tokens, _ = p.stdout.readline(), p.stdout.readline()
                    self.assertEqual(re.findall(r" tokens (.*)", tokens), want)
                    return d.stats()["rooms_lent"] > before
                eventually(lent, f"{dtype} of {mode} are lent")
                self.end(p)
                self.end(host)
                e.all_free()
            self.gone(e, d)

    # RULES 6.7
    def test_a_program_reads_where_the_encoder_has_the_rows(self):
        """The rows of a batch are used until the program frees it."""
        e, d = self.pair_of(transfer={"same_host": "lend"})
        for batched in (False, True):
            lines = [self.line(name) for name in ("a", "b") * 20]
            host = self.digest_host(e, lines[0])
            self.encoded_line(host, lines[1])
            before = d.stats()["rooms_lent"]
            got, said = self.ask(d, *lines, batched=batched)
            self.assertEqual(got, 20 * self.unsplit(*lines[:2])[0], said)
            self.assertEqual(self.own, 0, said)
            self.assertGreater(d.stats()["rooms_lent"], before)
            self.end(host)
        e.stop()

    # RULES 6.7
    def test_an_idle_program_holds_nothing_of_a_langd_that_has_ended(self):
        """What other readers were lent is free once they release it."""
        e, d = self.pair_of(transfer={"same_host": "lend"})
        enc, r = self.world.engine(e), self.world.engine(d)
        line = self.line()
        host = self.digest_host(e, line)
        p = self.program("linked", self.model_path, self.model_path, "5",
                         str(STEPS), self.dir + "/logits", MMX_ENCODER="enc0",
                         MMX_LANGD_SOCKET=d.socket, MMX_MODEL="tiny")

        def lent():
            p.stdin.write(line)
            p.stdin.flush()
            self.assertIn(" tokens ", p.stdout.readline())
            return d.stats()["rooms_lent"]
        eventually(lent, "the program reads in the encoder's pool")
        r.until_maps(2)
        r.request(77, "enc0", rows=12)
        enc.encode(77, 12)
        r.ready(77)
        self.assertTrue(r.lent(77))
        enc.ends(77)
        d.kill()

        def orphaned():
            r.step()
            return e.show("pools")[0]["orphaned"]
        eventually(orphaned, "blocks are orphaned")
        self.assertEqual(r.wrong(77), [])
        r.rooms.pop(77).release(force=True)
        eventually(lambda: not orphaned(), "they are free")
        p.communicate()
        self.end(host)
        e.stop()
