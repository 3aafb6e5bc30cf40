# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the driver. Each figure is compared with a lower bound that is measured in the same run.

    python -m tests.bench.driver PART

runs one part in an environment that has the driver's dependencies, and prints its figures as JSON, one a line; parts
that need a node create one, and need root. `tests.bench` runs all parts.

It has more than 500 lines because all parts take and print their figures in the same way.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import tomllib
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object

from tests.bench.figures import Figures

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = {
    "": "driver",
    "dra": "plugins/module_utils/dra",
    "topology": "plugins/module_utils/topology",
    "uplinks": "plugins/module_utils/uplinks",
}
#: Seconds for one part.
TIMEOUT = 900


def interleaved(rounds: int, **actions: t.Callable[[], object]) -> dict[str, list[float]]:
    """The seconds of each action, run in turns so that noise affects all equally. A first round is not counted.

    An action may return the seconds itself (a float) if only a part of it is to be measured.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            result = action()
            seconds = result if isinstance(result, float) else time.perf_counter() - start
            if turn:
                times[name].append(seconds)
    return times


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def load_at_end() -> str:
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs at the end"


def figure(name: str, value: float, unit: str, against: str, method: str) -> Object:
    rounded = round(value, 3 if value < 10 else 1)
    return {"name": name, "value": rounded, "unit": unit, "against": against, "method": f"{method}; {load_at_end()}"}


def median_and_p99(name: str, seconds: list[float], against: t.Callable[[float], str], method: str) -> Figures:
    """The median and the 99th percentile, in milliseconds."""
    for share, title in ((0.5, "p50"), (0.99, "p99")):
        yield figure(f"{name}_{title}_ms", percentile(seconds, share) * 1000, "ms", against(share), method)


# the process

_EMPTY_SERVER = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
server = grpc.server(ThreadPoolExecutor(2))
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(sys.argv[2], {sys.argv[3]: echo}),))
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
threading.Event().wait()
"""
_SERVICE, _METHOD = "pluginregistration.Registration", "GetInfo"


def _wait_for_answer(socket: Path) -> None:
    """Wait until the socket answers one gRPC call."""
    import grpc

    while not socket.exists():
        time.sleep(0.002)
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        channel.unary_unary(f"/{_SERVICE}/{_METHOD}")(b"", wait_for_ready=True, timeout=60)


def resident_mib(pid: int) -> float:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _run_once(command: list[str], socket: Path, delay: float) -> tuple[float, float]:
    """Seconds from a program's start until it answers, and its resident MiB `delay` seconds later.

    The first run also compiles the program's modules, as installing a wheel does.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(socket.parents[1] / "compiled")
    start = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_answer(socket)
        seconds = time.perf_counter() - start
        time.sleep(delay)
        return seconds, resident_mib(child.pid)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        socket.unlink(missing_ok=True)


def process(folder: Path) -> Figures:
    from ansible_collections.lanewise.dra.tests.machines.builder import build

    machine = build("hgx-h100", folder / "machine")
    token, kubeconfig, settings = folder / "token", folder / "kubeconfig", folder / "driver.yml"
    token.write_text("none")
    cluster = {"server": "https://127.0.0.1:1"}  # refused at once
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
            }
        )
    )
    content = {"kubeconfig": str(kubeconfig), "token_file": str(token), "renew_token": False, "metrics_address": ""}
    settings.write_text(json.dumps(content))
    options = [f"--{name}-dir={folder / name}" for name in ("plugin", "registry", "run", "cdi")]
    driver = [sys.executable, "-m", "lanewise_driver.cli", f"--settings={settings}", f"--root={machine}", *options]
    (folder / "empty").mkdir()
    empty_socket = folder / "empty" / "empty.sock"
    empty = [sys.executable, "-c", _EMPTY_SERVER, str(empty_socket), _SERVICE, _METHOD]
    measured: dict[str, list[tuple[float, float]]] = {"driver": [], "empty": []}
    for turn in range(6):
        for name, command, socket in (
            ("driver", [*driver, "run"], folder / "registry" / "lanewise.dev-reg.sock"),
            ("empty", empty, empty_socket),
        ):
            result = _run_once(command, socket, 3.0)
            measured[name] += [result] if turn else []
    medians = {name: [statistics.median(values) for values in zip(*results)] for name, results in measured.items()}
    seconds, resident = medians["driver"]
    empty_seconds, empty_resident = medians["empty"]
    method = "5 interleaved runs, medians; the tree of an HGX H100, without an API server"
    against = "the same Python with grpcio and protobuf and an empty server on a Unix socket"
    yield figure(
        "driver_cold_start_s",
        seconds,
        "s",
        f"{against}, {empty_seconds:.2f} s (ratio {seconds / empty_seconds:.1f})",
        f"from exec to the answer to kubelet's first call; {method}",
    )
    yield figure(
        "driver_rss_mib",
        resident,
        "MiB",
        f"{against}, {empty_resident:.1f} MiB (ratio {resident / empty_resident:.1f})",
        f"VmRSS 3 s after that; {method}",
    )


# the hook


def hook(folder: Path) -> Figures:
    from ansible_collections.lanewise.dra.tests.driver.folders import under
    from lanewise_driver.base.metrics import Metrics
    from lanewise_driver.claims import cdi
    from lanewise_driver.hook.install import install_hook
    from lanewise_driver.hook.server import HookServer

    class IdleService:
        """A service that has nothing to attach."""

        def attach(self, request: object) -> None:
            pass

    paths = under(folder, hook_python=Path(sys.executable))
    paths.make()
    install_hook(paths)
    server = HookServer(paths, t.cast(t.Any, IdleService()), Metrics())
    server.start()
    container = subprocess.Popen(["sleep", "infinity"])
    command = cdi.hook_command(paths, "00000000-0000-4000-8000-000000000000")
    state = json.dumps({"ociVersion": "1.2.0", "id": "c", "status": "created", "pid": container.pid, "bundle": "/b"})

    def run(*words: str) -> None:
        subprocess.run(words, input=state.encode(), check=True)

    try:
        bare_python = [command[2], "-I", "-S", "-c", "pass"]
        seconds = interleaved(40, hook=lambda: run(*command), python=lambda: run(*bare_python))
    finally:
        container.kill()
        container.wait()
        server.stop(1)
    hook_ms, python_ms = (statistics.median(seconds[name]) * 1000 for name in ("hook", "python"))
    yield figure(
        "driver_hook_ms",
        hook_ms,
        "ms",
        f"python -I -S -c pass, {python_ms:.1f} ms (ratio {hook_ms / python_ms:.2f})",
        "what each container waits for beside the attach itself: the program and an answer of done; 40 interleaved "
        "runs, medians",
    )


# many functions


def vfs(folder: Path) -> Figures:
    from ansible_collections.lanewise.dra.tests.machines.builder import build
    from lanewise_driver.publish import slices
    from lanewise_driver.topology import publish
    from lanewise_driver.topology.model import as_dict
    from lanewise_driver.topology.probe import probe

    medians: dict[int, dict[str, float]] = {}
    for count in (1, 16, 256):
        per_pf = min(count, 16)
        cards = {
            f"{port + 1:02x}.0 spr-root-port": {"00.0 cx7-eth": {"vfs": per_pf}} for port in range(count // per_pf)
        }
        description = {
            "name": f"vfs-{count}",
            "summary": "VFs",
            "system": {"vendor": "V", "product": "P", "kernel": "6.8.0"},
            "cpu": {"model": "C", "sockets": 1, "cores": 8, "threads": 1, "memory_gib": 64},
            "roots": {"0000:10": {"numa": 0, **cards}},
        }
        tree = str(build(description, folder / f"vfs-{count}"))
        facts = as_dict(probe(tree))
        assert sum(1 for nic in facts["nics"] if nic["physfn"]) == count

        def make_slices(facts: Object = facts) -> None:
            publication = publish.publication(facts)
            assert slices.slices(publication, "node", "lanewise.dev")

        times = interleaved(9, publish=make_slices, probe=lambda tree=tree: as_dict(probe(tree)))  # type: ignore[misc]
        medians[count] = {name: statistics.median(values) for name, values in times.items()}
    publishing = ", ".join(f"{count}: {times['publish'] * 1000:.2f} ms" for count, times in medians.items())
    probing = ", ".join(f"{count}: {times['probe'] * 1000:.0f} ms" for count, times in medians.items())
    per_vf = {count: times["publish"] / count for count, times in medians.items()}
    yield figure(
        "driver_cost_of_vfs",
        per_vf[256] / per_vf[16],
        "ratio",
        f"the cost of each of 16 VFs; in all, with their PFs: {publishing} (the probe before it: {probing})",
        "what each of 256 VFs costs from facts to ResourceSlices; 16 VFs a PF; 9 interleaved rounds, medians",
    )


# sysctls, while another process holds the lock of the network configuration (RTNL)


def sysctls(folder: Path) -> Figures:
    from lanewise_driver.kernel import aio

    path = Path("/proc/sys/net/ipv6/conf/lo/addr_gen_mode")
    if os.geteuid():
        raise LeftOut("only root can create network namespaces")
    if not path.exists():
        raise LeftOut("the kernel has no IPv6")

    def cpu_seconds(read: t.Callable[[int], bytes]) -> float:
        """CPU seconds of one read."""
        time.sleep(0.001)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            start = time.thread_time()
            read(descriptor)
            return time.thread_time() - start
        finally:
            os.close(descriptor)

    script = "while ip link add one type veth peer name two && ip link del one; do :; done"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", script], start_new_session=True) as rtnl_holder:
        try:
            seconds = interleaved(
                2000,
                plain=lambda: cpu_seconds(lambda descriptor: os.read(descriptor, 4096)),
                asynchronous=lambda: cpu_seconds(aio.read),
            )
        finally:
            os.killpg(rtnl_holder.pid, signal.SIGKILL)
    plain, asynchronous = (statistics.fmean(seconds[name]) * 1e6 for name in ("plain", "asynchronous"))
    yield figure(
        "driver_sysctl_read_under_rtnl",
        asynchronous / plain,
        "ratio",
        f"read(2) of the same file, {plain:.0f} us (ours {asynchronous:.0f} us)",
        "CPU time of reading addr_gen_mode by asynchronous I/O, while another process creates and deletes veths, which "
        "holds RTNL; 2,000 interleaved rounds, means",
    )


# claims: a control plane, in separate namespaces


def claims(folder: Path) -> Figures:
    return _in_namespaces("claims-inside")


def shares(folder: Path) -> Figures:
    return _in_namespaces("shares-inside")


def shares_inside(folder: Path) -> Figures:
    from tests.bench import shares as shares_bench

    return shares_bench.shares_inside(folder)


def _in_namespaces(part: str) -> Figures:
    if os.geteuid():
        raise LeftOut("only root can create network namespaces")
    script = 'mount -t sysfs -o ro sysfs /sys && mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"'
    enter = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"]
    return child_figures([*enter, sys.executable, "-m", "tests.bench.driver", part])


def claims_inside(folder: Path) -> Figures:
    from tests.bench import claims as claims_bench

    return claims_bench.claims_inside(folder)


# pods: a kubelet and a container runtime


def pods(folder: Path) -> Figures:
    if os.geteuid():
        raise LeftOut("only root can create the namespaces of a node")
    sandbox = REPOSITORY / "tests" / "cluster" / "sandbox.py"
    return child_figures([sys.executable, str(sandbox), sys.executable, "-m", "tests.bench.driver", "pods-inside"])


def pods_inside(folder: Path) -> Figures:
    from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
    from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
    from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME, Driver, add_rail
    from ansible_collections.lanewise.dra.tests.cluster.node import Node

    with ControlPlane() as plane, Node(plane) as node:
        add_rail(0)
        driver = Driver(node)
        driver.wait_ready(120)
        selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
        plane.expect("POST", f"{API}/deviceclasses", {"metadata": {"name": "nic"}, "spec": {"selectors": [selector]}})
        config = parameters({"name": "net1", "addresses": ["203.0.113.2/28"]})
        devices = {
            "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}],
            "config": [{"opaque": {"driver": NAME, "parameters": config}}],
        }
        template = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": devices}}}
        plane.expect("POST", f"{API}/namespaces/default/resourceclaimtemplates", template)

        def run_pod(name: str, **spec: t.Any) -> float:
            start = time.perf_counter()
            pod = node.pod(name, **spec)
            pod["spec"].pop("nodeName", None)  # the scheduler places both pods
            node.run_pod(pod, 120)
            seconds = time.perf_counter() - start
            node.delete_pod(name, 120)
            return seconds

        pod_claims = [{"name": "net", "resourceClaimTemplateName": "one"}]
        seconds = interleaved(
            8, without=lambda: run_pod("without"), with_claim=lambda: run_pod("with", resourceClaims=pod_claims)
        )
        driver.stop()
        without, with_claim = (statistics.median(seconds[name]) for name in ("without", "with_claim"))
        yield figure(
            "pod_with_claim_vs_without",
            with_claim / without,
            "ratio",
            f"a pod of the same image without a claim, {without:.2f} s (with one {with_claim:.2f} s)",
            "from creating the pod to Ready, with scheduler, kubelet and containerd; the claim is from a template; "
            "8 interleaved rounds, medians",
        )


# beside another driver


def dranet(folder: Path) -> Figures:
    """All settings of tests.bench.dranet, 30 rounds of each: an hour and a half."""
    from tests.bench import dranet as dranet_bench

    yield from dranet_bench.all_settings()


# running them


class LeftOut(Exception):
    """A part cannot be measured here, for the reason in the message."""


PARTS: dict[str, t.Callable[[Path], Figures]] = {
    "process": process,
    "hook": hook,
    "vfs": vfs,
    "sysctls": sysctls,
    "claims": claims,
    "shares": shares,
    "pods": pods,
    "dranet": dranet,
}
#: Seconds for a part that takes longer than TIMEOUT.
_TIMEOUTS = {"dranet": 10800.0}
#: What parts of the same name run inside the namespaces that they create.
_PARTS_INSIDE = {"claims-inside": claims_inside, "shares-inside": shares_inside, "pods-inside": pods_inside}


def child_figures(command: list[str], seconds: float = TIMEOUT) -> Figures:
    """The figures that a program prints. It is killed when this process ends, or after `seconds`."""
    done = subprocess.run(
        ["setpriv", "--pdeathsig", "KILL", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=seconds,
        cwd=REPOSITORY,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode or not lines:
        reasons = [line for line in done.stdout.splitlines() if line.startswith("left out: ")]
        status = f"it ended with status {done.returncode}"
        raise LeftOut(reasons[-1].removeprefix("left out: ") if reasons else status)
    for line in lines:
        yield json.loads(line)


def _package(folder: Path) -> str:
    """A folder from which the driver's package can be imported, as its wheel would install it."""
    package = folder / "package" / "lanewise_driver"
    package.mkdir(parents=True)
    for name, source in PACKAGE.items():
        if name:
            (package / name).symlink_to(REPOSITORY / source)
            continue
        for path in (REPOSITORY / source).iterdir():
            (package / path.name).symlink_to(path)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dist_info = package.parent / f"lanewise_driver-{project['version']}.dist-info"
    dist_info.mkdir()
    lines = ("Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}")
    (dist_info / "METADATA").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(package.parent)


def driver(trees: Path) -> Figures:
    """All parts, for tests.bench."""
    if sys.platform != "linux":
        print("driver_* left out: the driver is for Linux", file=sys.stderr)
        return
    import environment  # importing tests.bench.__main__ adds tools/ to sys.path

    try:
        python = sys.executable
        if not importlib.util.find_spec("grpc"):
            python = str(environment.ensure("dev") / "bin" / "python")
    except (environment.Missing, subprocess.CalledProcessError) as error:
        print(f"driver_* left out: {error}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as temporary:
        folders = [*sys.path, _package(Path(temporary)), str(REPOSITORY)]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in folders if path.startswith("/"))
        for part in PARTS:
            try:
                yield from child_figures([python, "-m", "tests.bench.driver", part], _TIMEOUTS.get(part, TIMEOUT))
            except (LeftOut, subprocess.TimeoutExpired) as error:
                print(f"driver: {part} left out: {error}", file=sys.stderr)


def main() -> None:
    # sockets need short paths
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="lb") as folder:
        part = sys.argv[1]
        try:
            for result in (PARTS.get(part) or _PARTS_INSIDE[part])(Path(folder)):
                print(json.dumps(result), flush=True)
        except LeftOut as error:
            print(f"left out: {error}", flush=True)
            sys.exit(1)
        except Exception as error:
            if type(error).__name__ != "Missing":
                raise
            print(f"left out: {error}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
