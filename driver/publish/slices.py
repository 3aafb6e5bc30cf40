# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ResourceSlices for a node's devices, and the changes from the existing slices to the desired ones.

The rules are those of Kubernetes' own controller (k8s.io/dynamic-resource-allocation/resourceslice): a pool's slices
are matched by position, and the pool's generation grows unless a single update makes the whole change, so that a
scheduler never uses a partly updated pool. Names are computed from driver, node and position, without generateName: a
create that is sent twice makes only one slice.
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

_PAGE_ADVANCED = limits.at(limits.DEVICES_ADVANCED, versions.NEWEST)
_SETS = limits.at(limits.COUNTER_SETS, versions.NEWEST) or 8
_PLACE_DIGITS = 5


def slices(
    publication: Publication, node: str, driver: str, generation: int = 0, features: Features | None = None
) -> list[Object]:
    """The v1 ResourceSlices of a node's pool, which has the node's name, within all limits of the API.

    Counter sets are in separate slices, before the devices. If devices can have taints, lists or counters, a slice
    holds up to 64 of them, whether they have any or not: a link that goes down must not move devices between slices. A
    PF and its VFs are in the same slice if it has room. An empty pool has one empty slice.
    """
    features = features or Features()
    bodies: list[Object] = []
    if features.counters:
        sets = publication.counter_sets
        bodies += [{"sharedCounters": sets[at : at + _SETS]} for at in range(0, len(sets), _SETS)]
    advanced = features.taints or features.lists or (features.counters and publication.counter_sets)
    most = _PAGE_ADVANCED if advanced else limits.DEVICES
    pages: list[list[Object]] = [[]]
    for group in _families(publication):
        if len(pages[-1]) + len(group) > most and pages[-1] and len(group) <= most:
            pages.append([])
        for device in group:
            if len(pages[-1]) == most:
                pages.append([])
            pages[-1].append(_supported(device, features))
    bodies += [{"devices": page} for page in pages]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(bodies)}
    return [
        {
            "apiVersion": versions.V1,
            "kind": "ResourceSlice",
            "metadata": {"name": slice_name(place, driver, node)},
            "spec": {"driver": driver, "nodeName": node, "pool": dict(pool), **body},
        }
        for place, body in enumerate(bodies)
    ]


def slice_name(place: int, driver: str, node: str) -> str:
    """The name of the slice at a position of the node's pool. The scheduler reads slices in the order of names."""
    name = f"{place:0{_PLACE_DIGITS}x}-{driver}-{node}"
    if len(name) > limits.DNS_SUBDOMAIN_BYTES:
        digest = hashlib.sha256(node.encode()).hexdigest()[:16]
        name = f"{name[: limits.DNS_SUBDOMAIN_BYTES - 17].rstrip('-.')}-{digest}"
    return name


def _families(publication: Publication) -> list[list[Object]]:
    """The devices, each PF grouped with the VFs that share its counters, in the order of their first devices."""
    found: dict[str, list[Object]] = {}
    for device in publication.devices:
        used = device.get("consumesCounters") or [{"counterSet": device["name"]}]
        found.setdefault(used[0]["counterSet"], []).append(device)
    return list(found.values())


def _supported(device: Object, features: Features) -> Object:
    left_out = {name for name, on in (("taints", features.taints), ("consumesCounters", features.counters)) if not on}
    kept = {key: value for key, value in device.items() if key not in left_out}
    roots = _roots(kept.get("attributes") or {})
    if features.lists and len(roots) > 1:
        kept["attributes"] = {**kept["attributes"], PCIE_ROOT: {"strings": roots}}
    return kept


def _roots(attributes: Object) -> list[str]:
    """The PCIe roots at which a device reads and writes memory: its own, and that of its data-direct function."""
    found = [attributes.get(name, {}).get("string") for name in (PCIE_ROOT, DATA_DIRECT_ROOT)]
    return list(dict.fromkeys(one for one in found if one))


@dataclass(frozen=True)
class Plan:
    """The changes, in this order. `update` and `create` have whole objects; an update has the resourceVersion on which
    it is based; `delete` has the server's objects."""

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
    """The changes that make a driver's and node's existing slices the `desired` ones; both are v1.

    The desired ones come from `slices`, all of one pool. Their generation is a minimum; the plan sets the required one.
    `settled` may accept an existing slice that differs only because the server drops a field.
    """
    existing = sorted(existing, key=lambda one: str(one["metadata"]["name"]))
    names = {one["metadata"]["name"]: place for place, one in enumerate(desired)}
    pool_name = desired[0]["spec"]["pool"]["name"]
    least = desired[0]["spec"]["pool"]["generation"]
    own = [one for one in existing if one["spec"]["pool"]["name"] == pool_name]
    generation = max((one["spec"]["pool"].get("generation", 0) for one in own), default=0)
    current: dict[int, Object] = {}
    obsolete = [one for one in existing if one["spec"]["pool"]["name"] != pool_name]
    for one in own:
        place = names.get(one["metadata"]["name"])
        if place is None or one["spec"]["pool"].get("generation", 0) < generation:
            obsolete.append(one)
        else:
            current[place] = one

    def wanted(place: int, number: int) -> Object:
        spec = desired[place]["spec"]
        return {**desired[place], "spec": {**spec, "pool": {**spec["pool"], "generation": number}}}

    changed = {
        place
        for place, one in current.items()
        if not same(one["spec"], wanted(place, generation)["spec"]) and not settled(one, wanted(place, generation))
    }
    reannotated = {
        place for place, one in current.items() if not _annotations(desired[place]).items() <= _annotations(one).items()
    }
    new = len(desired) - len(current)
    bumped = least > generation or new > 0 or len(changed) > 1
    if bumped:
        generation = least if least > generation else generation + 1
    return Plan(
        delete=tuple(obsolete),
        update=tuple(
            _updated(one, wanted(place, generation))
            for place, one in sorted(current.items())
            if bumped or place in changed | reannotated
        ),
        create=tuple(wanted(place, generation) for place in range(len(desired)) if place not in current),
        generation=generation,
    )


def _annotations(one: Object) -> dict[str, str]:
    return one["metadata"].get("annotations") or {}


def _updated(existing: Object, desired: Object) -> Object:
    """The existing slice with the desired content, keeping the times at which its taints were added."""
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
    """The slices with the Node as their owner, so that they are deleted with it, and with the driver's version."""
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node["metadata"]["name"],
        "uid": node["metadata"]["uid"],
        "controller": True,
    }
    added = {"ownerReferences": [owner], "annotations": {VERSION_ANNOTATION: version}}
    return [{**one, "metadata": {**one["metadata"], **added}} for one in desired]
