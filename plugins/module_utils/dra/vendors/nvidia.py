# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NVIDIA's GPUs, as kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go) publishes them.

GPUs are numbered in the order of their PCI addresses. The driver takes the kernel module's minor numbers, which are
the same unless GPUs were bound again later.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ...topology.facts import FunctionFacts, GpuFacts, NodeFacts
from ..kube.objects import Object
from .filters import at_least, number, text, version
from .knowledge import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Gate, Kind, Published, Term
from .nvidia_config import problems_of
from .nvidia_gpus import MODELS, MigProfile, Model
from .nvidia_vfio import FABRIC, driver_starts, fabric_attributes, vfio_devices
from .offer import DeviceBuilder, Offer, Options, Vendor, gpus_of, partitions, unpublished

LISTS = "DRAListTypeAttributes"

_KNOWLEDGE = DriverKnowledge(
    name="gpu.nvidia.com",
    title="NVIDIA GPU DRA driver",
    vendors=("10de",),
    kubernetes="1.32",
    # 0.4.0 followed 25.12.0; 0.1.0 came before the calendar versions
    epochs=("0.1.0", "25.3.0", "0.4.0"),
    oldest="25.3.0",
    newest="0.5.0",
    lines=("25.3", "25.8", "25.12", "0.4", "0.5"),
    source="Go module sigs.k8s.io/dra-driver-nvidia-gpu, v0.5.0 and v0.4.1; older ones: its repository",
    ran="0.5.0 and 0.4.1",
    # since the chart of 25.12.0, which has a class with it
    extended_resources={"nvidia.com/gpu": "25.12.0"},
    # pkg/featuregates/featuregates.go; ValidateFeatureGates has the rules
    gates={
        "TimeSlicingSettings": Gate("25.8.0"),
        "MPSSupport": Gate("25.8.0"),
        "IMEXDaemonsWithDNSNames": Gate("25.8.0", default=True),
        "PassthroughSupport": Gate("25.12.0", excludes=("NVMLDeviceHealthCheck",)),
        "DynamicMIG": Gate("25.12.0", excludes=("PassthroughSupport", "NVMLDeviceHealthCheck", "MPSSupport")),
        "NVMLDeviceHealthCheck": Gate("25.12.0"),
        "ComputeDomainCliques": Gate("25.12.0", default=True, needs=("IMEXDaemonsWithDNSNames",)),
        "CrashOnNVLinkFabricErrors": Gate("25.12.0", default=True),
        "DeviceMetadata": Gate("0.4.0", needs=("PassthroughSupport",)),
        "FabricManagerPartitioning": Gate("0.5.0"),
        "HostManagedIMEXDaemon": Gate("0.5.0"),
        LISTS: Gate("0.5.0"),
        "ConsumableShares": Gate("0.5.0"),
    },
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            terms=(Term("type", "gpu"),),
            instead={"partition": (Term("type", "mig"),)},
            filters={
                "model": (text("productName", "contains"),),
                "min_memory": (at_least("memory"),),
                "architecture": (text("architecture"),),
                "min_driver_version": (version("driverVersion"),),
                "partition": (text("profile"),),
                "uuid": (text("uuid"),),
                "numa_node": (number(NUMA_NODE, since="0.5.0"),),
                "pci_address": (text(PCI_BUS_ID, since="25.12.0"), text("pcieBusID", until="25.12.0")),
                "pcie_root": (text(PCIE_ROOT, since="25.3.0"),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT, since="25.3.0"),),
        "numa_node": (Published(NUMA_NODE, since="0.5.0", list_gate=LISTS),),
    },
    hints={
        "numa_node": "gpu.nvidia.com publishes resource.kubernetes.io/numaNode from 0.5.0 on; before it, align on "
        "pcie_root, or name the GPUs' PCIe roots with where: {pcie_root: ...}",
        "version": "0.4.0 and later are newer than 25.12.0",
    },
)


#: A word in the product's name, and NVML's name for its architecture.
_ARCHITECTURES = (
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


_MAX_MIG_INSTANCES = 7  # the maximum of GPU instances on a GPU

#: Architectures whose GPUs change their MIG mode without a reset, so that the driver can create partitions on demand.
_DYNAMIC_MIG_ARCHITECTURES = ("Hopper", "Blackwell")

#: The resources of a MIG profile, by the driver's capacity; counters have the same names with hyphens.
_CAPACITIES: t.Mapping[str, tuple[str, t.Callable[[MigProfile], int]]] = {
    "multiprocessors": ("multiprocessors", lambda one: one.multiprocessors),
    "copyEngines": ("copy-engines", lambda one: one.copy_engines),
    "decoders": ("decoders", lambda one: one.decoders),
    "encoders": ("encoders", lambda one: one.encoders),
    "jpegEngines": ("jpeg-engines", lambda one: one.jpeg_engines),
    "ofaEngines": ("ofa-engines", lambda one: one.ofa_engines),
    "memory": ("memory", lambda one: one.memory_mib),
}


def _amount(name: str, number: int) -> str:
    return f"{number}Mi" if name == "memory" else str(number)


def _counters(profiles: t.Sequence[MigProfile], slices: t.Iterable[int]) -> Object:
    """Counters: the maximum that one of the profiles consumes of each, and memory slices."""
    counters = {
        counter: {"value": _amount(name, max(map(read, profiles)))} for name, (counter, read) in _CAPACITIES.items()
    }
    return {**counters, **{f"memory-slice-{number}": {"value": "1"} for number in slices}}


def _capacity(profiles: t.Sequence[MigProfile]) -> Object:
    return {name: {"value": _amount(name, max(map(read, profiles)))} for name, (_counter, read) in _CAPACITIES.items()}


def _with_shares(device: Object, asked: str) -> Object:
    """A device with --consumable-shares (consumable_shares.go): several claims can share its memory."""
    if not asked:
        return device
    capacity = dict(device.get("capacity") or {})
    if "memory" in capacity:
        most = capacity["memory"]["value"]
        least, default = ("1Mi", most) if asked == "memory" else ("0", "0")
        policy = {"default": default, "validRange": {"min": least, "max": most, "step": "1Mi"}}
        capacity["memory"] = {"value": most, "requestPolicy": policy}
        if asked.isdigit():
            policy = {"default": "1", "validRange": {"min": "1", "max": asked, "step": "1"}}
            capacity["shares"] = {"value": asked, "requestPolicy": policy}
    return {**device, "allowMultipleAllocations": True, **({"capacity": capacity} if capacity else {})}


def _dynamic_mig(whole: Offer, model: Model, counters: bool, shares: str) -> list[Offer]:
    """The GPU and the partitions that the driver creates on demand (gate DynamicMIG; partitions.go, mig.go).

    Each placement of each profile is a device. They share a set of counters.
    """
    name = whole.device["name"]
    counter_set = f"{name}-counter-set"
    everything = _counters(model.mig, range(max(one.size for one in model.mig)))
    # the driver also publishes the number of shares as a counter, which no device consumes
    total = {**everything, **({"shares": {"value": shares}} if shares.isdigit() else {})}
    sets: tuple[Object, ...] = ({"name": counter_set, "counters": total},) if counters else ()

    def made(device: Object, taken: Object, unknown: frozenset[str]) -> Offer:
        uses = {"consumesCounters": [{"counterSet": counter_set, "counters": taken}]} if counters else {}
        assumed = whole.assumed | {f"{whole.driver}/{key}" for key in (*_CAPACITIES, "profile")}
        return replace(whole, device={**device, **uses}, counter_sets=sets, unknown=unknown, assumed=assumed)

    memory = frozenset({f"{whole.driver}/memory"})
    found = [made({**whole.device, "capacity": _capacity(model.mig)}, everything, whole.unknown - memory)]
    absent = {f"{whole.driver}/{name}" for name in ("uuid", *FABRIC)}
    unknown = whole.unknown - memory - absent | {f"{whole.driver}/parentUUID"}
    for one in model.mig:
        profile = model.name(one)
        attributes = {**whole.device["attributes"], "type": {"string": "mig"}, "profile": {"string": profile}}
        for start in one.starts:
            part = f"{name}-mig-{profile.replace('.', '').replace('+', '-')}-{one.id}-{start}"
            device = {"name": part, "attributes": attributes, "capacity": _capacity([one])}
            found.append(made(device, _counters([one], range(start, start + one.size)), unknown))
    return found


def _devices(whole: Offer, model: Model | None, known: DriverKnowledge, options: Options) -> list[Offer]:
    """The devices that the driver publishes for a GPU, depending on its options."""
    dynamic = "DynamicMIG" in known.enabled
    if dynamic and model and model.architecture in _DYNAMIC_MIG_ARCHITECTURES:
        found = _dynamic_mig(whole, model, options["counters"], options["consumable_shares"])
    else:
        if options["consumable_shares"] and model:
            memory = known.qualified("memory")
            device = {**whole.device, "capacity": {"memory": {"value": f"{model.memory_mib}Mi"}}}
            whole = replace(whole, device=device, unknown=whole.unknown - {memory}, assumed=whole.assumed | {memory})
        found = [whole]
        if not dynamic:
            unknown = frozenset(known.qualified(name) for name in ("profile", "parentUUID", "multiprocessors"))
            found += partitions(whole, known, "mig", _MAX_MIG_INSTANCES, unknown)
    return [replace(one, device=_with_shares(one.device, options["consumable_shares"])) for one in found]


def _gpu(
    gpu: GpuFacts, function: FunctionFacts, facts: NodeFacts, known: DriverKnowledge
) -> tuple[DeviceBuilder, frozenset[str]]:
    """A GPU's attributes, and those that a probe cannot see."""
    model = MODELS.get(function["device_id"] or "")
    builder = DeviceBuilder(known)
    builder.put("type", "gpu")
    # /proc/driver/nvidia has the name that NVML reports; a name by device id is a guess
    builder.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
    words = (gpu["model"] or "").replace("-", " ").split()
    named = next((a for chip, a in _ARCHITECTURES if chip in words), None)
    builder.put("architecture", model.architecture if model else named, sure=False)
    builder.put("addressingMode", "ATS" if model and model.coherent else None, sure=False)
    standard = function["kubernetes"]
    if known.has("25.12.0"):
        builder.standard(standard, PCI_BUS_ID)
    else:
        builder.put("pcieBusID", function["address"])
    builder.standard(standard, PCIE_ROOT)
    if known.publishes(NUMA_NODE):
        builder.numa(facts, function, LISTS in known.enabled)
    return builder, builder.unknown(
        *("uuid", "brand", "cudaComputeCapability", "driverVersion", "cudaDriverVersion", "memory"),
        # newer drivers also publish it where the kernel shares its page tables, as HMM
        *([] if "addressingMode" in builder.attributes else ["addressingMode"]),
        *([] if "productName" in builder.attributes else ["productName"]),
        *([] if "architecture" in builder.attributes else ["architecture"]),
        *fabric_attributes(facts, known),
        *unpublished(function, facts),
    )


def _offers(node: str, facts: NodeFacts, known: DriverKnowledge, options: Options) -> list[Offer]:
    if not driver_starts(facts, known):
        return []
    result = []
    for index, gpu, function in gpus_of(facts, known):
        builder, unknown = _gpu(gpu, function, facts, known)
        whole = builder.offer(node, f"gpu-{index}", unknown, function["address"])
        result += _devices(whole, MODELS.get(function["device_id"] or ""), known, options)
    return result + vfio_devices(node, facts, known)


VENDOR = Vendor(_KNOWLEDGE, _offers, problems_of)
