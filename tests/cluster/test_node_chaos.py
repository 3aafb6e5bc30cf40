# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever is killed, at whatever moment, no device is lost and nothing of a claim stays: real pods, kubelet,
containerd and scheduler.

`LANEWISE_CHAOS_STRIDE=1` kills the driver at every step of every operation instead of a few; `LANEWISE_OUTAGE` is how
many seconds the API server is away; `LANEWISE_PODS` how many pods come and go in a row.

It has more than 500 lines because all tests use one node and look for the same leftovers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME, STATE, Driver, add_rail, host_state
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS

Object = dict[str, t.Any]

STRIDE = int(os.environ.get("LANEWISE_CHAOS_STRIDE", "0"))
OUTAGE = float(os.environ.get("LANEWISE_OUTAGE", "10"))
CYCLES = int(os.environ.get("LANEWISE_PODS", "10"))
#: Without LANEWISE_CHAOS_STRIDE, so that each operation is killed a few times.
STRIDES = {"prepare": 16, "attach": 16, "detach": 14, "unprepare": 8, "start": 14}
RAILS = 4
RULES = range(2000, 2000 + RAILS)  # priorities of the node's own
SLOW = 60  # seconds: kubelet tries again after 10 to 15, more than once

KILL = Path("/run/kill")  # of killed_driver.py
CHECKPOINT = Path("/var/lib/kubelet/dra_manager_state")

PROGRAM = Path(__file__).with_name("killed_driver.py")
UNFINISHED = ".unfinished"
PODS = "/api/v1/namespaces/default/pods"
#: What a pod gets, by rail: everything, and a child. The rails have configuration of the node's own besides.
CONFIGURATION: dict[int, Object] = {
    1: {
        "name": "net1",
        "mac": "02:00:00:00:02:01",
        "mtu": 1400,
        "addresses": ["203.0.113.18/28", "2001:db8:1::2/64"],
        "routes": [{"destination": "192.0.2.128/25", "gateway": "203.0.113.17", "table": 200}],
        "rules": [{"source": "203.0.113.18/32", "table": 200, "priority": 1000}],
        "neighbors": [{"destination": "203.0.113.20", "mac": "02:00:00:00:00:20"}],
        # addresses need not be proven unique, which would take a second of each pod's start
        "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2, "net.ipv6.conf.IFNAME.accept_dad": 0},
        "ethtool": {"features": {"tx-checksumming": False}},
    },
    2: {"name": "mac0", "child": {"type": "macvlan"}, "addresses": ["203.0.113.34/28"]},
}


@pytest.fixture(name="driver", scope="module")
def _driver(node: Node) -> t.Iterator[Driver]:
    for number in range(RAILS):
        make_rail(number)
    driver = Driver(node, program=[str(PROGRAM), str(KILL)])
    try:
        driver.wait_ready(SLOW)
    except Failed as failure:
        raise Failed(f"{failure}: {driver.reasons()}\n{driver.log()}") from None
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    device_class = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector], "config": [OPEN_CLASS]}}
    node.plane.expect("POST", f"{API}/deviceclasses", device_class)
    make_template(driver, "whole", CONFIGURATION)
    for number in range(RAILS):
        make_template(driver, f"rail{number}", {number: {"name": "net1"}})
    yield driver
    print(driver.log())  # shown where the last test failed


def make_rail(number: int) -> None:
    """A rail with configuration of the node's own."""
    name = add_rail(number)
    ip(f"link set {name} mtu 1480 alias {name}-of-the-node")
    ip(f"address add 203.0.113.{number * 16 + 2}/28 dev {name}")
    ip(f"address add 2001:db8:{number}::1/64 dev {name} nodad")
    ip(f"route add 198.18.{number}.0/24 via 203.0.113.{number * 16 + 1} dev {name} metric 77")
    ip(f"route add 10.200.0.0/16 via 203.0.113.{number * 16 + 1} dev {name} table {100 + number}")
    ip(f"rule add from 203.0.113.{number * 16 + 2} table {100 + number} priority {RULES[number]}")
    ip(f"neighbour add 203.0.113.{number * 16 + 9} lladdr 02:00:00:00:00:99 dev {name} nud permanent")
    Path(f"/proc/sys/net/ipv4/conf/{name}/arp_announce").write_text("2")


def make_template(driver: Driver, name: str, rails: t.Mapping[int, Object]) -> None:
    requests, config = [], []
    for number, wanted in rails.items():
        expression = f'device.attributes["{NAME}"].ifName == "rail{number}"'
        exactly = {"deviceClassName": "nic", "selectors": [{"cel": {"expression": expression}}]}
        requests.append({"name": f"nic{number}", "exactly": exactly})
        opaque = {"driver": NAME, "parameters": parameters(wanted)}
        config.append({"requests": [f"nic{number}"], "opaque": opaque})
    item = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests, "config": config}}}}
    driver.plane.expect("POST", f"{API}/namespaces/default/resourceclaimtemplates", item)


class Scene:
    """The node as it was before, to be compared with what it is after, and pods on it."""

    def __init__(self, node: Node, driver: Driver) -> None:
        self.node = node
        self.driver = driver
        self.plane = node.plane
        self.before = state()
        self.published = driver.devices()

    def post(self, name: str, template: str = "whole", **spec: t.Any) -> None:
        """Make a pod that ends when a signal asks it to."""
        claim = {"name": "net", "resourceClaimTemplateName": template}
        pod = self.node.pod(name, resourceClaims=[claim], **spec)
        pod["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "trap exit TERM; sleep infinity & wait"]
        self.plane.expect("POST", PODS, pod)

    def ready(self, name: str) -> bool:
        found = self.plane.expect("GET", f"{PODS}/{name}")
        if found["status"]["phase"] in ("Failed", "Succeeded"):
            raise Failed(f"pod {name} has ended: {json.dumps(found['status'])}")
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))

    def wait_ready(self, name: str, seconds: float = SLOW) -> None:
        try:
            self.plane.wait_for(lambda: self.ready(name), f"pod {name}", seconds)
        except Failed as failure:
            raise Failed(f"{failure}\n" + "\n".join(self.node.events(name))) from None

    def gone(self, name: str) -> bool:
        return bool(self.plane.request("GET", f"{PODS}/{name}")[0] == 404)

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod, without waiting until it is gone."""
        body = None if grace is None else {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        status, answer = self.plane.request("DELETE", f"{PODS}/{name}", body)
        assert status in (200, 404), answer

    def poke(self, name: str) -> None:
        """Let kubelet look at a pod now, which it otherwise does 10 to 15 seconds after a failure."""
        self.plane.request("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": {"poked": str(time.monotonic())}}})

    def phases(self) -> dict[str, str]:
        """How far the driver has come with each pod's claim, by its records."""
        found = {}
        for path in (STATE / "state").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # it is removed just now
                record = json.loads(path.read_text())
                found[record["pod"]["name"]] = record.get("phase", "prepared")  # its default is not written
        return found

    def has_interfaces(self, name: str) -> bool:
        shown = {one["ifname"]: one for one in json.loads(self.node.execute(name, "ip", "-json", "address"))}
        found = [one["local"] for link in ("net1", "mac0") for one in shown[link]["addr_info"]]
        return {"203.0.113.18", "203.0.113.34"} <= set(found)

    def wait_settled(self, seconds: float = SLOW) -> None:
        """Wait until nothing of a claim is left on the node, and look at everything."""
        self.plane.wait_for(lambda: not self.traces(), "the claims' traces to go", seconds)
        now: Object = {}

        def same() -> bool:
            now.update(state())
            return now == self.before

        try:
            self.plane.wait_for(same, "the node to be as it was", 30)
        except Failed as failure:
            raise Failed(f"{failure}: {differences(self.before, now)}") from None
        try:
            self.plane.wait_for(lambda: self.driver.devices() == self.published, "devices to be published", 30)
        except Failed as failure:
            raise Failed(f"{failure}: {differences(self.published, self.driver.devices())}") from None

    def traces(self) -> list[str]:
        """What is there of claims, without unfinished files of killed writers, which are too young to be swept."""
        return [path for path in self.driver.traces() if not path.endswith(UNFINISHED)]

    def end(self, *names: str, seconds: float = SLOW) -> None:
        """Delete pods; nothing of them is left."""
        for name in names:
            self.delete(name)
        for name in names:
            self.plane.wait_for(lambda name=name: self.gone(name), f"the end of pod {name}", seconds)
        self.wait_settled(seconds)

    def log_size(self) -> int:
        return len(self.driver.log())

    def restart(self) -> None:
        """Restart the driver, whether it runs or was killed."""
        KILL.unlink(missing_ok=True)
        self.driver.stop()
        self.driver.start()
        self.driver.wait_ready(SLOW)


@pytest.fixture(name="scene")
def _scene(node: Node, driver: Driver) -> t.Iterator[Scene]:
    """Each test finds the node without claims; what one that failed left is taken away."""
    scene = Scene(node, driver)
    yield scene
    KILL.unlink(missing_ok=True)
    for pod in scene.plane.expect("GET", PODS)["items"]:
        scene.delete(pod["metadata"]["name"])
    scene.plane.wait_for(lambda: not scene.plane.expect("GET", PODS)["items"], "the end of all pods", SLOW)
    scene.plane.wait_for(lambda: not scene.traces(), "the claims' traces to go", SLOW)


def state() -> Object:
    """The node's network and what claims could leave elsewhere."""
    found: Object = {f"rail{number}": json.loads(host_state(f"rail{number}")) for number in range(RAILS)}
    found["kubelet"] = claims_of_kubelet()
    found["links"] = sorted(link["ifname"] for link in json.loads(ip("-json link")))
    for family in ("-4", "-6"):
        found[f"rules {family}"] = ip(f"{family} rule")
    found["namespaces"] = sorted(path.name for path in Path("/run/netns").iterdir())
    found["mounts"] = sorted(line for line in Path("/proc/mounts").read_text().splitlines() if "nsfs" in line)
    files = [path for folder in (STATE, Path("/run/lanewise")) for path in folder.rglob("*") if not path.is_dir()]
    found["files"] = sorted(str(path) for path in files if not path.name.endswith(UNFINISHED))
    return found


def claims_of_kubelet() -> list[str]:
    """The claims that kubelet has in its checkpoint."""
    if not CHECKPOINT.exists():
        return []
    data = json.loads(json.loads(CHECKPOINT.read_text())["Data"])
    return sorted(claim["ClaimName"] for claim in data["ClaimInfoStateList"] or ())


def differences(one: t.Any, other: t.Any, path: str = "") -> list[str]:
    """What is in one state and not in the other, one line each."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{path}/{key}")]
    if isinstance(one, list) and isinstance(other, list):
        lost = [f"{path}: lost {item}" for item in one if item not in other]
        return lost + [f"{path}: new {item}" for item in other if item not in one]
    return [] if one == other else [f"{path}: {one} is now {other}"]


@pytest.mark.parametrize("operation", ["prepare", "attach", "detach", "unprepare"])
def test_a_driver_killed_at_any_step_leaves_nothing(scene: Scene, operation: str) -> None:
    """Its pod is deleted, before it could start or when it has started after all, and nothing is left."""
    start = time.monotonic()
    kills = 0
    for step in steps(operation):
        name = f"{operation}-{step}"
        end = killed_at(scene, name, operation, step)
        print(f"{time.monotonic() - start:.0f} s: step {step}: {end}", flush=True)
        if not end.startswith("killed"):
            scene.end(name)
            break
        kills += 1
        scene.restart()
        scene.poke(name)
        if operation in ("prepare", "attach") and kills % 2:
            scene.plane.wait_for(lambda name=name: has_interfaces(scene, name), f"pod {name} with its interfaces", SLOW)
        scene.end(name)
    print(f"{operation}: killed {kills} times, {time.monotonic() - start:.0f} s", flush=True)
    assert kills > 1


def steps(operation: str) -> range:
    """The steps at which to kill, more than there are: the first that is not reached ends a test."""
    stride = STRIDE or STRIDES[operation]
    return range(stride // 2, 10_000, stride)


def killed_at(scene: Scene, name: str, operation: str, step: int) -> str:
    """Make a pod with a driver that is killed at a step, and delete the pod if the operation is part of its end.

    Returns what the driver logs about the kill, or that the operation has ended.
    """
    offset = scene.log_size()
    KILL.write_text(f"{operation} {step}")
    scene.post(name)
    if operation in ("detach", "unprepare"):
        scene.wait_ready(name)
        scene.delete(name)
    return wait_for_end(scene, offset, operation)


def killed(scene: Scene) -> bool:
    return not scene.plane.running("driver")


def killed_at_start(scene: Scene, operation: str, step: int) -> bool:
    """Start the driver. Returns whether it was killed before it was ready."""
    KILL.write_text(f"{operation} {step}")
    scene.driver.stop()
    scene.driver.start()
    scene.plane.wait_for(lambda: killed(scene) or not scene.driver.reasons(), f"step {step} of {operation}", SLOW)
    if killed(scene):
        print(scene.driver.log().splitlines()[-1], flush=True)
    return killed(scene)


def wait_for_end(scene: Scene, offset: int, operation: str) -> str:
    """Wait until the driver was killed, or has come through an operation, by its log from `offset` on."""

    def end() -> str:
        over = killed(scene)  # looked at before the log is
        reported = scene.driver.log()[offset:]
        if over:
            return reported[reported.index("killed before") :].strip()
        return f"{operation} made" if f"\n{operation} made" in reported else ""

    return str(scene.plane.wait_for(end, f"the end of {operation}", SLOW))


def test_a_driver_killed_while_it_recovers_leaves_nothing(scene: Scene) -> None:
    """Attach is killed, and then what takes everything back at the next start, twice."""
    for step in range(20, 10_000, STRIDE or 100):
        name = f"recovers-{step}"
        end = killed_at(scene, name, "attach", step)
        if not end.startswith("killed"):
            scene.end(name)
            break
        for again in (4, 9):
            if not killed_at_start(scene, "detach", again):
                break  # attach was killed so late that its devices stay in the pod
        scene.restart()
        scene.plane.wait_for(lambda name=name: has_interfaces(scene, name), f"pod {name} with its interfaces", SLOW)
        scene.end(name)


def test_a_driver_killed_while_it_starts_disturbs_no_pod(scene: Scene) -> None:
    """A pod that runs does not notice."""
    scene.post("lasting")
    scene.wait_ready("lasting")
    kills = 0
    for step in steps("start"):
        if not killed_at_start(scene, "start", step):
            break
        kills += 1
    assert kills > 1
    scene.restart()
    assert has_interfaces(scene, "lasting")
    scene.end("lasting")


def test_files_of_killed_writers_are_removed(scene: Scene) -> None:
    """Drafts are, when they are old enough not to be another's, and locks."""
    places = (STATE / "state", Path("/var/run/cdi"))
    for place, name in zip(places, ("a.json", "k8s.lanewise.dev-claim-a.json")):
        (place / f"{name}.0{UNFINISHED}").write_text("{")
        for draft in place.glob(f"*{UNFINISHED}"):
            os.utime(draft, (0, 0))
    lock = Path("/run/lanewise/locks/claim-a")
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    scene.restart()
    assert scene.driver.traces() == []
    assert not lock.exists()


#: When a program is killed. Without LANEWISE_CHAOS_STRIDE those at which most is under way.
MOMENTS = {
    "kubelet": ["prepared", "detached"],
    "containerd": ["attached", "ending"],
}
if STRIDE:
    MOMENTS = dict.fromkeys(MOMENTS, ["created", "prepared", "attached", "running", "ending", "detached"])


def bring(scene: Scene, name: str, moment: str, template: str = "whole", **spec: t.Any) -> None:
    """Make a pod and wait until it is where `moment` says, as well as this can be seen from outside."""
    scene.post(name, template, **spec)
    if moment in ("prepared", "attached"):
        wanted = ["attached"] if moment == "attached" else ["prepared", "attaching", "attached"]
        scene.plane.wait_for(lambda: scene.phases().get(name) in wanted, f"pod {name} to be {moment}", SLOW)
    elif moment != "created":
        scene.wait_ready(name)
    if moment in ("ending", "detached"):
        scene.delete(name)
    if moment == "detached":
        scene.plane.wait_for(lambda: scene.phases().get(name) != "attached", f"pod {name} to lose its devices", SLOW)


@pytest.mark.parametrize(("program", "moment"), [(name, moment) for name in MOMENTS for moment in MOMENTS[name]])
def test_pods_start_or_end_although_kubelet_or_containerd_is_killed(scene: Scene, program: str, moment: str) -> None:
    """The pod starts after all, or ends."""
    name = f"{program}-{moment}"
    bring(scene, name, moment, restartPolicy="Always")
    scene.node.stop(program)
    time.sleep(0.5)
    scene.node.start(program)
    if moment not in ("ending", "detached"):
        scene.plane.wait_for(lambda: has_interfaces(scene, name), f"pod {name} with its interfaces", SLOW)
    scene.end(name)


def has_interfaces(scene: Scene, name: str) -> bool:
    """Whether a pod runs, with all that it asked for; no while kubelet does not answer."""
    try:
        return scene.ready(name) and scene.has_interfaces(name)
    except Failed:
        return False


@pytest.mark.parametrize("moment", ["created", "prepared", "attached", "running"] if STRIDE else ["attached"])
def test_the_next_pod_gets_the_devices_of_a_pod_deleted_by_force(scene: Scene, moment: str) -> None:
    """Its object is gone at once, and the next pod wants the same devices."""
    first, second = f"forced-{moment}", f"after-{moment}"
    bring(scene, first, moment)
    scene.delete(first, grace=0)
    scene.post(second)
    scene.plane.wait_for(lambda: scene.poke(second) or scene.ready(second), f"pod {second}", SLOW)
    assert scene.has_interfaces(second)
    scene.end(second)


def test_pods_start_and_end_while_the_api_server_is_away(scene: Scene) -> None:
    """What the node knows already goes on: a pod ends, another starts; the rest waits."""
    bring(scene, "leaving", "running", "rail0")
    bring(scene, "coming", "prepared")
    scene.delete("leaving")
    scene.post("waiting", "rail3")
    start = time.monotonic()
    scene.plane.stop("kube-apiserver")
    attached = "attached"
    scene.plane.wait_for(lambda: scene.phases().get("coming") == attached, "pod coming to have its devices", 30)
    scene.plane.wait_for(lambda: "leaving" not in scene.phases(), "pod leaving to leave its device", 30)
    assert now("rail0") == scene.before["rail0"]
    time.sleep(max(0.0, OUTAGE - (time.monotonic() - start)))
    scene.plane.start("kube-apiserver")
    scene.plane.wait_ready("kube-apiserver")
    scene.plane.wait_for(lambda: scene.poke("waiting") or scene.ready("waiting"), "pod waiting", SLOW)
    scene.plane.wait_for(lambda: has_interfaces(scene, "coming"), "pod coming with its interfaces", SLOW)
    scene.plane.wait_for(lambda: scene.gone("leaving"), "the end of pod leaving", SLOW)
    scene.driver.wait_ready(SLOW)
    scene.end("coming", "waiting")


def now(rail: str) -> t.Any:
    """A rail's state, None while it is away."""
    try:
        return json.loads(host_state(rail))
    except Failed:
        return None


def test_pods_get_their_devices_again_after_a_reboot(scene: Scene) -> None:
    """Pods that are to run on get their devices again, those that are not give them back."""
    bring(scene, "always", "running", restartPolicy="Always")
    bring(scene, "never", "running", "rail0")
    bring(scene, "ending", "running", "rail3")
    scene.delete("ending")
    scene.driver.stop()
    scene.node.crash()
    for rule in json.loads(ip("-json rule")):
        if rule["priority"] in RULES:
            ip(f"rule del priority {rule['priority']}")
    for number in range(RAILS):
        make_rail(number)
    scene.node.boot()
    scene.driver.start()
    scene.plane.wait_for(lambda: has_interfaces(scene, "always"), "the pod that runs on", SLOW)
    scene.plane.wait_for(lambda: scene.gone("ending"), "the end of pod ending", SLOW)
    status = scene.plane.wait_for(lambda: ended(scene, "never"), "the end of pod never", SLOW)
    assert status["phase"] == "Failed", status
    scene.plane.wait_for(lambda: now("rail0") == scene.before["rail0"], "rail0 to be on the node", SLOW)
    assert set(scene.phases()) == {"always"}
    scene.end("always", "never")


def ended(scene: Scene, name: str) -> Object | None:
    status: Object = scene.plane.expect("GET", f"{PODS}/{name}")["status"]
    return status if status["phase"] in ("Failed", "Succeeded") else None


def usage(scene: Scene) -> dict[str, int]:
    """What the driver uses and what claims have on the node, in numbers."""
    process = Path(f"/proc/{scene.plane.pids['driver']}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return {
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "KiB": int(status["VmRSS"].split()[0]),
        "claims of kubelet": len(claims_of_kubelet()),
        "files": sum(1 for folder in (STATE, Path("/run/lanewise")) for path in folder.rglob("*")),
        "CDI files": len(list(Path("/var/run/cdi").iterdir())),
        "interfaces": len(json.loads(ip("-json link"))),
        "namespaces": len(list(Path("/run/netns").iterdir())),
        "mounts": len(Path("/proc/mounts").read_text().splitlines()),
    }


def test_many_pods_in_a_row_leave_nothing(scene: Scene) -> None:
    """Several at a time. What the driver uses may grow with the first few, and does not later."""
    waves = [["whole", "rail0", "rail3"], [f"rail{number}" for number in range(RAILS)]]
    start = time.monotonic()
    made, seen = 0, []
    for wave in itertools.cycle(waves):
        names = [f"churn-{made + number}" for number in range(len(wave))]
        for name, template in zip(names, wave):
            scene.post(name, template)
        for name in names:
            scene.wait_ready(name)
        assert set(scene.phases()) == set(names) and len(claims_of_kubelet()) == len(names)
        scene.end(*names)
        made += len(wave)
        seen.append(usage(scene))
        if len(seen) == 2 or len(seen) % 10 == 0 or made >= CYCLES:
            print(f"{time.monotonic() - start:.0f} s: {made} pods: {seen[-1]}", flush=True)
        if made >= CYCLES:
            break
    warm, last = seen[min(9, len(seen) // 2)], seen[-1]
    for name in ("claims of kubelet", "files", "CDI files", "interfaces", "namespaces", "mounts"):
        assert last[name] == warm[name], (name, warm, last)
    assert last["descriptors"] <= warm["descriptors"] + 8, (warm, last)
    assert last["threads"] <= warm["threads"] + 8, (warm, last)
    assert last["KiB"] <= warm["KiB"] + 8192, (warm, last)
