# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No device is lost and nothing of a claim remains, whichever program is killed at whatever moment.

The pods, kubelet, containerd and scheduler are real.

`LANEWISE_CHAOS_STRIDE=1` kills the driver at every step of every operation, and not only at a few. `LANEWISE_OUTAGE` is
the duration of the API server's outage in seconds. `LANEWISE_PODS` is the number of pods that start and end in a row.

This file has more than 500 lines because all tests use the same node and look for the same leftovers.
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
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME, STATE, Driver, add_rail, host_state
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS_CONFIG

STRIDE = int(os.environ.get("LANEWISE_CHAOS_STRIDE", "0"))
OUTAGE = float(os.environ.get("LANEWISE_OUTAGE", "10"))
CYCLES = int(os.environ.get("LANEWISE_PODS", "10"))
#: The strides without LANEWISE_CHAOS_STRIDE: each operation is killed a few times.
STRIDES = {"prepare": 16, "attach": 16, "detach": 14, "unprepare": 8, "start": 14}
RAILS = 4
RULES = range(2000, 2000 + RAILS)  # priorities of the routing rules that the node has itself
TIMEOUT_SECONDS = 60  # kubelet retries every 10 to 15 seconds

KILL = Path("/run/kill")  # read by killed_driver.py
CHECKPOINT = Path("/var/lib/kubelet/dra_manager_state")

KILLED_DRIVER = Path(__file__).with_name("killed_driver.py")
UNFINISHED = ".unfinished"
PODS = "/api/v1/namespaces/default/pods"
#: The configuration of a pod's interfaces, by rail: one with all settings, and a child. On the node, the rails have
#: another configuration (`make_rail`).
CONFIGURATION: dict[int, Object] = {
    1: {
        "name": "net1",
        "mac": "02:00:00:00:02:01",
        "mtu": 1400,
        "addresses": ["203.0.113.18/28", "2001:db8:1::2/64"],
        "routes": [{"destination": "192.0.2.128/25", "gateway": "203.0.113.17", "table": 200}],
        "rules": [{"source": "203.0.113.18/32", "table": 200, "priority": 1000}],
        "neighbors": [{"destination": "203.0.113.20", "mac": "02:00:00:00:00:20"}],
        # no duplicate address detection, which would delay each pod's start by a second
        "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2, "net.ipv6.conf.IFNAME.accept_dad": 0},
        "ethtool": {"features": {"tx-checksumming": False}},
    },
    2: {"name": "mac0", "child": {"type": "macvlan"}, "addresses": ["203.0.113.34/28"]},
}


@pytest.fixture(name="driver", scope="module")
def _driver(node: Node) -> t.Iterator[Driver]:
    for number in range(RAILS):
        make_rail(number)
    driver = Driver(node, program=[str(KILLED_DRIVER), str(KILL)])
    try:
        driver.wait_ready(TIMEOUT_SECONDS)
    except Failed as failure:
        raise Failed(f"{failure}: {driver.reasons()}\n{driver.log()}") from None
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    device_class = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector], "config": [OPEN_CLASS_CONFIG]}}
    node.plane.expect("POST", f"{API}/deviceclasses", device_class)
    make_template(driver, "whole", CONFIGURATION)
    for number in range(RAILS):
        make_template(driver, f"rail{number}", {number: {"name": "net1"}})
    yield driver
    print(driver.log())  # shown if the last test failed


def make_rail(number: int) -> None:
    """Create a rail, and configure it as the node's interface."""
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
    requests, entries = [], []
    for number, config in rails.items():
        expression = f'device.attributes["{NAME}"].ifName == "rail{number}"'
        exactly = {"deviceClassName": "nic", "selectors": [{"cel": {"expression": expression}}]}
        requests.append({"name": f"nic{number}", "exactly": exactly})
        opaque = {"driver": NAME, "parameters": parameters(config)}
        entries.append({"requests": [f"nic{number}"], "opaque": opaque})
    item = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests, "config": entries}}}}
    driver.plane.expect("POST", f"{API}/namespaces/default/resourceclaimtemplates", item)


class Testbed:
    """The node with its recorded state, and pods on it."""

    def __init__(self, node: Node, driver: Driver) -> None:
        self.node = node
        self.driver = driver
        self.plane = node.plane
        self.before = state()
        self.published = driver.devices()

    def post(self, name: str, template: str = "whole", **spec: t.Any) -> None:
        """Create a pod that ends on SIGTERM."""
        claim = {"name": "net", "resourceClaimTemplateName": template}
        pod = self.node.pod(name, resourceClaims=[claim], **spec)
        pod["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "trap exit TERM; sleep infinity & wait"]
        self.plane.expect("POST", PODS, pod)

    def ready(self, name: str) -> bool:
        found = self.plane.expect("GET", f"{PODS}/{name}")
        if found["status"]["phase"] in ("Failed", "Succeeded"):
            raise Failed(f"pod {name} has ended: {json.dumps(found['status'])}")
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", ()))

    def wait_ready(self, name: str, seconds: float = TIMEOUT_SECONDS) -> None:
        try:
            self.plane.wait_for(lambda: self.ready(name), f"pod {name}", seconds)
        except Failed as failure:
            raise Failed(f"{failure}\n" + "\n".join(self.node.events(name))) from None

    def deleted(self, name: str) -> bool:
        return bool(self.plane.request("GET", f"{PODS}/{name}")[0] == 404)

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod, without waiting until it no longer exists."""
        body = None if grace is None else {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        status, answer = self.plane.request("DELETE", f"{PODS}/{name}", body)
        assert status in (200, 404), answer

    def poke(self, name: str) -> None:
        """Change a pod, so that kubelet retries now and not 10 to 15 seconds after a failure."""
        self.plane.request("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": {"poked": str(time.monotonic())}}})

    def phases(self) -> dict[str, str]:
        """The phase of each pod's claim in the driver's records."""
        phases = {}
        for path in (STATE / "state").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # the record was removed meanwhile
                record = json.loads(path.read_text())
                phases[record["pod"]["name"]] = record.get("phase", "prepared")  # the default, which is not written
        return phases

    def has_interfaces(self, name: str) -> bool:
        shown = {entry["ifname"]: entry for entry in json.loads(self.node.execute(name, "ip", "-json", "address"))}
        found = [address["local"] for link in ("net1", "mac0") for address in shown[link]["addr_info"]]
        return {"203.0.113.18", "203.0.113.34"} <= set(found)

    def wait_interfaces(self, name: str) -> None:
        """Wait until a pod runs with its interfaces."""
        self.plane.wait_for(lambda: has_interfaces(self, name), f"pod {name} with its interfaces", TIMEOUT_SECONDS)

    def wait_restored(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until nothing of a claim remains, and the node's state and devices are as recorded."""
        self.plane.wait_for(lambda: not self.claim_files(), "the claims' files to be removed", seconds)
        current: Object = {}

        def same() -> bool:
            current.update(state())
            return current == self.before

        try:
            self.plane.wait_for(same, "the node to be as recorded", 30)
        except Failed as failure:
            raise Failed(f"{failure}: {differences(self.before, current)}") from None
        try:
            self.plane.wait_for(lambda: self.driver.devices() == self.published, "devices to be published", 30)
        except Failed as failure:
            raise Failed(f"{failure}: {differences(self.published, self.driver.devices())}") from None

    def claim_files(self) -> list[str]:
        """The files of claims, without the unfinished files of killed writers, which are removed later."""
        return [path for path in self.driver.claim_files() if not path.endswith(UNFINISHED)]

    def end(self, *names: str, seconds: float = TIMEOUT_SECONDS) -> None:
        """Delete pods, and check that nothing of them remains."""
        for name in names:
            self.delete(name)
        for name in names:
            self.plane.wait_for(lambda name=name: self.deleted(name), f"the deletion of pod {name}", seconds)
        self.wait_restored(seconds)

    def log_size(self) -> int:
        return len(self.driver.log())

    def restart(self) -> None:
        """Restart the driver, whether it is running or was killed."""
        KILL.unlink(missing_ok=True)
        self.driver.stop()
        self.driver.start()
        self.driver.wait_ready(TIMEOUT_SECONDS)


@pytest.fixture(name="testbed")
def _testbed(node: Node, driver: Driver) -> t.Iterator[Testbed]:
    """The node. All pods are removed after each test, even if it failed."""
    testbed = Testbed(node, driver)
    yield testbed
    KILL.unlink(missing_ok=True)
    for pod in testbed.plane.expect("GET", PODS)["items"]:
        testbed.delete(pod["metadata"]["name"])
    testbed.plane.wait_for(
        lambda: not testbed.plane.expect("GET", PODS)["items"], "the deletion of all pods", TIMEOUT_SECONDS
    )
    testbed.plane.wait_for(lambda: not testbed.claim_files(), "the claims' files to be removed", TIMEOUT_SECONDS)


def state() -> Object:
    """The node's network state, and everything else that claims could leave behind."""
    current: Object = {f"rail{number}": json.loads(host_state(f"rail{number}")) for number in range(RAILS)}
    current["kubelet"] = claims_of_kubelet()
    current["links"] = sorted(link["ifname"] for link in json.loads(ip("-json link")))
    for family in ("-4", "-6"):
        current[f"rules {family}"] = ip(f"{family} rule")
    current["namespaces"] = sorted(path.name for path in Path("/run/netns").iterdir())
    current["mounts"] = sorted(line for line in Path("/proc/mounts").read_text().splitlines() if "nsfs" in line)
    files = [path for folder in (STATE, Path("/run/lanewise")) for path in folder.rglob("*") if not path.is_dir()]
    current["files"] = sorted(str(path) for path in files if not path.name.endswith(UNFINISHED))
    return current


def claims_of_kubelet() -> list[str]:
    """The claims that kubelet has in its checkpoint."""
    if not CHECKPOINT.exists():
        return []
    data = json.loads(json.loads(CHECKPOINT.read_text())["Data"])
    return sorted(claim["ClaimName"] for claim in data["ClaimInfoStateList"] or ())


def differences(before: t.Any, after: t.Any, path: str = "") -> list[str]:
    """The differences between two states, one per line."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted({*before, *after})
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list):
        lost = [f"{path}: lost {item}" for item in before if item not in after]
        return lost + [f"{path}: new {item}" for item in after if item not in before]
    return [] if before == after else [f"{path}: {before} is now {after}"]


@pytest.mark.parametrize("operation", ["prepare", "attach", "detach", "unprepare"])
def test_a_driver_killed_at_any_step_leaves_nothing(testbed: Testbed, operation: str) -> None:
    """The pod is deleted before it could start, or after the restarted driver has attached its devices. Nothing of its
    claim remains."""
    start = time.monotonic()
    kills = 0
    for step in steps(operation):
        name = f"{operation}-{step}"
        end = killed_at(testbed, name, operation, step)
        print(f"{time.monotonic() - start:.0f} s: step {step}: {end}", flush=True)
        if not end.startswith("killed"):
            testbed.end(name)
            break
        kills += 1
        testbed.restart()
        testbed.poke(name)
        if operation in ("prepare", "attach") and kills % 2:
            testbed.wait_interfaces(name)
        testbed.end(name)
    print(f"{operation}: killed {kills} times, {time.monotonic() - start:.0f} s", flush=True)
    assert kills > 1


def steps(operation: str) -> range:
    """The steps at which the driver is killed. There are more than any operation has: a test ends at the first step
    that is not reached."""
    stride = STRIDE or STRIDES[operation]
    return range(stride // 2, 10_000, stride)


def killed_at(testbed: Testbed, name: str, operation: str, step: int) -> str:
    """Create a pod with a driver that is killed at a step. Delete the pod if the operation is part of its deletion.

    Returns what the driver logs about the kill, or that the operation has ended.
    """
    offset = testbed.log_size()
    KILL.write_text(f"{operation} {step}")
    testbed.post(name)
    if operation in ("detach", "unprepare"):
        testbed.wait_ready(name)
        testbed.delete(name)
    return wait_for_end(testbed, offset, operation)


def killed(testbed: Testbed) -> bool:
    return not testbed.plane.running("driver")


def killed_at_start(testbed: Testbed, operation: str, step: int) -> bool:
    """Start the driver. Returns whether it was killed before it was ready."""
    KILL.write_text(f"{operation} {step}")
    testbed.driver.stop()
    testbed.driver.start()
    what = f"step {step} of {operation}"
    testbed.plane.wait_for(lambda: killed(testbed) or not testbed.driver.reasons(), what, TIMEOUT_SECONDS)
    if killed(testbed):
        print(testbed.driver.log().splitlines()[-1], flush=True)
    return killed(testbed)


def wait_for_end(testbed: Testbed, offset: int, operation: str) -> str:
    """Wait until the driver was killed or completed an operation, by its log from `offset` on."""

    def end() -> str:
        was_killed = killed(testbed)  # checked before the log is read
        reported = testbed.driver.log()[offset:]
        if was_killed:
            return reported[reported.index("killed before") :].strip()
        return f"{operation} made" if f"\n{operation} made" in reported else ""

    return str(testbed.plane.wait_for(end, f"the end of {operation}", TIMEOUT_SECONDS))


def test_a_driver_killed_while_it_recovers_leaves_nothing(testbed: Testbed) -> None:
    """The driver is killed in attach, and then at its next two starts, while it undoes the attach."""
    for step in range(20, 10_000, STRIDE or 100):
        name = f"recovers-{step}"
        end = killed_at(testbed, name, "attach", step)
        if not end.startswith("killed"):
            testbed.end(name)
            break
        for again in (4, 9):
            if not killed_at_start(testbed, "detach", again):
                break  # attach was killed so late that its devices stay in the pod
        testbed.restart()
        testbed.wait_interfaces(name)
        testbed.end(name)


def test_a_running_pod_keeps_its_interfaces_while_the_driver_is_killed_at_its_start(testbed: Testbed) -> None:
    testbed.post("lasting")
    testbed.wait_ready("lasting")
    kills = 0
    for step in steps("start"):
        if not killed_at_start(testbed, "start", step):
            break
        kills += 1
    assert kills > 1
    testbed.restart()
    assert has_interfaces(testbed, "lasting")
    testbed.end("lasting")


def test_files_of_killed_writers_are_removed(testbed: Testbed) -> None:
    """The driver removes old unfinished files, and locks."""
    folders = (STATE / "state", Path("/var/run/cdi"))
    for folder, name in zip(folders, ("a.json", "k8s.lanewise.dev-claim-a.json")):
        (folder / f"{name}.0{UNFINISHED}").write_text("{")
        for draft in folder.glob(f"*{UNFINISHED}"):
            os.utime(draft, (0, 0))
    lock = Path("/run/lanewise/locks/claim-a")
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    testbed.restart()
    assert testbed.driver.claim_files() == []
    assert not lock.exists()


#: The moments at which a program is killed. Without LANEWISE_CHAOS_STRIDE, the most critical ones.
MOMENTS = {
    "kubelet": ["prepared", "detached"],
    "containerd": ["attached", "ending"],
}
if STRIDE:
    MOMENTS = dict.fromkeys(MOMENTS, ["created", "prepared", "attached", "running", "ending", "detached"])


def bring_to(testbed: Testbed, name: str, moment: str, template: str = "whole", **spec: t.Any) -> None:
    """Create a pod and wait until it reaches `moment`, as far as that is visible from outside."""
    testbed.post(name, template, **spec)
    if moment in ("prepared", "attached"):
        phases = ["attached"] if moment == "attached" else ["prepared", "attaching", "attached"]
        testbed.plane.wait_for(
            lambda: testbed.phases().get(name) in phases, f"pod {name} to be {moment}", TIMEOUT_SECONDS
        )
    elif moment != "created":
        testbed.wait_ready(name)
    if moment in ("ending", "detached"):
        testbed.delete(name)
    if moment == "detached":
        what = f"pod {name} to lose its devices"
        testbed.plane.wait_for(lambda: testbed.phases().get(name) != "attached", what, TIMEOUT_SECONDS)


@pytest.mark.parametrize(("program", "moment"), [(name, moment) for name in MOMENTS for moment in MOMENTS[name]])
def test_pods_start_or_end_although_kubelet_or_containerd_is_killed(
    testbed: Testbed, program: str, moment: str
) -> None:
    name = f"{program}-{moment}"
    bring_to(testbed, name, moment, restartPolicy="Always")
    testbed.node.stop(program)
    time.sleep(0.5)
    testbed.node.start(program)
    if moment not in ("ending", "detached"):
        testbed.plane.wait_for(
            lambda: has_interfaces(testbed, name), f"pod {name} with its interfaces", TIMEOUT_SECONDS
        )
    testbed.end(name)


def has_interfaces(testbed: Testbed, name: str) -> bool:
    """Whether a pod runs with all its interfaces; False while kubelet does not respond."""
    try:
        return testbed.ready(name) and testbed.has_interfaces(name)
    except Failed:
        return False


@pytest.mark.parametrize("moment", ["created", "prepared", "attached", "running"] if STRIDE else ["attached"])
def test_the_next_pod_gets_the_devices_of_a_pod_deleted_by_force(testbed: Testbed, moment: str) -> None:
    """The first pod's object disappears at once, and the next pod requests the same devices."""
    first, second = f"forced-{moment}", f"after-{moment}"
    bring_to(testbed, first, moment)
    testbed.delete(first, grace=0)
    testbed.post(second)
    testbed.plane.wait_for(lambda: testbed.poke(second) or testbed.ready(second), f"pod {second}", TIMEOUT_SECONDS)
    assert testbed.has_interfaces(second)
    testbed.end(second)


def test_pods_start_and_end_while_the_api_server_is_down(testbed: Testbed) -> None:
    """Pods that kubelet already knows start and end. Others wait."""
    bring_to(testbed, "leaving", "running", "rail0")
    bring_to(testbed, "coming", "prepared")
    testbed.delete("leaving")
    testbed.post("waiting", "rail3")
    start = time.monotonic()
    testbed.plane.stop("kube-apiserver")
    attached = "attached"
    testbed.plane.wait_for(lambda: testbed.phases().get("coming") == attached, "pod coming to have its devices", 30)
    testbed.plane.wait_for(lambda: "leaving" not in testbed.phases(), "pod leaving to release its device", 30)
    assert rail_state("rail0") == testbed.before["rail0"]
    time.sleep(max(0.0, OUTAGE - (time.monotonic() - start)))
    testbed.plane.start("kube-apiserver")
    testbed.plane.wait_ready("kube-apiserver")
    testbed.plane.wait_for(lambda: testbed.poke("waiting") or testbed.ready("waiting"), "pod waiting", TIMEOUT_SECONDS)
    testbed.plane.wait_for(lambda: has_interfaces(testbed, "coming"), "pod coming with its interfaces", TIMEOUT_SECONDS)
    testbed.plane.wait_for(lambda: testbed.deleted("leaving"), "the deletion of pod leaving", TIMEOUT_SECONDS)
    testbed.driver.wait_ready(TIMEOUT_SECONDS)
    testbed.end("coming", "waiting")


def rail_state(rail: str) -> t.Any:
    """A rail's state; None while it is not on the node."""
    try:
        return json.loads(host_state(rail))
    except Failed:
        return None


def test_pods_get_their_devices_again_after_a_reboot(testbed: Testbed) -> None:
    """Pods that restart get their devices again. The devices of the others return to the node."""
    bring_to(testbed, "always", "running", restartPolicy="Always")
    bring_to(testbed, "never", "running", "rail0")
    bring_to(testbed, "ending", "running", "rail3")
    testbed.delete("ending")
    testbed.driver.stop()
    testbed.node.crash()
    for rule in json.loads(ip("-json rule")):
        if rule["priority"] in RULES:
            ip(f"rule del priority {rule['priority']}")
    for number in range(RAILS):
        make_rail(number)
    testbed.node.boot()
    testbed.driver.start()
    testbed.plane.wait_for(lambda: has_interfaces(testbed, "always"), "the restarted pod", TIMEOUT_SECONDS)
    testbed.plane.wait_for(lambda: testbed.deleted("ending"), "the deletion of pod ending", TIMEOUT_SECONDS)
    status = testbed.plane.wait_for(lambda: ended(testbed, "never"), "the end of pod never", TIMEOUT_SECONDS)
    assert status["phase"] == "Failed", status
    testbed.plane.wait_for(
        lambda: rail_state("rail0") == testbed.before["rail0"], "rail0 to be on the node", TIMEOUT_SECONDS
    )
    assert set(testbed.phases()) == {"always"}
    testbed.end("always", "never")


def ended(testbed: Testbed, name: str) -> Object | None:
    status: Object = testbed.plane.expect("GET", f"{PODS}/{name}")["status"]
    return status if status["phase"] in ("Failed", "Succeeded") else None


def usage(testbed: Testbed) -> dict[str, int]:
    """The resources that the driver uses, and those that claims use on the node."""
    process = Path(f"/proc/{testbed.plane.pids['driver']}")
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


def test_many_pods_in_a_row_leave_nothing(testbed: Testbed) -> None:
    """Several pods run at a time. The driver's resource usage may grow with the first few, but not later."""
    waves = [["whole", "rail0", "rail3"], [f"rail{number}" for number in range(RAILS)]]
    start = time.monotonic()
    created, usages = 0, []
    for wave in itertools.cycle(waves):
        names = [f"churn-{created + number}" for number in range(len(wave))]
        for name, template in zip(names, wave):
            testbed.post(name, template)
        for name in names:
            testbed.wait_ready(name)
        assert set(testbed.phases()) == set(names) and len(claims_of_kubelet()) == len(names)
        testbed.end(*names)
        created += len(wave)
        usages.append(usage(testbed))
        if len(usages) == 2 or len(usages) % 10 == 0 or created >= CYCLES:
            print(f"{time.monotonic() - start:.0f} s: {created} pods: {usages[-1]}", flush=True)
        if created >= CYCLES:
            break
    warm, last = usages[min(9, len(usages) // 2)], usages[-1]
    for name in ("claims of kubelet", "files", "CDI files", "interfaces", "namespaces", "mounts"):
        assert last[name] == warm[name], (name, warm, last)
    assert last["descriptors"] <= warm["descriptors"] + 8, (warm, last)
    assert last["threads"] <= warm["threads"] + 8, (warm, last)
    assert last["KiB"] <= warm["KiB"] + 8192, (warm, last)
