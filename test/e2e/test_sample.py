"""The sample host in C (test/sample) between real daemons: it walks a prompt
as a language-only llama.cpp would. Its stub model checks every value, position
and sequence id that it is given."""

import json
import os
import subprocess

from engine import LIMIT
from pair import BUILD, Case

import mmx
import numpy as np

SAMPLE = os.path.join(BUILD, "test/sample/consumer")
FIELDS = "embedding:bf16:48"


def values(room, rows, elements):
    """Returns what value_of() in test/sample/model.c does; 0..255, exact in
    bf16."""
    u32 = np.uint32
    row = np.arange(rows, dtype=u32)[:, None]
    col = np.arange(elements, dtype=u32)[None, :]
    with np.errstate(over="ignore"):
        h = u32(room) * u32(0x9E3779B1) + row * u32(0x85EBCA77) \
            + col * u32(0xC2B2AE3D)
        h ^= h >> u32(15)
        h *= u32(0x2C1B3C6D)
        h ^= h >> u32(12)
    return (h & u32(255)).astype(np.float32)


class Sample(Case):
    def host(self, langd, *words):
        return subprocess.Popen(
            [SAMPLE, "--socket", langd.socket, *words], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def result(self, host, code=0):
        out, said = host.communicate(timeout=LIMIT)
        self.assertEqual(host.returncode, code, said)
        return json.loads(out) if out else said

    def encode(self, enc, room, nx, ny, nt=1, step=100, **words):
        """Encodes a picture, with its size in aux, row by row as an encoder
        does."""
        rows = nx * ny * nt
        says = mmx.aux.split(mmx.aux.pack(
            grid=[(nt, 2 * ny, 2 * nx)], merge=2, **words))
        total = rows + says.rows(enc.pool)
        source = enc.conn.announce(room, enc.pool, total, total, aux=says.aux)
        enc.rooms[room] = source
        enc.granted(room)
        bits = mmx.bf16(values(room, rows, 48))
        for a in range(0, rows, step):
            b = min(a + step, rows)
            source["embedding"][a:b] = bits[a:b]
            source.commit(a, b, final=b == total)
        if total > rows:
            says.write(source, rows)
            source.commit(rows, total, final=True)

    def finish(self, enc, *rooms):
        for room in rooms:
            self.assertEqual(enc.done(room), [1, 0])
            enc.release(room)

    def test_a_prompt_with_two_pictures(self):
        e, d = self.pair(fields=FIELDS)
        enc = self.world.engine(e)
        host = self.host(d, "--batch", "512", "--n-seq-max", "1", "text:17",
                         "image:1", "text:700", "image:2", "text:5")
        self.encode(enc, 1, 61, 79)  # 4,819 rows, as in seed 004
        self.encode(enc, 2, 10, 20, 3)
        got = self.result(host)
        self.assertEqual(got, {
            "positions": 17 + 4819 + 700 + 600 + 5, "rows": 5419,
            "decodes": got["decodes"], "n_past": 17 + 79 + 700 + 20 + 5,
            "seq_id": 0})
        self.assertGreaterEqual(got["decodes"], 1 + 10 + 2 + 2 + 1)
        self.finish(enc, 1, 2)

    def test_a_picture_larger_than_the_pool_passes_through(self):
        e, d = self.pair(fields=FIELDS, encoded={"blocks": 40},
                         langd={"blocks": 8, "default_blocks": 2},
                         block_rows=128)
        enc = self.world.engine(e)
        host = self.host(d, "--batch", "300", "image:1", "text:1")
        self.encode(enc, 1, 64, 64, step=500)  # 4,096 rows, 1,024 fit
        got = self.result(host)
        self.assertEqual((got["rows"], got["n_past"]), (4096, 65))
        self.finish(enc, 1)

    def test_metadata_in_rows_behind_the_pictures(self):
        e, d = self.pair(fields=FIELDS, encoded={"blocks": 128},
                         langd={"blocks": 16, "default_blocks": 2},
                         block_rows=128)
        enc = self.world.engine(e)
        host = self.host(d, "--batch", "300", "image:1", "whole:2", "text:1")
        self.encode(enc, 1, 32, 64, step=500, times=range(12800))
        self.encode(enc, 2, 16, 16, times=range(5000))
        got = self.result(host)
        self.assertEqual((got["rows"], got["n_past"]), (2304, 64 + 16 + 1))
        self.finish(enc, 1, 2)

    def test_a_whole_picture_in_one_decode(self):
        e, d = self.pair(fields=FIELDS)
        enc = self.world.engine(e)
        host = self.host(d, "--batch", "256", "text:3", "whole:1", "text:2")
        self.encode(enc, 1, 16, 16)
        got = self.result(host)
        self.assertEqual((got["decodes"], got["rows"], got["n_past"]),
                         (3, 256, 3 + 16 + 2))
        self.finish(enc, 1)

    def test_a_whole_picture_larger_than_a_batch_is_refused(self):
        e, d = self.pair(fields=FIELDS)
        enc = self.world.engine(e)
        host = self.host(d, "--batch", "255", "whole:1")
        self.encode(enc, 1, 16, 16)
        self.assertIn("raise --batch", self.result(host, code=1))
        enc.conn.wait(lambda: enc.rooms[1].ended, LIMIT)
        enc.release(1)

    def test_another_room_is_noticed(self):
        # The sample must be able to fail, or it proves nothing.
        e, d = self.pair(fields=FIELDS)
        enc = self.world.engine(e)
        host = self.host(d, "image:1")
        rows = mmx.bf16(values(1, 64, 48))
        source = enc.conn.announce(1, enc.pool, 64, 64,
                                   aux=mmx.aux.pack(grid=[(1, 8, 8)]))
        enc.rooms[1] = source
        enc.granted(1)
        rows[63, 47] ^= 1
        source["embedding"][0:64] = rows
        source.commit(0, 64, final=True)
        self.assertIn("not the picture's", self.result(host, code=1))
        enc.conn.wait(lambda: source.ended, LIMIT)
        enc.release(1)
