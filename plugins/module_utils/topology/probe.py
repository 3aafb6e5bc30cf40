# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reading a node's files, and deriving the topology from them."""

from __future__ import annotations

import re
import typing as t

from . import affinity, cpu, ids, net, pci, rdma
from .model import Gpu, Interface, Nic, Nvme, PciFunction, RdmaDevice, Source, Topology, Vpd
from .reader import Reader

if t.TYPE_CHECKING:
    from .overrides import Override

#: Adds findings and the fingerprint of a node: see `diagnosis.diagnose`.
Diagnose = t.Callable[[Topology, affinity.Proximity], None]

_ACCELERATORS = ("gpu", "accelerator")
_CONTROLLER = re.compile(r"^nvme[0-9]{1,9}$")


def probe(
    root: str = "/",
    locality_overrides: t.Sequence[t.Mapping[str, object]] = (),
    with_vpd: bool = True,
    with_gids: bool = True,
    only_relevant: bool = False,
    known_vpd: t.MutableMapping[str, Vpd] | None = None,
    diagnose: Diagnose | None = None,
) -> Topology:
    """Read the node below `root`.

    This only reads files. Values that cannot be read are `None` in the result, and are listed in `source`.

    :param locality_overrides: see :func:`overrides.check_overrides`.
    :param with_vpd: read the vital product data of NICs, which takes some milliseconds per card.
    :param with_gids: read the GID tables of RDMA ports.
    :param only_relevant: leave out the functions that :func:`keep_relevant` drops, and read only part of their files.
    :param known_vpd: vital product data from earlier probes, used for cards that cannot be read now. The mapping is
        updated.
    :param diagnose: computes findings and fingerprint; without it there are only findings about overrides.
    :raises OverrideError: for a malformed override.
    """
    stated: list[Override] = []
    if locality_overrides:
        from . import overrides  # most nodes need none, so it is loaded only here

        stated = overrides.check_overrides(locality_overrides)
    reader = Reader(root)
    topology = Topology(source=Source(path=reader.root))
    topology.system = cpu.read_system(reader)
    topology.packages = cpu.read_packages(reader)
    topology.numa_nodes, node_cpus = cpu.read_numa_nodes(reader)
    cpu.join_packages(topology.numa_nodes, node_cpus, topology.packages)
    pci_reader = pci.PciReader(
        reader, {node.id for node in topology.numa_nodes}, node_cpus, with_vpd, only_relevant, known_vpd
    )
    topology.functions = pci_reader.read()
    topology.source.config_space = pci_reader.config_space
    topology.interfaces = net.read_interfaces(reader, topology.functions)
    topology.rdma_devices = rdma.read_rdma_devices(reader, topology.interfaces, with_gids)
    if topology.system.iommu_enabled is None and any(f.iommu_group is not None for f in topology.functions.values()):
        topology.system.iommu_enabled = True
    topology.nvme = _nvme(reader, topology.functions)
    models = _gpu_models(reader, topology.functions)
    elsewhere = net.elsewhere(reader, topology.functions, topology.interfaces)
    topology.source.unreadable = reader.unreadable
    topology.source.unreadable_count = reader.unreadable_count
    complete(topology, stated, models, elsewhere, diagnose)
    if only_relevant:
        keep_relevant(topology)
    return topology


def complete(
    topology: Topology,
    stated: list[Override] | None = None,
    gpu_models: dict[str, str] | None = None,
    elsewhere: dict[str, list[str]] | None = None,
    diagnose: Diagnose | None = None,
) -> None:
    """Derive the other parts of a topology from functions, interfaces and RDMA devices; `diagnose` runs last.

    `elsewhere` is what functions have in other network namespaces, by address (see :func:`net.elsewhere`).
    """
    stated = stated or []
    if stated:
        from . import overrides

        topology.findings = overrides.apply_locality(stated, topology.functions)
    topology.gpus = _gpus(topology.functions, gpu_models or {})
    topology.nics = _nics(topology, elsewhere or {})
    if stated:
        overrides.apply_rails(stated, topology.functions, topology.nics)
    proximity = affinity.Proximity(topology)
    affinity.find_nearest(proximity, topology.gpus, topology.nics)
    topology.groups = affinity.find_groups(proximity, topology.gpus, topology.nics)
    affinity.number_rails(proximity, topology.groups, topology.gpus, topology.nics)
    physical = [nic.address for nic in topology.nics if nic.physfn is None]
    topology.affinity = proximity.matrix(
        [gpu.address for gpu in topology.gpus], physical + [nvme.address for nvme in topology.nvme], set(physical)
    )
    if diagnose is not None:
        diagnose(topology, proximity)


def keep_relevant(topology: Topology) -> None:
    """Drop the functions of the kind `other`, and the bridges that have only such functions below them."""
    relevant = set()
    for function in topology.functions.values():
        if function.kind not in ("bridge", "other"):
            relevant.add(function.address)
            relevant.update(function.bridges)
    topology.functions = {address: function for address, function in topology.functions.items() if address in relevant}


def _gpu_models(reader: Reader, functions: dict[str, PciFunction]) -> dict[str, str]:
    """Product names from the bound driver: NVIDIA in procfs, AMD in sysfs."""
    models = {}
    for address, function in functions.items():
        if function.kind not in _ACCELERATORS:
            continue
        name = None
        if function.driver == "nvidia":
            for line in (reader.text(f"/proc/driver/nvidia/gpus/{address}/information") or "").splitlines():
                key, colon, value = line.partition(":")
                if key == "Model":
                    name = value.strip()
        elif function.driver == "amdgpu":
            name = reader.text(f"{pci.DEVICES}/{address}/product_name")
        if name:
            models[address] = name
    return models


def _gpus(functions: dict[str, PciFunction], models: dict[str, str]) -> list[Gpu]:
    # a host with vGPUs has a dozen VFs per card, which are not separate GPUs
    accelerators = [
        function for function in functions.values() if function.kind in _ACCELERATORS and function.physfn is None
    ]
    return [
        Gpu(
            address=function.address,
            index=index,
            kind=function.kind,
            vendor=ids.VENDORS.get(function.vendor_id or ""),
            model=models.get(function.address) or function.name,
            driver=function.driver,
            numa_node=function.numa_node,
        )
        for index, function in enumerate(accelerators)
    ]


def _nvme(reader: Reader, functions: dict[str, PciFunction]) -> list[Nvme]:
    nvme_by_address = {
        function.address: Nvme(address=function.address, driver=function.driver, numa_node=function.numa_node)
        for function in functions.values()
        if function.kind == "nvme" and function.physfn is None
    }
    for name in reader.names("/sys/class/nvme"):
        target = reader.link(f"/sys/class/nvme/{name}", expected=False)
        if pci.is_other_device(reader, f"/sys/class/nvme/{name}", target):
            continue
        folder = target or f"/sys/class/nvme/{name}"
        entry = nvme_by_address.get(
            pci.address_in(folder) or pci.address_in(reader.link(f"{folder}/device", expected=False)) or ""
        )
        if entry is None:
            continue
        _add_controller(reader, entry, folder)
    for address, entry in nvme_by_address.items():  # a recording may lack the class
        if not entry.controllers:
            folder = f"{pci.DEVICES}/{address}/nvme"
            for name in filter(_CONTROLLER.match, reader.names(folder)):
                _add_controller(reader, entry, f"{folder}/{name}")
    return list(nvme_by_address.values())


def _add_controller(reader: Reader, entry: Nvme, folder: str) -> None:
    entry.controllers.append(folder.rpartition("/")[2])
    entry.model = entry.model or reader.text(f"{folder}/model") or None
    entry.serial = entry.serial or reader.text(f"{folder}/serial") or None


def _nics(topology: Topology, elsewhere: dict[str, list[str]]) -> list[Nic]:
    functions, interfaces, rdma_devices = topology.functions, topology.interfaces, topology.rdma_devices
    carrying = net.below(interfaces, {interface.name for interface in interfaces if interface.default_route})
    partners = _data_direct(functions)
    interfaces_of: dict[str | None, list[Interface]] = {}
    for interface in interfaces:
        interfaces_of.setdefault(interface.address, []).append(interface)
    rdma_of: dict[str | None, list[RdmaDevice]] = {}
    for device in rdma_devices:
        rdma_of.setdefault(device.address, []).append(device)
    nics = []
    for function in functions.values():
        if function.kind != "nic":
            continue
        all_interfaces = interfaces_of.get(function.address, [])
        nic_interfaces = [i for i in all_interfaces if i.kind != "representor"]
        nic_rdma_devices = rdma_of.get(function.address, [])
        ports = [port for device in nic_rdma_devices for port in device.ports]
        nic = Nic(
            address=function.address,
            vendor=ids.VENDORS.get(function.vendor_id or ""),
            model=function.name or (function.vpd.name if function.vpd else None),
            driver=function.driver,
            numa_node=function.numa_node,
            physfn=function.physfn,
            interfaces=[interface.name for interface in nic_interfaces],
            representors=[i.name for i in all_interfaces if i.kind == "representor"],
            rdma_devices=[device.name for device in nic_rdma_devices],
            elsewhere=elsewhere.get(function.address, []),
            default_route=any(interface.name in carrying for interface in nic_interfaces),
            data_direct=partners.get(function.address),
        )
        layers = [port.link_layer for port in ports if port.link_layer]
        layers += [i.link_layer for i in nic_interfaces if i.link_layer]
        nic.link_layer = layers[0] if layers else None
        speeds = [interface.speed_mbps for interface in nic_interfaces if interface.speed_mbps]
        speeds += [int(port.rate_gbps * 1000) for port in ports if port.rate_gbps and port.state == "ACTIVE"]
        nic.speed_mbps = max(speeds, default=None)
        states = [port.state == "ACTIVE" for port in ports if port.state]
        states += [interface.carrier for interface in nic_interfaces if interface.carrier is not None]
        nic.up = any(states) if states else None
        nics.append(nic)
    return nics


def _data_direct(functions: dict[str, PciFunction]) -> dict[str, str]:
    """The data-direct DMA function of each NIC function that has one: the one whose VPD contains the same V3 UUID.

    On such boards the NIC is below another root complex than the GPU, and GPU traffic goes through the DMA function
    (rdma-core, kernel-boot/rdma_topo). If two DMA functions or two cards have the same UUID, it is ambiguous and
    ignored.
    """
    by_uuid: dict[str, list[str]] = {}
    for function in functions.values():
        if function.kind == "data_direct" and function.vpd and function.vpd.uuid:
            by_uuid.setdefault(function.vpd.uuid, []).append(function.address)
    cards: dict[str, set[str]] = {}
    for function in functions.values():
        if function.kind == "nic" and function.vpd and function.vpd.uuid:
            cards.setdefault(function.vpd.uuid, set()).add(pci.slot_of(function.address))
    return {
        function.address: by_uuid[function.vpd.uuid][0]
        for function in functions.values()
        if function.kind == "nic"
        and function.vpd
        and function.vpd.uuid
        and len(by_uuid.get(function.vpd.uuid, ())) == len(cards[function.vpd.uuid]) == 1
    }
