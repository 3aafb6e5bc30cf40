# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Who uses a VF at this moment."""

from __future__ import annotations

import os

from .system import System

_DEVICES = "/sys/bus/pci/devices"
#: Records of the DRA driver's claims, which name the devices that pods have.
_CLAIMS = "/var/lib/kubelet/plugins/lanewise.dev/state"
_USER_SPACE = ("vfio-pci", "uio_pci_generic", "igb_uio")


def users(system: System, vf: str) -> str:
    """Who uses the VF at the PCI address C(vf), as the end of a sentence; empty for nobody.

    A pod has it where a claim's record names it or its interface is in another network namespace, a guest or a program
    has it where it is open through VFIO. What the node itself uses is not told here, but by
    :func:`management.management_interfaces`.
    """
    for name in system.names(_CLAIMS):
        if name.endswith(".json") and f'"{vf}"' in (system.content(f"{_CLAIMS}/{name}") or ""):
            return f"a pod has it by the resource claim with UID {name[:-5]}"
    driver = system.link(f"{_DEVICES}/{vf}/driver")
    if driver in _USER_SPACE:
        group = system.link(f"{_DEVICES}/{vf}/iommu_group")
        process = _opened_by(f"/dev/vfio/{group}") if group and system.live else ""
        return f"process {process} has it open through {driver}" if process else ""
    if driver and system.exists(f"{_DEVICES}/{vf}/net") and not system.names(f"{_DEVICES}/{vf}/net"):
        return "its interface is in another network namespace, as of a container"
    return ""


def _opened_by(path: str) -> str:
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        try:
            folder = f"/proc/{process}/fd"
            if any(os.readlink(f"{folder}/{name}") == path for name in os.listdir(folder)):
                return process
        except OSError:
            continue  # it has ended meanwhile
    return ""
