# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ResourceSlices for a node's devices, and the changes from the existing slices to the desired ones.

The rules are those of Kubernetes' own controller (k8s.io/dynamic-resource-allocation/resourceslice). A pool's slices
are matched by position. The pool's generation is increased unless a single update makes the whole change, so that a
scheduler never uses a partly updated pool. Names are computed from driver, node and position, without generateName, so
that a create request which is sent twice creates only one slice.
"""

from __future__ import annotations

import copy
import hashlib
import typing as t
from dataclasses import dataclass

from ..api.features import Features
from ..base.objects import Object
from ..dra.kube import limits, quantity, versions
from ..topology.publish import DATA_DIRECT_ROOT, PCIE_ROOT, VERSION_ANNOTATION, Publication

_MAX_ADVANCED_DEVICES = limits.at(limits.DEVICES_ADVANCED, versions.NEWEST)
_MAX_COUNTER_SETS = limits.at(limits.COUNTER_SETS, versions.NEWEST) or 8
_POSITION_DIGITS = 5


def slices(
    publication: Publication, node: str, driver: str, generation: int = 0, features: Features | None = None
) -> list[Object]:
    """The v1 ResourceSlices of a node's pool, which has the node's name, within all limits of the API.

    Counter sets are in separate slices, before the devices. If the API server supports taints, lists or counters, a
    slice contains up to 64 devices, whether these have any of them or not: devices must not move between slices when a
    link goes down. A PF and its VFs are in the same slice if all fit. An empty pool has one empty slice.

    `generation` is the generation of the pool.
    """
    features = features or Features()
    bodies: list[Object] = []
    if features.counters:
        sets = publication.counter_sets
        bodies += [
            {"sharedCounters": sets[start : start + _MAX_COUNTER_SETS]}
            for start in range(0, len(sets), _MAX_COUNTER_SETS)
        ]
    advanced = features.taints or features.lists or (features.counters and publication.counter_sets)
    max_devices = _MAX_ADVANCED_DEVICES if advanced else limits.DEVICES
    pages: list[list[Object]] = [[]]
    for group in _families(publication):
        if len(pages[-1]) + len(group) > max_devices and pages[-1] and len(group) <= max_devices:
            pages.append([])
        for device in group:
            if len(pages[-1]) == max_devices:
                pages.append([])
            pages[-1].append(_supported(device, features))
    bodies += [{"devices": page} for page in pages]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(bodies)}
    return [
        {
            "apiVersion": versions.V1,
            "kind": "ResourceSlice",
            "metadata": {"name": slice_name(position, driver, node)},
            "spec": {"driver": driver, "nodeName": node, "pool": dict(pool), **body},
        }
        for position, body in enumerate(bodies)
    ]


def slice_name(position: int, driver: str, node: str) -> str:
    """The name of the slice at a position of the node's pool. The scheduler reads slices in the order of names."""
    name = f"{position:0{_POSITION_DIGITS}x}-{driver}-{node}"
    if len(name) > limits.DNS_SUBDOMAIN_BYTES:
        digest = hashlib.sha256(node.encode()).hexdigest()[:16]
        name = f"{name[: limits.DNS_SUBDOMAIN_BYTES - 17].rstrip('-.')}-{digest}"
    return name


def _families(publication: Publication) -> list[list[Object]]:
    """The devices, each PF grouped with the VFs that share its counters, in the order of their first devices."""
    families: dict[str, list[Object]] = {}
    for device in publication.devices:
        consumed = device.get("consumesCounters") or [{"counterSet": device["name"]}]
        families.setdefault(consumed[0]["counterSet"], []).append(device)
    return list(families.values())


def _supported(device: Object, features: Features) -> Object:
    """The device without fields that the API server does not support."""
    supported = {"taints": features.taints, "consumesCounters": features.counters}
    fields = {key: value for key, value in device.items() if supported.get(key, True)}
    roots = _roots(fields.get("attributes") or {})
    if features.lists and len(roots) > 1:
        fields["attributes"] = {**fields["attributes"], PCIE_ROOT: {"strings": roots}}
    return fields


def _roots(attributes: Object) -> list[str]:
    """The PCIe roots through which a device reads and writes memory: its own, and that of its data-direct function."""
    roots = [attributes.get(name, {}).get("string") for name in (PCIE_ROOT, DATA_DIRECT_ROOT)]
    return list(dict.fromkeys(root for root in roots if root))


@dataclass(frozen=True)
class Plan:
    """The changes, in the order of the fields. `delete` contains the server's objects, `update` and `create` contain
    whole objects. An update contains the resourceVersion on which it is based."""

    delete: tuple[Object, ...] = ()
    update: tuple[Object, ...] = ()
    create: tuple[Object, ...] = ()
    generation: int = 0

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan(
    existing: t.Iterable[Object],
    desired: t.Sequence[Object],
    settled: t.Callable[[Object, Object], bool] = lambda existing, desired: False,
) -> Plan:
    """The changes that turn the existing slices of a driver and a node into the `desired` ones; both are v1.

    The desired slices are the result of `slices`, so all belong to one pool. Their generation is a minimum; the plan
    sets the required one. `settled` may accept an existing slice that differs only because the server drops a field.
    """
    existing = sorted(existing, key=lambda item: str(item["metadata"]["name"]))
    positions = {item["metadata"]["name"]: position for position, item in enumerate(desired)}
    pool_name = desired[0]["spec"]["pool"]["name"]
    min_generation = desired[0]["spec"]["pool"]["generation"]
    of_pool = [item for item in existing if item["spec"]["pool"]["name"] == pool_name]
    generation = max((item["spec"]["pool"].get("generation", 0) for item in of_pool), default=0)
    current: dict[int, Object] = {}
    obsolete = [item for item in existing if item["spec"]["pool"]["name"] != pool_name]
    for item in of_pool:
        position = positions.get(item["metadata"]["name"])
        if position is None or item["spec"]["pool"].get("generation", 0) < generation:
            obsolete.append(item)
        else:
            current[position] = item

    def wanted(position: int, number: int) -> Object:
        spec = desired[position]["spec"]
        return {**desired[position], "spec": {**spec, "pool": {**spec["pool"], "generation": number}}}

    changed = {
        position
        for position, item in current.items()
        if not same(item["spec"], wanted(position, generation)["spec"])
        and not settled(item, wanted(position, generation))
    }
    reannotated = {
        position
        for position, item in current.items()
        if not _annotations(desired[position]).items() <= _annotations(item).items()
    }
    new = len(desired) - len(current)
    increased = min_generation > generation or new > 0 or len(changed) > 1
    if increased:
        generation = max(min_generation, generation + 1)
    return Plan(
        delete=tuple(obsolete),
        update=tuple(
            _updated(item, wanted(position, generation))
            for position, item in sorted(current.items())
            if increased or position in changed | reannotated
        ),
        create=tuple(wanted(position, generation) for position in range(len(desired)) if position not in current),
        generation=generation,
    )


def _annotations(item: Object) -> dict[str, str]:
    return item["metadata"].get("annotations") or {}


def _updated(existing: Object, desired: Object) -> Object:
    """The existing slice with the desired content. The times at which its taints were added are kept."""
    spec = copy.deepcopy(desired["spec"])
    times = {
        (device["name"], taint["key"], taint.get("value"), taint["effect"]): taint.get("timeAdded")
        for device in existing["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
    }
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            added = times.get((device["name"], taint["key"], taint.get("value"), taint["effect"]))
            if added and "timeAdded" not in taint:
                taint["timeAdded"] = added
    metadata = {**existing["metadata"], **{k: v for k, v in desired["metadata"].items() if k == "ownerReferences"}}
    annotations = {**_annotations(existing), **_annotations(desired)}
    if annotations:
        metadata["annotations"] = annotations
    return {
        **existing,
        "apiVersion": desired["apiVersion"],
        "kind": desired["kind"],
        "metadata": metadata,
        "spec": spec,
    }


def same(actual: object, desired: object, name: str = "") -> bool:
    """Whether both are equal, except for the format of quantities and the times of taints."""
    if isinstance(actual, dict) and isinstance(desired, dict):
        keys = {key for side in (actual, desired) for key, value in side.items() if value not in (None, [], {})}
        keys -= {"timeAdded"} - set(desired)
        return all(same(actual.get(key), desired.get(key), key) for key in keys)
    if isinstance(actual, list) and isinstance(desired, list):
        return len(actual) == len(desired) and all(same(a, b) for a, b in zip(actual, desired))
    if actual == desired and type(actual) is type(desired):
        return True
    if name == "value" and isinstance(actual, str) and isinstance(desired, str):
        try:
            return quantity.compare(actual, desired) == 0
        except quantity.QuantityError:
            return False
    return False


def with_owner(desired: t.Sequence[Object], node: Object, version: str) -> list[Object]:
    """The slices with the driver's version, and with the Node as owner, so that they are deleted with the Node."""
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node["metadata"]["name"],
        "uid": node["metadata"]["uid"],
        "controller": True,
    }
    added = {"ownerReferences": [owner], "annotations": {VERSION_ANNOTATION: version}}
    return [{**item, "metadata": {**item["metadata"], **added}} for item in desired]
