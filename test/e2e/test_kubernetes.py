"""conf/helm, and conf/kubernetes.yaml, which it renders: both are valid. The
containers' command lines, configuration and probes work unchanged, except
paths, ports and the size of the pools; keys change by reloads; vLLM's pods have
the words of the guide."""

import glob
import grp
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

from pair import BUILD, ROOT, Case, eventually, free_port, keygen
from test_docs import AIOHTTP
from test_reload import Rooms, changes

sys.path.append(os.path.join(ROOT, "test/engines"))

from servers import blocks  # noqa: E402

CHART = os.path.join(ROOT, "scripts/chart")
EXAMPLES = os.path.join(ROOT, "conf/helm/examples")


def chart(*words):
    """Runs scripts/chart; the test is skipped where PyPI cannot be reached."""
    got = subprocess.run([CHART, *words], capture_output=True, text=True)
    if got.returncode == 2:
        raise unittest.SkipTest(got.stderr.strip().splitlines()[-1])
    return got


# Only root can give the sockets a group that may not read the key.
ROOT_USER = os.geteuid() == 0
SOCKET_GROUP = "nogroup" if ROOT_USER else grp.getgrgid(os.getgid()).gr_name


class Kubernetes(Case):
    limit_s = 600  # downloads packages

    def test_it_is_valid_and_the_plain_manifest_is_of_it(self):
        got = chart("--check")
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)

    def found(self, values=os.path.join(EXAMPLES, "vllm.yaml")):
        """Returns the objects that the chart renders for a file of values."""
        got = chart("--json", values)
        self.assertEqual(got.returncode, 0, got.stderr)
        return json.loads(got.stdout)

    def values(self, **values):
        """Writes these values to a file; returns its path."""
        path = os.path.join(self.world.dir, "values.yaml")
        with open(path, "w") as f:
            json.dump(values, f)
        return path

    def pods(self, *values):
        """Returns (the files of the ConfigMap, the pod of each name)."""
        found = self.found(*values)
        files, = (x["data"] for x in found if x["kind"] == "ConfigMap")
        return files, {x["metadata"]["name"]: x["spec"]["template"]["spec"]
                       for x in found if "template" in x.get("spec", {})}

    def test_daemons_take_the_configuration_of_each_example(self):
        for path in glob.glob(os.path.join(EXAMPLES, "*.yaml")):
            self.node()
            self.lay_conf(self.pods(path)[0])
            for role in ("encoded", "langd"):
                subprocess.run(
                    [os.path.join(BUILD, f"mmx-{role}"), "--print-config",
                     "--config", f"{self.at}/conf/mmx-{role}.yaml"],
                    check=True, stdout=subprocess.DEVNULL)

    def test_policies_budgets_and_the_monitor_fit_the_pods(self):
        found = self.found(os.path.join(EXAMPLES, "gpu.yaml"))
        by = {(x["kind"], x["metadata"]["name"]): x.get("spec") for x in found}
        files, pods = self.pods(os.path.join(EXAMPLES, "gpu.yaml"))
        first, last = (int(x) for x in re.search(
            r"ports: (\d+)-(\d+)", files["mmx-langd.yaml"]).groups())
        ports = {"encoded": {"port": pods["mmx-encoded"]["containers"][0][
            "ports"][0]["containerPort"]},
            "langd": {"port": first, "endPort": last}}
        monitor = by["PodMonitor", "mmx"]
        for role, other in (("encoded", "langd"), ("langd", "encoded")):
            name = f"mmx-{role}"
            labels, others = (by["DaemonSet", f"mmx-{r}"]["template"][
                "metadata"]["labels"].items() for r in (role, other))

            def chosen(spec, of=labels):
                return spec["matchLabels"].items() <= of

            metrics, = pods[name]["containers"][1]["ports"]
            net = by["NetworkPolicy", name]
            self.assertTrue(chosen(net["podSelector"]))
            self.assertEqual(net["policyTypes"], ["Ingress", "Egress"])
            mine, scraped = net["ingress"]
            his, = net["egress"]
            self.assertTrue(chosen(mine["from"][0]["podSelector"], others))
            self.assertTrue(chosen(his["to"][0]["podSelector"], others))
            for rule, port in ((mine, ports[role]), (his, ports[other]),
                               (scraped, {"port": metrics["containerPort"]})):
                self.assertEqual(rule["ports"], [{"protocol": "TCP", **port}])
            self.assertTrue(chosen(by["PodDisruptionBudget", name]["selector"]))
            self.assertTrue(chosen(monitor["selector"]))
            self.assertEqual(monitor["podMetricsEndpoints"][0]["port"],
                             metrics["name"])
            self.assertEqual(
                {r["targetLabel"] for r in
                 monitor["podMetricsEndpoints"][0]["relabelings"]},
                {"node", "instance"})
            drain = re.search(r"drain: (\d+)s", files[f"{name}.yaml"])[1]
            self.assertGreater(pods[name]["terminationGracePeriodSeconds"],
                               int(drain))

    def test_values_that_would_do_nothing_are_refused(self):
        for values in ({"networkPolicy": {"enable": False}},
                       {"ports": {"rows": {"frist": 1}}},
                       {"otel": {"port": 4318}}, {"image": {"name": "x"}},
                       {"vllm": {"encode": {"replica": 1}}}):
            got = chart("--json", self.values(**values))
            self.assertNotEqual(got.returncode, 0, values)
            self.assertIn(next(iter(values)), got.stderr)
        for key, instead in (("control.listen", "ports.control"),
                             ("control.advertise", "ports.control"),
                             ("transfer.ports", "ports.rows"),
                             ("timeouts.drain", "drainSeconds")):
            section, name = key.split(".")
            got = chart("--json", self.values(
                encoded={"config": {section: {name: "1"}}}))
            self.assertNotEqual(got.returncode, 0, key)
            self.assertIn(f"encoded.config has {key}: set {instead}",
                          got.stderr)

    def test_a_collector_is_reached_at_the_port_of_its_address(self):
        for endpoint, port in (("http://c.m:9", 9), ("https://c.m", 443),
                               ("http://[fd00::7]/x", 80)):
            found = self.found(self.values(otel={"endpoint": endpoint}))
            for x in found:
                if x["kind"] == "NetworkPolicy":
                    self.assertIn([{"protocol": "TCP", "port": port}],
                                  [r["ports"] for r in x["spec"]["egress"]])

    def test_daemons_have_the_options_of_selinux(self):
        _, pods = self.pods(self.values(seLinuxOptions={"type": "spc_t"}))
        self.assertEqual([p["securityContext"].get("seLinuxOptions")
                          for p in pods.values()], [{"type": "spc_t"}] * 2)

    def test_without_scrapers_nothing_reaches_the_exporters(self):
        found = self.found(self.values(networkPolicy={"scrapeFrom": []}))
        rules = [x["spec"]["ingress"] for x in found
                 if x["kind"] == "NetworkPolicy"]
        self.assertEqual(len(rules), 2)
        for (rule,) in rules:  # only daemons of the other role are let in
            self.assertEqual(list(rule["from"][0]), ["podSelector"])

    def test_spans_have_a_program_and_a_way_to_the_collector(self):
        found = self.found(os.path.join(EXAMPLES, "spans.yaml"))
        otel = [c for x in found if x["kind"] == "DaemonSet"
                for c in x["spec"]["template"]["spec"]["containers"]
                if c["name"] == "mmx-otel"]
        self.assertEqual(len(otel), 2)
        for container in otel:
            # As the daemons' user mmx-otel is shown all rooms.
            self.assertNotIn("runAsUser", container["securityContext"])
            port = int(container["args"][-1].rpartition(":")[2])
            got = subprocess.run(
                [os.path.join(BUILD, container["command"][0]),
                 *container["command"][1:], *container["args"], "--version"],
                stdout=subprocess.DEVNULL)
            self.assertEqual(got.returncode, 0)
        for rules in (x["spec"]["egress"] for x in found
                      if x["kind"] == "NetworkPolicy"):
            self.assertIn([{"protocol": "TCP", "port": port}],
                          [r["ports"] for r in rules])

    def test_every_pod_has_the_secrets_of_the_registry(self):
        secrets = [{"name": "registry"}]
        _, pods = self.pods(self.values(imagePullSecrets=secrets,
                                        vllm={"enabled": True}))
        self.assertEqual(len(pods), 4)
        for pod in pods.values():
            self.assertEqual(pod.get("imagePullSecrets"), secrets)

    def engine_pods(self):
        """Returns {name: pod} of the engines."""
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
            # With service links Kubernetes would set VLLM_PORT for a service
            # `vllm`.
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
                    # Requests still come until the Service has dropped the
                    # pod.
                    self.assertEqual(c["lifecycle"]["preStop"],
                                     {"exec": {"command": ["sleep", "10"]}})
                    self.assertIn("memory", c["resources"]["limits"])

    def test_engines_are_started_by_the_words_of_the_guide(self):
        for (name, pod), line in zip(
                sorted(self.engine_pods().items()),
                (b[-1] for b in blocks("lib/client/README.md", "vLLM"))):
            c = pod["containers"][0]
            words, guide = c["command"] + c["args"], line.split()
            self.assertEqual(words[:2], guide[:2])
            # The rest is the model's name, and what several GPUs need.
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

    def node(self):
        """Makes a folder for what a node mounts into the containers."""
        d = tempfile.TemporaryDirectory(prefix="mmx-e2e-")
        self.addCleanup(d.cleanup)
        self.at = os.path.join(d.name, "n")  # beside it: the folder of orders
        self.port = free_port()
        self.laid = itertools.count(1)

    def here(self, text):
        """Returns the chart's text with paths and ports of this test."""
        for old, new in (("/etc/mmx", self.at), ("/run/mmx", self.at),
                         ("$(NODE)", "node"), ("7610-7673", '""'),
                         ("$(ADDRESS):7601", f"127.0.0.1:{self.port}"),
                         ("0.0.0.0:7601", f"127.0.0.1:{self.port}")):
            text = text.replace(old, new)
        return text

    def lay(self, folder, files, mode=0o640):
        """Lays the files of a ConfigMap or a Secret as Kubernetes does: the
        names are links into ..data, which is replaced as one."""
        at = os.path.join(self.at, folder)
        new = f"..{next(self.laid)}"
        os.makedirs(os.path.join(at, new))
        for name, text in files.items():
            path = os.path.join(at, new, name)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, mode)
            link = os.path.join(at, name)
            if not os.path.lexists(link):
                os.symlink(os.path.join("..data", name), link)
        os.symlink(new, os.path.join(at, "..new"))
        os.rename(os.path.join(at, "..new"), os.path.join(at, "..data"))

    def lay_conf(self, files):
        self.lay("conf", {n: self.here(t) for n, t in files.items()})

    def lay_keys(self, keys):
        self.lay("keys", keys, 0o440 if ROOT_USER else 0o400)

    def key(self):
        """Returns the text of a new key."""
        with tempfile.TemporaryDirectory() as at:
            with open(keygen(os.path.join(at, "key"))) as f:
                return f.read()

    def probe(self, container, kind, role):
        """Returns the exit status of a probe."""
        words = container[kind]["exec"]["command"]
        self.assertEqual(words[:2], ["mmxctl", f"--{role}"])
        return subprocess.run(
            [os.path.join(BUILD, words[0]), "--socket",
             f"{self.at}/{role}.sock", *words[2:]],
            capture_output=True).returncode

    def leave_socket(self, path):
        """Makes what a killed daemon leaves: a socket at this path, of the
        group that the daemon's key has, too."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(path)

    def daemons(self, pods):
        """Starts the containers' programs, with the chart's words and
        configuration; returns both daemons when their probes succeed."""
        started = []
        for role in ("encoded", "langd"):
            container = pods[f"mmx-{role}"]["containers"][0]
            daemon = (self.world.encoded if role == "encoded" else
                      lambda **more: self.world.langd([], **more))(start=False)
            started.append(daemon)
            daemon.socket = f"{self.at}/{role}.sock"
            words = [self.here(w)
                     for w in container["command"] + container["args"]]
            for key, value in (("socket.path", daemon.socket),
                               ("socket.group", SOCKET_GROUP),
                               ("pools[0].blocks", "64"),
                               ("transfer.devices", "lo")):
                words += ["--set", f"{key}={value}"]
            self.assertEqual(words[0], f"mmx-{role}")
            self.leave_socket(daemon.socket)
            with open(daemon.log, "a") as log:
                daemon.process = subprocess.Popen(
                    [os.path.join(BUILD, words[0]), *words[1:]], stderr=log,
                    stdout=log, stdin=subprocess.DEVNULL)
            daemon.wait_ready()
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                # A probe has a second, which a slow machine may exceed.
                eventually(lambda k=kind: self.probe(
                    container, k, role) == 0, f"{kind} of {role}")
        return started

    def deliver(self, enc, lm, room, rows):
        """Moves a room, requested by the encoder's address: langd has no
        peers."""
        super().deliver(enc, lm, room, rows, f"tcp://127.0.0.1:{self.port}")

    def test_its_containers(self):
        files, pods = self.pods()
        self.node()
        self.lay_conf(files)
        self.lay_keys({"fleet.key": self.key()})
        e, d = self.daemons(pods)
        self.deliver(*self.engines(e, d), 7, 500)
        for role in ("encoded", "langd"):
            container = pods[f"mmx-{role}"]["containers"][0]
            eventually(lambda: self.probe(container, "readinessProbe",
                                          role) == 0, f"{role} is ready")

    def test_a_key_changes_by_reloads(self):
        keys = {"fleet.key": self.key(), "next.key": self.key()}

        def lay(names):
            files, pods = self.pods(self.values(keys={"files": names}))
            self.lay_keys({n: keys[n] for n in names})
            self.lay_conf(files)
            return pods

        self.node()
        e, d = self.daemons(lay(["fleet.key"]))
        with Rooms(self, *self.engines(e, d)) as rooms:
            for names in (["fleet.key", "next.key"], ["next.key", "fleet.key"],
                          ["next.key"]):
                lay(names)
                for daemon in (e, d):
                    got = changes(daemon.ctl("reload", "--json"))
                    self.assertIn("control.keys", got)
                    self.assertEqual(set(got.values()), {"changed"})
                rooms.more()

    def test_daemons_have_keys_of_their_own(self):
        files, pods = self.pods(os.path.join(EXAMPLES, "own-keys.yaml"))
        self.node()
        os.makedirs(os.path.join(self.at, "own"))
        lines = ""
        for role in ("encoded", "langd"):
            key = pods[f"mmx-{role}"]["initContainers"][1]
            env = {x["name"]: self.here(x.get("value", "")) for x in key["env"]}
            # A pod that restarts keeps its key.
            first, line = (subprocess.run(
                [self.here(w) for w in key["command"]], check=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,  # a log
                text=True, env={"PATH": f"{BUILD}:/usr/bin:/bin", **env}).stdout
                for _ in range(2))
            self.assertEqual(line, first)
            lines += line
        self.lay("identities", {"identities": lines}, 0o644)
        self.lay_conf(files)
        e, d = self.daemons(pods)
        self.deliver(*self.engines(e, d), 7, 500)
