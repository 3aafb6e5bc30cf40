# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The properties of lab nodes, read on the nodes, and the collection's probe of a node over SSH."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.lab.node import GPU_IDS, NIC_IDS, SOCKETS, Device, Failed, Lab, Node

SYS = "/sys/bus/pci/devices"


def nics(node: Node) -> list[Device]:
    return [device for device in node.devices if device.kind == "nic"]


def read(node: Node, path: str) -> str:
    return node.ssh(f"cat {path}")


def vfs(node: Node, device: Device, number: int) -> list[str]:
    """Set the number of a NIC's VFs. Returns their addresses."""
    folder = f"{SYS}/{device.address}"
    node.ssh(f"echo 0 > {folder}/sriov_numvfs")
    if number:
        node.ssh(f"echo {number} > {folder}/sriov_numvfs; udevadm settle")
    links = node.ssh(f"for vf in {folder}/virtfn*; do [ -e $vf ] && basename $(readlink $vf); done; true")
    return links.split()


def settings(node: Node, interface: str) -> list[dict[str, t.Any]]:
    found: list[dict[str, t.Any]] = json.loads(node.ssh(f"ip -json -details link show {interface}"))[0]["vfinfo_list"]
    return found


def test_every_function_is_at_its_configured_place(node: Node) -> None:
    for device in node.devices:
        path = node.ssh(f"readlink -f {SYS}/{device.address}")
        assert path == "/".join(["/sys/devices", device.root, *device.bridges, device.address])
        for address in (*device.bridges, device.address):
            assert read(node, f"{SYS}/{address}/numa_node") == str(device.numa)
    assert node.ssh("cat /sys/devices/system/node/node*/cpulist").split() == ["0-1", "2-3"]
    assert read(node, "/sys/devices/system/node/node0/distance").split() == ["10", "21"]


def test_vfs_appear_and_disappear_with_their_driver(node: Node) -> None:
    for device in nics(node):
        addresses = vfs(node, device, 3)
        assert len(addresses) == 3
        for address in addresses:
            assert node.ssh(f"basename $(readlink {SYS}/{address}/driver)") == "igbvf"
            assert read(node, f"{SYS}/{address}/numa_node") == str(device.numa)
            assert node.ssh(f"ls {SYS}/{address}/net")
        busy = node.ssh(f"(echo 2 > {SYS}/{device.address}/sriov_numvfs) 2>&1 || true")
        assert "busy" in busy
        assert vfs(node, device, 0) == []


def test_the_kernel_keeps_the_settings_of_a_vf(node: Node) -> None:
    device = nics(node)[0]
    vfs(node, device, 2)
    name = node.interface(device)
    try:
        node.ssh(f"ip link set {name} up")
        node.ssh(f"ip link set {name} vf 1 mac 02:00:00:00:00:77 vlan 42 qos 3")
        node.ssh(f"ip link set {name} vf 1 spoofchk off trust on")
        wanted = {"mac": "02:00:00:00:00:77", "spoofchk": False, "trust": True}
        found = settings(node, name)
        assert {key: found[1].get(key, found[1].get("address")) for key in wanted} == wanted
        assert found[1]["vlan_list"] == [{"vlan": 42, "qos": 3}]
        assert found[0].get("mac", found[0].get("address")) != wanted["mac"]
        assert not found[0].get("trust")
    finally:
        vfs(node, device, 0)


def test_rdma_between_two_nodes(nodes: list[Node]) -> None:
    for number in SOCKETS:
        for node in nodes:
            name = node.interface(nics(node)[number])
            node.ssh(f"modprobe rdma_rxe; ip address replace 192.0.2.{node.index + 1}/24 dev {name}")
            node.ssh(f"ip link set {name} up; rdma link add rxe{number} type rxe netdev {name}")
            # below the PCI function, as with a card's driver
            folder = f"{SYS}/{nics(node)[number].address}/infiniband"
            assert node.ssh(f"until [ -d {folder} ]; do sleep 0.2; done; ls {folder}") == f"rxe{number}"
        server, client = nodes
        ping = "ibv_rc_pingpong -d {device} -g {gid} -n 50"
        gids = [gid_of(node, f"rxe{number}", f"192.0.2.{node.index + 1}") for node in nodes]
        command = ping.format(device=f"rxe{number}", gid=gids[0])
        server.ssh(f"systemd-run --quiet --collect --unit=pong {command}")
        server.ssh("until ss -Hltn | grep -q :18515; do sleep 0.2; done", timeout=120)
        # the ping completes ARP before the first connection
        client.ssh("ping -c 3 -W 10 192.0.2.1")
        answer = client.ssh(f"timeout 120 {ping.format(device=f'rxe{number}', gid=gids[1])} 192.0.2.1")
        assert re.search(r"50 iters in", answer), answer
        for node in nodes:
            node.ssh(f"rdma link delete rxe{number}; ip address flush dev {node.interface(nics(node)[number])}")


def gid_of(node: Node, device: str, address: str) -> int:
    """The index of the RoCE v2 GID of an IPv4 address."""
    folder = f"/sys/class/infiniband/{device}/ports/1"
    a, b, c, d = (int(part) for part in address.split("."))
    wanted = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
    command = f"for number in $(seq 0 9); do echo $number $(cat {folder}/gids/$number); done"
    for _unused in range(50):
        for line in node.ssh(command).splitlines():
            if line.endswith(wanted):
                return int(line.split()[0])
        time.sleep(0.2)
    raise AssertionError(f"{node.name}: {device} has no GID of {address}")


def test_rdma_between_two_namespaces(nodes: list[Node]) -> None:
    """As between pods: with the RDMA connection manager, and with the returned data compared."""
    addresses = []
    try:
        for node in nodes:
            name = node.interface(nics(node)[0])
            node.ssh("modprobe rdma_rxe; modprobe rdma_ucm; rdma system set netns exclusive")
            node.ssh(f"rdma link add rxe0 type rxe netdev {name}; ip netns add pod")
            node.ssh(f"ip link set {name} netns pod name net1; rdma dev set rxe0 netns pod; ip -n pod link set net1 up")
            # the address appears with the link, and is usable after duplicate address detection
            usable = "ip -n pod -6 -o addr show dev net1 scope link -tentative"
            node.ssh(f"until {usable} | grep -q fe80; do sleep 0.2; done", timeout=120)
            addresses.append(node.ssh(usable).split()[3].partition("/")[0])
            serve = f"ip netns exec pod rping -s -P -a {addresses[-1]}%net1"
            node.ssh(f"systemd-run --quiet --collect --unit=pong {serve}")
        for node, peer in zip(nodes, reversed(addresses)):
            ping = f"timeout 60 ip netns exec pod rping -c -V -v -C 10 -a {peer}%net1"
            answer = node.ssh(f"until {ping}; do sleep 1; done", timeout=180)  # the peer may not be ready yet
            assert answer.count("ping data: rdma-ping-") >= 10, answer
            (counted,) = json.loads(node.ssh("ip netns exec pod rdma -j statistic show link rxe0/1"))
            assert counted["sent_pkts"] > 10 and counted["rcvd_pkts"] > 10
    finally:
        for node in nodes:
            # the device returns to the node a moment after its namespace was deleted
            node.ssh(
                "systemctl stop pong; ip netns delete pod; for i in $(seq 50); do rdma link | grep -q rxe0 && break; "
                "sleep 0.2; done; rdma link delete rxe0; rdma system set netns shared",
                check=False,
            )


def test_an_rdma_device_moves_to_a_namespace_and_back(node: Node) -> None:
    device = nics(node)[0]
    name = node.interface(device)
    node.ssh("modprobe rdma_rxe; rdma system set netns exclusive")
    assert "netns exclusive" in node.ssh("rdma system")
    try:
        node.ssh(f"rdma link add rxe0 type rxe netdev {name}; ip netns add pod")
        assert node.status("ip netns exec pod rdma -j link | grep rxe0") != 0
        node.ssh(f"ip link set {name} netns pod; rdma dev set rxe0 netns pod")
        links = json.loads(node.ssh("ip netns exec pod rdma -j link"))
        assert [(link["ifname"], link["netdev"]) for link in links] == [("rxe0", name)]
        assert "rxe0" not in node.ssh("rdma link")
        node.ssh("ip netns attach host 1 && ip netns exec pod rdma dev set rxe0 netns host")
        node.ssh(f"ip -n pod link set {name} netns 1")
        assert "rxe0" in node.ssh("rdma link")
        assert node.interface(device) == name
    finally:
        node.ssh(
            "ip netns delete host; ip netns delete pod; rdma link delete rxe0; rdma system set netns shared",
            check=False,
        )


def test_netdevsim_has_vfs_and_a_switch(node: Node) -> None:
    node.ssh("modprobe netdevsim; echo '7 1' > /sys/bus/netdevsim/new_device; udevadm settle")
    try:
        node.ssh("echo 2 > /sys/bus/netdevsim/devices/netdevsim7/sriov_numvfs")
        name = node.ssh("ls /sys/bus/netdevsim/devices/netdevsim7/net").split()[0]
        node.ssh(f"ip link set {name} vf 0 state disable; ip link set {name} vf 0 max_tx_rate 200 min_tx_rate 100")
        found = settings(node, name)[0]
        assert found["link_state"] == "disable"
        assert found["rate"] == {"max_tx": 200, "min_tx": 100}
        node.ssh("devlink dev eswitch set netdevsim/netdevsim7 mode switchdev; udevadm settle")
        answer = json.loads(node.ssh("devlink -j dev eswitch show netdevsim/netdevsim7"))
        assert answer["dev"]["netdevsim/netdevsim7"]["mode"] == "switchdev"
        ports = json.loads(node.ssh("devlink -j port show"))["port"]
        flavours = [port.get("flavour") for key, port in ports.items() if "netdevsim7" in key]
        assert flavours.count("pcivf") == 2
    finally:
        node.ssh("echo 7 > /sys/bus/netdevsim/del_device")


def test_dcb_keeps_its_settings(node: Node) -> None:
    name = node.interface(nics(node)[0])
    assert node.status(f"dcb pfc show dev {name}") != 0
    node.ssh("modprobe lab_dcb driver=igb")
    try:
        node.ssh(f"dcb pfc set dev {name} prio-pfc all:off 3:on")
        node.ssh(f"dcb ets set dev {name} tc-tsa all:ets tc-bw 0:50 1:50 2:0 3:0 4:0 5:0 6:0 7:0")
        pfc = json.loads(node.ssh(f"dcb -j pfc show dev {name}"))
        assert pfc["prio_pfc"] == [False, False, False, True, False, False, False, False]
        ets = json.loads(node.ssh(f"dcb -j ets show dev {name}"))
        assert ets["tc_bw"] == [50, 50, 0, 0, 0, 0, 0, 0]
    finally:
        node.ssh("rmmod lab_dcb")


def test_functions_with_ids_of_other_cards_keep_their_drivers(node: Node) -> None:
    device = nics(node)[0]
    gpu = next(entry for entry in node.devices if entry.kind == "gpu")
    node.ssh(f"modprobe lab_pci_ids ids={GPU_IDS},{NIC_IDS}")
    try:
        ids = "cat {0}/vendor {0}/device {0}/class; basename $(readlink {0}/driver)"
        assert node.ssh(ids.format(f"{SYS}/{gpu.address}")).split() == ["0x10de", "0x2330", "0x030200", "virtio-pci"]
        assert node.ssh(ids.format(f"{SYS}/{device.address}")).split() == ["0x15b3", "0x1021", "0x020000", "igb"]
        for address in vfs(node, device, 2):
            assert node.ssh(ids.format(f"{SYS}/{address}")).split() == ["0x15b3", "0x101e", "0x020000", "igbvf"]
        vfs(node, device, 0)
    finally:
        node.ssh("rmmod lab_pci_ids")
    assert node.ssh(f"cat {SYS}/{gpu.address}/class") == "0x038000"


def test_an_nvme_disk_is_plugged_in_below_each_switch(nodes: list[Node]) -> None:
    for device in nodes[1].plug_nvme():
        path = nodes[1].ssh(f"readlink -f {SYS}/{device.address}")
        assert path == "/".join(["/sys/devices", device.root, *device.bridges, device.address])
        assert nodes[1].ssh(f"ls -d {path}/nvme/nvme*")


def test_the_probe_agrees_with_qemus_options(node: Node, tmp_path: Path) -> None:
    node.ssh(f"modprobe lab_pci_ids ids={GPU_IDS}")
    try:
        counts = {device.address: len(vfs(node, device, number)) for number, device in enumerate(nics(node), 1)}
        inventory = tmp_path / "inventory.json"
        inventory.write_text(json.dumps({"all": {"hosts": {node.name: node.variables()}}}))
        facts = probe(inventory, node.name, tmp_path)
    finally:
        for device in nics(node):
            vfs(node, device, 0)
        node.ssh("rmmod lab_pci_ids")
    assert [(entry["id"], entry["cpus"], entry["distances"]) for entry in facts["numa_nodes"]] == [
        (0, "0-1", {"0": 10, "1": 21}),
        (1, "2-3", {"0": 21, "1": 10}),
    ]
    for device in node.devices:
        function = facts["functions"][device.address]
        assert function["kind"] == device.kind
        assert function["numa_node"] == device.numa
        assert function["root_complex"] == device.root
        assert tuple(function["bridges"]) == device.bridges
        assert function["kubernetes"]["pcieRoot"] == device.root
        if device.kind == "nic":
            sriov = function["sriov"]
            assert sriov["num_vfs"] == counts[device.address] == len(sriov["vfs"])
            assert {facts["functions"][address]["physfn"] for address in sriov["vfs"]} == {device.address}
    near = {entry["address"]: entry["nearest_nics"] for entry in facts["gpus"]}
    for gpu in (entry for entry in node.devices if entry.kind == "gpu"):
        nic = next(entry for entry in nics(node) if entry.numa == gpu.numa)
        assert (near[gpu.address]["level"], near[gpu.address]["devices"]) == ("PIX", [nic.address])


def probe(inventory: Path, name: str, folder: Path) -> dict[str, t.Any]:
    """The facts of a node from the collection's probe playbook."""
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [str(playbook), "-i", str(inventory), "playbooks/probe.yml", "-e", f"site_report_dest={folder / 'report'}"],
        cwd=COLLECTION,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = folder / "report" / "nodes" / f"{name}.json"
    found: dict[str, t.Any] = json.loads(report.read_text(encoding="utf-8"))["facts"]
    return found


def test_a_reboot_keeps_the_disk(node: Node) -> None:
    boot = read(node, "/proc/sys/kernel/random/boot_id")
    machine = read(node, "/etc/machine-id")
    node.ssh("echo kept > /root/kept; echo lost > /run/lost")
    node.reboot()
    assert read(node, "/proc/sys/kernel/random/boot_id") != boot
    assert read(node, "/root/kept") == "kept"
    assert node.status("test -e /run/lost") == 1
    assert read(node, "/etc/machine-id") == machine
    assert node.ssh("hostname") == node.name


def test_a_restored_node_has_its_first_state(node: Node) -> None:
    node.ssh("echo lost > /root/lost; ip link add dummy9 type dummy")
    node.restore()
    assert node.status("test -e /root/lost") == 1
    assert node.status("ip link show dummy9") == 1
    assert abs(float(node.ssh("date +%s")) - time.time()) < 60
    for device in nics(node):
        assert read(node, f"{SYS}/{device.address}/sriov_numvfs") == "0"


def test_nodes_have_different_names_and_addresses(nodes: list[Node]) -> None:
    assert len({node.ssh("hostname") for node in nodes}) == len(nodes)
    assert len({read(node, "/etc/machine-id") for node in nodes}) == len(nodes)
    macs = [read(node, f"{SYS}/{device.address}/net/*/address") for node in nodes for device in nics(node)]
    assert len(set(macs)) == len(macs)


def test_the_error_of_a_failed_command_has_its_output(node: Node) -> None:
    with pytest.raises(Failed, match="no-such-folder"):
        node.ssh("ls /no-such-folder")
    assert node.ssh("ls /no-such-folder; echo on", check=False) == "on"
    assert node.status("exit 3") == 3


OWNER = """
import sys, time
from ansible_collections.lanewise.dra.tests.lab.node import Lab
lab = Lab()
[node] = lab.start(1)
print(lab.folder, flush=True)
time.sleep(600)
"""


def test_nodes_end_when_their_owner_is_killed(nodes: list[Node]) -> None:
    """All processes of the lab end, and its folder is removed."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    folder = Path(owner.stdout.readline().strip())
    assert folder.is_dir()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (folder.exists() or mentions(str(folder))):
        time.sleep(0.2)
    assert not folder.exists()
    assert mentions(str(folder)) == []


def mentions(text: str) -> list[str]:
    """The PIDs of processes whose command line contains a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if text.encode() in words and path.parent.name != str(os.getpid()):
            found.append(path.parent.name)
    return found


def test_a_lab_uses_the_given_folder(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        assert lab.inventory() == {"all": {"hosts": {}}}
    assert not (tmp_path / "lab").exists()
