# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Predicts the rate from a GPU through a NIC, and renders claims with which the effect of alignment can be measured.

The model: a flow gets the minimum of the NIC's rate (minus headers), the PCIe links on its path, each shared by the
flows on it, and the link between sockets. It gets less if the NIC cannot read the GPU's memory directly.
The result is a prediction with bounds, not a measurement, and says so.
"""

from __future__ import annotations

import re
import typing as t

from ...topology.affinity import RANK
from ...topology.config_space import payload_rate
from ...topology.model import PciFunction
from ...topology.pci import sort_key
from ..claims.compiler import compile_site
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problems
from ..scheduler.published import Published
from ..scheduler.search_devices import DeviceId
from .devices import GPU, NIC, Machine, has_rdma, kind_of, nearer

#: The share of a NIC's rate that is left for the payload of large messages.
NIC_SHARE = 0.93
#: GB/s that NCCL assumes for a PCIe link of 16 lanes, by GT/s per lane (nccl src/graph/topo.cc); for faster links the
#: payload rate is the bound.
_NCCL_X16 = {8.0: 12.0, 16.0: 24.0, 32.0: 48.0, 64.0: 96.0}
#: GB/s that NCCL assumes for a link between sockets (src/graph/topo.h), by a part of the CPU's name. NCCL uses them
#: as weights in its search, not as limits (GB200: 25 measured, the weight is 6), so they are lower bounds here.
_SOCKET_RATES = (
    (r"AMD|EPYC", 16.0),
    (r"Neoverse|Grace|\bARM|Ampere", 6.0),
    (r"Xeon.*\b[5-9]5\d\d", 40.0),
    (r"Xeon.*\b[5-9]4\d\d|Sapphire", 22.0),
    (r"Xeon.*\b[3-9][1-3]\d\d", 10.0),
    (r"Xeon.*v4|Broadwell|Haswell", 6.0),
)
#: The rate for other CPUs: the lowest of the above.
_UNKNOWN_SOCKET_RATE = 6.0
#: The share of the rate that remains without GPUDirect RDMA: low, likely, high. In published pairs of aligned and
#: unaligned runs it is .37 to .71, except for one of .14 (MI300X).
STAGED_SHARES = (0.37, 0.5, 0.71)
#: NICs below this rate may not be affected: no published pair has such a NIC.
_STAGED_MBPS = 100_000
#: By default NCCL uses GPUDirect RDMA up to PXB, and on some machines to PHB (NCCL_NET_GDR_LEVEL).
_DIRECT_LEVELS = ("SELF", "PIX", "PXB")
#: Grace's root port for its GPU, and the name of its CPU. Over the link between the two (C2C) NCCL may use GPUDirect to
#: NICs below the CPU's other root ports, each of which is a separate PCI domain (GB200: 46 measured at NODE, and no
#: NIC is nearer).
_GRACE_PORT = ("10de", "22b8")
_GRACE = re.compile(r"Neoverse-V2|Grace", re.IGNORECASE)


def _link_bounds(function: PciFunction, fastest: float | None = None) -> tuple[float, float] | None:
    """GB/s of a function's upstream link: NCCL's estimate and the payload rate; None if it is unknown.

    `fastest` is the speed in GT/s to use instead of the current one.
    """
    link = function.link
    if link is None:
        return None
    speed, width = fastest or link.speed_gts or link.max_speed_gts, link.width or link.max_width
    payload = payload_rate(speed, width)
    if payload is None or width is None:
        return None
    estimate = _NCCL_X16.get(speed or 0.0, payload * 16 / width) * width / 16
    return min(estimate, payload), payload


def _full_speeds(machine: Machine, gpu: str) -> dict[str, float]:
    """The highest speed in GT/s that both ends of a GPU's link support, by the address of each end.

    Empty unless the link is known to run slower now. An idle GPU lowers its link speed to save power, so the current
    speed is not a limit. NCCL also uses the highest common speed (src/graph/xml.cc).
    """
    function = machine.functions[gpu]
    ends = [machine.functions[address] for address in (gpu, *function.bridges[-1:]) if address in machine.functions]
    best = min((end.link.max_speed_gts for end in ends if end.link and end.link.max_speed_gts), default=None)
    current = function.link.speed_gts if function.link else None
    return {end.address: best for end in ends} if best and current and current < best else {}


def _port_function(machine: Machine, nic: str) -> str:
    """The function whose port and link a NIC uses: for a VF its PF, if the machine shows it."""
    physfn = machine.nics[nic].get("physfn") if nic in machine.nics else None
    return physfn if physfn in machine.functions else nic


def _crossed_links(machine: Machine, gpu: str, nic: str) -> list[str]:
    """The functions whose upstream links a flow crosses: both ends, and the bridges below their common bridge."""
    gpu_function, nic_function = machine.functions[gpu], machine.nic_function(gpu, _port_function(machine, nic))
    gpu_path, nic_path = [*gpu_function.bridges, gpu_function.address], [*nic_function.bridges, nic_function.address]
    shared = 0
    if gpu_function.root_complex == nic_function.root_complex:
        while shared < min(len(gpu_path), len(nic_path)) and gpu_path[shared] == nic_path[shared]:
            shared += 1
    return gpu_path[shared:] + nic_path[shared:]


def _crossed_numa_nodes(machine: Machine, gpu: str, nic: str) -> tuple[int, int] | None:
    """The two NUMA nodes of a flow, in ascending order, if it crosses from one to the other; None if it does not, or if
    this is unknown."""
    gpu_node, nic_node = machine.numa_of(gpu), machine.nic_function(gpu, nic).numa_node
    if machine.level(gpu, nic)[0] != "SYS" or gpu_node is None or nic_node is None:
        return None
    return min(gpu_node, nic_node), max(gpu_node, nic_node)


def _socket_rate(machine: Machine) -> float:
    """GB/s that NCCL assumes for the link between the machine's sockets."""
    name = str((machine.facts.get("system") or {}).get("cpu_model") or "")
    return next(
        (rate for pattern, rate in _SOCKET_RATES if re.search(pattern, name, re.IGNORECASE)), _UNKNOWN_SOCKET_RATE
    )


def _reads_gpu_directly(machine: Machine, gpu: str, level: str) -> bool | None:
    """Whether a NIC at a level reads the GPU's memory directly; None if this is unknown."""
    if level in _DIRECT_LEVELS:
        return True
    return None if level == "PHB" or (level == "NODE" and _on_grace(machine, gpu)) else False


def _on_grace(machine: Machine, gpu: str) -> bool:
    """Whether a GPU is connected to a Grace CPU."""
    function = machine.functions[gpu]
    root = machine.functions.get(next(iter(function.bridges), ""))
    name = str((machine.facts.get("system") or {}).get("cpu_model") or "")
    port = root is not None and (root.vendor_id, root.device_id) == _GRACE_PORT
    return function.vendor_id == "10de" and (port or _GRACE.search(name) is not None)


def predict(machine: Machine, pairs: t.Sequence[tuple[str, str]]) -> list[Object]:
    """The predicted rate in GB/s of each of several concurrent flows from GPU to NIC on one node.

    `pairs` are PCI addresses. Each prediction has `gb_per_s` with `low`, `likely` and `high`, the `limits` by name with
    their bounds, and `unknown`: what the machine does not report. VFs share the rate and the link of their PF. Without
    bounds from the NIC's rate and at least one link, `gb_per_s` is None.
    """
    known = [pair for pair in pairs if pair[0] in machine.functions and pair[1] in machine.functions]
    uses: dict[t.Hashable, int] = {}
    for pair in known:
        nic: t.Hashable = ("nic", _port_function(machine, pair[1]))
        for key in [*_crossed_links(machine, *pair), _crossed_numa_nodes(machine, *pair), nic]:
            uses[key] = uses.get(key, 0) + 1
    return [_predicted(machine, pair, uses) for pair in pairs]


def predict_claims(reports: t.Iterable[Object], machines: t.Mapping[str, Machine]) -> dict[str, list[Object]]:
    """Predictions by claim, as if the GPUs of all reported claims of a node sent at once, each through its nearest NIC.

    `reports` are the result of `alignment.Check.run`. Each GPU device counts as a separate flow, even if several are
    partitions or shares of one function.
    """
    flows: dict[str, list[tuple[str, str, str]]] = {}  # by node: GPU, NIC, claim
    for report in reports:
        best: dict[str, tuple[str, str]] = {}
        addresses: dict[str, str] = {}
        used: dict[str, int] = {}
        for pair in report["pairs"]:
            gpu, nic, level = pair["gpu"], pair["nic_address"], pair["level"]
            if pair["gpu_address"] is None or nic is None or level == "UNKNOWN":
                continue
            addresses[gpu] = pair["gpu_address"]
            # of equally near NICs, choose the one that serves the fewest GPUs of the claim
            rank = (RANK[level], used.get(nic, 0))
            if gpu not in best or rank < (RANK[best[gpu][1]], used.get(best[gpu][0], 0) - 1):
                if gpu in best:
                    used[best[gpu][0]] -= 1
                best[gpu] = (nic, level)
                used[nic] = used.get(nic, 0) + 1
        for gpu, (nic, _level) in best.items():
            flows.setdefault(report["node"], []).append((addresses[gpu], nic, report["claim"]))
    by_claim: dict[str, list[Object]] = {}
    for node, members in flows.items():
        predictions = predict(machines[node], [(gpu, nic) for gpu, nic, _claim in members])
        for (_gpu, _nic, claim), prediction in zip(members, predictions):
            by_claim.setdefault(claim, []).append(prediction)
    return by_claim


def _predicted(machine: Machine, pair: tuple[str, str], uses: t.Mapping[t.Hashable, int]) -> Object:
    gpu, nic = pair
    level = machine.level(gpu, nic)[0]
    answer: Object = {"prediction": True, "gpu_address": gpu, "nic_address": nic, "level": level, "gb_per_s": None}
    limits: dict[str, list[float]] = {}
    unknown: list[str] = []
    if level == "UNKNOWN":
        return {**answer, "limits": limits, "unknown": ["the affinity of the two"]}
    rate = (machine.nics.get(nic) or {}).get("speed_mbps")
    if rate:
        share = rate / 8000 / uses["nic", _port_function(machine, nic)]
        limits["nic"] = [share * NIC_SHARE, share]
    else:
        unknown.append("the NIC's rate")
    fastest = _full_speeds(machine, gpu)
    if fastest:
        unknown.append(f"whether the link of {gpu} is slow, or the GPU is idle")
    for address in _crossed_links(machine, gpu, nic):
        link_bounds = (
            _link_bounds(machine.functions[address], fastest.get(address)) if address in machine.functions else None
        )
        if link_bounds is None:
            unknown.append(f"the link of {address}")
        else:
            limits[f"link of {address}"] = [bound / uses[address] for bound in link_bounds]
    crossing = _crossed_numa_nodes(machine, gpu, nic)
    if crossing:
        # the high bound is left open: the weight is not a limit
        limits["between sockets"] = [_socket_rate(machine) / uses[crossing], float("inf")]
    direct = _reads_gpu_directly(machine, gpu, level)
    bounded = [bounds for name, bounds in limits.items() if name != "between sockets"]
    if "nic" in limits and len(bounded) > 1:
        low, high = min(low for low, _high in limits.values()), min(high for _low, high in limits.values())
        likely = min(limits["nic"][0], *(low for low, _high in bounded))
        if not direct:
            # if it is unknown whether NCCL uses GPUDirect RDMA, the full rate is possible
            staged_low, staged_likely, staged_high = STAGED_SHARES
            is_affected = direct is False and (rate or 0) >= _STAGED_MBPS
            low, likely, high = low * staged_low, likely * staged_likely, high * (staged_high if is_affected else 1)
        rounded = {"low": round(low, 2), "likely": round(max(low, min(likely, high)), 2), "high": round(high, 2)}
        answer["gb_per_s"] = rounded
    answer["limits"] = {
        name: [round(bound, 2) if bound != float("inf") else None for bound in bounds]
        for name, bounds in limits.items()
    }
    return {**answer, "direct": direct, "unknown": unknown}


def placements(
    node: str,
    machine: Machine,
    published: t.Sequence[Published],
    gpu: str,
    held: t.Container[DeviceId] = (),
) -> Object:
    """For one GPU (PCI address), the nearest and the farthest NIC that a claim could get with it, to compare them.

    `published` are the node's devices. Those that cannot be allocated (`held`, see `Pools.taken`) or that have a
    taint are left out, as is a farthest NIC of a different rate or kind: the two should only differ in location. If
    either is missing, it is None, and `reason` says why.
    """
    gpu_devices = [
        device
        for device in published
        if device.address == gpu and kind_of(device.driver, device.address, machine) == GPU
    ]
    answer: Object = {"node": node, "gpu_address": gpu, "gpu": None, "nearest": None, "farthest": None, "reason": ""}
    if not gpu_devices:
        return {**answer, "reason": f"no driver publishes a GPU at {gpu} on {node}"}
    answer["gpu"] = _device_record(gpu_devices[0])
    if any(device.id in held for device in gpu_devices):
        return {**answer, "reason": f"the GPU at {gpu} is in use"}
    free = []
    for device in published:
        if (
            device.address not in machine.nics
            or kind_of(device.driver, device.address, machine) != NIC
            or device.id in held
        ):
            continue
        level = machine.level(gpu, device.address)[0]
        if not device.device.get("taints") and level != "UNKNOWN":
            free.append((level, sort_key(device.address or ""), device))
    free.sort(key=lambda entry: (RANK[entry[0]], entry[1]))
    if not free:
        return {**answer, "reason": f"no NIC of {node} is free, untainted, and at a known location"}
    level, _key, nearest = free[0]
    answer["nearest"] = {**_device_record(nearest), "level": level}
    similar = [entry for entry in free if machine.alike(nearest.address, entry[2].address)]
    far_level, _key, farthest = similar[-1]
    if not nearer(level, far_level):
        return {**answer, "reason": f"every free NIC like {nearest.address} is at {level}: there is nothing to compare"}
    answer["farthest"] = {**_device_record(farthest), "level": far_level}
    return answer


def _device_record(device: Published) -> Object:
    return {"driver": device.driver, "device": device.name, "address": device.address}


def comparison_claims(
    plan: Object, machine: Machine, namespace: str, drivers: ObjectView, kubernetes: str = "1.37"
) -> tuple[list[Object], str]:
    """The DeviceClasses and the claims `compare-near-BDF` and `compare-far-BDF` for a plan of `placements`.

    They are rendered by the compiler, with selectors for exactly these devices. `drivers` is dra_claims_drivers; a
    driver that is not in it is assumed to have its newest version. If the devices cannot be selected by address, the
    list is empty and the reason is returned.
    """
    if not plan["nearest"] or not plan["farthest"]:
        return [], str(plan["reason"])
    used = {plan[part]["driver"] for part in ("gpu", "nearest", "farthest")}
    claims = []
    for name, part in (("near", "nearest"), ("far", "farthest")):
        nic = plan[part]
        fact = machine.nics[nic["address"]]
        kind = "vf" if fact.get("physfn") else "rdma" if has_rdma(fact) else "nic"
        devices = []
        for label, device_kind, device in (("gpu", "gpu", plan["gpu"]), ("nic", kind, nic)):
            where = {"pci_address": device["address"]}
            devices.append({"name": label, "kind": device_kind, "driver": device["driver"], "where": where})
        suffix = plan["gpu_address"].replace(":", "-").replace(".", "-")
        claims.append({"name": f"compare-{name}-{suffix}", "namespace": namespace, "devices": devices})
    variables = {
        "dra_claims_site": "alignment",
        "dra_claims_drivers": {name: drivers.get(name) or {"version": "main"} for name in sorted(used)},
        "dra_claims_claims": claims,
    }
    try:
        return compile_site(variables, kubernetes=kubernetes).objects, ""
    except Problems as problems:
        return [], str(problems)
