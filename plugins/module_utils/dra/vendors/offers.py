# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What the DRA drivers of a site would publish for a probed node."""

from __future__ import annotations

import json
import typing as t
from dataclasses import dataclass, field, replace

from ...topology import cpuset, publish
from ..kube import limits, schema, versions
from .drivers import NUMA_NODE, NUMA_NODE_DRANET, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, knowledge

Facts = t.Mapping[str, t.Any]
_Attributes = dict[str, t.Any]

API_VERSION = "resource.k8s.io/v1"


@dataclass(frozen=True)
class Offer:
    """A device that a driver would publish.

    C(device) is a v1 Device, C(address) the PCI function behind it where there is one. C(counter_sets) are the v1
    CounterSets that it consumes from. C(unknown) are qualified attributes and capacities that the driver publishes but
    a probe cannot see: a selector that asks for one has no answer before there is a cluster. C(assumed) are those whose
    value is a likely one: there a match is taken for a match, and anything else for unknown. A C(possible) device may
    or may not be there, such as a MIG partition: slices leave it out.
    """

    driver: str
    pool: str
    node: str
    device: dict[str, t.Any]
    address: str = ""
    counter_sets: tuple[dict[str, t.Any], ...] = ()
    unknown: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()
    possible: bool = False


def offers(
    node: str,
    facts: Facts,
    drivers: t.Mapping[str, t.Mapping[str, t.Any]],
    known: t.Mapping[str, DriverKnowledge] | None = None,
    server: Server | None = None,
) -> list[Offer]:
    """What each driver of the site would publish for the node, by driver and in each driver's own order.

    C(facts) are the node's topology facts, C(drivers) the options of each driver as in dra_claims_drivers. A driver
    that only the site describes has no offers: nothing says which functions it publishes, and how. C(known) is what
    :func:`drivers.knowledge` says of each, where it was asked before; otherwise raises L(Problems,) as it does.
    C(server) is what the devices are published to: 1.37 as it comes, where none is given.
    """
    server = server or Server()
    result: list[Offer] = []
    for name in sorted(drivers):
        driver = known[name] if known else knowledge(name, drivers[name])
        maker = _MAKERS.get(name)
        if maker:
            result += maker(node, facts, driver, {**(drivers[name] or {}), "counters": server.counts})
    return [server.keeps(offer) for offer in result] if server.lost or server.rules else result


def blind(drivers: t.Iterable[str]) -> list[str]:
    """The drivers whose devices no probe can tell."""
    return sorted(name for name in drivers if name not in _MAKERS)


class Server:
    """What an API server makes of published devices: fields behind a gate that is off are lost, and taint rules add
    their taints.

    C(rules) are DeviceTaintRules of any version. What they say of selectors and classes, which 1.34 has, is passed
    over. C(counts) tells whether counters are kept. Raises ValueError for a release that is not known.
    """

    def __init__(
        self,
        kubernetes: str = f"1.{schema.NEWEST}",
        gates: versions.Gates = None,
        rules: t.Sequence[t.Mapping[str, t.Any]] = (),
    ) -> None:
        minor = versions.minor_of(kubernetes)
        self.minor, self.gates = minor, gates
        self.lost = versions.lost_of_devices(minor, gates)
        self.counts = "consumesCounters" not in self.lost
        self.rules = [rule["spec"] for rule in rules]

    def claim(self, obj: dict[str, t.Any]) -> dict[str, t.Any]:
        """A v1 object without the fields that the server drops."""
        kept = json.loads(json.dumps(obj))
        versions.drop_disabled(kept, self.minor, self.gates)
        return t.cast("dict[str, t.Any]", kept)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The kinds of constraints that its scheduler knows: others end the scheduling of a pod."""
        distinct = versions.distinguishes(self.minor, self.gates)
        return ("matchAttribute", "distinctAttribute") if distinct else ("matchAttribute",)

    def keeps(self, offer: Offer) -> Offer:
        """The device as the scheduler sees it."""
        device = {name: value for name, value in offer.device.items() if name not in self.lost}
        here = {"driver": offer.driver, "pool": offer.pool, "device": device["name"]}
        taints = [
            rule["taint"]
            for rule in self.rules
            if all(value == here.get(name) for name, value in (rule.get("deviceSelector") or {}).items())
        ]
        if taints:
            device["taints"] = [*device.get("taints", ()), *taints]
        return replace(offer, device=device, counter_sets=offer.counter_sets if self.counts else ())


@dataclass
class _Maker:
    """Collects the attributes of one device."""

    known: DriverKnowledge
    attributes: _Attributes = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)

    def put(self, name: str, value: t.Any, sure: bool = True) -> None:
        """Add what is known; C(name) is as the driver writes it."""
        if value is None or value == "":
            return
        if isinstance(value, str) and limits.size(value) > limits.ATTRIBUTE_VALUE_BYTES:
            return
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
        self.attributes[name] = {kind: value}
        if not sure:
            self.assumed.add(self.known.qualified(name))

    def standard(self, facts: Facts, *names: str) -> None:
        """Add the standard attributes that this version of the driver has."""
        keys = {PCIE_ROOT: "pcieRoot", PCI_BUS_ID: "pciBusID", NUMA_NODE: "numaNode", NUMA_NODE_DRANET: "numaNode"}
        for name in names:
            self.put(name, facts.get(keys[name]))

    def unknown(self, *names: str) -> frozenset[str]:
        return frozenset(self.known.qualified(name) for name in names)

    def offer(self, node: str, name: str, unknown: frozenset[str], address: str = "", **more: t.Any) -> Offer:
        """The device of this name in the node's pool; C(more) are fields of it beside its attributes."""
        device = {"name": name, "attributes": self.attributes, **more}
        return Offer(
            self.known.name, node, node, device, address=address, unknown=unknown, assumed=frozenset(self.assumed)
        )


def _gpus(facts: Facts, known: DriverKnowledge) -> list[tuple[int, Facts, Facts]]:
    """The functions of the driver's vendor with their number among them; a guest's GPUs are not the driver's."""
    found: list[tuple[int, Facts, Facts]] = []
    for gpu in facts["gpus"]:
        function = facts["functions"][gpu["address"]]
        if function["vendor_id"] in known.vendors and gpu["driver"] != "vfio-pci":
            found.append((len(found), gpu, function))
    return found


def _unpublished(function: Facts, facts: Facts) -> tuple[str, ...]:
    """Standard attributes that an imported topology says nothing about."""
    if facts["source"]["kind"] == "sysfs" or function["kubernetes"]:
        return ()
    return (PCIE_ROOT, PCI_BUS_ID, NUMA_NODE, NUMA_NODE_DRANET)


#: NVML's names of what the chip's code name begins with.
_NVIDIA_ARCHITECTURES = (
    ("V100", "Volta"),
    ("T4", "Turing"),
    ("A100", "Ampere"),
    ("A10", "Ampere"),
    ("A40", "Ampere"),
    ("L40", "Ada Lovelace"),
    ("L4", "Ada Lovelace"),
    ("H100", "Hopper"),
    ("H200", "Hopper"),
    ("H800", "Hopper"),
    ("GH200", "Hopper"),
    ("B200", "Blackwell"),
    ("GB200", "Blackwell"),
    ("GB300", "Blackwell"),
)
_MOST_MIG = 7  # GPU instances of a GPU
_MOST_PARTITIONS = 8  # compute partitions of an MI300X in CPX mode


def _nvidia(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    result = []
    for index, gpu, function in _gpus(facts, known):
        maker = _Maker(known)
        maker.put("type", "gpu")
        # /proc/driver/nvidia tells the name that NVML tells; a name by device id is as good as a guess
        maker.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
        words = (gpu["model"] or "").replace("-", " ").split()
        maker.put("architecture", next((a for chip, a in _NVIDIA_ARCHITECTURES if chip in words), None), sure=False)
        own = function["kubernetes"]
        if known.has("25.12.0"):
            maker.standard(own, PCI_BUS_ID)
        else:
            maker.put("pcieBusID", function["address"])
        maker.standard(own, PCIE_ROOT)
        if known.publishes(NUMA_NODE):
            maker.standard(own, NUMA_NODE)
        unknown = maker.unknown(
            "uuid",
            "brand",
            "cudaComputeCapability",
            "driverVersion",
            "cudaDriverVersion",
            "addressingMode",
            "memory",
            *([] if "productName" in maker.attributes else ["productName"]),
            *([] if "architecture" in maker.attributes else ["architecture"]),
            *_unpublished(function, facts),
        )
        whole = maker.offer(node, f"gpu-{index}", unknown, function["address"])
        result.append(whole)
        result += _partitions(whole, known, "mig", _MOST_MIG, maker.unknown("profile", "parentUUID", "multiprocessors"))
    return result


def _amd(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    result = []
    for index, gpu, function in _gpus(facts, known):
        maker = _Maker(known)
        maker.put("type", "amdgpu")
        maker.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
        maker.put("deviceID", f"0x{function['device_id']}" if function["device_id"] else None)
        # the driver publishes the kernel's -1 as well
        maker.put("numaNode", -1 if gpu["numa_node"] is None else gpu["numa_node"])
        maker.standard(function["kubernetes"], PCI_BUS_ID, PCIE_ROOT)
        unknown = maker.unknown(
            "driverVersion",
            "driverVersionFull",
            "partitionProfile",
            "memory",
            "computeUnits",
            "simdUnits",
            *([] if "productName" in maker.attributes else ["productName"]),
            *_unpublished(function, facts),
        )
        # the driver numbers cards and render nodes; every card has one of each
        whole = maker.offer(node, f"gpu-{index}-{128 + index}", unknown, function["address"])
        result.append(whole)
        result += _partitions(whole, known, "amdgpu-partition", _MOST_PARTITIONS, frozenset())
    return result


def _partitions(whole: Offer, known: DriverKnowledge, type_: str, most: int, unknown: frozenset[str]) -> list[Offer]:
    """Partitions that a GPU may be cut into; the probe does not see whether it is."""
    attributes = {**whole.device["attributes"], "type": {"string": type_}}
    return [
        Offer(
            whole.driver,
            whole.pool,
            whole.node,
            {"name": f"{whole.device['name']}-part-{number}", "attributes": attributes},
            address=whole.address,
            unknown=whole.unknown | unknown,
            assumed=whole.assumed,
            possible=True,
        )
        for number in range(most)
    ]


def _intel(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    result = []
    for _index, gpu, function in _gpus(facts, known):
        if gpu["kind"] != "gpu":
            continue
        maker = _Maker(known)
        maker.put("model", gpu["model"], sure=False)
        maker.put("driver", gpu["driver"])
        maker.put("sriov", bool((function["sriov"] or {}).get("total_vfs")))
        maker.put("pciId", f"0x{function['device_id']}" if function["device_id"] else None)
        maker.put("pciAddress", function["address"])
        if known.publishes(PCIE_ROOT):
            # where the root is not found the driver publishes an empty one, which all such devices have in common
            maker.attributes[PCIE_ROOT] = {"string": function["kubernetes"].get("pcieRoot", "")}
        if known.has("0.10.0"):
            maker.standard(function["kubernetes"], PCI_BUS_ID)
        if known.has("0.11.0"):
            maker.put("type", "gpu" if function["vf_number"] is None else "vf")
        unknown = maker.unknown("family", "health", "memory", "millicores", *_unpublished(function, facts))
        name = f"{function['address']}-{maker.attributes.get('pciId', {}).get('string', '')}"
        name = name.replace(":", "-").replace(".", "-").rstrip("-")
        result.append(maker.offer(node, name, unknown, function["address"]))
    return result


def _gaudi(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    result = []
    for _index, gpu, function in _gpus(facts, known):
        maker = _Maker(known)
        maker.put("model", gpu["model"], sure=False)
        if known.publishes(PCIE_ROOT):
            maker.standard(function["kubernetes"], PCIE_ROOT)
        serial = known.filter("gpu", "uuid")
        unknown = maker.unknown(*(["serial"] if serial else []), "healthy", *_unpublished(function, facts))
        name = f"{publish.device_name(function['address'])[4:]}-0x{function['device_id']}"
        result.append(maker.offer(node, name, unknown, function["address"]))
    return result


def _cpus(text: str | None) -> list[int]:
    bits = cpuset.from_list(text or "") or 0
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def _cpu(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    """CPUs in groups, as --cpu-device-mode=grouped publishes them.

    C(options.group_by) is numa_node (the driver's default), socket or machine; C(options.reserved_cpus) a kernel list.
    """
    reserved = _cpus(options.get("reserved_cpus"))
    group_by = options.get("group_by") or "numa_node"
    socket_of = {cpu: package["id"] for package in facts["packages"] for cpu in _cpus(package["cpus"])}
    groups: list[tuple[str, list[int], int | None]] = []
    if group_by == "socket":
        groups = [(f"cpudevsocket{package['id']:03}", _cpus(package["cpus"]), None) for package in facts["packages"]]
    elif group_by == "machine":
        groups = [("cpudevmachine", sorted(socket_of), None)]
    else:
        groups = [(f"cpudevnuma{entry['id']:03}", _cpus(entry["cpus"]), entry["id"]) for entry in facts["numa_nodes"]]
    result = []
    for name, cpus, numa in groups:
        cpus = [cpu for cpu in cpus if cpu not in reserved]
        if not cpus:
            continue
        maker = _Maker(known)
        if numa is not None:
            if known.publishes(NUMA_NODE):
                maker.put(NUMA_NODE, numa)
            maker.put("dra.cpu/numaNodeID", numa)
            maker.put(NUMA_NODE_DRANET, numa)
        if group_by != "machine":
            maker.put("dra.cpu/socketID", socket_of.get(cpus[0]))
        maker.put("dra.cpu/numCPUs", len(cpus))
        capacity = {"dra.cpu/cpu": {"value": str(len(cpus))}}
        unknown = maker.unknown("smtEnabled")
        result.append(maker.offer(node, name, unknown, capacity=capacity, allowMultipleAllocations=True))
    return result


def _dranet(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    result = []
    for nic in facts["nics"]:
        if nic["default_route"] or nic["driver"] is None or nic["driver"] in publish.USER_SPACE:
            continue
        function = facts["functions"][nic["address"]]
        maker = _Maker(known)
        maker.put("dra.net/pciAddress", nic["address"])
        maker.put("dra.net/pciDevice", nic["model"], sure=False)
        maker.put("dra.net/numaNode", function["kubernetes"].get("numaNode"))
        maker.standard(function["kubernetes"], PCIE_ROOT)
        if known.publishes(NUMA_NODE):
            maker.standard(function["kubernetes"], NUMA_NODE)
        interface = interfaces.get(nic["interfaces"][-1]) if nic["interfaces"] else None
        if interface:
            maker.put("dra.net/ifName", interface["name"])
            maker.put("dra.net/mac", interface["mac"])
            maker.put("dra.net/mtu", interface["mtu"])
            maker.put(
                "dra.net/encapsulation",
                {"ethernet": "ether", "infiniband": "infiniband"}.get(interface["link_layer"] or ""),
            )
            maker.put("dra.net/state", interface["operstate"])
            sriov = function["sriov"] or {}
            maker.put("dra.net/sriov", bool(sriov.get("total_vfs")))
            if sriov.get("total_vfs"):
                maker.put("dra.net/sriovVfs", sriov.get("num_vfs"))
            if nic["physfn"]:
                maker.put("dra.net/isSriovVf", True)
            maker.put("dra.net/virtual", False)
        maker.put("dra.net/rdma", bool(nic["rdma_devices"]))
        if len(nic["rdma_devices"]) == 1:
            maker.put("dra.net/rdmaDevice", nic["rdma_devices"][0])
        unknown = maker.unknown(
            *("pciVendor", "pciSubsystem", "alias", "type", "ipv4", "ipv6", "ebpf", "tcFilterNames", "tcxProgramNames"),
            *_unpublished(function, facts),
        )
        result.append(maker.offer(node, publish.device_name(nic["address"]), unknown, nic["address"]))
    return sorted(result, key=lambda offer: str(offer.device["name"]))


def _sriov(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    nics = {nic["address"]: nic for nic in facts["nics"]}
    result = []
    for nic in facts["nics"]:
        pf = nics.get(nic["physfn"] or "")
        if pf is None or not pf["interfaces"]:
            continue
        function, parent = facts["functions"][nic["address"]], facts["functions"][pf["address"]]
        maker = _Maker(known)
        own = known.name + "/"
        maker.put(own + "vendor", parent["vendor_id"])
        maker.put(own + "deviceID", function["device_id"])
        maker.put(own + "pfDeviceID", parent["device_id"])
        maker.put(own + "pciAddress", nic["address"])
        maker.put("k8s.cni.cncf.io/deviceID", nic["address"])
        maker.put(own + "PFName", pf["interfaces"][0])
        maker.put(own + "vfID", function["vf_number"])
        maker.put(own + "pfPciAddress", pf["address"])
        maker.put(own + "linkType", pf["link_layer"] if pf["link_layer"] in ("ethernet", "infiniband") else "unknown")
        maker.put(own + "rdmaCapable", bool(nic["rdma_devices"]))
        # the PF's root, and an empty one where there is none
        maker.attributes[PCIE_ROOT] = {"string": parent["kubernetes"].get("pcieRoot", "")}
        maker.put(PCI_BUS_ID, nic["address"])
        numa = function["kubernetes"].get("numaNode")
        maker.put(NUMA_NODE_DRANET, -1 if numa is None else numa)
        result.append(
            maker.offer(
                node,
                publish.device_name(nic["address"])[4:],
                maker.unknown("EswitchMode", "resourceName", *_unpublished(function, facts)),
                nic["address"],
            )
        )
    return result


def _lanewise(node: str, facts: Facts, known: DriverKnowledge, options: Facts) -> list[Offer]:
    publication = publish.publication(facts, options["counters"])
    sets = {entry["name"]: entry for entry in publication.counter_sets}
    away = frozenset(known.qualified(name) for name in publish.TOLD_BY_INTERFACE)
    return [
        Offer(
            known.name,
            node,
            node,
            device,
            address=publication.addresses[device["name"]],
            counter_sets=tuple(sets[used["counterSet"]] for used in device.get("consumesCounters", ())),
            unknown=frozenset(_unpublished(facts["functions"][publication.addresses[device["name"]]], facts))
            | (away if device["name"] in publication.away else frozenset()),
        )
        for device in publication.devices
    ]


_MAKERS: dict[str, t.Callable[[str, Facts, DriverKnowledge, Facts], list[Offer]]] = {
    "gpu.nvidia.com": _nvidia,
    "gpu.amd.com": _amd,
    "gpu.intel.com": _intel,
    "gaudi.intel.com": _gaudi,
    "dra.cpu": _cpu,
    "dra.net": _dranet,
    "sriovnetwork.k8snetworkplumbingwg.io": _sriov,
    "lanewise.dev": _lanewise,
}


def slices(given: t.Iterable[Offer], generation: int = 1) -> list[dict[str, t.Any]]:
    """v1 ResourceSlices that publish the offers, inside the limits of every server from 1.34 on.

    A pool (driver, pool name and node) has pages of 128 devices, or of 64 where a device has taints or consumes
    counters; its counter sets are in slices of their own, eight a slice. Names end in the page's number, so that the
    scheduler, which reads the slices of a pool by name, sees the devices in the order of the offers.
    """
    pools: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in given:
        if not offer.possible:
            pools.setdefault((offer.driver, offer.pool, offer.node), []).append(offer)
    result = []
    for (driver, pool, node), members in pools.items():
        devices = [offer.device for offer in members]
        sets = {entry["name"]: entry for offer in members for entry in offer.counter_sets}
        advanced = any(d.get("taints") or d.get("consumesCounters") for d in devices)
        page = limits.at(limits.DEVICES_ADVANCED, 37) if advanced else limits.DEVICES
        shared = limits.at(limits.COUNTER_SETS, 37) or len(sets)
        bodies: list[dict[str, t.Any]] = []
        bodies += [{"devices": devices[at : at + page]} for at in range(0, len(devices), page)]
        entries = list(sets.values())
        bodies += [{"sharedCounters": entries[at : at + shared]} for at in range(0, len(entries), shared)]
        for index, body in enumerate(bodies):
            spec = {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": len(bodies)},
                **body,
            }
            result.append(
                {
                    "apiVersion": API_VERSION,
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"{node}-{driver}-{index:05}"},
                    "spec": spec,
                }
            )
    return result
