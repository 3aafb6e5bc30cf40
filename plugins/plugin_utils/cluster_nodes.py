# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes of a cluster and their devices, as its API shows them."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from ansible import constants
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object, Scalar
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Pools

#: A name in DNS (RFC 1123).
_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


def describe(
    nodes: t.Iterable[Object],
    slices: t.Iterable[Object],
    claims: t.Iterable[Object],
    drivers: t.Collection[str] = (),
) -> dict[str, Object]:
    """The address, versions, devices and findings of each node, by its name.

    `nodes` are v1 Nodes, `slices` and `claims` ResourceSlices and ResourceClaims of any served version. If
    `drivers` is not empty, other drivers are ignored. As in the scheduler, only the newest generation of each pool is
    used, and only if the pool is complete
    (https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/). Devices for several nodes
    (allNodes, nodeSelector) belong to no node, and are ignored.
    """
    entries = {node["metadata"]["name"]: _node(node) for node in nodes}
    holders = _holders(claims)
    selected = [
        resource_slice for resource_slice in slices if not drivers or resource_slice["spec"]["driver"] in drivers
    ]
    for resource_slice in selected:
        driver, node = resource_slice["spec"]["driver"], resource_slice["spec"].get("nodeName")
        version = ((resource_slice.get("metadata") or {}).get("annotations") or {}).get(f"{driver}/version")
        if version and node in entries:
            entries[node]["driver_versions"][driver] = version
    for (driver, name), pool in Pools(selected).pools.items():
        for node in entries.keys() & {*pool.nodes, *(published.node for published in pool.devices.values())}:
            entry = entries[node]
            entry["drivers"] = sorted({*entry["drivers"], driver})
            if not pool.complete:
                number = f"{pool.slices} of {pool.expected_slices} slices"
                entry["findings"].append(f"{driver}: pool {name} has {number}: none of its devices can be allocated")
                continue
            of_node = [published.device for published in pool.devices.values() if published.node == node]
            devices = [_device(device, driver, name, holders) for device in of_node]
            entry["devices"] += devices
            entry["findings"] += [
                f"{driver}: {device['name']} has the taint {taint}" for device in devices for taint in device["taints"]
            ]
    _remove_shared_addresses(entries)
    for entry in entries.values():
        if not entry["ready"]:
            entry["findings"].append("the node is not ready")
        for key, values in _summary(entry["devices"]).items():
            entry[key] = values
    return entries


def _node(node: Object) -> Object:
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    addresses = {entry["type"]: entry["address"] for entry in reversed(status.get("addresses") or ())}
    address = addresses.get("InternalIP") or addresses.get("Hostname")
    usable = not address or _is_safe_for_ssh(str(address))
    return {
        "address": (address or None) if usable else None,
        "labels": node["metadata"].get("labels") or {},
        "ready": conditions.get("Ready") == "True",
        "schedulable": not (node.get("spec") or {}).get("unschedulable", False),
        "kubelet": info.get("kubeletVersion"),
        "kernel": info.get("kernelVersion"),
        "drivers": [],
        "driver_versions": {},
        "devices": [],
        "findings": [] if usable else [f"its address {str(address)[:80]!r} cannot be the address of another machine"],
    }


def has_name_of_controller(node: str) -> bool:
    """Whether Ansible would run the tasks of the controller (`delegate_to: localhost`) on a host with a node's name."""
    return node in constants.LOCALHOST


def _is_safe_for_ssh(address: str) -> bool:
    """Whether an address that a node reports may be passed to SSH: an IP address of another machine, or a host name.

    SSH would parse a name that begins with a dash as an option.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _NAME.fullmatch(address) is not None and address.lower().split(".")[0] != "localhost"
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return not (mapped.is_loopback or mapped.is_unspecified or mapped.is_multicast or mapped.is_link_local)


def _remove_shared_addresses(nodes: dict[str, Object]) -> None:
    """Remove addresses that several nodes report, because a change for one node could reach another."""
    owners: dict[str, list[str]] = {}
    for name, node in nodes.items():
        if node["address"]:
            owners.setdefault(_normalized(node["address"]), []).append(name)
    for names in owners.values():
        for name in names if len(names) > 1 else ():
            others = ", ".join(other for other in names if other != name)
            nodes[name]["findings"].append(
                f"its address {nodes[name]['address']} is also that of {others}, so it is not used"
            )
            nodes[name]["address"] = None


def _normalized(address: str) -> str:
    """An address in a form that is the same for all its spellings."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address.lower().rstrip(".")
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _holders(claims: t.Iterable[Object]) -> dict[tuple[str, str, str], set[str]]:
    """The claims that have a device, as `NAMESPACE/NAME`, by its driver, pool and name. Claims may share a device."""
    holders: dict[tuple[str, str, str], set[str]] = {}
    for claim in claims:
        results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
        for result in results:
            if not result.get("adminAccess"):
                name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
                holders.setdefault((result["driver"], result["pool"], result["device"]), set()).add(name)
    return holders


def _device(device: Object, driver: str, pool: str, holders: t.Mapping[tuple[str, str, str], set[str]]) -> Object:
    attributes = {name: _value(typed) for name, typed in (device.get("attributes") or {}).items()}
    claims = sorted(holders.get((driver, pool, device["name"]), ()))
    return {
        "name": device["name"],
        "driver": driver,
        "pool": pool,
        # a driver may publish its own attributes without the driver's name as prefix
        "attributes": {name if "/" in name else f"{driver}/{name}": value for name, value in attributes.items()},
        "capacity": {name: quantity["value"] for name, quantity in (device.get("capacity") or {}).items()},
        "taints": [f"{taint['key']}:{taint['effect']}" for taint in device.get("taints") or ()],
        "claim": claims[0] if claims else None,
        "claims": claims,
    }


def _value(typed: Object) -> object:
    return next(iter(typed.values()), None)


#: Summaries of a node's devices, and the attributes that have their values, for any driver.
_SUMMARIES = {
    "models": ("model", "productName", "product_name"),
    "numa_nodes": ("numaNode", "numaNodeID"),
    "pcie_roots": ("pcieRoot",),
    "rails": ("rail",),
    "link_layers": ("linkLayer",),
}


def _summary(devices: t.Iterable[Object]) -> dict[str, list[Scalar]]:
    summary: dict[str, set[Scalar]] = {key: set() for key in _SUMMARIES}
    for device in devices:
        for name, value in device["attributes"].items():
            for key, names in _SUMMARIES.items():
                if name.rpartition("/")[2] in names and value is not None and not isinstance(value, (list, dict)):
                    summary[key].add(value)
    return {key: sorted(values, key=lambda value: (str(type(value)), value)) for key, values in summary.items()}
