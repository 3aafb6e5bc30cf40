# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NVIDIA's GPUs, as kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go) publishes them.

GPUs are numbered here in the order of their PCI addresses. The driver uses the minor numbers of the kernel module,
which are the same unless GPUs were unbound and bound again.
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
from .offer import DeviceBuilder, Offer, Options, Vendor, gpus_of, possible_partitions, unknown_standard_attributes

LISTS = "DRAListTypeAttributes"

_KNOWLEDGE = DriverKnowledge(
    name="gpu.nvidia.com",
    title="NVIDIA GPU DRA driver",
    vendors=("10de",),
    kubernetes="1.32",
    # 0.4.0 followed 25.12.0; 0.1.0 came before the calendar versions
    version_series=("0.1.0", "25.3.0", "0.4.0"),
    oldest="25.3.0",
    newest="0.5.0",
    release_lines=("25.3", "25.8", "25.12", "0.4", "0.5"),
    source="Go module sigs.k8s.io/dra-driver-nvidia-gpu, v0.5.0 and v0.4.1; older ones: its repository",
    tested_versions="0.5.0 and 0.4.1",
    # a class of the chart has this extended resource
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
            terms_by_filter={"partition": (Term("type", "mig"),)},
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


#: A word in the name of a product, and its architecture as NVML reports it. They are used for GPUs not in MODELS.
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


#: The maximum number of GPU instances on a GPU.
_MAX_MIG_INSTANCES = 7

#: Architectures whose GPUs can change their MIG mode without a reset, as the driver must do to create partitions.
_DYNAMIC_MIG_ARCHITECTURES = ("Hopper", "Blackwell")

#: The resources of a MIG profile: the name of the driver's capacity, and the name of its counter.
_CAPACITIES: t.Mapping[str, tuple[str, t.Callable[[MigProfile], int]]] = {
    "multiprocessors": ("multiprocessors", lambda profile: profile.multiprocessors),
    "copyEngines": ("copy-engines", lambda profile: profile.copy_engines),
    "decoders": ("decoders", lambda profile: profile.decoders),
    "encoders": ("encoders", lambda profile: profile.encoders),
    "jpegEngines": ("jpeg-engines", lambda profile: profile.jpeg_engines),
    "ofaEngines": ("ofa-engines", lambda profile: profile.ofa_engines),
    "memory": ("memory", lambda profile: profile.memory_mib),
}


def _amount(name: str, number: int) -> str:
    return f"{number}Mi" if name == "memory" else str(number)


def _counters(profiles: t.Sequence[MigProfile], slices: t.Iterable[int]) -> Object:
    """A counter for each resource, with the largest amount of one of the profiles, and one for each memory slice."""
    counters = {
        counter: {"value": _amount(name, max(map(read, profiles)))} for name, (counter, read) in _CAPACITIES.items()
    }
    return {**counters, **{f"memory-slice-{number}": {"value": "1"} for number in slices}}


def _capacity(profiles: t.Sequence[MigProfile]) -> Object:
    return {name: {"value": _amount(name, max(map(read, profiles)))} for name, (_counter, read) in _CAPACITIES.items()}


def _with_shares(device: Object, consumable_shares: str) -> Object:
    """A device as the driver publishes it with --consumable-shares (consumable_shares.go), for several claims."""
    if not consumable_shares:
        return device
    capacity = dict(device.get("capacity") or {})
    if "memory" in capacity:
        total = capacity["memory"]["value"]
        minimum, default = ("1Mi", total) if consumable_shares == "memory" else ("0", "0")
        policy = {"default": default, "validRange": {"min": minimum, "max": total, "step": "1Mi"}}
        capacity["memory"] = {"value": total, "requestPolicy": policy}
        if consumable_shares.isdigit():
            policy = {"default": "1", "validRange": {"min": "1", "max": consumable_shares, "step": "1"}}
            capacity["shares"] = {"value": consumable_shares, "requestPolicy": policy}
    return {**device, "allowMultipleAllocations": True, **({"capacity": capacity} if capacity else {})}


def _dynamic_mig(whole: Offer, model: Model, counters: bool, shares: str) -> list[Offer]:
    """The GPU and the partitions that the driver creates on demand (gate DynamicMIG; partitions.go, mig.go).

    Each placement of each profile is a device. The GPU and all placements consume from one set of counters.
    """
    name = whole.device["name"]
    counter_set = f"{name}-counter-set"
    gpu_counters = _counters(model.mig, range(max(profile.size for profile in model.mig)))
    # the driver also publishes the number of shares as a counter, which no device consumes
    total = {**gpu_counters, **({"shares": {"value": shares}} if shares.isdigit() else {})}
    sets: tuple[Object, ...] = ({"name": counter_set, "counters": total},) if counters else ()

    def offer(device: Object, consumed: Object, unknown: frozenset[str]) -> Offer:
        uses = {"consumesCounters": [{"counterSet": counter_set, "counters": consumed}]} if counters else {}
        assumed = whole.assumed | {f"{whole.driver}/{key}" for key in (*_CAPACITIES, "profile")}
        return replace(whole, device={**device, **uses}, counter_sets=sets, unknown=unknown, assumed=assumed)

    memory = frozenset({f"{whole.driver}/memory"})
    offers = [offer({**whole.device, "capacity": _capacity(model.mig)}, gpu_counters, whole.unknown - memory)]
    absent = {f"{whole.driver}/{name}" for name in ("uuid", *FABRIC)}
    unknown = whole.unknown - memory - absent | {f"{whole.driver}/parentUUID"}
    for profile in model.mig:
        title = model.name(profile)
        attributes = {**whole.device["attributes"], "type": {"string": "mig"}, "profile": {"string": title}}
        for start in profile.starts:
            device_name = f"{name}-mig-{title.replace('.', '').replace('+', '-')}-{profile.id}-{start}"
            device = {"name": device_name, "attributes": attributes, "capacity": _capacity([profile])}
            offers.append(offer(device, _counters([profile], range(start, start + profile.size)), unknown))
    return offers


def _devices(whole: Offer, model: Model | None, driver: DriverKnowledge, options: Options) -> list[Offer]:
    """The devices that the driver publishes for a GPU, depending on the driver's options and feature gates."""
    dynamic = "DynamicMIG" in driver.enabled
    if dynamic and model and model.architecture in _DYNAMIC_MIG_ARCHITECTURES:
        offers = _dynamic_mig(whole, model, options["counters"], options["consumable_shares"])
    else:
        if options["consumable_shares"] and model:
            memory = driver.qualified("memory")
            device = {**whole.device, "capacity": {"memory": {"value": f"{model.memory_mib}Mi"}}}
            whole = replace(whole, device=device, unknown=whole.unknown - {memory}, assumed=whole.assumed | {memory})
        offers = [whole]
        if not dynamic:
            unknown = frozenset(driver.qualified(name) for name in ("profile", "parentUUID", "multiprocessors"))
            offers += possible_partitions(whole, "mig", _MAX_MIG_INSTANCES, unknown)
    return [replace(offer, device=_with_shares(offer.device, options["consumable_shares"])) for offer in offers]


def _gpu(
    gpu: GpuFacts, function: FunctionFacts, facts: NodeFacts, driver: DriverKnowledge
) -> tuple[DeviceBuilder, frozenset[str]]:
    """The attributes of a GPU, and the qualified names of those whose values a probe cannot read."""
    model = MODELS.get(function["device_id"] or "")
    builder = DeviceBuilder(driver)
    builder.put("type", "gpu")
    # /proc/driver/nvidia has the name that NVML reports; a name looked up by the device ID is a guess
    builder.put("productName", gpu["model"], sure=bool(gpu["model"]) and gpu["model"] != function["name"])
    words = (gpu["model"] or "").replace("-", " ").split()
    by_name = next((architecture for chip, architecture in _ARCHITECTURES if chip in words), None)
    builder.put("architecture", model.architecture if model else by_name, sure=False)
    builder.put("addressingMode", "ATS" if model and model.coherent else None, sure=False)
    standard = function["kubernetes"]
    if driver.version_in_range("25.12.0"):
        builder.put_standard(standard, PCI_BUS_ID)
    else:
        builder.put("pcieBusID", function["address"])
    builder.put_standard(standard, PCIE_ROOT)
    if driver.publishes_alignment(NUMA_NODE):
        builder.put_numa_node(facts, function, LISTS in driver.enabled)
    return builder, builder.qualified(
        *("uuid", "brand", "cudaComputeCapability", "driverVersion", "cudaDriverVersion", "memory"),
        # newer drivers also publish the mode HMM, which depends on the kernel
        *builder.missing("addressingMode", "productName", "architecture"),
        *fabric_attributes(facts, driver),
        *unknown_standard_attributes(function, facts),
    )


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    if not driver_starts(facts, driver):
        return []
    result = []
    for index, gpu, function in gpus_of(facts, driver):
        builder, unknown = _gpu(gpu, function, facts, driver)
        whole = builder.offer(node, f"gpu-{index}", unknown, function["address"])
        result += _devices(whole, MODELS.get(function["device_id"] or ""), driver, options)
    return result + vfio_devices(node, facts, driver)


VENDOR = Vendor(_KNOWLEDGE, _offers, problems_of)
