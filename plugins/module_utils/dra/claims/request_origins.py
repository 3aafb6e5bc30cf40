# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The origin in the inventory of each part of a request."""

from __future__ import annotations

import typing as t

from ..kube.objects import Object
from ..kube.reader import child
from .inventory import Device
from .resolved_device import ResolvedDevice

_FIELDS = {
    "deviceClassName": "class",
    "allocationMode": "all",
    "count": "count",
    "adminAccess": "admin",
    "tolerations": "tolerations",
    "capacity": "capacity",
}


def request_origins(
    origins: dict[str, str], prefix: str, request: Object, device: Device, resolved: t.Mapping[int, ResolvedDevice]
) -> None:
    """Add the origins of the parts of a request, whose path is `prefix`, to `origins`."""
    origins[prefix] = device.path
    origins[f"{prefix}.name"] = child(device.path, "name")
    choices = device.choices()
    if "exactly" in request:
        bodies = [(f"{prefix}.exactly", device)]
    else:
        bodies = [
            (f"{prefix}.firstAvailable[{index}]", choices[index % len(choices)])
            for index in range(len(request["firstAvailable"]))
        ]
    for place, choice in bodies:
        origins[place] = choice.path
        for name, key in _FIELDS.items():
            origins[f"{place}.{name}"] = child(choice.path, key)
        if choice.kind:
            origins[f"{place}.deviceClassName"] = child(choice.path, "kind")
        if choice.share:
            origins[f"{place}.capacity"] = child(choice.path, "share")
        elif choice.bandwidth and not choice.capacity:
            origins[f"{place}.capacity"] = child(choice.path, "bandwidth")
        for index, (_text, path) in enumerate(resolved[id(choice)].selectors):
            origins[f"{place}.selectors[{index}]"] = path
