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
from .resolved_device import ResolvedDevice


class CommonAttributes:
    """The common attributes of the devices of a claim. Errors are recorded in `reader`.

    `resolved` are the devices by their id(). With `lists`, the cluster can compare attributes that are lists.
    """

    def __init__(self, reader: Reader, resolved: t.Mapping[int, ResolvedDevice], lists: bool) -> None:
        self.reader = reader
        self.resolved = resolved
        self.lists = lists

    def of(self, device: Device, level: str) -> list[str] | None:
        """The attributes for a level that a device or all its alternatives publish, the best first; None if unknown."""
        common: list[str] | None = None
        for choice in device.choices():
            driver = self.resolved[id(choice)].driver
            if driver is None or "/" in level:
                continue
            names = driver.alignments(level, self.lists)
            common = names if common is None else [name for name in common if name in names]
        return [level] if "/" in level else common

    def required(
        self, devices: list[Device], level: str, path: str, pairs: bool = True
    ) -> list[tuple[str, list[Device]]]:
        """The attributes with which constraints align all the devices, each with the devices to which it applies.

        It is one attribute if all drivers publish it. Otherwise it can be two attributes, if `pairs` is set and some
        device has both: the other devices are then aligned with each other through this device. Records a problem and
        returns nothing if there are no such attributes.
        """
        published = [(device, self.of(device, level)) for device in devices]
        standard = {"pcie_root": "resource.kubernetes.io/pcieRoot", "numa_node": "resource.kubernetes.io/numaNode"}
        names: list[str] = []
        for _device, attributes in published:
            names += [name for name in attributes or () if name not in names]
        names = names or [standard.get(level, level)]
        publishers = {
            name: [device for device, attributes in published if attributes is None or name in attributes]
            for name in names
        }
        for name, members in publishers.items():
            if len(members) == len(devices):
                return [(name, members)]
        for first in names if pairs else ():
            for second in names[names.index(first) + 1 :]:
                with_first, with_second = publishers[first], publishers[second]
                known = [device for device, attributes in published if attributes is not None]
                both = [device for device in known if device in with_first and device in with_second]
                if both and all(device in with_first or device in with_second for device in devices):
                    return [(first, with_first), (second, with_second)]
        self._report_no_common_attribute(published, level, path)
        return []

    def _report_no_common_attribute(
        self, published: list[tuple[Device, list[str] | None]], level: str, path: str
    ) -> None:
        publications: list[str] = []
        hints: list[str] = []
        for device, _attributes in published:
            for choice in device.choices():
                driver = self.resolved[id(choice)].driver
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
        """The attributes for a `distinct` rule that a device or all its alternatives publish, the best first."""
        if "/" in by:
            return [by]
        if by != "rail":
            return self.of(device, by) or []
        attributes = set()
        for choice in device.choices():
            resolved = self.resolved[id(choice)]
            test = resolved.driver.filter(resolved.kind, by) if resolved.driver else None
            attributes.add(test.name if test else "")
        return list(attributes) if len(attributes) == 1 and "" not in attributes else []
