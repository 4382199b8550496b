"""conf/kubernetes.yaml: valid, and its containers' command lines, configuration
and probes work as they are, but for paths, ports and the size of the pools;
vLLM's have the words of the guide."""

import grp
import json
import os
import socket
import subprocess
import sys
import tempfile

from pair import BUILD, ROOT, Case, eventually, free_port
from test_docs import AIOHTTP

sys.path.append(os.path.join(ROOT, "test/engines"))

from servers import blocks  # noqa: E402

MANIFEST = os.path.join(ROOT, "conf/kubernetes.yaml")
READ = ("import json, sys, yaml; "
        "json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)")


# Only root can give the sockets a group that may not read the key.
ROOT_USER = os.geteuid() == 0
SOCKET_GROUP = "nogroup" if ROOT_USER else grp.getgrgid(os.getgid()).gr_name


class Kubernetes(Case):
    limit_s = 600  # packages are downloaded

    def setUp(self):
        super().setUp()
        got = subprocess.run(
            [os.path.join(ROOT, "scripts/pypi"), "kubernetes",
             "kubernetes-validate"], capture_output=True, text=True)
        if got.returncode == 2:
            self.skipTest(got.stderr.strip().splitlines()[-1])
        self.assertEqual(got.returncode, 0, got.stderr)
        self.tools = os.path.join(got.stdout.strip(), "bin")

    def test_it_is_valid(self):
        got = subprocess.run(
            [os.path.join(self.tools, "kubernetes-validate"), "--strict",
             MANIFEST], capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        self.assertEqual(got.stderr.count(" passed ") +
                         got.stdout.count(" passed "), 8)

    def found(self):
        """Returns the manifest's objects."""
        got = subprocess.run(
            [os.path.join(self.tools, "python"), "-c", READ, MANIFEST],
            check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(got.stdout)

    def pods(self):
        """(the files of the ConfigMap, the pod of each name)."""
        found = self.found()
        files, = (x["data"] for x in found if x["kind"] == "ConfigMap")
        return files, {x["metadata"]["name"]: x["spec"]["template"]["spec"]
                       for x in found if "template" in x.get("spec", {})}

    def engine_pods(self):
        """Returns {name: pod} of those that are not the daemons'."""
        _, pods = self.pods()
        return {n: p for n, p in pods.items() if not n.startswith("mmx-")}

    def test_pods_of_engines_may_do_no_more_than_they_need(self):
        _, pods = self.pods()
        group, = pods["mmx-langd"]["securityContext"]["supplementalGroups"]
        self.assertEqual(set(self.engine_pods()),
                         {"vllm-encode", "vllm-language"})
        for name, pod in self.engine_pods().items():
            as_ = pod["securityContext"]
            self.assertTrue(as_["runAsNonRoot"] and as_["runAsUser"] > 0)
            self.assertEqual(as_["supplementalGroups"], [group])
            # Kubernetes would say VLLM_PORT for a service `vllm`.
            self.assertIs(pod["enableServiceLinks"], False)
            self.assertNotIn("hostPID", pod)
            paths = {v["name"]: v.get("hostPath", {}).get("path")
                     for v in pod["volumes"]}
            for c in pod["containers"]:
                with self.subTest(pod=name, container=c["name"]):
                    self.assertEqual(c["securityContext"], {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]}})
                    for m in c["volumeMounts"]:
                        self.assertIn(m["name"], paths)
                        if paths[m["name"]]:  # of the node
                            self.assertIs(m["readOnly"], True)
                    self.assertIn("/run/mmx", [m["mountPath"] for m in
                                               c["volumeMounts"]])
                    self.assertIn("readinessProbe", c)
                    self.assertIn("memory", c["resources"]["limits"])

    def test_engines_are_started_by_the_words_of_the_guide(self):
        for (name, pod), line in zip(
                sorted(self.engine_pods().items()),
                (b[-1] for b in blocks("lib/client/README.md", "vLLM"))):
            c = pod["containers"][0]
            words, guide = c["command"] + c["args"], line.split()
            self.assertEqual(words[:2], guide[:2])
            # But for the model's name and what a GPU more asks for.
            more = [w for w in words[2:] if w not in guide]
            gpus = str(c["resources"]["limits"]["nvidia.com/gpu"])
            self.assertEqual(more, [
                "/models/model", "--served-model-name", "model"] + (
                    [] if gpus == "1" else ["--tensor-parallel-size", gpus]))
            self.assertEqual([w for w in guide if w not in words], ["$MODEL"])
            port, = (x["containerPort"] for x in c["ports"])
            self.assertEqual(words[words.index("--port") + 1], str(port))
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                self.assertEqual(c[kind]["httpGet"],
                                 {"path": "/health", "port": "http"})

    def test_the_router_finds_both_sides_and_its_daemon(self):
        engine, router = self.engine_pods()["vllm-language"]["containers"]
        services = {x["metadata"]["name"]: x["spec"] for x in self.found()
                    if x["kind"] == "Service"}
        encoder = services["vllm-encode"]["ports"][0]["port"]
        words = router["command"] + router["args"]
        self.assertEqual(words[:4], [
            "python3", "/etc/mmx/router/router.py",
            f"http://vllm-encode:{encoder}",
            f"http://127.0.0.1:{engine['ports'][0]['containerPort']}"])
        _, d = self.pair()
        with tempfile.TemporaryDirectory() as at:
            os.makedirs(os.path.join(at, "aiohttp"))
            with open(os.path.join(at, "aiohttp/__init__.py"), "w") as f:
                f.write(AIOHTTP)
            got = subprocess.run(
                [sys.executable, "-B", os.path.join(
                    ROOT, "test/engines/vllm/router.py"),
                 *words[2:-1], d.socket], capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(
                    [at, os.path.join(ROOT, "lib/client/python")])})
        self.assertEqual(got.stdout, "serves 0.0.0.0 %d\n" %
                         router["ports"][0]["containerPort"], got.stderr)
        self.assertEqual(services["vllm-router"]["ports"][0]["targetPort"],
                         router["ports"][0]["name"])
        self.assertEqual(words[-2:], ["--langd", "/run/mmx/langd.sock"])

    def mounted(self, files):
        """The folders of the ConfigMap and of the Secret, as Kubernetes lays
        them: the names are links into ..data, which is replaced as one."""
        d = tempfile.TemporaryDirectory(prefix="mmx-e2e-")
        self.addCleanup(d.cleanup)
        key = os.path.join(d.name, "fleet.key")
        subprocess.run([os.path.join(BUILD, "mmxctl"), "keygen", key],
                       check=True, stdout=subprocess.DEVNULL)
        with open(key) as f:
            secret = f.read()
        for folder, data in (("conf", files), ("keys", {"fleet.key": secret})):
            at = os.path.join(d.name, folder)
            os.makedirs(os.path.join(at, "..2026"))
            os.symlink("..2026", os.path.join(at, "..data"))
            for name, text in data.items():
                with open(os.path.join(at, "..data", name), "w") as f:
                    f.write(text)
                os.chmod(os.path.join(at, "..data", name),
                         0o440 if ROOT_USER else 0o400)
                os.symlink(os.path.join("..data", name),
                           os.path.join(at, name))
        return d.name

    def here(self, words, at, role):
        """The words of a container for this folder."""
        return [w.replace("/etc/mmx", at).replace("$(NODE)", "node")
                .replace("$(ADDRESS):7601", f"127.0.0.1:{self.port}")
                .replace("/run/mmx", at) for w in words] + [
            "--set", f"socket.path={at}/{role}.sock",
            "--set", f"socket.group={SOCKET_GROUP}", "--set", "pools[0].blocks=64", "--set", "transfer.devices=lo"]

    def probe(self, container, kind, at, role):
        """The exit status of a probe."""
        words = container[kind]["exec"]["command"]
        self.assertEqual(words[:2], ["mmxctl", f"--{role}"])
        return subprocess.run(
            [os.path.join(BUILD, words[0]), "--socket", f"{at}/{role}.sock",
             *words[2:]], capture_output=True).returncode

    def leave_socket(self, path):
        """What a daemon that was killed leaves, of the group that its key has:
        that of an older file of this name."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(path)

    def test_its_containers(self):
        files, pods = self.pods()
        self.port = free_port()
        at = self.mounted({n: t.replace("/etc/mmx", "@").replace(
            "0.0.0.0:7601", f"127.0.0.1:{self.port}").replace(
            "tcp://10.0.0.0/8:7601", f"tcp://127.0.0.0/8:{self.port}")
            for n, t in files.items()})
        for name in files:
            path = os.path.join(at, "conf/..data", name)
            os.chmod(path, 0o640)
            with open(path) as f:
                text = f.read()
            with open(path, "w") as f:
                f.write(text.replace("@", at))
        started = {}
        for role in ("encoded", "langd"):
            pod = pods[f"mmx-{role}"]
            container = pod["containers"][0]
            daemon = (self.world.encoded if role == "encoded" else
                      lambda **more: self.world.langd([], **more))(start=False)
            daemon.socket = f"{at}/{role}.sock"
            words = self.here(container["command"] + container["args"], at,
                              role)
            self.assertEqual(words[0], f"mmx-{role}")
            started[role] = (daemon, container)
            self.leave_socket(daemon.socket)
            self.start(daemon, words)
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                # A second is the probe's limit, and may not be enough here.
                eventually(lambda k=kind: self.probe(
                    container, k, at, role) == 0, f"{kind} of {role}")
        (e, _), (d, _) = started["encoded"], started["langd"]
        enc, lm = self.engines(e, d)
        lm.request(7, f"tcp://127.0.0.1:{self.port}")
        enc.encode(7, 500, aux="grid")
        self.comes(enc, lm, 7, 500)
        for role, (daemon, container) in started.items():
            eventually(lambda: self.probe(container, "readinessProbe", at,
                                          role) == 0, f"{role} is ready")

    def start(self, daemon, words):
        """Starts a daemon by these words, not by a configuration of ours."""
        with open(daemon.log, "a") as log:
            daemon.process = subprocess.Popen(
                [os.path.join(BUILD, words[0]), *words[1:]], stderr=log,
                stdout=log, stdin=subprocess.DEVNULL)
        daemon.wait_ready()
