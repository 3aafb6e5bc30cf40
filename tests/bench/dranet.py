# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the driver beside DRANET, on one node with one kubelet, containerd and control plane.

    python -m tests.bench.dranet SETTING [SETTING ...] [--rounds N] [--samples FILE]

runs settings, as root, and prints their figures as JSON, one a line. Only one of the two drivers runs at a time: each
would react to the other's changes of interfaces. A block is one start of one driver: a pod that warms up, then a few
rounds. Blocks come in pairs, one of each driver in random order, and the confidence interval resamples these pairs.
Both drivers have the same interfaces, the same configuration and the same pods.

It has more than 500 lines because settings, blocks and statistics are parts of one experiment.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import typing as t
import urllib.request
from pathlib import Path

from tests.bench.driver import REPOSITORY, Figures, LeftOut, Object, _child, load

DRANET = "dra.net"
OURS = "lanewise.dev"
#: Replaces DRANET's default, which leaves out veth interfaces: DRANET publishes the rails only.
FILTER = '"dra.net/ifName" in attributes && attributes["dra.net/ifName"].StringValue.matches("^rail[0-9]+$")'
RAILS = 30
#: Rounds of one driver between two starts.
BLOCK = 3
#: Additional connections and processes of a busy node.
CONNECTIONS, PROCESSES = 2000, 1500
SEED = 1


class Setting(t.NamedTuple):
    """How many pods start at once, whether the node is busy, and the end of the figures' names."""

    pods: int
    busy: bool
    ending: str


SETTINGS = {
    "alone": Setting(1, False, "p50"),
    "ten": Setting(10, False, "10_at_once"),
    "thirty": Setting(30, False, "30_at_once"),
    "alone-busy": Setting(1, True, "p50_busy_node"),
    "ten-busy": Setting(10, True, "10_at_once_busy_node"),
    "thirty-busy": Setting(30, True, "30_at_once_busy_node"),
}

#: By driver, then by pair of blocks: the samples of each figure.
Samples = dict[str, list[dict[str, list[float]]]]


def interval(ours: t.Sequence[t.Sequence[float]], theirs: t.Sequence[t.Sequence[float]]) -> tuple[float, float, float]:
    """The ratio of the medians, and the bounds of its 95 % confidence interval, from 2,000 resamples. Each draws as
    many pairs of blocks as there are, and from each block as many samples as it has."""
    chance = random.Random(SEED)

    def ratio(pairs: t.Iterable[tuple[t.Sequence[float], t.Sequence[float]]]) -> float:
        ones, others = zip(*pairs, strict=True)
        return statistics.median(sum(map(list, ones), [])) / statistics.median(sum(map(list, others), []))

    pairs = list(zip(ours, theirs, strict=True))
    drawn = sorted(
        ratio(
            (chance.choices(one, k=len(one)), chance.choices(other, k=len(other)))
            for one, other in chance.choices(pairs, k=len(pairs))
        )
        for _turn in range(2000)
    )
    return ratio(pairs), drawn[49], drawn[1949]


# the node


class Dranet:
    """DRANET on the node, as its manifest starts it, with the rights of an administrator."""

    name = DRANET

    def __init__(self, node: t.Any) -> None:
        from ansible_collections.lanewise.dra.tools.cluster import programs

        self.node, self.plane = node, node.plane
        self.program = programs(self.plane.minor, "dranet", build=False)["dranet"]

    def start(self) -> None:
        arguments = [f"--kubeconfig={self.plane.kubeconfig}", f"--hostname-override={self.node.name}", "--v=4"]
        self.plane.run("dranet", [str(self.program), *arguments, f"--filter={FILTER}", "--cloud-provider-hint=NONE"])

    def stop(self) -> None:
        self.plane.stop("dranet")

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen("http://127.0.0.1:9177/healthz", timeout=5):
                return True
        except OSError:
            return False

    def metrics(self) -> str:
        return _get("http://127.0.0.1:9177/metrics")

    attach = ("dranet_driver_nri_plugin_requests_latency_seconds", {"method": "RunPodSandbox"})

    @property
    def pid(self) -> int:
        return int(self.plane.pids["dranet"])


class Ours:
    """The driver of this collection."""

    name = OURS

    def __init__(self, node: t.Any) -> None:
        from ansible_collections.lanewise.dra.tests.cluster.driver import Driver

        self.driver = Driver(node, {"virtual_interfaces": ["rail*"]})
        self.driver.wait_ready(120)
        self.driver.stop()

    def start(self) -> None:
        self.driver.start()

    def stop(self) -> None:
        self.driver.stop()

    def ready(self) -> bool:
        return not self.driver.reasons()

    def metrics(self) -> str:
        return _get("http://127.0.0.1:9178/metrics")

    attach = ("lanewise_operation_seconds", {"operation": "attach"})

    @property
    def pid(self) -> int:
        return int(self.driver.plane.pids["driver"])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _busy_seconds() -> float:
    """CPU time of all processes of the machine and of its kernel so far (proc(5), stat)."""
    user, nice, kernel, _idle, _waiting, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + kernel + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def _sum_and_count(text: str, name: str, labels: t.Mapping[str, str]) -> tuple[float, int]:
    """Sum and count of a histogram in Prometheus' text format, over all series that have these labels."""
    found = {"sum": 0.0, "count": 0.0}
    for line in text.splitlines():
        for part in found:
            if line.startswith(f"{name}_{part}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                found[part] += float(line.rsplit(" ", 1)[1])
    return found["sum"], int(found["count"])


class Bench:
    """The node with its rails, and the two drivers, of which at most one runs."""

    def __init__(self, node: t.Any) -> None:
        from ansible_collections.lanewise.dra.tests.cluster.node import ip

        self.node, self.plane = node, node.plane
        ip("netns add switch")
        for number in range(RAILS):
            ip(f"link add rail{number} type veth peer name wire{number} netns switch")
            ip(f"-n switch link set wire{number} up")
            ip(f"link set rail{number} up")
        self.drivers: dict[str, t.Any] = {OURS: Ours(node), DRANET: Dranet(node)}
        self._classes()
        self._kubelet = ssl.create_default_context()
        self._kubelet.check_hostname = False
        self._kubelet.verify_mode = ssl.CERT_NONE
        self._kubelet.load_cert_chain(self.plane.authority.issue("bench", "system:masters"))
        self._number = 0

    def _classes(self) -> None:
        from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters

        addresses = {"name": "net1", "addresses": ["203.0.113.2/28"]}
        for driver, short, config in (
            (OURS, "ours", parameters(addresses)),
            (DRANET, "dranet", {"interface": addresses}),
        ):
            named = f'device.driver == "{driver}"'
            domain = {OURS: "lanewise.dev", DRANET: "dra.net"}[driver]
            rail = f'device.attributes["{domain}"].ifName.startsWith("rail")'
            selectors = [{"cel": {"expression": one}} for one in (named, rail)]
            body = {"metadata": {"name": short}, "spec": {"selectors": selectors}}
            self.plane.expect("POST", "/apis/resource.k8s.io/v1/deviceclasses", body)
            devices = {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": short}}],
                "config": [{"opaque": {"driver": driver, "parameters": config}}],
            }
            made = {"metadata": {"name": short}, "spec": {"spec": {"devices": devices}}}
            self.plane.expect("POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", made)

    def published(self, driver: str) -> dict[str, int]:
        """The MTU of each device that a driver publishes."""
        items = self.plane.expect("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        devices = [one for item in items if item["spec"]["driver"] == driver for one in item["spec"].get("devices", ())]
        domain = {OURS: "lanewise.dev", DRANET: "dra.net"}[driver]

        def value(device: Object, name: str) -> t.Any:
            attributes = device["attributes"]
            found = attributes.get(f"{domain}/{name}") or attributes.get(name) or {}
            return next(iter(found.values()), None)

        return {str(value(one, "ifName")): int(value(one, "mtu") or 0) for one in devices}

    @contextlib.contextmanager
    def running(self, driver: str) -> t.Iterator[None]:
        """Run one driver during the block. It starts when its devices can be allocated and one pod has warmed it up."""
        one = self.drivers[driver]
        one.start()
        try:
            self.plane.wait_for(one.ready, f"{driver} to be ready", 120)
            rails = {f"rail{number}" for number in range(RAILS)}
            self.plane.wait_for(lambda: rails <= set(self.published(driver)), f"the devices of {driver}", 60)
            self.pods(driver, 1)
            yield
        finally:
            one.stop()

    def prepared(self, driver: str, method: str = "NodePrepareResources") -> tuple[float, int]:
        """The seconds of all calls of `method` that kubelet has made, by its own clock, and their number."""
        from ansible_collections.lanewise.dra.tests.cluster.node import ADDRESS

        connection = http.client.HTTPSConnection(ADDRESS, 10250, timeout=30, context=self._kubelet)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        whole = {"sum": 0.0, "count": 0.0}
        for line in text.splitlines():
            if "dra_grpc_operations_duration_seconds_" in line and f'driver_name="{driver}"' in line and method in line:
                for part in whole:
                    if f"_{part}{{" in line:
                        whole[part] += float(line.rsplit(" ", 1)[1])
        return whole["sum"], int(whole["count"])

    def attached(self, driver: str) -> tuple[float, int]:
        one = self.drivers[driver]
        return _sum_and_count(one.metrics(), *one.attach)

    def processor(self, driver: str) -> float:
        """Seconds of CPU time that a driver's process has used so far."""
        fields = Path(f"/proc/{self.drivers[driver].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def round(self, driver: str, count: int) -> dict[str, float]:
        """Start pods at once, end them, and return the measurements."""
        before = [self.prepared(driver), self.prepared(driver, "NodeUnprepareResources"), self.attached(driver)]
        used = self.processor(driver)
        taken, busy_seconds = self.pods(driver, count)
        # kubelet counts a call when the call ends, which is before the pod is gone
        after = [self.prepared(driver), self.prepared(driver, "NodeUnprepareResources"), self.attached(driver)]
        found = {"pod_ready": taken, "cpu_a_pod": (self.processor(driver) - used) / count}
        found["machine_cpu"] = busy_seconds / count
        for name, (seconds, calls), (earlier, made) in zip(("prepare", "unprepare", "attach"), after, before):
            if calls > made:
                found[name] = (seconds - earlier) / (calls - made)
        return found

    def pods(self, driver: str, count: int) -> tuple[float, float]:
        """Seconds from creating the first of these pods until all are Ready, and the CPU time of all processes of the
        machine in that time. When it returns, the pods are gone."""
        short = {OURS: "ours", DRANET: "dranet"}[driver]
        self._number += 1
        names = [f"{short}-{self._number}-{index}" for index in range(count)]
        program = 'trap "exit 0" TERM; sleep infinity & wait'
        watch = _Watch(self.plane, set(names))
        try:
            start, busy_before = time.perf_counter(), _busy_seconds()
            for name in names:
                claim = {"name": "net", "resourceClaimTemplateName": short}
                pod = self.node.pod(name, resourceClaims=[claim])
                pod["spec"]["containers"][0]["command"] = ["/usr/bin/sh", "-c", program]
                pod["spec"]["terminationGracePeriodSeconds"] = 5
                self.plane.expect("POST", "/api/v1/namespaces/default/pods", pod)
            watch.wait_ready(120)
            taken, busy_seconds = time.perf_counter() - start, _busy_seconds() - busy_before
            for name in names:
                self.plane.expect("DELETE", f"/api/v1/namespaces/default/pods/{name}")
            watch.wait_gone(120)
        finally:
            watch.close()
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        self.plane.wait_for(lambda: not self.plane.expect("GET", path)["items"], "the claims to go", 60)
        return taken, busy_seconds

    def republish(self, driver: str, number: int) -> float:
        """Seconds from a change of an interface's MTU until its slice says so."""
        from ansible_collections.lanewise.dra.tests.cluster.node import ip

        name = f"rail{number % RAILS}"
        # DRANET publishes an interface only some seconds after it came back from a pod
        before = self.plane.wait_for(lambda: self.published(driver).get(name), f"{name} to be published", 90)
        wanted = 1400 if before != 1400 else 1450
        time.sleep(2.5)  # both drivers look for changes at most this often
        start = time.perf_counter()
        ip(f"link set {name} mtu {wanted}")
        while self.published(driver).get(name) != wanted:
            if time.perf_counter() - start > 90:
                raise LeftOut(f"{driver} does not publish a change of {name}")
            time.sleep(0.005)
        taken = time.perf_counter() - start
        ip(f"link set {name} mtu 1500")
        return taken

    def resident(self, driver: str) -> float:
        """The resident memory of a driver's process in MiB."""
        status = Path(f"/proc/{self.drivers[driver].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class _Watch:
    """Follows pods by a watch of their namespace, because polling would use the node's CPU."""

    def __init__(self, plane: t.Any, names: set[str]) -> None:
        self._names = names
        self._ready: set[str] = set()
        self._gone: set[str] = set()
        self._failed = ""
        self._changed = threading.Condition()
        listed = plane.expect("GET", "/api/v1/namespaces/default/pods")["metadata"]["resourceVersion"]
        tls = ssl.create_default_context(cafile=str(plane.authority.certificate))
        tls.load_cert_chain(plane.authority.issue("system:admin", "system:masters"))
        self._connection = http.client.HTTPSConnection("127.0.0.1", plane.ports["kube-apiserver"], context=tls)
        self._connection.request("GET", f"/api/v1/namespaces/default/pods?watch=1&resourceVersion={listed}")
        self._answer = self._connection.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            while line := self._answer.readline():
                event = json.loads(line)
                pod = event["object"]
                name, status = pod["metadata"]["name"], pod.get("status", {})
                with self._changed:
                    if event["type"] == "DELETED":
                        self._gone.add(name)
                    elif any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())):
                        self._ready.add(name)
                    elif status.get("phase") == "Failed" and name in self._names - self._ready:
                        self._failed = f"{name} failed: {json.dumps(status)[:2000]}"
                    self._changed.notify_all()

    def wait_ready(self, seconds: float) -> None:
        self._wait(lambda: self._names <= self._ready, seconds, "ready")

    def wait_gone(self, seconds: float) -> None:
        self._wait(lambda: self._names <= self._gone, seconds, "gone")

    def _wait(self, done: t.Callable[[], bool], seconds: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._failed, seconds) or self._failed:
                raise LeftOut(self._failed or f"pods are not {what} after {seconds:.0f} s")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._connection.sock:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


@contextlib.contextmanager
def busy(node: t.Any) -> t.Iterator[None]:
    """A node with many TCP connections and processes."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections: list[socket.socket] = []
    script = f"for i in $(seq {PROCESSES}); do sleep infinity & done; wait"
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        for _turn in range(CONNECTIONS // 2):  # both ends of a connection are on this node
            connections.append(socket.create_connection(listener.getsockname()))
            connections.append(listener.accept()[0])
    processes = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        time.sleep(3)
        yield
    finally:
        os.killpg(processes.pid, 9)
        processes.wait()
        for one in connections:
            one.close()


# figures


def measure(bench: Bench, setting: Setting, rounds: int) -> Samples:
    """Samples of both drivers, in pairs of blocks of random order."""
    chance = random.Random()
    found: Samples = {OURS: [], DRANET: []}
    for _pair in range(-(-rounds // BLOCK)):
        for driver in chance.sample((OURS, DRANET), 2):
            samples: dict[str, list[float]] = {}
            with bench.running(driver):
                for _round in range(BLOCK):
                    for name, value in bench.round(driver, setting.pods).items():
                        samples.setdefault(name, []).append(value)
                samples["rss"] = [bench.resident(driver)]
            found[driver].append(samples)
    return found


def republishing(bench: Bench, rounds: int) -> Samples:
    found: Samples = {OURS: [], DRANET: []}
    for pair in range(-(-rounds // (2 * BLOCK))):
        for driver in random.sample((OURS, DRANET), 2):
            with bench.running(driver):
                taken = [bench.republish(driver, pair * BLOCK + turn) for turn in range(2 * BLOCK)]
            found[driver].append({"republish": taken})
    return found


def compared(name: str, quantity: str, samples: Samples, method: str) -> Object:
    """A figure: the ratio of the medians."""
    ours, theirs = ([block[quantity] for block in samples[driver]] for driver in (OURS, DRANET))
    ratio, low, high = interval(ours, theirs)
    unit, factor = ("MiB", 1.0) if quantity == "rss" else ("ms", 1000.0)
    one, other = (statistics.median(sum(blocks, [])) * factor for blocks in (ours, theirs))
    return {
        "name": f"driver_vs_dranet_{name}",
        "value": round(ratio, 3),
        "unit": "ratio",
        "against": f"DRANET 1.4.0, {other:.1f} {unit} (ours {one:.1f} {unit})",
        "confidence_95": [round(low, 3), round(high, 3)],
        "method": f"{method}; {sum(map(len, ours))} rounds each in {len(ours)} pairs of blocks of shuffled order, "
        f"medians, bootstrap of the pairs; {load()}",
    }


_READY = "from creating the first pod until all are Ready, with scheduler, kubelet and containerd"
_PREPARE = "NodePrepareResources by kubelet's own clock, mean of a round"
_ATTACH = (
    "by the drivers' own clocks: ours from the hook's request to its answer (driver_hook_ms is the program around it), "
    "DRANET's handler of RunPodSandbox alone"
)


def figures(title: str, setting: Setting, samples: Samples) -> Figures:
    """The figures of one setting."""
    node = f", on a node with {CONNECTIONS} TCP connections and {PROCESSES} processes more" if setting.busy else ""
    yield compared(f"pod_ready_{setting.ending}", "pod_ready", samples, f"{setting.pods} at once{node}: {_READY}")
    if setting.pods == 1:
        yield compared("prepare_busy_node" if setting.busy else "prepare_p50", "prepare", samples, f"{_PREPARE}{node}")
    else:
        yield compared(f"prepare_{setting.ending}", "prepare", samples, f"{setting.pods} at once{node}: {_PREPARE}")
    yield compared(
        f"cpu_a_pod_{setting.ending}", "cpu_a_pod", samples, f"{setting.pods} at once{node}: the process' CPU"
    )
    yield compared(
        f"machine_cpu_a_pod_{setting.ending}",
        "machine_cpu",
        samples,
        f"{setting.pods} at once{node}: CPU time of all processes of the machine until all pods are Ready",
    )
    if title == "alone":
        yield compared("attach_p50", "attach", samples, _ATTACH)
        yield compared("unprepare_p50", "unprepare", samples, "NodeUnprepareResources by kubelet's own clock")
        yield compared("rss", "rss", samples, "VmRSS at the end of each block")


def inside(titles: t.Sequence[str], rounds: int, kept: Path | None) -> Figures:
    from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
    from ansible_collections.lanewise.dra.tests.cluster.node import Node

    with ControlPlane() as plane, Node(plane) as node:
        bench = Bench(node)
        for title in titles:
            if title == "republish":
                samples = republishing(bench, rounds)
            else:
                with busy(node) if SETTINGS[title].busy else contextlib.nullcontext():
                    samples = measure(bench, SETTINGS[title], rounds)
            samples = _more(samples, title, kept)
            if title == "republish":
                reported = "from a change of an interface's MTU to the slice that says so"
                yield compared("republish", "republish", samples, reported)
            else:
                yield from figures(title, SETTINGS[title], samples)


def _more(samples: Samples, title: str, kept: Path | None) -> Samples:
    """These samples, after those of earlier runs in the file `kept`, if it is given. They are added to the file."""
    if kept is None:
        return samples
    earlier: dict[str, Samples] = json.loads(kept.read_text()) if kept.exists() else {}
    old = earlier.get(title, {OURS: [], DRANET: []})
    earlier[title] = {driver: [*old[driver], *samples[driver]] for driver in samples}
    kept.write_text(json.dumps(earlier))
    return earlier[title]


def all_settings() -> Figures:
    """All settings, for tests.bench, each on a separate node."""
    if os.geteuid():
        raise LeftOut("only root can create the namespaces of a node")
    for title in [*SETTINGS, "republish"]:
        yield from _sandboxed([title], 30, None)


def _sandboxed(titles: t.Sequence[str], rounds: int, kept: Path | None) -> Figures:
    sandbox = REPOSITORY / "tests" / "cluster" / "sandbox.py"
    more = [f"--samples={kept}"] if kept else []
    command = [sys.executable, "-m", "tests.bench.dranet", *titles, f"--rounds={rounds}", *more, "--inside"]
    return _child([sys.executable, str(sandbox), *command], seconds=1800.0 * len(titles))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dranet")
    parser.add_argument("settings", nargs="+", choices=[*SETTINGS, "republish"], metavar="SETTING")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=Path, help="file with samples of earlier runs; those of this run are added")
    parser.add_argument("--inside", action="store_true", help="already in the namespaces of a sandbox")
    given = parser.parse_args()
    run = inside if given.inside else _sandboxed
    try:
        for one in run(given.settings, given.rounds, given.samples and given.samples.resolve()):
            print(json.dumps(one), flush=True)
    except LeftOut as why:
        print(f"left out: {why}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
