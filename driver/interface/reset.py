# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resetting a PCI function by unbinding it from its driver and binding it again. The driver creates a new interface,
and the kernel deletes all upper interfaces of the old one in every namespace."""

from __future__ import annotations

import os

from ..base.errors import KernelError
from ..kernel import vf
from .identity import PCI

#: The values of the setting `reset`.
NEVER, WHEN_CHANGED, ALWAYS = "never", "when_changed", "always"
_NETWORK_CLASSES = ("0x02",)


def problem(address: str | None) -> str:
    """Why a function cannot be reset, as a short text; empty if it can."""
    if address is None:
        return "it is not a PCI function"
    if not _read(f"{PCI}/{address}/class").startswith(_NETWORK_CLASSES):
        return "it is not a network function"
    if not os.path.exists(f"{PCI}/{address}/driver"):
        return "it is not bound to a driver"
    if vf.count(address):
        return "a reset would remove its virtual functions"
    return ""


def rebind(address: str) -> None:
    """Unbind a function from its driver and bind it again. Raises KernelError. If binding fails, the function has no
    driver, and the error message says so."""
    driver = os.path.realpath(f"{PCI}/{address}/driver")
    _write(f"{driver}/unbind", address, f"unbind the PCI function {address} from its driver")
    action = f"bind the PCI function {address}, which has no driver now, to {os.path.basename(driver)}"
    _write(f"{driver}/bind", address, action)


def _write(path: str, text: str, action: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KernelError(action, error.errno or 0) from error


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
