# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decides which variables of the setting `pod_environment` a claim's pod gets.

A library's variable applies to a whole container, so it must be right for all claims of the pod: a list of RDMA devices
includes those of the other claims. If the other claims' devices are unknown, the variable is omitted, with the reason.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..base.calls import ClaimRef
from ..base.objects import Object
from ..dra.config.interface_config import DRIVER
from ..kernel import rdma
from ..publish.device import Device
from . import peers
from .protocols import Cluster, Inventory

#: Maximum number of the pod's other claims that are read. Each costs a request.
MAX_CLAIMS = 16
#: Variables that list devices, and so depend on the pod's other claims.
_DEVICE_LISTS = ("nccl", "ucx", "vllm")


@dataclass
class Choice:
    """`variables` are the variables by their names in the setting, `left_out` has the reasons why some of them are not
    set, `beside` are the RDMA devices that the pod has from other claims."""

    variables: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)


def choose(wanted: t.Sequence[str], claim: ClaimRef, pod: Object, cluster: Cluster, inventory: Inventory) -> Choice:
    """Choose the variables for a claim whose pod is `pod`, from those in the setting (`wanted`). Raises Unreachable if
    the API server does not answer, and DriverError if the node cannot be probed."""
    choice = Choice(list(wanted))
    lists = [name for name in wanted if name in _DEVICE_LISTS]
    if lists:
        unknown, no_vllm = _add_other_claims(choice, claim, pod, cluster, inventory)
        if unknown:
            choice.left_out = dict.fromkeys(lists, unknown)
        elif no_vllm and "vllm" in lists:
            choice.left_out["vllm"] = no_vllm
    if "nccl_topology" in wanted:
        places = inventory.places
        if not places.nccl:
            choice.left_out["nccl_topology"] = places.no_nccl_reason
    return choice


def _add_other_claims(
    choice: Choice, claim: ClaimRef, pod: Object, cluster: Cluster, inventory: Inventory
) -> tuple[str, str]:
    """Add the RDMA devices of the pod's other claims to `choice`. Returns why these are unknown, and why vLLM cannot
    get its variables because of another claim; each is empty if that is not the case."""
    names = claims_of(pod)
    if names is None:
        return "the names of the pod's claims are not all known", ""
    others = sorted(names - {claim.name})
    if len(others) > MAX_CLAIMS:
        return f"the pod has more than {MAX_CLAIMS + 1} claims", ""
    rdma_devices: set[str] = set()
    no_vllm = ""
    for name in others:
        other = cluster.claim(claim.namespace, name)
        for result in peers.results(other or {}):
            driver, device = result.get("driver"), result.get("device")
            if driver == DRIVER and not result.get("adminAccess"):
                known = inventory.device(device) if isinstance(device, str) else None
                if known is None or result.get("pool") != cluster.node:
                    return f"it is unknown which devices claim {name} of the pod has", ""
                rdma_devices.update(_rdma_devices(known))
                no_vllm = no_vllm or f"claim {name} of the pod has NICs too, and vLLM needs all in one claim"
            elif driver != DRIVER:
                no_vllm = no_vllm or f"claim {name} of the pod may have GPUs, and vLLM needs all in one claim"
        if other is None:
            return f"claim {name} of the pod does not exist", ""
    choice.beside = sorted(rdma_devices)
    return "", no_vllm


def _rdma_devices(device: Device) -> list[str]:
    """The current names of a device's RDMA devices, because the kernel may have renumbered them since the last probe.
    If they are not on the node, because the pod already has them, the names of the last probe."""
    return (rdma.devices(device.address) if device.address else []) or list(device.rdma_devices)


def claims_of(pod: Object) -> set[str] | None:
    """The names of a pod's claims, including those that Kubernetes has created for the pod; None if the name of one is
    not known yet."""
    spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
    entries = [_mapping(entry) for entry in _list(spec.get("resourceClaims"))]
    created = {
        entry.get("name"): entry.get("resourceClaimName") for entry in map(_mapping, _list(status.get(_STATUSES)))
    }
    names: set[str] = set()
    for entry in entries:
        name = entry.get("resourceClaimName") or created.get(entry.get("name"))
        if not name and entry.get("name") in created:
            continue  # Kubernetes creates no claim for this entry
        if not isinstance(name, str):
            return None
        names.add(name)
    extended = _mapping(status.get("extendedResourceClaimStatus")).get("resourceClaimName")
    return names | {extended} if isinstance(extended, str) and extended else names


_STATUSES = "resourceClaimStatuses"


def _list(value: t.Any) -> list[t.Any]:
    return value if isinstance(value, list) else []


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    return value if isinstance(value, dict) else {}
