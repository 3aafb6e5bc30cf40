# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which optional fields of a ResourceSlice can be used: the API server keeps them, and the scheduler uses them."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, replace

from ..base.objects import Object
from ..dra.kube import comparison, versions

#: The last keys of the paths of fields that only devices for shares have.
_SHARE_FIELDS = ("allowMultipleAllocations", "requestPolicy")
_COUNTER_FIELDS = ("sharedCounters", "consumesCounters")
_PROBE = "lanewise-dra-features"
#: The first minor version whose scheduler compares attributes with several values. The scheduler of 1.36 ignores the
#: values, even if its feature gate is on.
_LISTS_SINCE = 37
#: The first minor version whose scheduler divides devices among claims by default.
_SHARES_SINCE = 36


@dataclass(frozen=True)
class Features:
    """Which optional fields of a slice the API server keeps and, according to its version, the scheduler uses.

    `counters`: counter sets, and devices that consume them. `lists`: attributes with several values. `shares`: devices
    that can be allocated several times, with request policies for the capacities; they need counters, because a NIC's
    device for shares and its device as a whole exclude each other by a counter.
    """

    taints: bool = True
    counters: bool = True
    lists: bool = False
    shares: bool = True


def cut(features: Features, lost: t.Iterable[str]) -> Features:
    """The features without those that need the `lost` fields: the paths of fields that the server did not keep, as
    returned by `comparison.dropped`."""
    lost = list(lost)
    taints = features.taints and not any(".taints" in path for path in lost)
    counters = features.counters and not any(name in path for path in lost for name in _COUNTER_FIELDS)
    lists = features.lists and not any(path.endswith(".strings") for path in lost)
    shares = features.shares and not any(path.endswith(_SHARE_FIELDS) for path in lost)
    return replace(features, taints=taints, counters=counters, lists=lists, shares=shares)


def find(driver: str, node: str, create: t.Callable[[Object], Object | None], version: t.Callable[[], str]) -> Features:
    """The features of a server, found by creating slices with dry runs, which store nothing.

    `create` sends a v1 ResourceSlice as a dry run and returns what the server would store, or None if the slice is
    invalid. `version` returns the server's version, such as `v1.37.1`.
    """

    def probe(features: Features, content: Object) -> Features | None:
        """The features without those whose fields in `content` the server does not keep; None if it is invalid."""
        pool = {"name": node, "generation": 0, "resourceSliceCount": 1}
        body: Object = {
            "apiVersion": versions.V1,
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{_PROBE}-"},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, **content},
        }
        stored = create(body)
        return None if stored is None else cut(features, comparison.dropped(body["spec"], stored["spec"]))

    features = Features()
    taint = {"key": f"{driver}/probe", "effect": "NoSchedule"}
    consumed = {"counterSet": "probe", "counters": {"functions": {"value": "1"}}}
    content = {"devices": [{"name": "probe", "taints": [taint], "consumesCounters": [consumed]}]}
    # Kubernetes 1.34 with the gate DRAPartitionableDevices: invalid, because a device must be in the same slice as its
    # counter set
    features = probe(features, content) or replace(features, counters=False)
    if not features.counters:
        features = probe(features, {"devices": [{"name": "probe", "taints": [taint]}]}) or features
    else:
        shared = {"sharedCounters": [{"name": "probe", "counters": {"functions": {"value": "1"}}}]}
        features = probe(features, shared) or replace(features, counters=False)
    minor = _minor(version())
    shares = probe(features, {"devices": [_divided()]}) if minor >= _SHARES_SINCE and features.counters else None
    features = replace(features, shares=bool(shares and shares.shares))
    # without the gate DRAListTypeAttributes the server drops the values, and an attribute without a value is invalid
    several = {"devices": [{"name": "probe", "attributes": {"probe": {"strings": ["a", "b"]}}}]}
    lists = probe(replace(features, lists=True), several)
    return replace(features, lists=bool(lists and lists.lists and minor >= _LISTS_SINCE))


def _divided() -> Object:
    """A device that can be allocated several times."""
    policy = {"default": "1G", "validRange": {"min": "1G", "step": "1G"}}
    capacity = {"bandwidth": {"value": "10G", "requestPolicy": policy}}
    return {"name": "probe", "allowMultipleAllocations": True, "capacity": capacity}


def _minor(version: str) -> int:
    """The minor version in a version such as `v1.37.1`; 0 if the version has another form."""
    match = re.match(r"v1\.([0-9]{1,4})\b", version)
    return int(match[1]) if match else 0
