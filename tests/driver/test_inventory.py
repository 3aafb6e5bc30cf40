# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node publishes and what it withholds: example machines, and real interfaces and routes in namespaces.

Tests that need a namespace run a separate program in it, with the /sys of that namespace.

This file has more than 500 lines because the programs that run in the namespaces are next to their tests.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.machines.builder import build, move_to_container
from lanewise_driver.base.errors import KernelError
from lanewise_driver.base.settings import Settings, read
from lanewise_driver.publish.inventory import Device, Inventory, interfaces_of
from lanewise_driver.topology.publish import COUNTER, MISSING, UNCLEAN, interface_device_name
from lanewise_driver.topology.publish_shares import HeldShares, share_name

needs_namespaces = pytest.mark.skipif(
    bool(os.geteuid()) or not shutil.which("unshare") or not shutil.which("ip"),
    reason="needs root, unshare and ip for network namespaces",
)


@pytest.fixture(scope="module")
def sriov(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file tree of an example machine with SR-IOV."""
    return build("sriov", tmp_path_factory.mktemp("machines") / "sriov")


def inventory(root: Path, held: t.Iterable[Device] = (), **settings: t.Any) -> Inventory:
    """The inventory of an example machine. `held` are the devices in records of claims."""
    parsed, held_devices = read(settings), list(held)
    return Inventory(lambda: parsed, lambda: held_devices, str(root))


#: Device names of a PF and of one of its VFs.
PF, VF = "pci-0000-c9-00-1", "pci-0000-c9-10-2"


def test_devices_have_the_values_that_attach_needs(sriov: Path) -> None:
    node = inventory(sriov)
    pf, vf = node.device(PF), node.device(VF)
    assert pf and vf
    assert (pf.address, pf.pf, pf.vf, pf.link_layer) == ("0000:c9:00.1", None, None, "ethernet")
    assert (vf.address, vf.pf, vf.vf, vf.rdma_devices) == ("0000:c9:10.2", "0000:c9:00.1", 0, ())
    assert pf.interface == pf.device["attributes"]["ifName"]["string"]
    assert pf.permanent_mac == pf.device["attributes"]["mac"]["string"]
    assert Device.from_json(json.loads(json.dumps(pf.as_json()))) == pf
    assert node.device("pci-0000-01-00-0") is None and "default route" in node.withheld("pci-0000-01-00-0")
    assert node.withheld(PF) == "" and node.withheld("none") == ""


@pytest.mark.parametrize("interface", ["rail0", "Rail.0"])
def test_a_nic_that_cannot_be_divided_has_a_reason(tmp_path: Path, interface: str) -> None:
    added = {interface: {"kind": "bridge", "speed": 10000}}
    root = build({"like": "sriov", "virtual_nets": added}, tmp_path / "machine")
    share = {"select": {"interface": interface}, "mechanism": "macvlan", "namespace": "a", "min": "20G"}
    node = inventory(root, virtual_interfaces=[interface], shares=[share])
    reason = "no shares: it has 10Gbit/s, less than min and step of its entry of the setting shares"
    assert node.withheld(share_name(interface_device_name(interface))) == reason


def test_settings_choose_the_published_devices(sriov: Path) -> None:
    all_names = set(inventory(sriov).refresh().addresses)
    vfs = set(inventory(sriov, include=[{"type": "vf"}]).refresh().addresses)
    assert vfs < all_names and PF not in vfs and VF in vfs
    node = inventory(sriov, include=[{"type": "vf"}], exclude=[{"address": "0000:c9:10.*"}])
    assert set(node.refresh().addresses) == {name for name in vfs if not name.startswith("pci-0000-c9-10-")}
    assert node.withheld(VF) == "the settings exclude it" and node.withheld(PF) == "the settings do not include it"
    pf = inventory(sriov).device(PF)
    assert pf and pf.interface
    node = inventory(sriov, management=[pf.interface])
    assert node.device(PF) is None and "for management" in node.withheld(PF)
    assert node.device(VF)  # its VFs are not affected
    assert {*inventory(sriov, include=[{"min_speed_mbps": 100000, "type": "pf"}]).refresh().addresses} < all_names


def test_the_settings_can_keep_infiniband_interfaces_on_the_node(sriov: Path) -> None:
    name, ethernet = "pci-0000-49-00-0", PF
    default, without_interface = inventory(sriov).device(name), inventory(sriov, keep_ib_interfaces=True).device(name)
    assert default and without_interface and default.interface and default.rdma_devices
    assert without_interface.interface is None and without_interface.permanent_mac is None
    assert without_interface.rdma_devices == default.rdma_devices
    assert without_interface.device == default.device
    device = inventory(sriov, keep_ib_interfaces=True).device(ethernet)
    assert device and device.interface


def test_aliases_and_rails_are_published_as_attributes(sriov: Path) -> None:
    node = inventory(sriov, aliases={"0000:c9:00.1": "storage"}, rails={"0000:c9:00.1": 7})
    device = node.device(PF)
    assert device and device.device["attributes"]["alias"] == {"string": "storage"}
    assert device.device["attributes"]["rail"] == {"int": 7}


def without_interfaces(root: Path, copy: Path, *interfaces: str) -> Path:
    """A copy of the tree as it is while these interfaces are in another namespace."""
    shutil.copytree(root, copy, symlinks=True)
    for name in interfaces:
        link = copy / "sys/class/net" / name
        shutil.rmtree(link.resolve())
        link.unlink()
    return copy


def test_devices_of_pods_stay_published_unchanged(sriov: Path, tmp_path: Path) -> None:
    before = inventory(sriov)
    pf, vf = before.device(PF), before.device(VF)
    assert pf and vf and pf.interface and vf.interface
    moved = without_interfaces(sriov, tmp_path / "moved", pf.interface, vf.interface)
    assert inventory(moved).device(PF) is None  # no record contains it
    node = inventory(moved, [pf, vf])
    publication = node.refresh()
    devices = {device["name"]: device for device in publication.devices}
    assert devices[PF]["attributes"] == pf.device["attributes"] and devices[VF]["attributes"] == vf.device["attributes"]
    assert node.device(PF) == pf and node.device(PF).identity.address == pf.address  # type: ignore[union-attr]
    assert not publication.withheld.keys() & {pf.address, vf.address}
    # the counters are the current ones
    total = {entry["name"]: entry["counters"][COUNTER]["value"] for entry in publication.counter_sets}[PF]
    assert devices[PF]["consumesCounters"][0]["counters"][COUNTER]["value"] == total == "128"
    # it stays published even if the settings now exclude it
    assert PF in inventory(moved, [pf], exclude=[{"type": "pf"}]).refresh().addresses


def test_a_device_given_to_a_pod_during_a_probe_stays_published(sriov: Path, tmp_path: Path) -> None:
    """The claim is prepared after the probe has read the records, and its interface leaves before the probe sees it."""
    vf = inventory(sriov).device(VF)
    assert vf and vf.interface
    moved = without_interfaces(sriov, tmp_path / "moved", vf.interface)
    states: list[list[Device]] = [[], [vf]]
    node = Inventory(lambda: read({}), lambda: states.pop(0), str(moved))
    publication = node.refresh()
    assert vf.address not in publication.withheld
    (device,) = [entry for entry in publication.devices if entry["name"] == VF]
    assert device["attributes"] == vf.device["attributes"] and device["consumesCounters"]
    assert node.device(VF) == vf


def test_a_device_that_returns_during_a_probe_stays_published(sriov: Path, tmp_path: Path) -> None:
    vf = inventory(sriov).device(VF)
    assert vf and vf.interface
    moved = without_interfaces(sriov, tmp_path / "moved", vf.interface)
    states: list[list[Device]] = [[vf], []]
    node = Inventory(lambda: read({}), lambda: states.pop(0), str(moved), lambda: {} if states else {VF: "mtu"})
    publication = node.refresh()
    (device,) = [entry for entry in publication.devices if entry["name"] == VF]
    assert device["attributes"] == vf.device["attributes"]
    assert device["taints"] == [{"key": UNCLEAN, "value": "mtu", "effect": "NoSchedule"}]


@pytest.mark.parametrize("mechanism", ["vfs", "macvlan"])
def test_a_pf_is_withheld_with_its_vfs_and_its_shares(mechanism: str, sriov: Path) -> None:
    """The VFs are those on the node and in pods. A VF that is withheld does not affect its PF or other VFs."""
    settings: dict[str, t.Any] = {"select": {"address": "0000:c9:00.1"}, "mechanism": mechanism, "bandwidth": "100G"}
    divided = read({"shares": [{**settings, "namespace": "team-a"}]})
    vf = inventory(sriov).device(VF)
    assert vf and vf.pf == "0000:c9:00.1"

    def tainted(unclean: str, held: t.Sequence[Device] = (), shares: bool = True) -> set[str]:
        node = Inventory(lambda: divided, lambda: held, str(sriov), lambda: {unclean: "stacked"})
        taint = {"key": UNCLEAN, "value": "stacked", "effect": "NoSchedule"}
        return {device["name"] for device in node.refresh(shares=shares).devices if taint in device.get("taints", ())}

    node = inventory(sriov)
    published = [node.device(device["name"]) for device in node.refresh().devices]
    vfs = {device.name for device in published if device and device.pf == vf.pf}
    assert VF in vfs and len(vfs) < sum(bool(device and device.pf) for device in published)
    assert tainted(PF, shares=False) == {PF, *vfs} == tainted(PF, [vf], shares=False)
    assert {PF, f"{PF}-share"} <= tainted(PF) <= {PF, f"{PF}-share", *vfs}
    assert tainted(VF, shares=False) == {VF}


SHARED: dict[str, t.Any] = {
    "include": [{"address": "0000:c9:*"}],
    "shares": [{"select": {"address": "0000:c9:00.1"}, "mechanism": "vfs", "bandwidth": "100G", "step": "1G"}],
}


@pytest.mark.parametrize("returns", [False, True], ids=["leaves", "returns"])
def test_a_vf_of_a_share_that_moves_during_a_probe_stays_usable(returns: bool, sriov: Path, tmp_path: Path) -> None:
    before = inventory(sriov, **SHARED)
    offer, vf = before.offer(f"{PF}-share"), inventory(sriov).device(VF)
    assert offer and vf and vf.interface and vf.address in [offered.address for offered in offer.vfs]
    moved = without_interfaces(sriov, tmp_path / "moved", vf.interface)
    held = {f"{PF}-share": HeldShares(offer.published, frozenset({vf.address}))}
    states: list[dict[str, HeldShares]] = [held, {}] if returns else [{}, held]
    node = Inventory(lambda: read(SHARED), lambda: (), str(moved), held_shares=lambda: states.pop(0))
    assert node.refresh().shared[f"{PF}-share"].vfs == before.publication.shared[f"{PF}-share"].vfs


BOARD_ATTRIBUTES = ("board", "nearestGPUs", "nearestGPULevel", "nearestGPU", "pcieSwitch", "rail")


@pytest.mark.parametrize("machine", ["hgx-h100", "gb300", "dgx-a100"])
def test_board_attributes_do_not_change_while_pods_have_nics(machine: str, tmp_path: Path) -> None:
    """They stay the same for all NICs, also after a restart of the driver."""
    root = build(machine, tmp_path / "machine")
    before = {entry["name"]: entry["attributes"] for entry in inventory(root).refresh().devices}
    assert all("board" in attributes for attributes in before.values())
    node = inventory(root)
    with_interfaces = [nic for nic in map(node.device, sorted(before)) if nic and nic.interface and not nic.vf]
    in_pods = with_interfaces[::2]
    assert in_pods
    for device in in_pods:
        assert device.address
        move_to_container(root, device.address)
    for current in (node, inventory(root, in_pods)):  # the running driver without records, and a restarted one
        after = {entry["name"]: entry["attributes"] for entry in current.refresh().devices}
        for name, attributes in after.items():
            assert {key: attributes.get(key) for key in BOARD_ATTRIBUTES} == {
                key: before[name].get(key) for key in BOARD_ATTRIBUTES
            }
        assert len(after) >= len(before) - len(in_pods)
    assert after == before


@pytest.mark.parametrize("machine", ["gb300", "hgx-b200"])
def test_board_attributes_do_not_change_while_vpd_cannot_be_read(machine: str, tmp_path: Path) -> None:
    root = build(machine, tmp_path / "machine")
    node = inventory(root)
    before = node.refresh()
    files = list((root / "sys/devices").rglob("vpd"))
    assert files
    contents = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()
    assert inventory(root).refresh().devices != before.devices  # a new inventory needs VPD
    assert node.refresh().devices == before.devices
    for path in files:
        path.write_bytes(b"")
    assert node.refresh().devices == before.devices
    for path, content in zip(files, contents):
        path.write_bytes(content)
    assert node.refresh().devices == before.devices


def test_without_counters_the_vfs_of_a_pods_pf_are_withheld(sriov: Path) -> None:
    pf = inventory(sriov).device(PF)
    assert pf
    node = inventory(sriov, [pf])
    publication = node.refresh(counters=False)
    assert PF in publication.addresses and VF not in publication.addresses
    assert "a pod has its PF" in publication.withheld["0000:c9:10.2"]
    assert not publication.counter_sets


def test_a_probe_for_a_claim_omits_what_the_api_server_does_not_support(sriov: Path) -> None:
    node = inventory(sriov, **SHARED)
    assert VF not in node.refresh().addresses and node.offer(f"{PF}-share")
    published = node.refresh(counters=True, shares=False)
    assert VF in published.addresses and not node.offer(f"{PF}-share")
    assert node.device("pci-0000-ff-00-0") is None  # an unknown name causes another probe
    assert node.publication.devices == published.devices and node.device(VF) and not node.withheld(VF)
    without_counters = node.refresh(counters=False, shares=False)
    assert node.refresh() == without_counters and not without_counters.counter_sets


def test_a_missing_function_stays_published_for_its_pod(sriov: Path) -> None:
    lost = Device("pci-0000-ff-00-0", {"name": "pci-0000-ff-00-0", "attributes": {}}, address="0000:ff:00.0")
    (device,) = [entry for entry in inventory(sriov, [lost]).refresh().devices if entry["name"] == lost.name]
    assert device["taints"] == [{"key": MISSING, "effect": "NoSchedule"}]
    moved = Device("net-eth9", {"name": "net-eth9", "attributes": {}}, interface="eth9")
    (device,) = [entry for entry in inventory(sriov, [moved]).refresh().devices if entry["name"] == moved.name]
    assert "taints" not in device


def test_a_function_with_an_interface_in_another_namespace_is_withheld(sriov: Path, tmp_path: Path) -> None:
    device = inventory(sriov).device("pci-0000-16-00-2")
    assert device and device.interface and device.rdma_devices
    node = inventory(without_interfaces(sriov, tmp_path / "moved", device.interface))
    assert node.withheld(device.name) == "its network interface is in another namespace"


# interfaces and routes on a real kernel


def run_in_namespace(script: str, *setup: str) -> t.Any:
    """Run a program in new namespaces after these ip commands, and return its JSON output. nic0 to nic3 are veths."""
    lines = [f"ip link add nic{number} type veth peer name peer{number}" for number in range(4)]
    lines += [f"ip link set {side}{number} up" for number in range(4) for side in ("nic", "peer")]
    lines += [f"ip addr add 192.0.{number}.1/24 dev nic{number}" for number in range(4)]
    lines += [f"ip -6 addr add 2001:db8:{number}::1/64 dev nic{number} nodad" for number in range(4)]
    shell = "\n".join(["set -e", "mount --make-rprivate /", "mount -t sysfs sysfs /sys"])
    shell += "\nmount -t tmpfs none /run\nip link set lo up"  # ip netns keeps its names below /run
    shell += "\n" + "\n".join([*lines, *(f"ip {command}" for command in setup)]) + '\nexec "$0" -c "$1"'
    preamble = """
        import json, socket, subprocess, time
        from lanewise_driver.publish.inventory import Inventory
        from lanewise_driver.base.settings import read

        def inventory(**settings):
            parsed = read({"virtual_interfaces": ["nic*", "br*", "mv*"], **settings})
            return Inventory(lambda: parsed, lambda: ())

        def published(node):
            return sorted(node.refresh().interfaces.values())
    """
    program = textwrap.dedent(preamble) + textwrap.dedent(script)
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", shell, sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_namespaces
def test_virtual_interfaces_that_the_settings_name_are_published() -> None:
    found = run_in_namespace(
        """
        node = inventory(aliases={"nic0": "storage"}, virtual_interfaces=["nic*", "Odd.*"])
        publication = node.refresh()
        devices = {entry["name"]: entry for entry in publication.devices}
        odd = node.device("netx-" + "Odd.1".encode().hex())
        print(json.dumps([sorted(devices), devices["net-nic0"], odd.interface, odd.address]))
        """,
        "link add Odd.1 type veth peer name peerx",
        "link set nic0 mtu 9000 address 02:00:00:00:00:07",
    )
    assert found[0] == [*(f"net-nic{number}" for number in range(4)), "netx-4f64642e31"]
    values = {name: next(iter(value.values())) for name, value in found[1]["attributes"].items()}
    speed = values.pop("linkSpeedMbps", None)
    assert values == {
        "type": "virtual",
        "kind": "virtual",
        "alias": "storage",
        "ifName": "nic0",
        "mac": "02:00:00:00:00:07",
        "linkLayer": "ethernet",
        "mtu": 9000,
        "rdma": False,
        "up": True,
    }
    assert bool(speed) == ("capacity" in found[1])
    assert found[2:] == ["Odd.1", None]


ALL = ["nic0", "nic1", "nic2", "nic3"]
#: Arguments of ip commands, and the interfaces that are still published after them.
ROUTES: dict[str, tuple[list[str], list[str]]] = {
    "no default route": ([], ALL),
    "the main table": (["route add default via 192.0.0.2"], ["nic1", "nic2", "nic3"]),
    "IPv6": (["-6 route add default via 2001:db8:1::2"], ["nic0", "nic2", "nic3"]),
    "another table": (["route add default via 192.0.2.2 table 100"], ["nic0", "nic1", "nic3"]),
    "a large table": (["-6 route add default via 2001:db8:2::2 table 100000"], ["nic0", "nic1", "nic3"]),
    "metrics": (
        ["route add default via 192.0.0.2 metric 10", "route add default via 192.0.1.2 metric 20"],
        ["nic2", "nic3"],
    ),
    "multipath": (
        ["route add default nexthop via 192.0.0.2 nexthop via 192.0.3.2 weight 2"],
        ["nic1", "nic2"],
    ),
    "multipath of IPv6": (
        ["-6 route add default nexthop via 2001:db8:1::2 nexthop via 2001:db8:2::2"],
        ["nic0", "nic3"],
    ),
    "next hop objects": (
        [
            "nexthop add id 1 via 192.0.0.2 dev nic0",
            "nexthop add id 2 via 192.0.1.2 dev nic1",
            "nexthop add id 10 group 1/2",
            "route add default nhid 10",
        ],
        ["nic2", "nic3"],
    ),
    "unreachable and blackhole defaults": (["route add unreachable default", "-6 route add blackhole default"], ALL),
    "more specific routes": (["route add 16.0.0.0/4 via 192.0.0.2", "route add 10.0.0.0/8 dev nic1"], ALL),
    "two halves of all addresses": (
        ["route add 0.0.0.0/1 via 192.0.0.2", "route add 128.0.0.0/1 dev nic1"],
        ["nic2", "nic3"],
    ),
    "all global addresses of IPv6": (["-6 route add 2000::/3 via 2001:db8:1::2"], ["nic0", "nic2", "nic3"]),
    "router advertisements and a static default of IPv4": (
        [
            "-6 route add default via 2001:db8:1::2 proto ra metric 1024",
            "-6 route add default via 2001:db8:2::2 dev nic2 proto ra metric 1030",
            "route add default via 192.0.0.2",
        ],
        ["nic1", "nic2", "nic3"],
    ),
    "router advertisements only": (
        [
            "-6 route add default via 2001:db8:1::2 proto ra metric 1024",
            "-6 route add default via 2001:db8:2::2 dev nic2 proto ra metric 1030",
        ],
        ["nic0", "nic2", "nic3"],
    ),
    "a bridge": (
        ["link add br0 type bridge", "link set br0 up", "link set nic0 master br0", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.2"],
        ["nic1", "nic2", "nic3"],
    ),
    "a macvlan": (
        ["link add mv0 link nic1 type macvlan", "link set mv0 up", "addr add 192.0.9.1/24 dev mv0"]
        + ["route add default via 192.0.9.2"],
        ["nic0", "nic2", "nic3"],
    ),
    "a macvlan without a route": (["link add mv0 link nic1 type macvlan"], ["mv0", "nic0", "nic2", "nic3"]),
}


@needs_namespaces
@pytest.mark.parametrize("name", ROUTES)
def test_the_interfaces_of_default_routes_are_not_published(name: str) -> None:
    setup, expected = ROUTES[name]
    if name == "next hop objects":
        setup = ["-V > /dev/null; echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode", *setup]
    assert run_in_namespace("print(json.dumps(published(inventory())))", *setup) == expected


@needs_namespaces
def test_a_setting_selects_which_default_routes_count() -> None:
    found = run_in_namespace(
        """
        print(json.dumps([published(inventory(default_routes=value)) for value in ("all", "main", "best")]))
        """,
        "route add default via 192.0.0.2 metric 10",
        "route add default via 192.0.1.2 metric 20",
        "route add default via 192.0.2.2 table 100",
        "-6 route add default via 2001:db8:3::2",
    )
    assert found == [[], ["nic2"], ["nic1", "nic2", "nic3"]]


@needs_namespaces
def test_the_interface_of_an_ssh_session_is_not_published() -> None:
    """The interface stays withheld until its address is removed, even after the session has ended."""
    found = run_in_namespace(
        """
        node = inventory()
        steps = [published(node)]
        # a peer in another namespace has an SSH session with this node over nic1; the route to it leads over nic2
        for command in (
            "ip netns add remote", "ip link set peer1 netns remote", "ip link set peer2 netns remote",
            "ip -n remote link set lo up", "ip -n remote link set peer1 up", "ip -n remote link set peer2 up",
            "ip -n remote addr add 192.0.1.9/24 dev peer1", "ip -n remote addr add 198.51.100.1/32 dev lo",
            "ip -n remote addr add 192.0.2.9/24 dev peer2",
            "ip route add 198.51.100.1 via 192.0.2.9",
        ):
            subprocess.run(command.split(), check=True)
        open("/proc/self/comm", "w").write("sshd")  # SSH sessions are recognized by this name
        server = socket.create_server(("192.0.1.1", 22))
        import sys
        client = "s=socket.create_connection(('192.0.1.1',22),5,('198.51.100.1',0))"
        client = f"import socket,sys; {client}; sys.stdin.read()"
        command = ["ip", "netns", "exec", "remote", sys.executable, "-c", client]
        ssh_client = subprocess.Popen(command, stdin=subprocess.PIPE)
        session, _ = server.accept()
        steps.append(published(node))
        reason = [node.withheld("net-nic1"), node.needed_by_node(["net-nic1", "net-nic2", "net-nic0"])]
        session.close()
        ssh_client.stdin.close()
        ssh_client.wait()
        server.close()
        steps.append(published(node))
        steps.append(published(inventory()))  # a driver that starts now has not seen the session
        subprocess.run("ip addr del 192.0.1.1/24 dev nic1".split(), check=True)
        steps.append(published(node))
        print(json.dumps([steps, reason]))
        """,
        "link set lo up",
    )
    assert found[0] == [ALL, ["nic0", "nic3"], ["nic0", "nic3"], ALL, ALL]
    has_address = "it has the address of an SSH session from 198.51.100.1"
    on_route = "it is on the route to the SSH client 198.51.100.1"
    assert found[1] == [has_address, {"net-nic1": has_address, "net-nic2": on_route}]


@needs_namespaces
def test_interfaces_of_the_nodes_address_and_of_the_api_server_are_not_published() -> None:
    found = run_in_namespace(
        """
        import ipaddress
        node = inventory()
        node.node_addresses = (ipaddress.ip_address("192.0.0.1"), ipaddress.ip_address("203.0.113.9"))
        node.api_addresses = (ipaddress.ip_address("2001:db8:3::77"), ipaddress.ip_address("127.0.0.1"))
        print(json.dumps([published(node), node.withheld("net-nic0"), node.withheld("net-nic3")]))
        """
    )
    assert found == [["nic1", "nic2"], "it has the node's address", "the API server is reached over it"]


def publish_with_tc(*commands: str) -> t.Any:
    """Run these tc commands. Returns what is published before; then which of nic0 and nic1 the node needs, what is
    published, and why nic0 is withheld."""
    lines = "".join(f"subprocess.run('tc {command}'.split(), check=True)\n        " for command in commands)
    return run_in_namespace(
        f"""
        node = inventory()
        before = published(node)
        {lines}
        needed = node.needed_by_node(["net-nic0", "net-nic1"])
        print(json.dumps([before, needed, published(node), node.withheld("net-nic0")]))
        """
    )


@needs_namespaces
@pytest.mark.parametrize(
    ("commands", "kinds"),
    [
        (
            ["qdisc add dev nic0 clsact", "filter add dev nic0 ingress u32 match u32 0 0 flowid 1:1"],
            "filters (u32 at ingress)",
        ),
        (
            ["qdisc add dev nic0 clsact", "filter add dev nic0 egress u32 match u32 0 0 flowid 1:1"],
            "filters (u32 at egress)",
        ),
        (
            ["qdisc add dev nic0 ingress", "filter add dev nic0 parent ffff: u32 match u32 0 0 flowid 1:1"],
            "filters (u32 at ingress)",
        ),
        (
            ["qdisc add dev nic0 root handle 1: htb", "class add dev nic0 parent 1: classid 1:1 htb rate 1mbit"]
            + ["filter add dev nic0 parent 1: u32 match u32 0 0 flowid 1:1"],
            "filters (u32 at the root) and classes (htb)",
        ),
        (
            ["qdisc add dev nic0 root handle 1: htb", "class add dev nic0 parent 1: classid 1:1 htb rate 1mbit"],
            "classes (htb)",
        ),
        (["qdisc add dev nic0 clsact"], ""),
        (["qdisc add dev nic0 root tbf rate 1mbit burst 10k latency 1s"], ""),
    ],
)
def test_an_interface_with_filters_or_classes_is_withheld(commands: list[str], kinds: str) -> None:
    """The check of prepare also finds filters and classes that were added after the interface was published."""
    before, needed, after, withheld = publish_with_tc(*commands)
    reason = f"it has tc {kinds}, which a claim would lose" if kinds else ""
    assert before == ALL and after == (ALL[1:] if kinds else ALL)
    assert needed == ({"net-nic0": reason} if kinds else {}) and withheld == reason


@needs_namespaces
def test_unchanged_routes_are_read_only_once() -> None:
    """A node that runs BGP has many routes, and reading them all takes long."""
    found = run_in_namespace(
        """
        lines = "".join(f"route add 10.{n >> 8}.{n & 255}.0/24 dev nic0\\n" for n in range(20000))
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
        subprocess.run("ip route add default via 192.0.1.2".split(), check=True)
        began = time.process_time()
        node = inventory()
        found = node.uplink_reasons()
        first = time.process_time() - began
        began = time.process_time()
        for _unused in range(50):
            assert node.uplink_reasons() == found
        print(json.dumps([found, first, time.process_time() - began]))
        """
    )
    assert found[0] == {"nic1": "it carries the default route"} and found[1] < 2
    assert found[2] < 50 * found[1] / 4, "the routes are read each time"


@needs_namespaces
def test_prefetched_uplinks_are_used_until_a_route_changes() -> None:
    found = run_in_namespace(
        """
        subprocess.run("ip route add default via 192.0.1.2".split(), check=True)
        node = inventory()
        node.prefetch()
        prefetched = node.uplink_reasons(60.0)
        again = node.uplink_reasons(60.0)
        subprocess.run("ip route del default".split(), check=True)
        node.prefetch()
        now = dict(node.uplink_reasons(60.0))
        print(json.dumps([dict(prefetched), prefetched is again, now, node.needed_by_node(["net-nic1"])]))
        """
    )
    assert found == [{"nic1": "it carries the default route"}, True, {}, {}]


def test_current_settings_are_used_each_time(sriov: Path) -> None:
    current = [Settings()]
    node = Inventory(lambda: current[0], lambda: (), str(sriov))
    assert PF in node.refresh().addresses
    current[0] = read({"exclude": [{"type": "pf"}]})
    assert PF not in node.refresh().addresses


def test_a_folder_that_cannot_be_listed_does_not_count_as_empty() -> None:
    """Otherwise a function with several interfaces would be given to a pod although the node needs one of them."""
    assert interfaces_of("0000:ff:1f.7") == []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_descriptor = os.dup(0)
    os.close(next_descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor, hard))
    try:
        with pytest.raises(KernelError, match="list the interfaces of 0000:ff:1f.7: Too many open files"):
            interfaces_of("0000:ff:1f.7")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
