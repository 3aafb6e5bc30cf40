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
#: What reading a record raises that is damaged or of a newer release.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_USER_SPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")


def users(system: System, function: str) -> str:
    """What uses the VF or PF at the PCI address `function`, as a clause for a message; empty if nothing uses it.

    A pod has it if a claim's record names it or if its interface is in another network namespace. A guest or a program
    has it if it is open through VFIO or UIO. For use by the node itself, see `management.management_interfaces`.
    """
    for uid, text in _claims_with(system, function):
        if _is_in_claim(text, function):
            return f"a pod has it through the resource claim with UID {uid}"
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
    result is empty. A share of a NIC is published with the interface of the NIC; `interface` is then the function's.
    """
    for _uid, text in _claims_with(system, function):
        try:
            (device,) = [device for device in json.loads(text)["devices"] if device["known"]["address"] == function]
            attributes = device["known"]["device"]["attributes"]
            if device.get("share"):
                interface = device["known"].get("interface")
            else:
                interface = attributes.get("ifName", {}).get("string")
            values = {
                "interface": [interface] if interface else [],
                "link_layer": attributes.get("linkLayer", {}).get("string"),
                "speed_mbps": attributes.get("linkSpeedMbps", {}).get("int"),
            }
        except _DAMAGED:
            continue  # the driver itself reports damaged records
        return {key: value for key, value in values.items() if value}
    return {}


def _claims_with(system: System, function: str) -> t.Iterator[tuple[str, str]]:
    """The UIDs and records of the claims that contain a PCI address, which may be that of a VF's PF. Raises
    HostError."""
    for name in system.names(_CLAIMS):
        text = system.content(f"{_CLAIMS}/{name}") if name.endswith(".json") else None
        if text and f'"{function}"' in text:
            yield name[:-5], text


def _is_in_claim(text: str, function: str) -> bool:
    """Whether a claim has a function, by its record, which contains the function's PCI address. A record that is
    damaged or of a newer release counts."""
    try:
        return any(device["known"]["address"] == function for device in json.loads(text)["devices"])
    except _DAMAGED:
        return True


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
