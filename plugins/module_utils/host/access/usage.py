# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What is using a NIC or a VF."""

from __future__ import annotations

import contextlib
import json
import os
import typing as t

from .system import System

_DEVICES = "/sys/bus/pci/devices"
#: The DRA driver's records of claims, which list the devices that pods have.
_CLAIMS = "/var/lib/kubelet/plugins/lanewise.dev/state"
_USER_SPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")


def users(system: System, function: str) -> str:
    """What uses the VF or PF at the PCI address `function`, as a clause for a message; empty if nothing uses it.

    A pod has it if a claim's record names it or if its interface is in another network namespace. A guest or a program
    has it if it is open through VFIO or UIO. For use by the node itself, see `management.management_interfaces`.
    """
    for name in system.names(_CLAIMS):
        if name.endswith(".json") and f'"{function}"' in (system.content(f"{_CLAIMS}/{name}") or ""):
            return f"a pod has it through the resource claim with UID {name[:-5]}"
    driver = system.link(f"{_DEVICES}/{function}/driver")
    paths = _device_files(system, function, driver)
    if paths:
        process = _opened_by(system, paths)
        return f"process {process} has it open through {driver}" if process else ""
    if driver and system.exists(f"{_DEVICES}/{function}/net") and not system.names(f"{_DEVICES}/{function}/net"):
        return "its interface is in another network namespace, such as that of a container"
    return ""


def as_published(system: System, function: str) -> dict[str, object]:
    """The values for selectors of a function that a pod has, as the DRA driver published them before the pod got it.

    They are `interface`, `link_layer` and `speed_mbps` from the driver's record of the claim. Without a record, the
    result is empty.
    """
    for name in system.names(_CLAIMS):
        text = system.content(f"{_CLAIMS}/{name}") if name.endswith(".json") else None
        if not text or f'"{function}"' not in text:
            continue
        try:
            records = [device["known"] for device in json.loads(text)["devices"]]
            (attributes,) = [record["device"]["attributes"] for record in records if record["address"] == function]
            values = {
                "interface": [value["string"] for key, value in attributes.items() if key == "ifName"],
                "link_layer": attributes.get("linkLayer", {}).get("string"),
                "speed_mbps": attributes.get("linkSpeedMbps", {}).get("int"),
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # the driver itself reports damaged records
        return {key: value for key, value in values.items() if value}
    return {}


def _device_files(system: System, function: str, driver: str | None) -> set[str]:
    """The device files through which programs can use a function with VFIO (drivers/vfio) or UIO."""
    folder = f"{_DEVICES}/{function}"
    by_iommufd = system.names(f"{folder}/vfio-dev")  # since Linux 6.1, for any VFIO driver
    files = {f"/dev/vfio/devices/{name}" for name in by_iommufd}
    files.update(f"/dev/{name}" for name in system.names(f"{folder}/uio"))
    group = system.link(f"{folder}/iommu_group")
    if group and (by_iommufd or driver in _USER_SPACE_DRIVERS):
        files.update((f"/dev/vfio/{group}", f"/dev/vfio/noiommu-{group}"))
    return files


def _opened_by(system: System, paths: t.Collection[str]) -> str:
    """The ID of a process that has one of the files open; empty if there is none."""
    for process in system.names("/proc"):
        if not process.isdigit():
            continue
        folder = os.path.join(system.reader.root, f"proc/{process}/fd")
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # the process has ended
        for name in names:
            with contextlib.suppress(OSError):  # the process has closed this file
                if os.readlink(f"{folder}/{name}") in paths:
                    return process
    return ""
