# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks the map in a pod: compares it with the pod's device numbers and links, and with the tree of the machine."""

from __future__ import annotations

import copy
import json
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import Seen
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from ansible_collections.lanewise.dra.tests.nvidia import root as nvidia

#: The map of the claim that GpuNode.pod gives its pods.
MAP_PATH = "/run/lanewise/map/resourceclaimtemplates/devices.json"
PAIRS_VARIABLE = "LANEWISE_PAIRS_DEVICES"


def pod_map(node: Node, pod: str) -> Object:
    """The map as the pod sees it."""
    content: Object = json.loads(node.execute(pod, "cat", MAP_PATH))
    return content


def environment(node: Node, pod: str) -> dict[str, str]:
    """The environment variables of the pod's first process."""
    listed = node.execute(pod, "sh", "-c", "tr '\\0' '\\n' < /proc/1/environ")
    return dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)


def links(node: Node, pod: str) -> dict[str, Object]:
    return {entry["ifname"]: entry for entry in json.loads(node.execute(pod, "ip", "-json", "address"))}


def faults(machine: GpuNode, pod: str, content: Object) -> list[str]:
    """What is wrong with the map of a pod that has as many GPUs as NICs."""
    gpus, nics = machine.seen(pod)
    wrong = []
    if sorted(gpu["pciAddress"] for gpu in content["gpus"]) != gpus:
        wrong.append("the GPUs are not those of the pod's device nodes")
    if sorted(nic["pciAddress"] for nic in content["nics"]) != nics:
        wrong.append("the NICs are not those of the pod's links")
    if sorted(pair["gpu"] for pair in content["pairs"]) != gpus:
        wrong.append("not every GPU has a NIC")
    if len({pair["nic"] for pair in content["pairs"]}) != len(nics):
        wrong.append("a NIC is in no pair")
    for pair in content["pairs"]:
        if not machine.judge.aligned(Seen([pair["gpu"]], [pair["nic"]])):
            wrong.append(f"{pair['nic']} is not a nearest NIC of {pair['gpu']}")
    return wrong + gpu_faults(machine, content) + nic_faults(machine, pod, content)


def gpu_faults(machine: GpuNode, content: Object) -> list[str]:
    uuids = {gpu.address: gpu.uuid for gpu in nvidia.gpus(machine.tree)}
    wrong = [
        f"{item['pciAddress']} has another UUID"
        for item in content["gpus"]
        if item["uuid"] != uuids[item["pciAddress"]]
    ]
    for entry in content["gpus"]:
        if entry["pcieRoot"] != machine.judge.pcie_root(entry["pciAddress"]):
            wrong.append(f"{entry['pciAddress']} is below another root")
    return wrong


def nic_faults(machine: GpuNode, pod: str, content: Object) -> list[str]:
    rails = {entry["address"]: "UNKNOWN" if entry["rail"] is None else entry["rail"] for entry in machine.facts["nics"]}
    pod_links = links(machine.node, pod)
    wrong = [
        f"{entry['pciAddress']} is on another rail"
        for entry in content["nics"]
        if entry["rail"] != rails[entry["pciAddress"]]
    ]
    for nic in content["nics"]:
        link = pod_links.get(nic["interface"])
        if link is None or link["address"] != nic["mac"]:
            wrong.append(f"{nic['interface']} does not have this MAC address")
        elif machine.judge.nic_by_mac.get(nic["mac"]) != nic["pciAddress"]:
            wrong.append(f"{nic['pciAddress']} does not have this MAC address on the machine")
        elif not set(nic["addresses"]) <= {f"{item['local']}/{item['prefixlen']}" for item in link["addr_info"]}:
            wrong.append(f"{nic['interface']} does not have these addresses")
    return wrong


def variable_faults(variables: t.Mapping[str, str], content: Object) -> list[str]:
    """What is wrong with the variables of a container, compared with its map."""
    uuids = {gpu["pciAddress"]: gpu["uuid"] for gpu in content["gpus"]}
    expected = [(pair["gpu"], uuids[pair["gpu"]], pair["nic"]) for pair in content["pairs"]]
    wrong = [] if variables.get("LANEWISE_MAP") == "/run/lanewise/map" else ["LANEWISE_MAP is not the folder of maps"]
    listed = variables.get(PAIRS_VARIABLE, "")
    pairs = [dict(part.split("=", 1) for part in pair.split(",")) for pair in listed.split(";") if pair]
    if [(entry["gpu"], entry["uuid"], entry["nic"]) for entry in pairs] != expected:
        wrong.append(f"{PAIRS_VARIABLE} is {listed!r}")
    return wrong


def wrong_maps(content: Object) -> dict[str, Object]:
    """Wrong maps by the name of the change, derived from the correct map of a pod with two pairs."""
    wrong = {}
    for change in (_exchange_nics, _exchange_uuids, _nic_twice, _another_rail, _another_address):
        change(wrong.setdefault(change.__name__, copy.deepcopy(content)))
    return wrong


def _exchange_nics(content: Object) -> None:
    first, second = content["nics"]
    first["pciAddress"], second["pciAddress"] = second["pciAddress"], first["pciAddress"]


def _exchange_uuids(content: Object) -> None:
    first, second = content["gpus"]
    first["uuid"], second["uuid"] = second["uuid"], first["uuid"]


def _nic_twice(content: Object) -> None:
    first, second = content["pairs"]
    first["nic"] = second["nic"]


def _another_rail(content: Object) -> None:
    content["nics"][0]["rail"] = 77


def _another_address(content: Object) -> None:
    content["nics"][0]["addresses"] = ["192.0.2.77/24"]
