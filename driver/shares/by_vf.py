# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares by virtual functions: their rates, which the physical function's driver enforces on what they send.

A driver that takes no minimum rate (igb) gets the guarantee as the maximum: then no share can take another's, and idle
capacity is not lent.
"""

from __future__ import annotations

import errno
import typing as t

from ..dra.config.share_rates import InForce
from ..kernel import links, vf
from ..kernel.links import step
from ..kernel.netlink import Netlink

_MEGA = 10**6


def set_rates(wanted: t.Mapping[str, InForce]) -> None:
    """Set the rates of virtual functions, by their PCI addresses, and read them back. Rates that fall are set before
    others rise. Raises KernelError."""
    with Netlink() as connection:
        states = {address: _state(connection, address) for address in wanted}
        for address in sorted(wanted, key=lambda one: (wanted[one].rate > states[one][2] * _MEGA, one)):
            pf, function, _now = states[address]
            with step(f"set the rates of the virtual function {address}"):
                _set(connection, pf, function, wanted[address])


def _state(connection: Netlink, address: str) -> tuple[links.Link, vf.Function, int]:
    """The physical function's interface, the virtual function, and its minimum rate in Mbit/s."""
    with step(f"read the rates of the virtual function {address}"):
        function = vf.function(address)
        if function is None:
            raise OSError(errno.ENODEV, "it is not a virtual function now")
        pf = vf.owner(connection, function)
        return pf, function, vf.parse(pf, function.index).get("minTxRate", 0)


def _set(connection: Netlink, pf: links.Link, function: vf.Function, force: InForce) -> None:
    rate, ceiling = max(1, force.rate // _MEGA), max(1, force.ceiling // _MEGA)
    both = {"minTxRate": rate, "maxTxRate": ceiling}
    now = vf.read(connection, function)
    if _holds(now, both):
        return
    try:
        vf.write_to(connection, pf.index, function.index, now, both)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        both = {"minTxRate": 0, "maxTxRate": rate}
        vf.write_to(connection, pf.index, function.index, now, both)
    now = vf.read(connection, function)
    if not _holds(now, both):
        says = ", ".join(f"{name} {now.get(name)}" for name in both)
        raise OSError(errno.EIO, f"it reports {says} in Mbit/s after {rate} to {ceiling} were set")


def _holds(now: t.Mapping[str, object], wanted: t.Mapping[str, int]) -> bool:
    return all(now.get(name) == rate for name, rate in wanted.items())
