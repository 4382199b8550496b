"""mmxctl doctor: what it finds right and wrong, as lines and as JSON."""

import json
import os
import pwd
import shutil
import socket
import struct
import subprocess
import threading

from engine import LIMIT
from pair import BUILD, ROOT, Case, eventually, keygen
import wire

UNUSED = 61234  # a uid and gid without a user on this host


class Doctor(Case):
    program = os.path.join(BUILD, "mmxctl")

    def doctor(self, path, *more, **how):
        got = subprocess.run(
            [self.program, "--socket", path, "doctor", *more],
            capture_output=True, text=True, timeout=LIMIT, **how)
        self.assertEqual(got.stderr, "")
        return got

    def findings(self, path, **how):
        got = self.doctor(path, "--json", **how)
        rows = json.loads(got.stdout)
        self.assertTrue(all(r["daemon"] == path for r in rows))
        failed = [r for r in rows if r["result"] == "fail"]
        self.assertEqual(got.returncode, 1 if failed else 0)
        for r in rows:  # each line that is not ok has an advice
            self.assertEqual(bool(r["advice"]), r["result"] != "ok", r)
        return {r["check"]: r for r in rows}

    def test_a_pair_that_works(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        for daemon, role in ((e, "encoded"), (d, "langd")):
            with self.subTest(role=role):
                seen = self.findings(daemon.socket)
                for check in ("you", "socket", "daemon", "seen", "status",
                              "pool", "peer", "nofile"):
                    self.assertEqual(seen[check]["result"], "ok", seen[check])
                self.assertIn(role, seen["daemon"]["text"])
                self.assertIn(f"uid {os.geteuid()}", seen["seen"]["text"])
                self.assertIn("64 of 64 blocks", seen["pool"]["text"])
                self.assertIn("embedding:u8:64", seen["pool"]["text"])
                self.assertIn("is up, on this host", seen["peer"]["text"])
        self.assertIn("for writing", self.findings(e.socket)["pool"]["text"])
        self.assertIn("read-only", self.findings(d.socket)["pool"]["text"])
        # Only this host reaches a loopback address.
        self.assertEqual(self.findings(e.socket)["address"]["result"], "warn")
        text = self.doctor(d.socket).stdout.splitlines()
        self.assertRegex(text[-1], r"^\d+ ok, \d+ warn, 0 fail$")
        for line in text[:-1]:
            self.assertRegex(line, r"^(ok  |warn|fail)  [a-z]+ ")

    def test_no_daemon(self):
        path = self.world.dir + "/nobody.sock"
        seen = self.findings(path)
        self.assertEqual(seen["socket"]["result"], "fail")
        self.assertIn("start the daemon", seen["socket"]["advice"])
        open(path, "w").close()
        self.assertIn("not a socket", self.findings(path)["socket"]["advice"])

    def test_a_socket_that_nobody_serves(self):
        d = self.world.langd([])
        d.kill()
        seen = self.findings(d.socket)
        self.assertEqual(seen["socket"]["result"], "ok")
        self.assertIn("no daemon listens", seen["reach"]["text"])

    def test_an_encoder_that_is_not_there(self):
        e = self.world.encoded(start=False)
        d = self.world.langd([e])
        seen = self.findings(d.socket)
        self.assertEqual(seen["peer"]["result"], "warn")
        self.assertIn("Connection refused", seen["peer"]["text"])
        none = self.world.langd([], name="lang1")
        self.assertIn("control.allow", self.findings(
            none.socket)["peers"]["advice"])

    def test_a_langd_that_is_lost_has_no_port(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 300)
        d.kill()
        eventually(lambda: e.stats()["peers_lost"] == 1, "it is lost")
        peer = self.findings(e.socket)["peer"]
        self.assertEqual(peer["result"], "warn")
        self.assertIn("the connection is lost", peer["text"])

    def test_a_look_at_the_port_is_no_failure(self):
        e, _ = self.pair()
        port = int(e.address.rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port)).close()
        eventually(lambda: [r for r in e.show("peers") if r["name"] == "-"],
                   "it is told among the peers")
        got = e.ctl("doctor", "--json", check=False)
        self.assertEqual([r for r in json.loads(got.stdout)
                          if r["result"] == "fail"], [])

    def test_two_daemons_of_one_name(self):
        e, d, enc, lm = self.at_work()
        self.deliver(enc, lm, 1, 10)
        d2 = self.world.langd([e], name="other", start=False)
        d2.conf["name"] = d.name
        d2.start()
        lm2 = self.world.engine(d2)
        eventually(lambda: "another daemon of this name" in
                   str(d2.show("peers")), "it is refused")
        lm2.request(2, "enc0", deadline=1)
        self.assertEqual(lm2.failed(2), "timeout")
        self.assertIn("another daemon of this name", str(lm2.rooms[2].error))
        lm2.release(2)
        for daemon in (e, d2):
            with open(daemon.log) as f:
                self.assertIn("another daemon of this name is connected\n",
                              f.read())
        seen = self.findings(d2.socket)
        self.assertEqual(seen["peer"]["result"], "fail")
        self.assertIn("refuses this daemon", seen["peer"]["text"])
        d.kill()
        lm2.request(3, "enc0")
        enc.encode(3, 10)
        self.assertEqual(lm2.ready(3), 10)
        self.good(lm2, 3)
        enc.ends(3)
        lm2.release(3)
        self.assertEqual(self.findings(d2.socket)["peer"]["result"], "ok")

    def unit(self, text, name="mmx-langd.yaml", daemon="/nowhere/a.sock",
             kinds=("unit", "config")):
        """Returns the findings for a unit with this text in its
        configuration."""
        path = os.path.join(self.world.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        got = subprocess.run(
            [self.program, "--socket", daemon, "--config", path,
             "--json", "doctor"], capture_output=True, text=True,
            timeout=LIMIT, env={**os.environ, "MMX_UNITS": self.world.dir,
                                "MMX_CARDS": self.world.dir + "/cards"})
        return [r for r in json.loads(got.stdout)
                if r["check"] in kinds]

    def test_a_unit_that_hides_devices(self):
        gpu = "pools:\n  - name: a\n    memory: cuda:0\n"
        rdma = "transfer:\n  carrier: ucx\n  tls: tcp,rc_mlx5\n"
        drop_ins = os.path.join(ROOT, "systemd")
        # No unit is installed yet.
        self.assertEqual(self.unit(gpu + rdma), [])
        shutil.copy(os.path.join(drop_ins, "mmx-langd.service"),
                    self.world.dir)
        for text in ("", "transfer:\n  carrier: ucx\n  tls: tcp,sm\n",
                     "transfer:\n  carrier: tcp\n  tls: tcp\n"):
            self.assertEqual(self.unit(text), [])
        self.assertEqual(self.unit(gpu + rdma, "mmx-encoded.yaml"), [])
        for text, name, place in (
                (gpu, "mmx-gpu.conf", "mmx-.service.d"),
                (rdma, "mmx-rdma.conf", "mmx-langd.service.d")):
            with self.subTest(name=name):
                row, = self.unit(text)
                self.assertEqual(row["result"], "fail")
                self.assertIn(f"/{name} && ", row["advice"])
                place = os.path.join(self.world.dir, place)
                os.mkdir(place)
                shutil.copy(os.path.join(drop_ins, name), place)
                row, = self.unit(text)
                self.assertEqual((row["result"], row["advice"]), ("ok", ""))
        self.assertEqual([r["result"] for r in self.unit(gpu + rdma)],
                         ["ok", "ok"])
        self.assertIn("unknown key", self.unit("poools: 1\n")[0]["text"])

    def start(self, text, name, **env):
        """Returns the doctor's findings for a daemon that does not run, with
        this configuration."""
        path = os.path.join(self.world.dir, name)
        with open(path, "w") as f:
            f.write(text)
        got = subprocess.run(
            [self.program, "--socket", "/nowhere/a.sock", "--config", path,
             "--json", "doctor"], capture_output=True, text=True,
            timeout=LIMIT, env={**os.environ, "MMX_UNITS": self.world.dir,
                                **env})
        self.assertEqual(got.stderr, "")
        return [r for r in json.loads(got.stdout)
                if r["check"] in ("start", "config", "log")]

    def test_why_a_daemon_did_not_start(self):
        key = keygen(self.world.key)
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        good = (f"control:\n  keys: [{key}]\n"
                "pools:\n  - name: a\n    blocks: 8\n")
        row, = self.start(good, "mmx-langd.yaml")
        self.assertEqual((row["check"], row["result"]), ("start", "ok"), row)
        bad = good.replace("control:", "control:\n  listen: tcp://127.0.0.1:"
                           f"{taken.getsockname()[1]}") + "    numa: 1023\n"
        listen, numa = self.start(bad, "mmx-encoded.yaml")
        self.assertIn("mmx-encoded.yaml:2:11: control.listen: ",
                      listen["text"])
        self.assertIn("Address already in use", listen["text"])
        self.assertIn("mmx-encoded.yaml:7:11: pools[0].numa", numa["text"])
        for row in (listen, numa):
            self.assertEqual(row["result"], "fail")
            self.assertTrue(row["advice"])
        row, = self.start(good.replace("blocks: 8", "blocks: none"),
                          "mmx-langd.yaml")
        self.assertEqual((row["check"], row["result"]), ("config", "fail"))
        self.assertIn("pools[0].blocks: `none`", row["text"])
        if os.geteuid() == 0:  # other users are not told of keys
            os.chmod(key, 0o644)
            row, = self.start(good, "mmx-langd.yaml")
            self.assertEqual(row["result"], "fail")
            self.assertIn("fleet.key", row["text"])

    def test_what_the_unit_has_logged(self):
        key = keygen(self.world.key)
        shutil.copy(os.path.join(ROOT, "systemd", "mmx-langd.service"),
                    self.world.dir)
        fake = os.path.join(self.world.dir, "journalctl")
        with open(fake, "w") as f:
            f.write("#!/bin/sh\necho \"mmx-langd: cannot start\"\n"
                    "echo \"$*\"\n")
        os.chmod(fake, 0o755)
        rows = self.start(
            f"control:\n  keys: [{key}]\npools:\n  - name: a\n"
            "    blocks: 8\n", "mmx-langd.yaml",
            PATH=self.world.dir + ":" + os.environ["PATH"])
        self.assertEqual([(r["check"], r["result"]) for r in rows],
                         [("start", "ok"), ("log", "warn"), ("log", "warn")])
        self.assertEqual(rows[1]["text"], "mmx-langd: cannot start")
        self.assertIn("-u mmx-langd.service", rows[2]["text"])

    def test_whose_configuration_it_is(self):
        drop_ins = os.path.join(ROOT, "systemd")
        for role in ("langd", "encoded"):
            shutil.copy(os.path.join(drop_ins, f"mmx-{role}.service"),
                        self.world.dir)
        e, d = self.pair()
        gpu = "pools:\n  - name: a\n    memory: cuda:0\n"
        langd = gpu + "peers:\n  - name: a\n    address: tcp://127.0.0.1:7\n"
        encoded = gpu + "transfer:\n  pace: 1MiB\n"
        for text, name, daemon, role in (
                (gpu, "langd-hosts/mmx-encoded.yaml", None, "encoded"),
                (gpu, "encoded-hosts/mmx-langd.yaml", None, "langd"),
                (langd, "prod.yaml", None, "langd"),
                (encoded, "langd/prod.yaml", None, "encoded"),
                (gpu, "prod.yaml", d, "langd"),
                (gpu, "mmx-langd.yaml", e, "encoded")):
            with self.subTest(name=name, role=role):
                row, = self.unit(text, name, *[daemon.socket] if daemon else [])
                self.assertEqual(row["check"], "unit", row)
                self.assertIn(f"mmx-{role} ", row["text"])
        # The file's name says which daemon it is for, whatever keys it has.
        row, = self.unit(langd, "mmx-encoded.yaml")
        self.assertEqual(row["check"], "config", row)
        row, = self.unit("poools: 1\n", "prod.yaml")
        self.assertIn("unknown key", row["text"])

    def test_a_unit_that_hides_a_card(self):
        drop_ins = os.path.join(ROOT, "systemd")
        shutil.copy(os.path.join(drop_ins, "mmx-langd.service"),
                    self.world.dir)
        auto = "insecure: true\n"
        self.assertEqual(self.unit(auto), [])
        os.makedirs(self.world.dir + "/cards/mlx5_0")
        for text in ("", "insecure: true\ntransfer:\n  carrier: tcp\n",
                     "insecure: true\ntransfer:\n  tls: posix,tcp\n"):
            self.assertEqual(self.unit(text), [])
        row, = self.unit(auto)
        self.assertEqual(row["result"], "warn")
        self.assertIn("/mmx-rdma.conf && ", row["advice"])
        self.assertIn("transfer.carrier: tcp", row["advice"])
        place = os.path.join(self.world.dir, "mmx-.service.d")
        os.mkdir(place)
        shutil.copy(os.path.join(drop_ins, "mmx-rdma.conf"), place)
        row, = self.unit(auto)
        self.assertEqual((row["result"], row["advice"]), ("ok", ""))

    def test_a_pool_without_a_layout(self):
        d = self.world.langd([], fields="engine")
        seen = self.findings(d.socket)
        self.assertEqual(seen["pool"]["result"], "warn")
        self.assertIn("no layout", seen["pool"]["advice"])

    def test_a_key_that_the_user_of_the_unit_cannot_read(self):
        if os.geteuid() != 0:
            self.skipTest("only root can give a file to a group")
        self.world.langd([], start=False)
        text = f"control:\n  keys: [{self.world.key}]\n"
        self.assertEqual(self.unit(text, kinds=["key"]), [])
        with open(f"{self.world.dir}/mmx-langd.service", "w") as f:
            f.write("[Service]\nUser=nobody\n")
        row, = self.unit(text, kinds=["key"])
        self.assertEqual(row["result"], "fail")
        self.assertIn("runs as nobody", row["text"])
        subprocess.run(row["advice"], shell=True, check=True)
        row, = self.unit(text, kinds=["key"])
        self.assertEqual(row["result"], "ok")

    def test_a_key_is_judged_by_the_user_of_the_unit(self):
        """Doctor is run as root, the daemon is not."""
        if os.geteuid() != 0:
            self.skipTest("only root can give a file away")
        nobody = pwd.getpwnam("nobody")
        key = keygen(self.world.key)
        text = (f"control:\n  keys: [{key}]\n"
                "pools:\n  - name: a\n    blocks: 8\n")
        other, engines = "belongs to another user", "which engines join"
        for user, owner, group, mode, says in (
                (None, nobody.pw_uid, 0, 0o600, None),
                (None, 0, 0, 0o640, None),
                ("nobody", nobody.pw_uid, 0, 0o600, None),
                ("nobody", 0, 0, 0o640, None),
                ("nobody", UNUSED, 0, 0o600, other),
                ("nobody", 0, nobody.pw_gid, 0o640, engines)):
            with self.subTest(user=user, owner=owner, group=group):
                os.chown(key, owner, group)
                os.chmod(key, mode)
                if user:
                    with open(f"{self.world.dir}/mmx-langd.service", "w") as f:
                        f.write(f"[Service]\nUser={user}\n")
                row = self.start(text, "mmx-langd.yaml")[0]
                self.assertEqual(row["result"], "fail" if says else "ok", row)
                self.assertIn(says or "nothing on this host", row["text"])

    def test_a_key_that_an_engine_can_read(self):
        if os.geteuid() != 0:
            self.skipTest("only root can try as another user")
        os.chmod(self.world.dir, 0o755)
        self.program = shutil.copy(self.program, self.world.dir)
        d = self.world.langd([], socket={"mode": "0666"})
        for mode, said in ((0o600, False), (0o644, True)):
            os.chmod(self.world.key, mode)
            got = subprocess.run(
                [self.program, "--socket", d.socket, "--config", d.config,
                 "--json", "doctor"], capture_output=True, text=True,
                user=UNUSED, group=UNUSED, extra_groups=[], cwd="/")
            row = [r for r in json.loads(got.stdout) if r["check"] == "key"]
            self.assertEqual([self.world.key in r["text"] for r in row],
                             [True] * said)

    def test_a_user_who_may_not(self):
        if os.geteuid() != 0:
            self.skipTest("only root can try as another user")
        how = {"user": UNUSED, "group": UNUSED, "extra_groups": []}
        os.chmod(self.world.dir, 0o755)
        # Another user may not reach the build folder.
        self.program = shutil.copy(self.program, self.world.dir)
        d = self.world.langd([])
        seen = self.findings(d.socket, **how)
        self.assertIn("join group", seen["reach"]["advice"])
        got = self.doctor(d.socket, "--json", "--config", d.config, **how)
        checks = [r["check"] for r in json.loads(got.stdout)]
        self.assertIn("reach", checks)
        self.assertNotIn("start", checks)
        os.chmod(d.socket, 0o666)
        self.assertNotIn("reach", self.findings(d.socket, **how))
        d.stop()
        d.conf["pools"][0]["uids"] = ["0"]
        d.conf["socket"]["mode"] = "0666"
        d.start()
        seen = self.findings(d.socket, **how)
        self.assertEqual(seen["pool"]["result"], "fail")
        self.assertIn("uids", seen["pool"]["advice"])
        self.assertIn(f"uid {UNUSED}", seen["seen"]["text"])


class Played(Case):
    """Daemons that the test imitates, which this host could not run."""

    def ask(self, answer, *calls, env=None):
        """Returns what mmxctl prints for each of the calls."""
        path = self.world.dir + "/played.sock"

        def serve(listener):
            for _ in calls:
                s, _ = listener.accept()
                with s:
                    while packet := s.recv(65536):
                        for frame in wire.frames(packet):
                            s.send(answer(frame))

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(path)
            s.listen()
            server = threading.Thread(target=serve, args=[s])
            server.start()
            ctl = [os.path.join(BUILD, "mmxctl"), "--socket", path]
            said = [subprocess.run(
                [*ctl, *words], capture_output=True, text=True, timeout=LIMIT,
                env={**os.environ, **(env or {})}).stdout for words in calls]
            server.join()
        return said

    def found(self, config, checks, **status):
        """Returns the findings for a langd with this configuration, whose
        status has these columns, on a host with an RDMA card."""
        row = b"\1"
        for name, value in status.items():
            row += b"\2" + bytes([len(name)]) + name.encode() + struct.pack(
                "<I", len(value)) + value.encode()

        def answer(frame):
            if frame.message is wire.HELLO:
                return wire.WELCOME.encode(
                    frame.seq, version=1, role=2, cells=1024, name="a")
            what = frame.values["what"]
            return wire.REPORT.encode(
                frame.seq, text=row if what == "status" else b"")

        shutil.copy(os.path.join(ROOT, "systemd", "mmx-langd.service"),
                    self.world.dir)
        os.makedirs(self.world.dir + "/cards/mlx5_0", exist_ok=True)
        path = os.path.join(self.world.dir, "prod.yaml")
        with open(path, "w") as f:
            f.write(config)
        said, = self.ask(
            answer, ["--config", path, "--json", "doctor"],
            env={"MMX_UNITS": self.world.dir,
                 "MMX_CARDS": self.world.dir + "/cards"})
        os.unlink(self.world.dir + "/played.sock")
        return [r for r in json.loads(said) if r["check"] in checks]

    def test_one_that_took_rdma_by_itself(self):
        took = {"carriers": "ucx 1.18 rc_mlx5,ud_mlx5 on mlx5_0:1; tcp"}
        row, = self.found("", ["unit"], **took)
        self.assertEqual(row["result"], "warn")
        self.assertIn("mmx-langd", row["text"])
        self.assertIn("/mmx-rdma.conf", row["advice"])
        self.assertEqual(
            self.found("transfer:\n  carrier: tcp\n", ["unit"], **took), [])

    def test_a_card_and_a_ucx_that_is_not_sound(self):
        auto = "insecure: true\n"
        why = ("ucx: UCX 1.13 ends the process when a peer goes while the two "
               "connect")
        row, = self.found(auto, ["unit", "card"], carriers="tcp", not_by=why)
        self.assertEqual((row["check"], row["result"], row["text"]),
                         ("card", "warn", why))
        self.assertIn("a newer UCX", row["advice"])
        row, = self.found(auto, ["unit", "card"], carriers="tcp",
                          not_by="ucx: UCX 1.18 has nothing but TCP between "
                          "hosts")
        self.assertEqual(row["check"], "unit")
        self.assertEqual(self.found(auto + "transfer:\n  carrier: tcp\n",
                                    ["unit", "card"], carriers="tcp"), [])
