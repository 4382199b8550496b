"""Tests a connection of the Python package to a daemon that the test plays.
That daemon says what a real one says only in rare moments."""

import asyncio
import fcntl
import os
import select
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "lib/client/python"))
sys.path.append(os.path.join(ROOT, "test/e2e"))

import mmx  # noqa: E402
from mmx.client import c  # noqa: E402
import wire  # noqa: E402

CELLS, LIMIT, BUSY = 8, 60, mmx.errors.Busy.number
POOL = dict(name="vit", block_rows=4, blocks=2, bytes=64, memory="host",
            layout="a:u8:8", fields=struct.pack("<QI", 0, 8))


class Daemon:
    def __init__(self, path, role):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.setblocking(False)
        self.listener.bind(path)
        self.listener.listen()
        self.run, self.peer, self.role = 0, None, mmx.wire.ROLES[role]

    def memory(self, size, sealed=True):
        fd = os.memfd_create("link", os.MFD_ALLOW_SEALING)
        os.truncate(fd, size)
        if sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS,
                        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd

    def say(self, message, seq=0, fd=-1, /, **values):
        packet = message.encode(seq, **values)
        if fd < 0:
            self.peer.send(packet)
            return
        socket.send_fds(self.peer, [packet], [fd])
        os.close(fd)

    def hear(self, message):
        """Returns the engine's next frame, which must be this message."""
        frame, = wire.frames(self.peer.recv(wire.PACKET_MAX))
        assert frame.message is message, frame
        return frame

    def reached(self):
        """Takes a connection if there is one; True if it did."""
        try:
            self.peer, _ = self.listener.accept()
        except BlockingIOError:
            return False
        self.peer.settimeout(LIMIT)
        return True

    def welcome(self, cells):
        self.run += 1
        self.say(wire.WELCOME, self.hear(wire.HELLO).seq, cells,
                 version=1, epoch=self.run, cells=CELLS, role=self.role)

    def pool(self, sealed=True, **how):
        seq = self.hear(wire.POOL).seq
        self.say(wire.POOL_INFO, seq, self.memory(64, sealed),
                 **{**POOL, **how})

    def heard(self):
        """Returns the kinds of the frames in the engine's next packet; none:
        there is no packet."""
        if not select.select([self.peer], [], [], 0)[0]:
            return []
        packet = self.peer.recv(wire.PACKET_MAX)
        return [frame.message for frame in wire.frames(packet)]

    def is_left(self):
        """True if the engine has closed the connection."""
        return not self.peer.recv(1, socket.MSG_DONTWAIT)

    def leave(self):
        if self.peer:
            self.peer.close()

    def close(self):
        self.leave()
        self.listener.close()


class LinkCase(unittest.TestCase):
    ROLE = "encoded"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "s")
        self.daemon = Daemon(path, self.ROLE)
        self.addCleanup(self.daemon.close)
        self.conn = mmx.connect(self.ROLE, path, timeout=0)
        self.addCleanup(self.conn.close, 0)

    def until(self, condition):
        """Returns the events that come until condition() is true."""
        end, events = time.monotonic() + LIMIT, []
        while not condition():
            self.assertLess(time.monotonic(), end)
            mmx.wait_any([self.conn], 0.1)
            events += self.conn.step()
        return events

    def welcome(self, cells=None):
        """Ends the daemon, if it runs, and has another run answer HELLO.
        cells: the descriptor of other cells."""
        self.daemon.leave()
        self.until(self.daemon.reached)
        self.daemon.welcome(self.daemon.memory(8 * CELLS) if cells is None
                            else cells)

    def up(self):
        self.welcome()
        self.until(lambda: self.conn.connected)

    def up_again(self):
        """The daemon ends; its next run is asked for the pool again."""
        self.welcome()
        self.until(lambda: self.conn._following)
        self.daemon.pool()
        self.until(lambda: self.conn.connected)

    def mapped(self):
        """Returns the pool of this run."""
        reply = self.conn.ask_pool("vit")
        self.daemon.pool()
        self.until(lambda: reply.done)
        return self.conn._map("vit", reply)


class Begins(LinkCase):
    def test_a_welcome_without_good_cells_is_asked_for_again(self):
        """The kernel drops a descriptor if the process has no free number for
        it; memory that can shrink would end the engine by a signal."""
        for cells in (-1, self.daemon.memory(8 * CELLS, sealed=False),
                      self.daemon.memory(8 * CELLS - 1)):
            self.welcome(cells)
            self.until(lambda: not self.conn.step() and self.left())
            self.assertIsNone(self.conn.refused)
        self.up()

    def left(self):
        try:
            return self.daemon.is_left()
        except BlockingIOError:
            return False

    def test_the_end_of_a_refused_hello_is_an_answer(self):
        """The daemon is not silent."""
        for refuse in (self.says_busy, self.daemon.leave, self.has_no_cells):
            self.until(self.daemon.reached)
            asked = self.conn._sign_of_life()
            self.assertFalse(asked.done)
            refuse()
            self.until(lambda asked=asked: asked.done)
            self.daemon.leave()
            # the next HELLO is not sent yet
            self.assertTrue(self.conn._sign_of_life().done)
        self.assertEqual(self.conn.not_taken.text, "300 connections")
        self.assertIsNone(self.conn.refused)
        self.until(self.daemon.reached)
        self.assertFalse(self.conn._sign_of_life().done)

    def says_busy(self):
        self.daemon.say(wire.ANSWER, err=mmx.errors.Busy.number,
                        text="300 connections")

    def has_no_cells(self):
        self.daemon.welcome(-1)

    def test_nothing_is_opened_before_the_link_is_up(self):
        self.assertRaises(mmx.errors.DaemonLost, self.conn.space, "s", 4)
        self.assertRaises(mmx.errors.NotReady, self.conn.attach, 1)

    def test_a_name_that_is_no_text_leaves_no_question_open(self):
        self.up()
        reply = self.conn.ask_pool("vit")
        self.daemon.pool(name=b"\xff", memory=b"\xff")
        self.until(lambda: reply.done)
        self.assertEqual(reply.values["name"], "\ufffd")

    def test_a_pool_whose_size_can_change_is_refused(self):
        self.up()
        reply = self.conn.ask_pool("vit")
        self.daemon.pool(sealed=False)
        self.until(lambda: reply.done)
        self.assertIsInstance(reply.error, mmx.errors.Malformed)

    def test_an_answer_of_another_kind_is_none(self):
        self.up()
        reply = self.conn.ask_pool("vit")
        self.daemon.say(wire.ANSWER, self.daemon.hear(wire.POOL).seq)
        self.until(lambda: reply.done)
        self.assertIsInstance(reply.error, mmx.errors.Internal)

    def test_a_pool_that_cannot_be_mapped_anew_is_left_out(self):
        self.up()
        self.mapped()
        self.welcome()
        self.until(lambda: self.conn._following)
        self.daemon.pool(share="none", memory="cuda:0")
        with self.assertLogs("mmx", "WARNING") as said:
            self.until(lambda: self.conn.connected)
        self.assertIn("pool vit: ", said.output[0])
        self.assertEqual(self.mapped().epoch, 2)


class Tickets(LinkCase):
    def test_an_ask_that_is_refused_here_spoils_no_other(self):
        self.up()
        ended = self.conn.announce(7, self.mapped(), 4)
        ended.release()
        self.daemon.hear(wire.ANNOUNCE)
        self.daemon.hear(wire.RELEASE)
        spaces = []
        asks = threading.Thread(target=lambda: spaces.append(
            self.conn.space("s", 4)))
        asks.start()
        self.daemon.say(wire.ANSWER, self.daemon.hear(wire.SPACE).seq, a=0)
        asks.join(LIMIT)
        space, = spaces
        self.assertRaises(ValueError, space.ask, "r", wait=2**32)
        ticket = space.ask("r")
        self.daemon.say(wire.ANSWER, self.daemon.hear(wire.TICKET).seq,
                        a=2**32 - 1)  # it is in the queue
        self.daemon.say(wire.TICKET_EVENT, state=1, seq=3, request="r")
        self.until(lambda: not ticket.pending)
        self.assertIs(space.ask("r", room=ended), ticket)
        self.assertEqual((ticket.seq, ticket.error), (3, None))
        other = space.ask("other", room=ended)
        self.assertIsInstance(other.error, mmx.errors.Stale)
        for wrong in ("r" * 64, "r\0"):
            self.assertRaises(ValueError, space.query, wrong)
            self.assertRaises(ValueError, space.release, wrong, 1)


class Rooms(LinkCase):
    def setUp(self):
        super().setUp()
        self.up()
        self.pool = self.mapped()

    def test_each_room_that_ends_with_the_link_is_said_to_fail_once(self):
        sources = [self.conn.announce(n, self.pool, 4, 4) for n in (1, 2)]
        # The daemon does not answer the second one.
        self.daemon.say(wire.ANSWER, self.daemon.hear(wire.ANNOUNCE).seq)
        self.until(lambda: sources[0].opened.done)
        self.daemon.leave()
        events = self.until(lambda: not self.conn.connected)
        self.assertCountEqual([e.room for e in events
                               if e.what & mmx.FAILED], sources)

    def test_an_exception_in_a_step_loses_no_other_event(self):
        sources = [self.conn.announce(n, self.pool, 4, 4) for n in (1, 2)]
        for source in sources:
            self.daemon.hear(wire.ANNOUNCE)
            self.daemon.say(wire.EVENT, cell=source.cell, tag=source.tag,
                            what=mmx.GRANTED, rows=4, total=4,
                            runs=struct.pack("<2I", 0, 1))
        with mock.patch.object(sources[0], "_event",
                               side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.conn.step)
        self.conn.step()
        self.assertEqual(sources[1].may_write, 4)

    def test_what_is_refused_here_changes_nothing(self):
        source = self.conn.announce(7, self.pool, 4, 4)
        self.daemon.hear(wire.ANNOUNCE)
        refused = source.release(no_readers=True)  # it is for langd
        self.assertIsInstance(refused.error, mmx.errors.Malformed)
        self.assertEqual(source.released, 0)
        source.release()
        self.daemon.hear(wire.RELEASE)
        self.assertEqual(source.released, mmx.wire.ALL)

    def test_a_release_after_the_link_is_none(self):
        source = self.conn.announce(7, self.pool, 4, 4)
        self.daemon.leave()
        self.until(lambda: not self.conn.connected)
        self.assertIsInstance(source.release().error, mmx.errors.DaemonLost)
        self.assertEqual(source.released, mmx.wire.ALL)

    def test_a_reason_without_a_text_is_the_daemon_s(self):
        source = self.conn.announce(7, self.pool, 4, 4)
        self.daemon.say(wire.ANSWER, self.daemon.hear(wire.ANNOUNCE).seq,
                        err=mmx.errors.NotReady.number)
        self.until(lambda: source.opened.done)
        self.assertIsInstance(source.error, mmx.errors.NotReady)
        self.assertEqual(source.error.text, "")

    def test_what_has_no_place_is_sent_later_in_its_order(self):
        source = self.conn.announce(7, self.pool, 4, 4)
        self.daemon.hear(wire.ANNOUNCE)
        results, commit = iter((-BUSY, -BUSY, -BUSY, 0)), c.commit
        with mock.patch.object(
                c, "commit", lambda *how: next(results) or commit(*how)):
            committed, released = source.commit(0, 4), source.release()
            self.assertRaises(mmx.errors.Busy, self.conn.announce, 8,
                              self.pool, 4)
        self.conn.step()
        self.assertFalse(committed.done or released.done)
        self.assertEqual(self.daemon.heard(), [])
        self.conn.step()
        self.daemon.hear(wire.COMMIT)
        self.daemon.say(wire.ANSWER, self.daemon.hear(wire.RELEASE).seq)
        self.until(lambda: released.done)

    def test_what_waits_for_a_daemon_is_bounded(self):
        source = self.conn.announce(7, self.pool, 4, 4)
        with mock.patch.object(c, "commit", lambda *how: -BUSY):
            replies = [source.commit(0, 4) for _ in range(1025)]
        self.assertIsInstance(replies[-1].error, mmx.errors.Busy)
        self.assertFalse(replies[-2].done)

    def test_a_batch_is_announced_whole_or_not_at_all(self):
        for wrong in (mmx.Item(0, 4), mmx.Item(2, 0)):
            self.assertRaises(ValueError, self.conn.announce_batch, self.pool,
                              [mmx.Item(1, 4), wrong])
        self.assertEqual(self.daemon.heard(), [])
        results, announce = iter((0, -BUSY)), c.announce
        with mock.patch.object(
                c, "announce", lambda *how: next(results) or announce(*how)):
            self.assertRaises(
                mmx.errors.Busy, self.conn.announce_batch, self.pool,
                [mmx.Item(1, 4), mmx.Item(2, 4)])
        self.assertEqual(self.daemon.heard(), [wire.ANNOUNCE, wire.RELEASE])
        self.assertEqual(self.conn._rooms, {})

    def test_runs_beyond_the_pool_are_none(self):
        """Only this check bounds runs on a GPU, where no map ends."""
        for runs in ((2, 1), (0, 3), (0, 1, 2**32 - 1, 2**32 - 1)):
            source = self.conn.announce(7, self.pool, 4, 4)
            self.daemon.hear(wire.ANNOUNCE)
            self.daemon.say(wire.EVENT, cell=source.cell, tag=source.tag,
                            what=mmx.GRANTED, rows=4, total=4,
                            runs=struct.pack(f"<{len(runs)}I", *runs))
            with self.subTest(runs=runs):
                self.until(lambda source=source: source.may_write == 4)
                self.assertRaises(IndexError, list, source.pieces(0, 4))

    def test_fields_beyond_the_pool_are_none(self):
        for offset, row_bytes in ((8, 8), (0, 9), (2**64 - 8, 8), (0, 0)):
            with self.subTest(offset=offset, row_bytes=row_bytes):
                reply = self.conn.ask_pool("vit")
                self.daemon.pool(fields=struct.pack("<QI", offset, row_bytes))
                self.until(lambda reply=reply: reply.done)
                self.assertIsInstance(reply.error, mmx.errors.Malformed)


class Lent(LinkCase):
    ROLE = "langd"

    def test_an_array_that_ends_within_a_step_is_released_by_it(self):
        """The C library's step silences the bell."""
        self.up()
        room = self.conn.request(7, self.mapped(), "enc0")
        self.daemon.hear(wire.REQUEST)
        shown, step = [room.view("a", 0, 0, release=True)], c.step

        def ended(*how):
            shown.clear()
            return step(*how)

        with mock.patch.object(c, "step", ended):
            self.conn.step()
        self.assertEqual(self.daemon.heard(), [wire.RELEASE])


class Ends(LinkCase):
    """Connections that end while the daemon does not answer BYE."""

    def setUp(self):
        super().setUp()
        self.up()

    def test_a_close_that_is_cancelled_ends_the_connection(self):
        async def main():
            closing = asyncio.ensure_future(self.conn.aclose())
            await asyncio.sleep(0)
            closing.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await closing
        asyncio.run(main())
        self.assertTrue(self.conn.closed)

    def test_a_loop_forgets_the_descriptor_before_it_is_closed(self):
        """Else a forked child's copy of it would wake the loop for ever."""
        end, had = c.end, []

        def ends(it):
            had.append(asyncio.get_running_loop().remove_reader(self.conn.fd))
            return end(it)

        async def main():
            aiter(self.conn)
            with mock.patch.object(c, "end", ends):
                await self.conn.aclose(0)
        asyncio.run(main())
        self.assertEqual(had, [False])

    def test_a_forked_child_closes_its_copy(self):
        source = self.conn.announce(7, self.mapped(), 4, 4)
        child = os.fork()
        if child == 0:  # no test framework from here on
            wrong = 2
            try:
                self.conn.close()
                with self.assertRaises(OSError):
                    os.fstat(self.conn.fd)
                with self.assertRaises(mmx.ForkedError):
                    source.state
                wrong = 0
            finally:
                os._exit(wrong)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(source.state, mmx.State.BOOTSTRAPPING)

    def test_a_close_that_is_interrupted_ends_the_connection(self):
        with mock.patch.object(select, "poll", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.conn.close)
        self.assertTrue(self.conn.closed)


if __name__ == "__main__":
    unittest.main()
