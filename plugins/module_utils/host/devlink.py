# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The mode of the switch in a NIC, as devlink tells and changes it (linux/devlink.h)."""

from __future__ import annotations

import errno
import struct

from . import netlink
from .system import HostError, System

_FAMILY = "devlink"
_BUS, _DEVICE, _MODE = 1, 2, 25
_ESWITCH_GET, _ESWITCH_SET = 29, 30
MODES = ("legacy", "switchdev")


def eswitch_mode(system: System, address: str) -> str | None:
    """C(legacy) or C(switchdev) of the PF at a PCI address; None where there is no choice. Raises HostError."""
    kernel = system.netlink(netlink.GENERIC)
    try:
        answers = system.read(
            f"read the switch mode of {address}", lambda: kernel.generic(_FAMILY, _ESWITCH_GET, _of(address))
        )
    except HostError as error:
        if error.code in (errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV):  # the driver has none, or not devlink
            return None
        raise
    for answer in answers:
        if _MODE in answer and netlink.number(answer[_MODE]) < len(MODES):
            return MODES[netlink.number(answer[_MODE])]
    return None


def set_eswitch_mode(system: System, address: str, mode: str, step: str, fix: str) -> None:
    """Raises HostError."""
    kernel = system.netlink(netlink.GENERIC)
    body = _of(address) + netlink.attribute(_MODE, struct.pack("=H", MODES.index(mode)))
    system.ask(step, lambda: kernel.generic(_FAMILY, _ESWITCH_SET, body), fix)


def _of(address: str) -> bytes:
    return netlink.text(_BUS, "pci") + netlink.text(_DEVICE, address)
