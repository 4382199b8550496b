"""The Python package on real daemons: asyncio, forks, views."""

import asyncio
import contextlib
import gc
import os
import select
import threading

import numpy as np
from engine import LIMIT
from pair import Case, eventually

import mmx


def descriptors():
    """Returns this process's: (number, what it is)."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


class Async(Case):
    async def encode(self, conn, room, rows):
        pool = await conn.apool("vit")
        source = await conn.announce(room, pool, rows, rows).granted(10)
        source["embedding"][0:rows] = room % 251
        source.commit(0, rows, final=True)
        await source.done(10)
        source.release()

    async def fetch(self, conn, room, rows):
        got = await conn.request(room, await conn.apool("vit"),
                                 "enc0").ready(10)
        with got:
            values = got.gather("embedding")
            self.assertEqual(values.shape, (rows, 64))
            self.assertTrue((values == room % 251).all())

    def test_many_rooms_on_one_loop(self):
        e, d = self.pair()

        async def main():
            enc = await mmx.aconnect("encoded", e.socket, name="enc")
            lm = await mmx.aconnect("langd", d.socket, name="lm")
            async with enc, lm:
                await asyncio.gather(*(
                    work(conn, room, 100 + room) for room in range(1, 101)
                    for work, conn in ((self.encode, enc), (self.fetch, lm))))
        asyncio.run(main())

    def test_events(self):
        e, d = self.pair()
        heard = {}

        async def main():
            async with await mmx.aconnect("encoded", e.socket) as enc:
                source = enc.announce(1, await enc.apool(), 100, 100)
                async for event in enc:
                    heard[event.link or event.room] = event.what
                    if event.what & mmx.GRANTED:
                        source.commit(0, 100, final=True)
                        break
                lm = self.world.engine(d)
                lm.request(1, "enc0")
                async for event in enc:
                    heard[event.link or event.room] = event.what
                    if event.what & mmx.DONE:
                        break
                source.release()
                lm.release(1)
            async for event in enc:
                heard["late"] = event  # none after close: the loop ends
            return source
        source = asyncio.run(main())
        self.assertIn(mmx.Link.UP, heard)
        self.assertTrue(heard[source] & mmx.DONE)

    def test_cancelling_changes_nothing(self):
        e, d = self.pair()
        enc = self.world.engine(e)

        async def main():
            async with await mmx.aconnect("langd", d.socket) as lm:
                room = lm.request(1, await lm.apool(), "enc0")
                task = asyncio.ensure_future(room.ready())
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                with self.assertRaises(TimeoutError):
                    await room.ready(0.01)
                await room.conn.until(room.opened, 10)
                enc.encode(1, 300)
                await room.ready(10)
                self.assertEqual(room.total, 300)
                room.release()
        asyncio.run(main())
        enc.ends(1)

    def test_failures_are_raised(self):
        _, d = self.pair()

        async def main():
            async with await mmx.aconnect("langd", d.socket) as lm:
                room = lm.request(1, await lm.apool(), "nobody")
                with self.assertRaises(mmx.errors.NotReady):
                    await room.ready(10)
            with self.assertRaisesRegex(mmx.errors.DaemonLost,
                                        "No such file or directory"):
                await mmx.aconnect("langd", d.socket + "x", timeout=0.05)
        asyncio.run(main())

    def test_the_daemon_is_lost_and_comes_back(self):
        e, d = self.pair()
        enc = self.world.engine(e)

        async def main():
            async with await mmx.aconnect("langd", d.socket) as lm:
                room = lm.request(1, await lm.apool(), "enc0")
                fd, waiting = lm.fd, asyncio.ensure_future(room.ready(20))
                await lm.until(room.opened, 10)
                d.kill()
                with self.assertRaises(mmx.errors.DaemonLost):
                    await waiting
                d.start()
                await lm.until(lambda: lm.connected, 10)
                self.assertEqual(lm.fd, fd)
                again = lm.request(2, await lm.apool(), "enc0")
                enc.encode(2, 300)
                await again.ready(10)
                again.release()
        asyncio.run(main())
        enc.ends(2)

    def test_a_run_that_ended_is_forgotten_with_its_rooms(self):
        _, d = self.pair()

        def maps():
            gc.collect()
            with open("/proc/self/maps") as f:
                return sum("memfd:mmx-vit" in line for line in f)

        async def main():
            async with await mmx.aconnect("langd", d.socket,
                                           lend=False) as lm:
                room = lm.request(1, await lm.apool(), "enc0")
                await lm.until(room.opened, 10)
                before = maps()
                d.kill()
                with self.assertRaises(mmx.errors.DaemonLost):
                    await room.ready(20)
                room.release()
                del room
                d.start()
                await lm.until(lambda: lm.connected, 10)
                self.assertEqual(maps(), before)
        asyncio.run(main())

    def test_a_pool_of_several_callers_is_mapped_once(self):
        """One of the callers may have pinned the map."""
        e, _ = self.pair()

        async def main():
            async with await mmx.aconnect("encoded", e.socket) as enc:
                async def mapped():
                    return (await enc.apool())._map
                return await asyncio.gather(mapped(), mapped(), mapped())
        self.assertEqual(len(set(map(id, asyncio.run(main())))), 1)

    def test_one_loop_for_a_connection(self):
        e, _ = self.pair()
        conn = mmx.connect("encoded", e.socket)

        async def use():
            return await conn.apool()
        asyncio.run(use())
        asyncio.run(use())  # after the end of the first loop

        async def other():
            with self.assertRaises(RuntimeError):
                await conn.until(lambda: False, 1)

        async def both():
            await conn.apool("vit")
            t = threading.Thread(target=lambda: asyncio.run(other()))
            t.start()
            t.join()
        asyncio.run(both())
        conn.close()



class Ahead(Case):
    """The room's cell says that it has failed before its event is there."""

    def setUp(self):
        super().setUp()
        e, d = self.pair()
        self.enc, self.lm = self.engines(e, d)
        self.lm.request(1, "enc0")
        self.enc.opens(1, 10, 10)
        self.source, self.room = self.enc.rooms[1], self.lm.rooms[1]
        self.lm.conn.wait(lambda: self.room.total == 10, LIMIT)
        cells = list(self.enc.conn.cells)
        cells[self.source.cell] = (self.source.tag << 10
                                   | mmx.errors.Aborted.number << 4)
        self.source._cells = cells

    def tearDown(self):
        self.source._cells = None
        self.source.abort("aborted", "the test is done")
        for engine, shown in ((self.enc, self.source), (self.lm, self.room)):
            engine.conn.wait(shown.release(), LIMIT)
        super().tearDown()

    def test_the_text_is_waited_for(self):
        abort = threading.Timer(0.2, lambda: self.room.abort("aborted", "why"))
        abort.start()
        with self.assertRaisesRegex(mmx.errors.Aborted, "why"):
            self.source.wait_done(LIMIT)
        abort.join()

    def test_without_an_event_the_cell_is_believed(self):
        with self.assertRaises(mmx.errors.Aborted) as got:
            self.source.wait_done(LIMIT)
        self.assertEqual(got.exception.text, "")

    def test_so_do_awaits(self):
        async def main():
            with self.assertRaises(mmx.errors.Aborted) as got:
                await self.source.done(LIMIT)
            self.assertEqual(got.exception.text, "")
        asyncio.run(main())

class Process(Case):
    def test_a_fork_is_noticed(self):
        e, d, enc, lm = self.at_work()
        lm.request(1, "enc0")
        pid = os.fork()
        if pid == 0:  # the child: no test framework from here on
            wrong = 0
            for use in (lambda: lm.conn.request(2, lm.pool, "enc0"),
                        lm.conn.step, lambda: lm.rooms[1].wait_ready(1),
                        lambda: lm.rooms[1].release()):
                try:
                    use()
                    wrong += 1
                except mmx.ForkedError:
                    pass
            lm.conn.close()
            os._exit(wrong)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        enc.encode(1, 300)  # the parent's connection has not noticed
        self.comes(enc, lm, 1, 300)


class Views(Case):
    def test_release_with_a_view_raises(self):
        e, d, enc, lm = self.at_work(langd={"pools": [
            {"name": "vit", "blocks": 16, "layout": "embedding:u8:64",
             "engine_access": "write"}]})
        lm.request(1, "enc0")
        enc.encode(1, 300)
        lm.ready(1)
        room = lm.rooms[1]
        holders = [room.view("embedding")[3:9],
                   memoryview(room.view("embedding")),
                   np.from_dlpack(room.tensor("embedding")),
                   room.tensor("embedding").__dlpack__(max_version=(1, 0))]
        while holders:
            with self.assertRaises(mmx.ViewInUse):
                room.release()
            holders.pop()
        self.over(enc, lm)

    def test_a_populated_pool_takes_no_faults(self):
        e, d = self.pair()
        for x in (e, d):
            with mmx.connect(x.role, x.socket, name="other") as conn:
                pool = conn.pool("vit")
                pool.populate()
                size = pool.span()[1]
                with open("/proc/self/smaps") as f:
                    parts = f.read().split("VmFlags")
                begin = f"{pool.span()[0]:x}-"
                rss = next(int(line.split()[1]) for part in parts
                           if f"\n{begin}" in part
                           for line in part.splitlines()
                           if line.startswith("Rss:"))
                self.assertGreaterEqual(rss * 1024, size)


class Dropped(Case):
    """Connections that are dropped without close()."""

    def ready(self):
        """Returns a connection, a READY room of it, and langd."""
        e, d = self.pair()
        enc = self.world.engine(e)
        gc.collect()  # objects that earlier tests have left
        self.fds = descriptors()
        conn = mmx.connect("langd", d.socket)
        room = conn.request(1, conn.pool("vit"), "enc0")
        enc.encode(1, 300)
        room.wait_ready(LIMIT)
        enc.ends(1)
        self.assertNotEqual(*d.free())
        return conn, room, d

    def test_its_rows_are_free_and_its_descriptors_closed(self):
        conn, room, d = self.ready()
        conn.request(2, conn.pool(), "enc0", deadline=60)  # a second timer
        self.assertTrue(descriptors() - self.fds)
        del conn, room
        gc.collect()
        d.all_free()
        # Descriptors of earlier tests may close meanwhile, on other threads.
        eventually(lambda: not descriptors() - self.fds, "closed")

    def test_not_while_an_array_shows_its_rows(self):
        conn, room, d = self.ready()
        view = room.view("embedding")[7:9]
        was = view.copy()
        del conn, room
        gc.collect()
        d.show("status")
        self.assertEqual(d.free()[0], d.free()[1] - 3)
        np.testing.assert_array_equal(view, was)
        del view
        gc.collect()
        d.all_free()

    def test_not_by_a_forked_child(self):
        conn, room, d = self.ready()
        child = os.fork()
        if child == 0:
            del conn, room
            gc.collect()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(d.free()[0], d.free()[1] - 3)
        self.good_rows(room)
        conn.close()
        del conn, room
        gc.collect()

    def good_rows(self, room):
        self.assertEqual(room.gather("embedding").shape, (300, 64))
        room.conn.query("status")  # the parent's connection still works


class Lent(Case):
    """Rooms that are released when the last array over their rows goes."""

    def lend(self, how, dtype="f32", **more):
        e, d, enc, lm = self.at_work(fields=f"embedding:{dtype}:16,mask:u8:4")
        lm.request(1, "enc0", **more)
        enc.encode(1, 300)
        lm.ready(1)
        rows = how(lm.rooms[1])
        enc.ends(1)
        for _ in range(3):
            # several steps: the blocks stay as long as the arrays
            lm.conn.query("status")
        self.assertEqual(d.free()[0], d.free()[1] - 3)
        eventually(lambda: d.show("pools")[0]["oldest_ready_ms"] > 0,
                   "the report says since when they wait")
        return d, lm.conn, rows

    def back(self, d, conn):
        conn.wait(lambda: len(set(d.free())) == 1, LIMIT, every=0.01)
        self.assertEqual(d.show("pools")[0]["oldest_ready_ms"], 0)

    def test_the_last_of_several_arrays(self):
        d, conn, rows = self.lend(lambda room: [
            room.view("embedding", release=True)[3:9],
            memoryview(room.view("embedding")),  # an array that keeps no room
            room.view("mask", release=True).reshape(-1)])
        while rows:
            conn.step()
            self.assertEqual(d.free()[0], d.free()[1] - 3)
            rows.pop(0)
        self.back(d, conn)

    def test_an_array_of_dlpack_in_another_thread(self):
        d, conn, rows = self.lend(lambda room: [
            room.tensor("embedding", release=True).array])
        t = threading.Thread(target=rows.clear)
        t.start()
        t.join()
        poll = select.poll()
        poll.register(conn.fd, select.POLLIN)
        # an event loop would step now
        self.assertTrue(poll.poll(1000 * LIMIT))
        self.back(d, conn)
        self.quiet(conn)

    def quiet(self, conn):
        """Waits until a loop has no reason to step the connection."""
        poll = select.poll()
        poll.register(conn.fd, select.POLLIN)

        def rests():
            conn.step()
            return not poll.poll(0)
        eventually(rests, "the descriptor is at rest")

    def test_an_array_that_goes_in_a_forked_child(self):
        d, conn, rows = self.lend(lambda room: [
            room.view("embedding", release=True)])
        child = os.fork()
        if child == 0:
            rows.clear()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.quiet(conn)
        self.assertEqual(d.free()[0], d.free()[1] - 3)
        rows.clear()
        self.back(d, conn)

    def test_an_array_that_goes_while_a_step_receives(self):
        d, conn, rows = self.lend(lambda room: [
            room.view("embedding", release=True)[1:],
            room.view("mask", release=True)])
        take = conn._take

        def interrupted():
            got = take()
            rows.clear()
            return got
        conn._take = interrupted
        rows.pop()
        eventually(lambda: conn.step() or not rows, "it has received")
        self.quiet(conn)
        self.back(d, conn)

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        d, conn, rows = self.lend(lambda room: [
            room.tensor("embedding", release=True).torch()[5:].float()[1:],
            torch.from_dlpack(room.tensor("embedding", release=True))[7:]],
            "bf16")
        rows.pop()
        rows.pop()
        self.back(d, conn)

    def test_with_leaves_what_is_lent(self):
        def some(room):
            with room:
                return [room.view("embedding", release=True)]
        d, conn, rows = self.lend(some)
        rows.clear()
        self.back(d, conn)

    def test_the_daemon_ends_meanwhile(self):
        d, conn, rows = self.lend(lambda room: [
            room.view("embedding", release=True)])
        was = rows[0].copy()
        d.kill()
        conn.wait(lambda: not conn.connected, LIMIT)
        d.start()
        conn.wait(lambda: conn.connected, LIMIT)
        np.testing.assert_array_equal(rows[0], was)
        rows.clear()
        conn.step()
        conn.step()
        self.back(d, conn)


class Follows(Case):
    """Pools after a restart of the daemon."""

    def restart(self, d, conn):
        d.kill()
        conn.wait(lambda: not conn.connected, LIMIT)
        d.start()
        conn.wait(lambda: conn.connected, LIMIT)

    def test_a_pool_follows_its_name(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        lm.request(2, "enc0")
        enc.encode(2, 300)
        lm.ready(2)
        self.restart(d, lm.conn)
        self.good(lm, 2)  # still reads the old run's rows
        self.assertEqual(lm.pool.epoch, lm.conn.epoch)
        self.deliver(enc, lm, 3, 300)  # the same Pool object
        self.good(lm, 2)
        self.restart(e, enc.conn)
        self.deliver(enc, lm, 4, 300)
        self.good(lm, 2)
        lm.release(2)

    def test_a_pool_that_is_another_now(self):
        e, d = self.pair()
        _, lm = self.engines(e, d)
        d.conf["pools"][0]["layout"] = "embedding:u8:32"
        with self.assertLogs("mmx", "WARNING"):
            self.restart(d, lm.conn)
        self.refusal("stale", lm.conn.request, 1, lm.pool, "enc0")
        self.assertEqual(lm.conn.pool("vit").layout, "embedding:u8:32")


class References(Case):
    """README's example, either side first: one side draws a reference, with
    which the other gets the room; with the id alone it does not."""

    # RULES 10.1
    def test_what_was_drawn_is_handed_on(self):
        e, d = self.pair()
        enc, lm = (x.conn for x in self.engines(e, d))
        with lm.request(None, lm.pool("vit"), "enc0") as room:
            for first in ("encode", "language"):
                said = None if first == "encode" else mmx.Reference.read(
                    str(room.reference))
                src = enc.announce(said, enc.pool("vit"), 5, 5)
                src.wait_granted(LIMIT)
                src["embedding"][0:5] = np.full((5, 64), 3, np.uint8)
                src.commit(0, 5, final=True)
                if first == "encode":
                    thief = lm.request(src.reference.room, lm.pool("vit"),
                                       "enc0", announced=True)
                    with self.assertRaises(mmx.errors.UnknownRoom):
                        thief.wait_ready(LIMIT)
                    thief.release()
                    self.refusal("not-owner", enc.wait, enc.decline(
                        src.reference.room, ""), LIMIT)
                    said = mmx.Reference.read(bytes(src.reference))
                    got = lm.request(said, lm.pool("vit"), "enc0")
                else:
                    got = room
                got.wait_ready(LIMIT)
                self.assertTrue((got.gather("embedding") == 3).all())
                got.release()
                src.wait_done(LIMIT)
                src.release()


class Program(Case):
    def test_status(self):
        import subprocess
        import sys
        from pair import ROOT
        e, d = self.pair()
        got = subprocess.run(
            [sys.executable, "-m", "mmx", "--encoded", e.socket, "--langd",
             d.socket], capture_output=True, text=True, timeout=20,
            env={**os.environ, "PYTHONPATH": ROOT + "/lib/client/python"})
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("enc0", got.stdout)
        self.assertIn("lang0", got.stdout)


