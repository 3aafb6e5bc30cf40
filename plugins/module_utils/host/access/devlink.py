# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The mode of a NIC's embedded switch, read and set with devlink (linux/devlink.h)."""

from __future__ import annotations

import errno

from .system import HostError, System

_ESWITCH_GET, _ESWITCH_SET = 29, 30
MODES = ("legacy", "switchdev")


def eswitch_mode(system: System, address: str) -> str | None:
    """The mode of the PF at a PCI address, `legacy` or `switchdev`; None if its driver has no modes. Raises
    HostError."""
    try:
        socket = system.socket("devlink")
        from . import messages

        replies = system.read(
            f"read the switch mode of {address}",
            lambda: messages.generic(socket, _ESWITCH_GET, messages.Devlink, _device_attributes(address)),
        )
    except HostError as error:
        if error.code in (errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV):  # the driver has no modes, or no devlink
            return None
        raise
    mode = replies[0].get_attr("DEVLINK_ATTR_ESWITCH_MODE") if replies else None
    return MODES[mode] if mode is not None and mode < len(MODES) else None


def set_eswitch_mode(system: System, address: str, mode: str, step: str, fix: str) -> None:
    """Set the switch mode of the PF at a PCI address. Raises HostError."""
    socket = system.socket("devlink")
    from . import messages

    attributes = [*_device_attributes(address), ("DEVLINK_ATTR_ESWITCH_MODE", MODES.index(mode))]
    message = (_ESWITCH_SET, messages.Devlink, attributes)
    system.request_change(step, lambda: messages.generic(socket, *message, change=True), fix)


def _device_attributes(address: str) -> list[tuple[str, str]]:
    return [("DEVLINK_ATTR_BUS_NAME", "pci"), ("DEVLINK_ATTR_DEV_NAME", address)]
