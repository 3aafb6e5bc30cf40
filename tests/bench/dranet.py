# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the driver with DRANET, on one node with one kubelet, containerd and control plane.

    python -m tests.bench.dranet SETTING [SETTING ...] [--rounds N] [--samples FILE]

runs settings, as root, and prints their figures as JSON, one a line. Only one of the two drivers runs at a time: each
would react to the other's changes of interfaces. In a block, one driver is started, serves one pod as a warm-up, and
then a few measured rounds. Blocks come in pairs, one of each driver in random order, and the confidence interval
resamples these pairs.
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

from tests.bench.driver import REPOSITORY, Figures, LeftOut, Object, child_figures, load_at_end, resident_mib

DRANET = "dra.net"
LANEWISE = "lanewise.dev"
#: Replaces DRANET's default, which leaves out veth interfaces: DRANET publishes the rails only.
FILTER = '"dra.net/ifName" in attributes && attributes["dra.net/ifName"].StringValue.matches("^rail[0-9]+$")'
RAILS = 30
#: Rounds of one driver between two starts.
ROUNDS_PER_BLOCK = 3
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

#: For each driver, the samples of each quantity in each block.
Samples = dict[str, list[dict[str, list[float]]]]

#: The samples of one quantity in each block.
Blocks = t.Sequence[t.Sequence[float]]


def ratio_of_medians(lanewise_blocks: Blocks, dranet_blocks: Blocks) -> tuple[float, float, float]:
    """The ratio of the medians, and the bounds of its 95 % confidence interval, from 2,000 resamples.

    Each resample draws as many pairs of blocks as there are, and from each block as many samples as it has.
    """
    rng = random.Random(SEED)

    def ratio(pairs: t.Iterable[tuple[t.Sequence[float], t.Sequence[float]]]) -> float:
        dividends, divisors = zip(*pairs, strict=True)
        return statistics.median(sum(map(list, dividends), [])) / statistics.median(sum(map(list, divisors), []))

    pairs = list(zip(lanewise_blocks, dranet_blocks, strict=True))
    resampled = sorted(
        ratio(
            (rng.choices(lanewise, k=len(lanewise)), rng.choices(dranet, k=len(dranet)))
            for lanewise, dranet in rng.choices(pairs, k=len(pairs))
        )
        for _resample in range(2000)
    )
    return ratio(pairs), resampled[49], resampled[1949]


# the node


class Dranet:
    """DRANET on the node, with the options of its manifest and the rights of an administrator."""

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

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen("http://127.0.0.1:9177/healthz", timeout=5):
                return True
        except OSError:
            return False

    def metrics(self) -> str:
        return _get("http://127.0.0.1:9177/metrics")

    attach_metric = ("dranet_driver_nri_plugin_requests_latency_seconds", {"method": "RunPodSandbox"})

    @property
    def pid(self) -> int:
        return int(self.plane.pids["dranet"])


class Lanewise:
    """The driver of this collection."""

    name = LANEWISE

    def __init__(self, node: t.Any) -> None:
        from ansible_collections.lanewise.dra.tests.cluster.driver import Driver

        self.driver = Driver(node, {"virtual_interfaces": ["rail*"]})
        self.driver.wait_ready(120)
        self.driver.stop()

    def start(self) -> None:
        self.driver.start()

    def stop(self) -> None:
        self.driver.stop()

    def is_ready(self) -> bool:
        return not self.driver.reasons()

    def metrics(self) -> str:
        return _get("http://127.0.0.1:9178/metrics")

    attach_metric = ("lanewise_operation_seconds", {"operation": "attach"})

    @property
    def pid(self) -> int:
        return int(self.driver.plane.pids["driver"])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def _busy_seconds() -> float:
    """CPU time of all processes of the machine and of its kernel so far (proc(5), stat)."""
    user, nice, kernel, _idle, _waiting, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + kernel + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def _sum_and_count(text: str, name: str, labels: t.Mapping[str, str]) -> tuple[float, int]:
    """Sum and count of a histogram in Prometheus' text format, over all series that have these labels."""
    totals = {"sum": 0.0, "count": 0.0}
    for line in text.splitlines():
        for part in totals:
            if line.startswith(f"{name}_{part}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                totals[part] += float(line.rsplit(" ", 1)[1])
    return totals["sum"], int(totals["count"])


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
        self.drivers: dict[str, t.Any] = {LANEWISE: Lanewise(node), DRANET: Dranet(node)}
        self._create_classes_and_templates()
        self._kubelet = ssl.create_default_context()
        self._kubelet.check_hostname = False
        self._kubelet.verify_mode = ssl.CERT_NONE
        self._kubelet.load_cert_chain(self.plane.authority.issue("bench", "system:masters"))
        self._number = 0

    def _create_classes_and_templates(self) -> None:
        from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters

        addresses = {"name": "net1", "addresses": ["203.0.113.2/28"]}
        for driver, name, config in (
            (LANEWISE, "lanewise", parameters(addresses)),
            (DRANET, "dranet", {"interface": addresses}),
        ):
            of_driver = f'device.driver == "{driver}"'
            is_rail = f'device.attributes["{driver}"].ifName.startsWith("rail")'
            selectors = [{"cel": {"expression": expression}} for expression in (of_driver, is_rail)]
            device_class = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
            self.plane.expect("POST", "/apis/resource.k8s.io/v1/deviceclasses", device_class)
            devices = {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": name}}],
                "config": [{"opaque": {"driver": driver, "parameters": config}}],
            }
            template = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
            self.plane.expect("POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", template)

    def published_mtus(self, driver: str) -> dict[str, int]:
        """The MTU of each interface that a driver publishes."""
        items = self.plane.expect("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
        slices = [item["spec"] for item in items if item["spec"]["driver"] == driver]
        devices = [device for spec in slices for device in spec.get("devices", ())]

        def value(device: Object, name: str) -> t.Any:
            attributes = device["attributes"]
            attribute = attributes.get(f"{driver}/{name}") or attributes.get(name) or {}
            return next(iter(attribute.values()), None)

        return {str(value(device, "ifName")): int(value(device, "mtu") or 0) for device in devices}

    @contextlib.contextmanager
    def running(self, name: str) -> t.Iterator[None]:
        """Run one driver during the `with` block, which begins after the driver has published and served one pod."""
        driver = self.drivers[name]
        driver.start()
        try:
            self.plane.wait_for(driver.is_ready, f"{name} to be ready", 120)
            rails = {f"rail{number}" for number in range(RAILS)}
            self.plane.wait_for(lambda: rails <= set(self.published_mtus(name)), f"the devices of {name}", 60)
            self.run_pods(name, 1)
            yield
        finally:
            driver.stop()

    def kubelet_calls(self, driver: str, method: str) -> tuple[float, int]:
        """The seconds of all calls of `method` that kubelet has made, by kubelet's own clock, and their number."""
        from ansible_collections.lanewise.dra.tests.cluster.node import ADDRESS

        connection = http.client.HTTPSConnection(ADDRESS, 10250, timeout=30, context=self._kubelet)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        totals = {"sum": 0.0, "count": 0.0}
        for line in text.splitlines():
            if "dra_grpc_operations_duration_seconds_" in line and f'driver_name="{driver}"' in line and method in line:
                for part in totals:
                    if f"_{part}{{" in line:
                        totals[part] += float(line.rsplit(" ", 1)[1])
        return totals["sum"], int(totals["count"])

    def attach_calls(self, name: str) -> tuple[float, int]:
        """The seconds of all attaches of a driver, by its own clock, and their number."""
        driver = self.drivers[name]
        return _sum_and_count(driver.metrics(), *driver.attach_metric)

    def calls(self, driver: str) -> list[tuple[float, int]]:
        """Seconds and number of all calls of prepare, unprepare and attach so far."""
        prepare, unprepare = (
            self.kubelet_calls(driver, method) for method in ("NodePrepareResources", "NodeUnprepareResources")
        )
        return [prepare, unprepare, self.attach_calls(driver)]

    def cpu_seconds(self, driver: str) -> float:
        """CPU seconds that a driver's process has used so far."""
        fields = Path(f"/proc/{self.drivers[driver].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run_round(self, driver: str, count: int) -> dict[str, float]:
        """Start this many pods at once, delete them, and return the measured quantities."""
        calls_before, cpu_before = self.calls(driver), self.cpu_seconds(driver)
        ready_seconds, machine_seconds = self.run_pods(driver, count)
        # kubelet counts a call when the call ends, which is before the pod is gone
        calls_after = self.calls(driver)
        quantities = {
            "pod_ready": ready_seconds,
            "cpu_a_pod": (self.cpu_seconds(driver) - cpu_before) / count,
            "machine_cpu": machine_seconds / count,
        }
        for name, (seconds, calls), (seconds_before, number_before) in zip(
            ("prepare", "unprepare", "attach"), calls_after, calls_before
        ):
            if calls > number_before:
                quantities[name] = (seconds - seconds_before) / (calls - number_before)
        return quantities

    def run_pods(self, driver: str, count: int) -> tuple[float, float]:
        """Create pods, wait until all are Ready, delete them, and wait until they are gone.

        Returns the seconds from creating the first pod until all are Ready, and the CPU seconds of all processes of the
        machine in that time.
        """
        template = {LANEWISE: "lanewise", DRANET: "dranet"}[driver]
        self._number += 1
        names = [f"{template}-{self._number}-{index}" for index in range(count)]
        program = 'trap "exit 0" TERM; sleep infinity & wait'
        watch = _Watch(self.plane, set(names))
        try:
            start, busy_before = time.perf_counter(), _busy_seconds()
            for name in names:
                claim = {"name": "net", "resourceClaimTemplateName": template}
                pod = self.node.pod(name, resourceClaims=[claim])
                pod["spec"]["containers"][0]["command"] = ["/usr/bin/sh", "-c", program]
                pod["spec"]["terminationGracePeriodSeconds"] = 5
                self.plane.expect("POST", "/api/v1/namespaces/default/pods", pod)
            watch.wait_ready(120)
            ready_seconds, machine_seconds = time.perf_counter() - start, _busy_seconds() - busy_before
            for name in names:
                self.plane.expect("DELETE", f"/api/v1/namespaces/default/pods/{name}")
            watch.wait_gone(120)
        finally:
            watch.close()
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        self.plane.wait_for(lambda: not self.plane.expect("GET", path)["items"], "the claims to be deleted", 60)
        return ready_seconds, machine_seconds

    def change_mtu(self, driver: str, number: int) -> float:
        """Change the MTU of an interface. Returns the seconds until the driver has published the new MTU."""
        from ansible_collections.lanewise.dra.tests.cluster.node import ip

        name = f"rail{number % RAILS}"
        # DRANET publishes an interface only some seconds after it came back from a pod
        old_mtu = self.plane.wait_for(lambda: self.published_mtus(driver).get(name), f"{name} to be published", 90)
        new_mtu = 1400 if old_mtu != 1400 else 1450
        time.sleep(2.5)  # neither driver looks for changes more often than this
        start = time.perf_counter()
        ip(f"link set {name} mtu {new_mtu}")
        while self.published_mtus(driver).get(name) != new_mtu:
            if time.perf_counter() - start > 90:
                raise LeftOut(f"{driver} does not publish a change of {name}")
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        ip(f"link set {name} mtu 1500")
        return seconds


class _Watch:
    """Follows pods by a watch of their namespace, because polling would use the node's CPU."""

    def __init__(self, plane: t.Any, names: set[str]) -> None:
        self._names = names
        self._ready: set[str] = set()
        self._gone: set[str] = set()
        self._failed = ""
        self._changed = threading.Condition()
        version = plane.expect("GET", "/api/v1/namespaces/default/pods")["metadata"]["resourceVersion"]
        tls = ssl.create_default_context(cafile=str(plane.authority.certificate))
        tls.load_cert_chain(plane.authority.issue("system:admin", "system:masters"))
        self._connection = http.client.HTTPSConnection("127.0.0.1", plane.ports["kube-apiserver"], context=tls)
        self._connection.request("GET", f"/api/v1/namespaces/default/pods?watch=1&resourceVersion={version}")
        self._response = self._connection.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            while line := self._response.readline():
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

    def _wait(self, condition: t.Callable[[], bool], seconds: float, state: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition() or self._failed, seconds) or self._failed:
                raise LeftOut(self._failed or f"pods are not {state} after {seconds:.0f} s")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._connection.sock:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


@contextlib.contextmanager
def busy_node() -> t.Iterator[None]:
    """Keep many TCP connections and processes on the node during the `with` block."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections: list[socket.socket] = []
    script = f"for i in $(seq {PROCESSES}); do sleep infinity & done; wait"
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        for _pair in range(CONNECTIONS // 2):  # both ends of a connection are on this node
            connections.append(socket.create_connection(listener.getsockname()))
            connections.append(listener.accept()[0])
    processes = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    try:
        time.sleep(3)
        yield
    finally:
        os.killpg(processes.pid, 9)
        processes.wait()
        for connection in connections:
            connection.close()


# figures


def measure(bench: Bench, setting: Setting, rounds: int) -> Samples:
    """Samples of both drivers, in pairs of blocks of random order."""
    samples: Samples = {LANEWISE: [], DRANET: []}
    for _pair in range(-(-rounds // ROUNDS_PER_BLOCK)):
        for driver in random.sample((LANEWISE, DRANET), 2):
            block: dict[str, list[float]] = {}
            with bench.running(driver):
                for _round in range(ROUNDS_PER_BLOCK):
                    for name, value in bench.run_round(driver, setting.pods).items():
                        block.setdefault(name, []).append(value)
                block["rss"] = [resident_mib(bench.drivers[driver].pid)]
            samples[driver].append(block)
    return samples


def measure_republishing(bench: Bench, rounds: int) -> Samples:
    samples: Samples = {LANEWISE: [], DRANET: []}
    changes = 2 * ROUNDS_PER_BLOCK
    for pair in range(-(-rounds // changes)):
        for driver in random.sample((LANEWISE, DRANET), 2):
            with bench.running(driver):
                seconds = [bench.change_mtu(driver, pair * ROUNDS_PER_BLOCK + change) for change in range(changes)]
            samples[driver].append({"republish": seconds})
    return samples


def comparison(name: str, quantity: str, samples: Samples, method: str) -> Object:
    """A figure: the ratio of the medians of a quantity."""
    lanewise, dranet = ([block[quantity] for block in samples[driver]] for driver in (LANEWISE, DRANET))
    ratio, low, high = ratio_of_medians(lanewise, dranet)
    unit, factor = ("MiB", 1.0) if quantity == "rss" else ("ms", 1000.0)
    lanewise_median, dranet_median = (statistics.median(sum(blocks, [])) * factor for blocks in (lanewise, dranet))
    return {
        "name": f"driver_vs_dranet_{name}",
        "value": round(ratio, 3),
        "unit": "ratio",
        "against": f"DRANET 1.4.0, {dranet_median:.1f} {unit} (ours {lanewise_median:.1f} {unit})",
        "confidence_95": [round(low, 3), round(high, 3)],
        "method": f"{method}; {sum(map(len, lanewise))} rounds each in {len(lanewise)} pairs of blocks of shuffled "
        f"order, medians, bootstrap of the pairs; {load_at_end()}",
    }


_READY = "from creating the first pod until all are Ready, with scheduler, kubelet and containerd"
_PREPARE = "NodePrepareResources by kubelet's own clock, mean of a round"
_ATTACH = (
    "by the drivers' own clocks: ours from the hook's request to its answer (driver_hook_ms is the program around it), "
    "DRANET's handler of RunPodSandbox alone"
)


def setting_figures(name: str, setting: Setting, samples: Samples) -> Figures:
    """The figures of one setting."""
    load = f"{CONNECTIONS} TCP connections and {PROCESSES} processes"
    node = f", on a node with {load} of other programs" if setting.busy else ""
    yield comparison(f"pod_ready_{setting.ending}", "pod_ready", samples, f"{setting.pods} at once{node}: {_READY}")
    if setting.pods == 1:
        yield comparison(
            "prepare_busy_node" if setting.busy else "prepare_p50", "prepare", samples, f"{_PREPARE}{node}"
        )
    else:
        yield comparison(f"prepare_{setting.ending}", "prepare", samples, f"{setting.pods} at once{node}: {_PREPARE}")
    yield comparison(
        f"cpu_a_pod_{setting.ending}", "cpu_a_pod", samples, f"{setting.pods} at once{node}: the process' CPU"
    )
    yield comparison(
        f"machine_cpu_a_pod_{setting.ending}",
        "machine_cpu",
        samples,
        f"{setting.pods} at once{node}: CPU time of all processes of the machine until all pods are Ready",
    )
    if name == "alone":
        yield comparison("attach_p50", "attach", samples, _ATTACH)
        yield comparison("unprepare_p50", "unprepare", samples, "NodeUnprepareResources by kubelet's own clock")
        yield comparison("rss", "rss", samples, "VmRSS at the end of each block")


def measure_settings(names: t.Sequence[str], rounds: int, samples_file: Path | None) -> Figures:
    """Measure settings inside the namespaces of a sandbox."""
    from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
    from ansible_collections.lanewise.dra.tests.cluster.node import Node

    with ControlPlane() as plane, Node(plane) as node:
        bench = Bench(node)
        for name in names:
            if name == "republish":
                samples = measure_republishing(bench, rounds)
            else:
                with busy_node() if SETTINGS[name].busy else contextlib.nullcontext():
                    samples = measure(bench, SETTINGS[name], rounds)
            samples = _with_earlier_samples(samples, name, samples_file)
            if name == "republish":
                method = "from a change of an interface's MTU to the slice that says so"
                yield comparison("republish", "republish", samples, method)
            else:
                yield from setting_figures(name, SETTINGS[name], samples)


def _with_earlier_samples(samples: Samples, name: str, file: Path | None) -> Samples:
    """Add these samples of a setting to the file. Returns all its samples in the file, or the same without a file."""
    if file is None:
        return samples
    content: dict[str, Samples] = json.loads(file.read_text()) if file.exists() else {}
    earlier = content.get(name, {LANEWISE: [], DRANET: []})
    content[name] = {driver: [*earlier[driver], *samples[driver]] for driver in samples}
    file.write_text(json.dumps(content))
    return content[name]


def all_settings() -> Figures:
    """All settings, for tests.bench, each on a separate node."""
    if os.geteuid():
        raise LeftOut("only root can create the namespaces of a node")
    for name in [*SETTINGS, "republish"]:
        yield from _in_sandbox([name], 30, None)


def _in_sandbox(names: t.Sequence[str], rounds: int, samples_file: Path | None) -> Figures:
    """Run this program again in the namespaces of a sandbox."""
    sandbox = REPOSITORY / "tests" / "cluster" / "sandbox.py"
    options = [f"--samples={samples_file}"] if samples_file else []
    command = [sys.executable, "-m", "tests.bench.dranet", *names, f"--rounds={rounds}", *options, "--inside"]
    return child_figures([sys.executable, str(sandbox), *command], seconds=1800.0 * len(names))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dranet")
    parser.add_argument("settings", nargs="+", choices=[*SETTINGS, "republish"], metavar="SETTING")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=Path, help="file with samples of earlier runs; those of this run are added")
    parser.add_argument("--inside", action="store_true", help="already in the namespaces of a sandbox")
    arguments = parser.parse_args()
    run = measure_settings if arguments.inside else _in_sandbox
    try:
        for figure in run(arguments.settings, arguments.rounds, arguments.samples and arguments.samples.resolve()):
            print(json.dumps(figure), flush=True)
    except LeftOut as error:
        print(f"left out: {error}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
