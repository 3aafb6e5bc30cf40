# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The map of a claim for its pod: which GPU belongs to which NIC, RDMA device, rail and addresses.

The map is a file in the pod, and environment variables. Devices are identified by PCI address and UUID, never by a
number that a process assigns. Unknown values are `UNKNOWN`. docs/pod-map.md describes the file and the variables.
"""

from __future__ import annotations

import json
import re
import typing as t

from ..base.objects import Object
from ..dra.config.interface_config import DRIVER
from ..topology.boards import nearest
from .records import DeviceRecord, PeerRecord, Record

VERSION, KIND = "lanewise.dev/v1", "PodMap"
UNKNOWN = "UNKNOWN"

#: The folder in the pod with the maps of its claims, and the path of NCCL's topology file.
FOLDER = "/run/lanewise/map"
NCCL_FILE = "/run/lanewise/nccl-topology.xml"

#: Names of interfaces and RDMA devices that are safe in a variable.
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_RAIL, _PCIE_ROOT, _NUMA = "rail", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
#: The kernel driver whose RDMA devices can have two ports. A variable would name only one of them.
_TWO_PORTS = "mlx4_core"


class Pair(t.NamedTuple):
    """A GPU and the NIC assigned to it."""

    gpu: PeerRecord
    nic: DeviceRecord
    level: str


def container_path(record: Record) -> str:
    """The path of the map in the pod. As for Kubernetes' device metadata, it contains the claim's name in the pod if
    the claim is from a template."""
    if record.pod_claim_name:
        return f"{FOLDER}/resourceclaimtemplates/{record.pod_claim_name}.json"
    return f"{FOLDER}/resourceclaims/{record.name}.json"


def is_gpu(peer: PeerRecord) -> bool:
    """Whether another driver's device is a GPU: by the node's probe, or by the driver's name."""
    return bool(peer.address) or peer.driver.startswith("gpu.")


def pairs(record: Record) -> list[Pair]:
    """The NIC assigned to each GPU, in the order of the GPUs' addresses. Among the NICs nearest to a GPU, those of
    the same rail are preferred, then those with the fewest GPUs so far. GPUs whose distance to every NIC is unknown are
    left out."""
    nics = {device.device: device for device in record.held if device.known.address}
    gpu_counts = dict.fromkeys(nics, 0)
    chosen: dict[str, Pair] = {}
    for gpu in sorted((peer for peer in record.peers if peer.address), key=lambda peer: peer.address):
        level, names = nearest({name: level for name, level in sorted(gpu.levels.items()) if name in nics})
        if not names:
            continue
        if gpu.address not in chosen:  # partitions of one GPU share a NIC

            def preference(name: str, gpu: PeerRecord = gpu) -> tuple[bool, int, str]:
                other_rail = gpu.rail is None or _rail(nics[name]) != gpu.rail
                return other_rail, gpu_counts[name], nics[name].known.address or ""

            name = min(names, key=preference)
            gpu_counts[name] += 1
            chosen[gpu.address] = Pair(gpu, nics[name], level)
    return [chosen[address] for address in sorted(chosen)]


def content(record: Record, node: str) -> Object:
    """The content of the map's file. Addresses of interfaces are unknown until these are attached."""
    environment = dict(variable.split("=", 1) for variable in variables(record))
    claim = {"namespace": record.namespace, "name": record.name, "uid": record.uid}
    if record.pod_claim_name:
        claim["podClaimName"] = record.pod_claim_name
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "node": node,
        "claim": claim,
        "gpus": [_gpu(peer, record) for peer in record.peers if is_gpu(peer)],
        "nics": [_nic(device) for device in record.held],
        "pairs": [{"gpu": gpu.address, "nic": nic.known.address, "level": level} for gpu, nic, level in pairs(record)],
        "others": [_other(peer) for peer in record.peers if not is_gpu(peer)],
        "environment": environment,
        "leftOut": dict(sorted(left_out(record).items())),
    }


def encode(record: Record, node: str) -> bytes:
    """The map's file."""
    return (json.dumps(content(record, node)) + "\n").encode()


def _other(peer: PeerRecord) -> Object:
    return {"driver": peer.driver, "pool": peer.pool, "device": peer.device, "request": peer.request}


def _gpu(peer: PeerRecord, record: Record) -> Object:
    known = {device.device: device.known.address for device in record.held if device.known.address}
    level, names = nearest({name: level for name, level in peer.levels.items() if name in known})
    entry = {
        **_other(peer),
        "pciAddress": peer.address or UNKNOWN,
        "uuid": peer.uuid or UNKNOWN,
        "rail": UNKNOWN if peer.rail is None else peer.rail,
        "pcieRoot": peer.pcie_root or UNKNOWN,
        "numaNode": UNKNOWN if peer.numa_node is None else peer.numa_node,
        "nearestNICs": {"level": level, "pciAddresses": sorted(known[name] or "" for name in names)},
    }
    return {**entry, "reason": peer.unknown} if peer.unknown else entry


def _nic(device: DeviceRecord) -> Object:
    attributes = device.known.device.get("attributes", {})
    network: t.Mapping[str, t.Any] = device.network or {}
    return {
        "driver": DRIVER,
        "pool": device.pool,
        "device": device.device,
        "request": device.request,
        "pciAddress": device.known.address or UNKNOWN,
        "interface": device.interface or None,
        "mac": network.get("hardwareAddress") or device.known.permanent_mac or UNKNOWN,
        "rdmaDevices": list(device.known.rdma_devices),
        "linkLayer": device.known.link_layer or UNKNOWN,
        "rail": attributes.get(_RAIL, {}).get("int", UNKNOWN),
        "pcieRoot": attributes.get(_PCIE_ROOT, {}).get("string", UNKNOWN),
        "numaNode": attributes.get(_NUMA, {}).get("int", UNKNOWN),
        "addresses": list(network["ips"]) if "ips" in network else UNKNOWN,
    }


def _rail(device: DeviceRecord) -> int | None:
    value: int | None = device.known.device.get("attributes", {}).get(_RAIL, {}).get("int")
    return value


# variables


def variables(record: Record) -> list[str]:
    """The environment variables of the claim's containers, each `NAME=value`.

    If several claims of a pod set the same variable, a runtime keeps one value. So the variables of libraries are the
    same in all claims of a pod, and the name of a variable about a single claim contains the claim's name.
    """
    if not record.mapped:
        return []
    result = [f"LANEWISE_MAP={FOLDER}", *_claim_variable(record)]
    reasons = left_out(record)
    names = _rdma_names(record)
    for setting in record.variables:
        if setting in reasons:
            continue
        if setting == "nccl":
            result.append(f"NCCL_IB_HCA=={','.join(names)}")  # "=": match these names exactly
        elif setting == "ucx":
            result.append(f"UCX_NET_DEVICES={','.join(f'{name}:1' for name in names)}")
        elif setting == "vllm":
            result.append(f"VLLM_GPU_NIC_PCIE_MAPPING={','.join(_address_pairs(record))}")
            result.append("VLLM_NIC_SELECTION_VARS=UCX_NET_DEVICES:1")
        elif setting == "nccl_topology":
            result.append(f"NCCL_TOPO_FILE={NCCL_FILE}")
    return result


def left_out(record: Record) -> dict[str, str]:
    """Why variables of the setting `pod_environment` are left out, by their names in the setting."""
    reasons = dict(record.left_out)
    for setting in record.variables:
        reason = _REASONS[setting](record) if setting in _REASONS else ""
        if reason:
            reasons.setdefault(setting, reason)
    return reasons


def _no_nccl_reason(record: Record) -> str:
    names = _rdma_names(record)
    if not names:
        return "no NIC of the pod has an RDMA device"
    return "" if all(map(_SAFE_NAME.fullmatch, names)) else "the name of an RDMA device cannot be in a variable"


def _no_ucx_reason(record: Record) -> str:
    two_ports = [device.device for device in record.held if _attribute(device, "driver") == _TWO_PORTS]
    return _no_nccl_reason(record) or (f"{two_ports[0]} may have an RDMA device with two ports" if two_ports else "")


def _no_vllm_reason(record: Record) -> str:
    """Why vLLM gets no mapping. vLLM fails if one of its GPUs is not in the mapping, so all GPUs must be in it."""
    paired = {pair.gpu.address: pair.nic for pair in pairs(record)}
    gpus = [peer for peer in record.peers if is_gpu(peer)]
    unknown = [peer.device for peer in gpus if peer.address not in paired]
    unsuitable = [nic.device for nic in paired.values() if len(nic.known.rdma_devices) != 1]
    if not gpus:
        return "the claim has no GPU"
    if unknown:
        return f"it is unknown which NIC goes with {unknown[0]}"
    return f"{unsuitable[0]} does not have exactly one RDMA device" if unsuitable else ""


_REASONS = {"nccl": _no_nccl_reason, "ucx": _no_ucx_reason, "vllm": _no_vllm_reason}


def _rdma_names(record: Record) -> list[str]:
    """The names of all RDMA devices of the claim's pod, including those of other claims."""
    of_claim = {name for device in record.held for name in device.known.rdma_devices}
    return sorted(of_claim.union(record.beside))


def _address_pairs(record: Record) -> list[str]:
    """The pairs, each `GPU=NIC` by PCI address."""
    return [f"{pair.gpu.address}={pair.nic.known.address}" for pair in pairs(record)]


def _claim_variable(record: Record) -> list[str]:
    """The variable with the pairs of a claim, whose name contains the claim's name. There is none for claims with a dot
    in the name, because it would be ambiguous."""
    name = record.pod_claim_name or record.name
    if "." in name:
        return []
    paired = {pair.gpu.address: pair for pair in pairs(record)}
    entries = []
    for gpu in sorted((peer for peer in record.peers if peer.address), key=lambda peer: (peer.address, peer.device)):
        values: Object = {"gpu": gpu.address, "uuid": gpu.uuid or UNKNOWN, "nic": UNKNOWN}
        if gpu.address in paired:  # partitions of one GPU share a pair
            values.update(_nic_values(paired[gpu.address]))
        entries.append(",".join(f"{key}={value}" for key, value in values.items()))
    unknown = sum(is_gpu(peer) and not peer.address for peer in record.peers)
    entries += [f"gpu={UNKNOWN}"] * unknown
    prefix = "LANEWISE_PAIRS_" if record.pod_claim_name else "LANEWISE_CLAIM_PAIRS_"
    return [f"{prefix}{name.upper().replace('-', '_')}={';'.join(entries)}"] if entries else []


def _nic_values(pair: Pair) -> Object:
    """The values in a variable about the NIC of a pair."""
    nic, rail = pair.nic, _rail(pair.nic)
    return {
        "nic": nic.known.address,
        "interface": (nic.interface if _SAFE_NAME.fullmatch(nic.interface) else UNKNOWN) if nic.interface else "none",
        "rdma": "+".join(name for name in nic.known.rdma_devices if _SAFE_NAME.fullmatch(name)) or "none",
        "rail": UNKNOWN if rail is None else rail,
        "level": pair.level,
    }


def _attribute(device: DeviceRecord, name: str) -> t.Any:
    return device.known.device.get("attributes", {}).get(name, {}).get("string")
