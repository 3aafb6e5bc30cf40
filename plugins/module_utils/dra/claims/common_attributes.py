# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The attributes that the devices of a claim have in common, for constraints that align or separate them."""

from __future__ import annotations

import typing as t

from ..kube.reader import Reader
from ..vendors.knowledge import NUMA_NODE, PCIE_ROOT
from .inventory import Device
from .nearest import ResolvedDevice


class CommonAttributes:
    """The common attributes of the devices of a claim. With `lists`, attributes may be lists. Errors go to `reader`."""

    def __init__(self, reader: Reader, known: t.Mapping[int, ResolvedDevice], lists: bool) -> None:
        self.reader = reader
        self.known = known
        self.lists = lists

    def of(self, device: Device, level: str) -> list[str] | None:
        """The attributes for a level that a device and all its alternatives have, the best first; None if unknown."""
        common: list[str] | None = None
        for choice in device.choices():
            driver = self.known[id(choice)].driver
            if driver is None or "/" in level:
                continue
            names = driver.alignments(level, self.lists)
            common = names if common is None else [name for name in common if name in names]
        return [level] if "/" in level else common

    def required(
        self, devices: list[Device], level: str, path: str, pairs: bool = True
    ) -> list[tuple[str, list[Device]]]:
        """The attributes that tie all the devices together, each with the devices that it ties.

        It is one attribute if all drivers publish it. Otherwise it is two attributes, if some device has both: the
        other devices are then tied through this device.
        """
        published = [(device, self.of(device, level)) for device in devices]
        standard = {"pcie_root": "resource.kubernetes.io/pcieRoot", "numa_node": "resource.kubernetes.io/numaNode"}
        names: list[str] = []
        for _device, attributes in published:
            names += [name for name in attributes or () if name not in names]
        names = names or [standard.get(level, level)]
        tied = {name: [d for d, attributes in published if attributes is None or name in attributes] for name in names}
        for name, members in tied.items():
            if len(members) == len(devices):
                return [(name, members)]
        for first in names if pairs else ():
            for second in names[names.index(first) + 1 :]:
                sure = [device for device, attributes in published if attributes is not None]
                both = [device for device in sure if device in tied[first] and device in tied[second]]
                if both and all(device in tied[first] or device in tied[second] for device in devices):
                    return [(first, tied[first]), (second, tied[second])]
        self._cannot_align(published, level, path)
        return []

    def _cannot_align(self, published: list[tuple[Device, list[str] | None]], level: str, path: str) -> None:
        publications: list[str] = []
        hints: list[str] = []
        for device, _attributes in published:
            for choice in device.choices():
                driver = self.known[id(choice)].driver
                if driver is None:
                    continue
                names = driver.alignments(level, self.lists)
                text = f"{driver.name} {driver.version} publishes " + (" and ".join(names) or "no such attribute")
                if text not in publications:
                    publications.append(text)
                # a driver that publishes the standard attribute needs no hint
                hint = "" if NUMA_NODE in names or PCIE_ROOT in names else driver.hint(level)
                if hint and hint not in hints:
                    hints.append(hint)
        self.reader.problem(
            path,
            f"devices cannot be aligned on {level}, because their drivers publish no common attribute for it: "
            + "; ".join(publications),
            "no-common-attribute",
            "; ".join(hints) or "align on another level",
        )

    def distinct(self, device: Device, by: str) -> list[str]:
        """The attributes for a `distinct` rule that a device and all its alternatives have, the best first."""
        if "/" in by:
            return [by]
        if by != "rail":
            return self.of(device, by) or []
        attributes = set()
        for choice in device.choices():
            known = self.known[id(choice)]
            way = known.driver.filter(known.kind, by) if known.driver else None
            attributes.add(way.name if way else "")
        return list(attributes) if len(attributes) == 1 and "" not in attributes else []
