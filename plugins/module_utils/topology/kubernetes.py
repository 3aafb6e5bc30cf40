# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The standard device attributes, as k8s.io/dynamic-resource-allocation/deviceattribute computes them."""

from __future__ import annotations

import re
import typing as t

_BUS_ID = re.compile(r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")


class StandardAttributes(t.TypedDict, total=False):
    """The standard device attributes as Kubernetes' helper computes them; attributes that it would not publish are
    absent."""

    pciBusID: str
    pcieRoot: str
    numaNode: int


def standard_attributes(address: str, device_path: str | None, numa_node: int | None) -> StandardAttributes:
    """pciBusID, pcieRoot and numaNode of a PCI function; a key is absent if Kubernetes would not publish it.

    `device_path` is the target of /sys/bus/pci/devices/ADDRESS (None if that is not a link), and `numa_node` the
    content of the function's numa_node file. Kubernetes' helper accepts domains of four digits only, and roots only
    from paths that begin with /sys/devices/pci. So functions behind VMD and on Hyper-V get no pcieRoot. Source:
    pci_linux.go, and KEP-6072 for numaNode, where a negative number means unknown.
    """
    attributes: StandardAttributes = {}
    if _BUS_ID.match(address):
        attributes["pciBusID"] = address
        path = device_path or ""
        if path[:16] == "/sys/devices/pci" and path.endswith(f"/{address}") and path.count("/") > 3:
            attributes["pcieRoot"] = path[13 : path.index("/", 13)]
        if numa_node is not None and numa_node >= 0:
            attributes["numaNode"] = numa_node
    return attributes
