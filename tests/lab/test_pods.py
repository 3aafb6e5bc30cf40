# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get VFs and RDMA devices from the driver, with a real kernel, kubelet, containerd and scheduler. Checked inside
the pods."""

from __future__ import annotations

import contextlib
import difflib
import json
import time
import typing as t
from dataclasses import dataclass

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import API, NAME
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS_CONFIG
from ansible_collections.lanewise.dra.tests.lab.cluster import TIMEOUT, Member, Service, host_state, one_member
from ansible_collections.lanewise.dra.tests.lab.node import Device, Failed, Node
from environment import Missing  # tools/lab.py has put its folder on the path

SYS = "/sys/bus/pci/devices"
VFS = 2
#: The modules that are loaded at each boot, as by an administrator.
MODULES = ("igbvf", "ipvlan", "rdma_rxe", "rdma_ucm", "veth", "vrf")
PODS = "/api/v1/namespaces/default/pods"


@dataclass
class Site:
    """The machine, its cluster node and its driver."""

    machine: Node
    node: Member
    driver: Service

    @property
    def plane(self) -> ControlPlane:
        return self.node.plane

    @property
    def nics(self) -> list[Device]:
        return [device for device in self.machine.devices if device.kind == "nic"]

    @property
    def pf(self) -> str:
        """The interface of the PF that has VFs."""
        return self.machine.interface(self.nics[0])

    def make_vfs(self) -> None:
        address = self.nics[0].address
        self.machine.ssh(f"ip link set {self.pf} up; echo {VFS} > {SYS}/{address}/sriov_numvfs; udevadm settle")

    def vf(self, index: int) -> tuple[str, str]:
        """The address of a VF, and its interface on the node."""
        address = self.machine.ssh(f"basename $(readlink {SYS}/{self.nics[0].address}/virtfn{index})")
        return address, self.machine.ssh(f"ls {SYS}/{address}/net")

    def claim(self, name: str, address: str, config: Object | None = None) -> Object:
        """Create a claim template for one PCI function. Returns the entry for a pod that uses it."""
        expression = f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'
        request = {"deviceClassName": "nic", "selectors": [{"cel": {"expression": expression}}]}
        devices: Object = {"requests": [{"name": "nic", "exactly": request}]}
        if config is not None:
            devices["config"] = [{"opaque": {"driver": NAME, "parameters": parameters(config)}}]
        item = {"metadata": {"generateName": f"{name}-"}, "spec": {"spec": {"devices": devices}}}
        made = self.plane.expect("POST", f"{API}/namespaces/default/resourceclaimtemplates", item)
        return {"name": "net", "resourceClaimTemplateName": made["metadata"]["name"]}

    def pod(self, name: str, address: str, config: Object | None = None, **spec: t.Any) -> Object:
        """A pod on the node with one PCI function."""
        pod = self.node.pod(name, resourceClaims=[self.claim(name, address, config)], **spec)
        mount = {"name": "verbs", "mountPath": "/etc/libibverbs.d", "readOnly": True}
        pod["spec"]["containers"][0]["volumeMounts"].append(mount)
        pod["spec"]["volumes"].append({"name": "verbs", "hostPath": {"path": "/etc/libibverbs.d"}})
        return pod

    def end(self, pod: str) -> None:
        """Delete a pod, and wait until nothing of its claim remains."""
        self.node.delete_pod(pod)
        self.driver.wait_released()

    def links(self, pod: str) -> dict[str, Object]:
        reported = self.node.execute(pod, "ip", "-details", "-json", "address")
        return {link["ifname"]: link for link in json.loads(reported)}

    def status(self, pod: str) -> Object:
        """The driver's status of the only device of a pod's claim, once the device is in the pod or has failed."""
        status = self.plane.expect("GET", f"{PODS}/{pod}")["status"]
        path = f"{API}/namespaces/default/resourceclaims/{status['resourceClaimStatuses'][0]['resourceClaimName']}"

        def device() -> Object | None:
            found: list[Object] = self.plane.expect("GET", path)["status"].get("devices") or [{}]
            reported = found[0].get("conditions") or [{}]
            return found[0] if reported[0].get("reason", "Prepared") != "Prepared" else None

        return t.cast(Object, self.plane.wait_for(device, "the claim's status", TIMEOUT))


@pytest.fixture(name="site", scope="module")
def _site() -> t.Iterator[Site]:
    with contextlib.ExitStack() as stack:
        try:
            _lab, node = stack.enter_context(one_member())
        except Missing as missing:
            pytest.skip(str(missing))
        machine, plane = node.machine, node.plane
        machine.ssh(
            f"printf '%s\\n' {' '.join(MODULES)} > /etc/modules-load.d/pods.conf; modprobe -a {' '.join(MODULES)}"
        )
        site = Site(machine, node, Service(node))
        site.make_vfs()
        site.driver.wait_ready()
        selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
        nic = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector], "config": [OPEN_CLASS_CONFIG]}}
        plane.expect("POST", f"{API}/deviceclasses", nic)
        wait_for_device(site, site.vf(VFS - 1)[0])
        yield site
        print(node.journal(200))  # shown if the last test failed


@pytest.fixture(autouse=True)
def _remove_pods(site: Site) -> t.Iterator[None]:
    """Remove the pod of a failed test, so that it does not affect the next test."""
    yield
    for pod in site.plane.expect("GET", PODS)["items"]:
        site.node.delete_pod(pod["metadata"]["name"])
    site.driver.wait_released()


def assert_unchanged(before: str, after: str) -> None:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    different = "\n".join(lines)
    assert not different, different


def name_of(address: str) -> str:
    return f"pci-{address.replace(':', '-').replace('.', '-')}"


def wait_for_device(site: Site, address: str, **attributes: t.Any) -> Object:
    """Wait until the device of a PCI function is published with these attributes. Returns it."""

    def found() -> Object | None:
        time.sleep(0.2)
        device = site.driver.devices().get(name_of(address), {})
        reported = {key: next(iter(value.values())) for key, value in device.get("attributes", {}).items()}
        return device if device and all(reported.get(key) == value for key, value in attributes.items()) else None

    device: Object = site.plane.wait_for(found, f"{address} with {attributes} to be published", TIMEOUT)
    return device


def test_functions_are_published(site: Site) -> None:
    devices = site.driver.devices()
    first, second = (nic.address for nic in site.nics)
    virtual = [site.vf(index) for index in range(VFS)]
    assert set(devices) == {name_of(address) for address in (first, second, *(entry for entry, _unused in virtual))}
    reported = {
        name: {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        for name, device in devices.items()
    }
    assert reported[name_of(first)]["type"] == "pf" and reported[name_of(first)]["totalVFs"] == 7
    for index, (address, interface) in enumerate(virtual):
        device = reported[name_of(address)]
        assert (device["type"], device["vfIndex"], device["pfPciBusID"]) == ("vf", index, first)
        assert (device["ifName"], device["driver"]) == (interface, "igbvf")
        for name in ("resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode", "pcieSwitch"):
            assert device[name] == reported[name_of(first)][name]
        used = devices[name_of(address)]["consumesCounters"]
        assert used == [{"counterSet": name_of(first), "counters": {"functions": {"value": "1"}}}]
    used = devices[name_of(first)]["consumesCounters"]
    assert used == [{"counterSet": name_of(first), "counters": {"functions": {"value": str(VFS)}}}]
    sets = [
        shared_counter for item in site.driver.slices() for shared_counter in item["spec"].get("sharedCounters") or ()
    ]
    assert sets == [{"name": name_of(first), "counters": {"functions": {"value": str(VFS)}}}]
    assert "consumesCounters" not in devices[name_of(second)]


def test_a_vf_is_moved_to_its_pod_and_restored(site: Site) -> None:
    address, interface = site.vf(1)
    before = host_state(site.machine, interface, site.pf)
    config = {
        "name": "net1",
        "mac": "02:00:00:00:00:71",
        "mtu": 1400,
        "addresses": ["10.1.0.2/24", "fd00:1::2/64"],
        "vf": {"vlan": 7, "trust": True},
        "vrf": {"name": "blue", "table": 100},
        "routes": [{"destination": "10.50.0.0/16", "gateway": "10.1.0.1"}],
    }
    site.node.run_pod(site.pod("vf", address, config))
    inside = site.links("vf")
    assert {key: inside["net1"][key] for key in ("address", "mtu", "operstate", "master")} == {
        "address": "02:00:00:00:00:71",
        "mtu": 1400,
        "operstate": "UP",
        "master": "blue",
    }
    assert inside["net1"]["parentdev"] == address
    assert {"10.1.0.2", "fd00:1::2"} <= {entry["local"] for entry in inside["net1"]["addr_info"]}
    assert inside["blue"]["linkinfo"] == {"info_kind": "vrf", "info_data": {"table": 100}}
    assert "10.50.0.0/16 via 10.1.0.1 dev net1" in site.node.execute("vf", "ip", "route", "show", "table", "100")
    vf = json.loads(site.machine.ssh(f"ip -json -details link show {site.pf}"))[0]["vfinfo_list"][1]
    assert (vf["address"], vf["vlan_list"], vf["trust"]) == ("02:00:00:00:00:71", [{"vlan": 7}], True)
    assert interface not in site.machine.ssh("ls /sys/class/net").split()
    status = site.status("vf")
    assert {entry["type"]: entry["status"] for entry in status["conditions"]}["Ready"] == "True"
    assert status["networkData"]["interfaceName"] == "net1"
    assert status["networkData"]["hardwareAddress"] == "02:00:00:00:00:71"
    site.end("vf")
    assert_unchanged(before, host_state(site.machine, interface, site.pf))
    assert "permanentMac" not in site.driver.log()


def test_a_vf_gets_addresses_of_its_rail(site: Site) -> None:
    """The first pod gets the first address of the range's two, and the next pod gets the second."""
    (address, interface), pool = site.vf(1), "10.100.0.0/16"
    site.driver.write_settings(
        rails={entry: 3 for entry in (site.nics[0].address, address)},
        rail_addresses=[
            {"rail": 3, "range": "10.100.0.16/31", "pool": pool},
            {"rail": 3, "range": "fd00:100::10/127", "pool": "fd00:100::/64"},
        ],
    )
    site.machine.ssh("systemctl reload lanewise-driver")
    wait_for_device(site, address, rail=3)
    before = host_state(site.machine, interface, site.pf)
    config = {"name": "net1", "railAddresses": True, "dad": "none"}
    for last in (6, 7):
        addresses = [f"10.100.0.1{last}", f"fd00:100::1{last - 6}"]
        site.node.run_pod(site.pod("rail", address, config))
        inside = site.links("rail")["net1"]
        assert inside["parentdev"] == address
        assert [entry["local"] for entry in inside["addr_info"] if entry["scope"] == "global"] == addresses
        assert site.status("rail")["networkData"]["ips"] == [f"{addresses[0]}/16", f"{addresses[1]}/64"]
        assert addresses[0] in site.node.execute("rail", "ip", "rule")
        routes = site.node.execute("rail", "ip", "route", "show", "table", "all")
        assert f"{pool} dev net1 table 20" in routes and "unreachable default table 20" in routes
        site.end("rail")
        assert_unchanged(before, host_state(site.machine, interface, site.pf))
    reported = site.machine.ssh("/opt/lanewise/current/bin/lanewise-driver doctor 2>&1", check=False)
    assert "0 of 2 addresses of 10.100.0.16/31 on rail 3 are in use" in reported


def test_a_pf_and_its_vfs_exclude_each_other(site: Site) -> None:
    physical, (address, _interface) = site.nics[0].address, site.vf(0)
    site.node.run_pod(site.pod("first", address))
    pod = site.pod("whole", physical, {"name": "net1"})
    site.plane.expect("POST", PODS, pod)
    site.plane.wait_for(lambda: refused(site, "whole"), "the scheduler to refuse the PF", TIMEOUT)
    before = host_state(site.machine, site.pf)
    site.node.delete_pod("first")
    site.plane.wait_for(lambda: site.node._ready(f"{PODS}/whole"), "the pod with the PF", TIMEOUT)
    assert site.links("whole")["net1"]["parentdev"] == physical
    site.plane.expect("POST", PODS, site.pod("late", address))
    site.plane.wait_for(lambda: refused(site, "late"), "the scheduler to refuse the VF", TIMEOUT)
    site.node.delete_pod("late")
    site.end("whole")
    assert_unchanged(before, host_state(site.machine, site.pf))


def refused(site: Site, pod: str) -> bool:
    """Whether the scheduler has found no device for a pod."""
    time.sleep(0.5)
    status = site.plane.expect("GET", f"{PODS}/{pod}")["status"]
    return any(
        entry["type"] == "PodScheduled"
        and entry["status"] == "False"
        and "cannot allocate all claims" in entry["message"]
        for entry in status.get("conditions", ())
    )


def test_a_pod_gets_an_ipvlan_of_a_card(site: Site) -> None:
    nic = site.nics[1]
    interface = site.machine.interface(nic)
    site.machine.ssh(f"ip link set {interface} up")
    wait_for_device(site, nic.address, up=True)
    before = host_state(site.machine, interface)
    config = {"name": "ipv0", "child": {"type": "ipvlan", "mode": "l3"}, "addresses": ["10.2.0.2/24"]}
    site.node.run_pod(site.pod("child", nic.address, config))
    inside = site.links("child")["ipv0"]
    assert inside["linkinfo"]["info_kind"] == "ipvlan" and inside["linkinfo"]["info_data"]["mode"] == "l3"
    assert inside["addr_info"][0]["local"] == "10.2.0.2"
    assert site.machine.interface(nic) == interface
    site.end("child")
    assert_unchanged(before, host_state(site.machine, interface))


def test_a_vf_is_restored_if_its_pod_is_deleted_after_the_driver_was_killed(site: Site) -> None:
    address, interface = site.vf(1)
    before = host_state(site.machine, interface, site.pf)
    config = {"name": "net1", "mac": "02:00:00:00:00:72", "vf": {"vlan": 9}, "addresses": ["10.1.0.3/24"]}
    site.node.run_pod(site.pod("killed", address, config))
    assert "net1" in site.links("killed")
    site.driver.kill()
    site.end("killed")
    site.driver.wait_ready()
    assert_unchanged(before, host_state(site.machine, interface, site.pf))


def test_an_rdma_device_is_moved_to_its_pod_and_restored(site: Site) -> None:
    nic = site.nics[1]
    interface = site.machine.interface(nic)
    # the kernel changes this only while there is no other namespace, and a deleted one remains for a moment
    site.machine.ssh("until rdma system set netns exclusive; do sleep 0.5; done", timeout=TIMEOUT)
    site.machine.ssh(f"ip link set {interface} up; rdma link add rxe0 type rxe netdev {interface}")
    wait_for_device(site, nic.address, rdmaDevice="rxe0", rdma=True, up=True)
    before = host_state(site.machine, interface)
    nodes_there = "stat --format='%n %a %t:%T' /dev/infiniband/[ru]*"
    devices = site.machine.ssh(nodes_there)
    site.node.run_pod(site.pod("rdma", nic.address, {"name": "net1", "addresses": ["10.3.0.2/24"]}))
    (link,) = json.loads(site.node.execute("rdma", "rdma", "-j", "link"))
    assert (link["ifname"], link["netdev"]) == ("rxe0", "net1")
    nodes = site.node.execute("rdma", "ls", "/dev/infiniband").split()
    assert "rdma_cm" in nodes and any(name.startswith("uverbs") for name in nodes)
    devinfo = site.node.execute("rdma", "ibv_devinfo", "--verbose")  # opens the device
    assert "rxe0" in devinfo and "PORT_ACTIVE" in devinfo and "10.3.0.2" in devinfo
    assert json.loads(site.machine.ssh("rdma -j link")) == []
    conditions = {entry["type"]: entry["status"] for entry in site.status("rdma")["conditions"]}
    assert conditions["RDMAReady"] == "True"
    site.end("rdma")
    (link,) = json.loads(site.machine.ssh("rdma -j link"))
    assert (link["ifname"], link["netdev"]) == ("rxe0", interface)
    assert_unchanged(before, host_state(site.machine, interface))
    assert site.machine.ssh(nodes_there) == devices
    site.machine.ssh("rdma link delete rxe0")


def test_a_pod_has_its_vf_again_after_a_reboot(site: Site) -> None:
    """This machine does not create the VFs at boot, so the pod waits for them."""
    address, interface = site.vf(1)
    config = {"name": "net1", "mac": "02:00:00:00:00:73", "vf": {"vlan": 11}, "addresses": ["10.1.0.4/24"]}
    pod = site.node.run_pod(site.pod("stays", address, config, restartPolicy="Always"))
    site.node.reboot()
    site.node.wait_ready()
    site.driver.wait_ready()
    assert site.machine.status(f"ls {SYS}/{address}") != 0

    def waits() -> bool:
        time.sleep(1)
        reported = [line for line in site.node.events("stays") if line.startswith("FailedPrepareDynamicResources")]
        return any(interface in line or name_of(address) in line for line in reported)

    site.plane.wait_for(waits, "the driver to miss the VF", TIMEOUT)
    assert not running(site, "stays")
    site.make_vfs()
    before = json.loads(site.machine.ssh(f"ip -json -details link show {site.pf}"))[0]["vfinfo_list"][0]
    site.plane.wait_for(lambda: running(site, "stays"), "the pod to run again", TIMEOUT)
    inside = site.links("stays")["net1"]
    assert inside["address"] == "02:00:00:00:00:73" and inside["parentdev"] == address
    assert [entry["local"] for entry in inside["addr_info"] if entry["family"] == "inet"] == ["10.1.0.4"]
    again = site.plane.expect("GET", f"{PODS}/stays")
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] >= 1
    vfs = json.loads(site.machine.ssh(f"ip -json -details link show {site.pf}"))[0]["vfinfo_list"]
    assert vfs[1]["vlan_list"] == [{"vlan": 11}] and vfs[0] == before
    site.end("stays")
    assert site.vf(1)[0] == address
    vfs = json.loads(site.machine.ssh(f"ip -json -details link show {site.pf}"))[0]["vfinfo_list"]
    assert vfs[1]["vlan_list"] == [{}] and vfs[1]["address"] != "02:00:00:00:00:73"


def running(site: Site, pod: str) -> bool:
    """Whether its container runs now, according to the container runtime."""
    time.sleep(0.5)
    try:
        site.node.execute(pod, "true")
    except Failed:
        return False
    return True
