# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The VFs of a PF, and the wanted settings of each."""

from __future__ import annotations

import re
import typing as t

from ..access import devlink
from ..access.system import HostError, System
from ..access.usage import users
from ..engine.change import Change, Refusal
from ..engine.node import Node
from ..engine.settings import NicSettings, VfSettings

_DEVICES = "/sys/bus/pci/devices"
#: Drivers that change the mode of the embedded switch only while there are no VFs, so that the VFs are recreated.
VFS_AFTER_MODE = ("ice",)


def split_name(name: str) -> tuple[str, int]:
    """The PF and the index in the name of a VF, `ADDRESS vf NUMBER`."""
    key, _vf, number = name.split(" ")
    return key, int(number)


def number_of_vfs(system: System, key: str) -> int:
    """The current number of VFs of a PF."""
    return system.integer(f"{_DEVICES}/{key}/sriov_numvfs") or 0


def address(system: System, key: str, number: int) -> str | None:
    """The PCI address of a VF; None if there is no such VF."""
    return system.link(f"{_DEVICES}/{key}/virtfn{number}")


def is_vfio(driver: str | None) -> bool:
    """Whether a driver gives its device to a guest. Variants of vfio-pci are named after their device, such as
    mlx5_vfio_pci."""
    return str(driver).replace("_", "-").endswith("vfio-pci")


def require_unused(system: System, key: str, step: str) -> None:
    """Check the VFs of a PF again just before a change, as a pod may have got one since the change was planned.

    Raises HostError if one is in use.
    """
    for number in range(number_of_vfs(system, key)):
        vf = address(system, key, number)
        if vf:
            require_vf_unused(system, vf, step)


def require_vf_unused(system: System, vf: str, step: str) -> None:
    """As `require_unused`, for the VF at a PCI address."""
    reason = users(system, vf)
    if reason:
        raise HostError(step, f"the VF {vf} is now in use: {reason}", "drain the node, then run again")


def will_be_recreated(system: System, node: Node, key: str) -> bool:
    """Whether this run will recreate the VFs of a PF, so that their current settings are lost."""
    settings = node.settings.get(key, {})
    if settings.get("externally_managed"):
        return False
    current = number_of_vfs(system, key)
    if settings.get("num_vfs", current) != current:
        return True
    if not current or node.device(key).driver not in VFS_AFTER_MODE or not settings.get("eswitch_mode"):
        return False
    return bool(devlink.eswitch_mode(system, key) != settings["eswitch_mode"])


def refusal_if_missing(system: System, node: Node, change: Change) -> Refusal | None:
    """The refusal of a change of a VF that does not exist and will not exist after this run."""
    key, number = split_name(change.device)
    device = node.device(key)
    if device.physfn:
        message = f"{key} is itself a VF of {device.physfn}"
        return Refusal(change.device, change.setting, message, "choose PFs only: type: pf")
    count = node.settings.get(key, {}).get("num_vfs", number_of_vfs(system, key))
    if number < count:
        return None
    fix = f"increase num_vfs to {number + 1}, or leave this VF out"
    return Refusal(change.device, change.setting, f"the PF has {count} VFs", fix)


def indexes(value: object) -> list[int]:
    """The indexes in `3`, `"0-3,6"` or a list of these. Raises ValueError."""
    numbers: list[int] = []
    for part in value if isinstance(value, (list, tuple)) else str(value).split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", str(part), re.ASCII)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part!r} is not an index or a range such as 0-3")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def per_vf(system: System, key: str, settings: NicSettings) -> dict[int, VfSettings]:
    """The wanted settings of each VF of a PF. Raises HostError."""
    count = settings.get("num_vfs", number_of_vfs(system, key))
    common = {name: value for name, value in (settings.get("vf") or {}).items() if value is not None}
    settings_of_vfs: dict[int, dict[str, object]] = {number: dict(common) for number in range(count)} if common else {}
    for entry in settings.get("vfs") or ():
        try:
            numbers = indexes(entry["index"])
        except ValueError as error:
            raise HostError(f"choose VFs of {key}", str(error)) from None
        values = {name: value for name, value in entry.items() if value is not None and name != "index"}
        unique = {"mac", "node_guid", "port_guid"}.intersection(values)
        if unique and len(numbers) > 1:
            raise HostError(
                f"set {min(unique)} of VFs of {key}",
                f"{entry['index']} are several VFs, but each needs a different value",
            )
        for number in numbers:
            settings_of_vfs.setdefault(number, dict(common)).update(values)
    return t.cast("dict[int, VfSettings]", settings_of_vfs)
