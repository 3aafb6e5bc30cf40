# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's code on a lab node, with features that the host may lack: VFs and their settings, RDMA devices that
move between network namespaces, VRFs and ipvlan."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.lab.node import Device, Node

SYS = "/sys/bus/pci/devices"
BEGIN = """
import json
import subprocess
from pathlib import Path
from lanewise_driver.interface import interfaces
from lanewise_driver.kernel import rdma, vf
from lanewise_driver.base.errors import DriverError
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel.netlink import Netlink
POD = Path("/run/netns/pod")
def report(value): print(json.dumps(value))
"""


def put_driver(node: Node) -> None:
    """Copy the driver's code to a node."""
    for source, name in (
        ("driver", ""),
        ("plugins/module_utils/dra", "/dra"),
        ("plugins/module_utils/topology", "/topology"),
        ("plugins/module_utils/uplinks", "/uplinks"),
    ):
        node.copy(COLLECTION / source, f"/opt/lanewise_driver{name}")


@pytest.fixture(scope="module", name="vm")
def _vm(single: Node) -> Node:
    put_driver(single)
    single.ssh("modprobe -a igbvf vrf ipvlan macvlan rdma_rxe rdma_ucm")
    return single


@pytest.fixture(name="pod")
def _pod(vm: Node) -> t.Iterator[None]:
    vm.ssh("ip netns add pod; ip -n pod link set lo up")
    yield
    vm.ssh("ip netns delete pod; rdma link delete rxe0; rdma system set netns shared", check=False)
    for device in nics(vm):
        vm.ssh(f"echo 0 > {SYS}/{device.address}/sriov_numvfs")


def nics(node: Node) -> list[Device]:
    return [device for device in node.devices if device.kind == "nic"]


def python(node: Node, program: str) -> t.Any:
    """Run a program on the node. Returns the JSON in its last line of output."""
    reported = node.ssh("PYTHONPATH=/opt PYTHONDONTWRITEBYTECODE= python3 -", stdin=BEGIN + program)
    return json.loads(reported.splitlines()[-1]) if reported else None


def ip(node: Node, words: str) -> list[dict[str, t.Any]]:
    found: list[dict[str, t.Any]] = json.loads(node.ssh(f"ip -json -details {words}"))
    return found


def make_vfs(node: Node, number: int = 2) -> tuple[str, str, str]:
    """Create VFs of the first NIC. Returns its interface, and the PCI address and interface of VF 1."""
    device = nics(node)[0]
    name = node.interface(device)
    node.ssh(f"ip link set {name} up; echo {number} > {SYS}/{device.address}/sriov_numvfs; udevadm settle")
    address = node.ssh(f"basename $(readlink {SYS}/{device.address}/virtfn1)")
    return name, address, node.ssh(f"ls {SYS}/{address}/net")


def make_exclusive_rdma(node: Node, interface: str) -> None:
    """Set the exclusive mode of RDMA devices, which is possible only without other namespaces. Create a device and the
    namespace pod."""
    # a deleted namespace remains for a moment
    node.ssh("ip netns delete pod; until rdma system set netns exclusive; do sleep 0.2; done", timeout=60)
    node.ssh("ip netns add pod")
    node.ssh(f"rdma link add rxe0 type rxe netdev {interface}")


@pytest.mark.usefixtures("pod")
def test_settings_of_a_vf_are_written_read_and_restored(vm: Node) -> None:
    pf, address, _name = make_vfs(vm)
    before, after, restored = python(
        vm,
        f"""
function = vf.function({address!r})
assert (function.pf, function.index) == ({nics(vm)[0].address!r}, 1)
with Netlink() as connection:
    before = vf.read(connection, function)
    wanted = dict(mac="02:00:00:00:00:77", vlan=42, qos=3, spoofchk=False, trust=True)
    vf.write(connection, function, wanted)
    after = vf.read(connection, function)
    shown = json.loads(subprocess.run(["ip", "-j", "-d", "link", "show", {pf!r}], stdout=-1, check=True).stdout)
    assert shown[0]["vfinfo_list"][1]["vlan_list"] == [dict(vlan=42, qos=3)], shown
    vf.write(connection, function, dict(before, qos=0))
    report([before, after, vf.read(connection, function)])
""",
    )
    wanted = {"mac": "02:00:00:00:00:77", "vlan": 42, "qos": 3, "spoofchk": False, "trust": True}
    assert {key: after[key] for key in wanted} == wanted
    assert before["spoofchk"] is True and before["trust"] is False
    assert restored == before


@pytest.mark.usefixtures("pod")
def test_a_setting_that_a_card_refuses_is_named(vm: Node) -> None:
    """igb has no minimum rate."""
    _pf, address, _name = make_vfs(vm)
    message = python(
        vm,
        f"""
with Netlink() as connection:
    try:
        vf.write(connection, vf.function({address!r}), dict(minTxRate=10, maxTxRate=20))
        report("done")
    except OSError as error:
        report(str(error))
""",
    )
    assert "vf.maxTxRate" in message


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("trust", [True, False])
def test_a_vf_is_moved_to_a_pod_and_restored(vm: Node, trust: bool) -> None:
    """An untrusted igbvf accepts only the address that its PF assigned, and only after a reset."""
    pf, address, name = make_vfs(vm)
    config = {
        "name": "net1",
        "addresses": ["10.1.0.2/24"],
        "mtu": 1400,
        "mac": "02:00:00:00:00:78",
        "vf": {"vlan": 7, "spoofchk": True, "trust": trust},
        "vrf": {"name": "blue", "table": 100},
        "routes": [{"destination": "10.50.0.0/16", "gateway": "10.1.0.1"}],
    }
    before = ip(vm, f"link show {name}")[0]
    first = ip(vm, f"link show {pf}")[0]["vfinfo_list"]
    begin = f"identity = Identity({address!r}, None, {name!r}); config = {config!r}\n"
    network, host = python(
        vm,
        begin
        + """
host = interfaces.snapshot(identity)
problems = interfaces.check(identity, config)
assert problems == [], problems
report([interfaces.attach(identity, host, config, POD).network, host])
""",
    )
    assert network == {"interfaceName": "net1", "hardwareAddress": "02:00:00:00:00:78", "ips": ["10.1.0.2/24"]}
    inside = ip(vm, "-n pod link show net1")[0]
    assert (inside["mtu"], inside["address"], inside["master"]) == (1400, "02:00:00:00:00:78", "blue")
    assert "10.50.0.0/16 via 10.1.0.1 dev net1" in vm.ssh("ip -n pod route show table 100")
    assert ip(vm, f"link show {pf}")[0]["vfinfo_list"][1]["vlan_list"] == [{"vlan": 7}]
    assert vm.status(f"ip link show {name}") != 0
    notes = python(vm, begin + f"report(interfaces.detach(identity, {host!r}, POD, config))")
    assert notes == []
    after = ip(vm, f"link show {name}")[0]
    assert {key: after[key] for key in ("address", "mtu")} == {key: before[key] for key in ("address", "mtu")}
    assert ip(vm, f"link show {pf}")[0]["vfinfo_list"] == first


@pytest.mark.usefixtures("pod")
def test_a_vf_whose_pod_is_killed_is_restored(vm: Node) -> None:
    """The kernel returns the VF to the node. The driver restores its settings."""
    pf, address, name = make_vfs(vm)
    first = ip(vm, f"link show {pf}")[0]["vfinfo_list"]
    config = {"name": "net1", "addresses": ["10.1.0.2/24"], "vf": {"vlan": 9}}
    begin = f"identity = Identity({address!r}, None, {name!r}); config = {config!r}\n"
    program = "host = interfaces.snapshot(identity); interfaces.attach(identity, host, config, POD); report(host)"
    host = python(vm, begin + program)
    vm.ssh("ip netns delete pod")
    vm.ssh(f"until [ -d {SYS}/{address}/net ] && ls {SYS}/{address}/net | grep -q .; do sleep 0.2; done", timeout=60)
    notes = python(vm, begin + f"report(interfaces.detach(identity, {host!r}, None, config))")
    assert notes == []
    assert vm.ssh(f"ls {SYS}/{address}/net") == name
    assert ip(vm, f"link show {pf}")[0]["vfinfo_list"] == first


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("kind, mode", [("ipvlan", "l2"), ("ipvlan", "l3s"), ("macvlan", "bridge")])
def test_a_pod_gets_an_ipvlan_or_macvlan_of_a_card(vm: Node, kind: str, mode: str) -> None:
    device = nics(vm)[0]
    name = vm.interface(device)
    config = {"name": "net1", "addresses": ["10.1.0.2/24"], "child": {"type": kind, "mode": mode}}
    begin = f"identity = Identity({device.address!r}, None, {name!r}); config = {config!r}\n"
    program = "host = interfaces.snapshot(identity); interfaces.attach(identity, host, config, POD); report(host)"
    host = python(vm, begin + program)
    inside = ip(vm, "-n pod link show net1")[0]
    assert (inside["linkinfo"]["info_kind"], inside["linkinfo"]["info_data"]["mode"]) == (kind, mode)
    assert vm.interface(device) == name
    assert python(vm, begin + f"report(interfaces.detach(identity, {host!r}, POD, config))") == []
    assert vm.status("ip -n pod link show net1") != 0


@pytest.mark.usefixtures("pod")
def test_an_rdma_device_is_moved_with_its_interface_and_restored(vm: Node) -> None:
    device = nics(vm)[0]
    name = vm.interface(device)
    make_exclusive_rdma(vm, name)
    identity = f"identity = Identity({device.address!r}, None, {name!r})\n"
    identity += "config = dict(name='net1', addresses=['10.1.0.2/24'])\n"
    returned = python(
        vm,
        identity
        + f"""
assert rdma.mode() == "exclusive"
assert rdma.devices({device.address!r}) == ["rxe0"]
assert not rdma.moves_before_interface("rxe0")
devices = [device.path for device in rdma.char_devices("rxe0")]
assert rdma.side("rxe0", POD) == "host"
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, config, POD)
assert rdma.side("rxe0", POD) == "host", "it moved with its interface"
rdma.move("rxe0", POD)
rdma.move("rxe0", POD)
assert rdma.side("rxe0", POD) == "pod"
report([host, devices])
""",
    )
    host, devices = returned
    assert "/dev/infiniband/rdma_cm" in devices and any("uverbs" in path for path in devices)
    (link,) = json.loads(vm.ssh("ip netns exec pod rdma -j link"))
    assert (link["ifname"], link["netdev"]) == ("rxe0", "net1")
    side, notes = python(
        vm,
        identity
        + f"""
rdma.move("rxe0", POD, back=True)
rdma.move("rxe0", POD, back=True)
notes = interfaces.detach(identity, {host!r}, POD, config)
report([rdma.side("rxe0", POD), notes])
""",
    )
    assert (side, notes) == ("host", [])
    (link,) = json.loads(vm.ssh("rdma -j link"))
    assert (link["ifname"], link["netdev"]) == ("rxe0", name)


@pytest.mark.usefixtures("pod")
def test_an_rdma_device_of_a_killed_pod_is_on_the_node(vm: Node) -> None:
    device = nics(vm)[0]
    name = vm.interface(device)
    make_exclusive_rdma(vm, name)
    python(vm, 'rdma.move("rxe0", POD)')
    vm.ssh("ip netns delete pod; for i in $(seq 50); do rdma link | grep -q rxe0 && break; sleep 0.2; done")
    assert python(vm, 'report(rdma.side("rxe0", None))') == "host"


def test_a_shared_rdma_device_is_not_moved(vm: Node) -> None:
    device = nics(vm)[0]
    vm.ssh(f"rdma link add rxe0 type rxe netdev {vm.interface(device)}; ip netns add pod")
    try:
        reported = python(
            vm,
            """
assert rdma.mode() == "shared"
try:
    rdma.move("rxe0", POD)
    report("moved")
except DriverError as error:
    report(error.message)
""",
        )
        assert "rxe0" in reported and reported != "moved"
    finally:
        vm.ssh("ip netns delete pod; rdma link delete rxe0")
