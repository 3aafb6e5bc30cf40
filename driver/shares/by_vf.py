# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares by virtual functions: their rates, which the physical function's driver enforces on what they send.

They are set by devlink where the card's embedded switch is in switchdev mode, and by the physical function's interface
otherwise, never by both. An interface whose driver takes no minimum rate (igb) gets the guarantee as the maximum: then
no share can take another's, and idle capacity is not lent.
"""

from __future__ import annotations

import contextlib
import errno
import typing as t

from ..base.errors import KernelError
from ..dra.config.share_rates import InForce
from ..kernel import vf
from ..kernel.devlink import Devlink, Rates
from ..kernel.links import step
from ..kernel.netlink import Netlink

_MEGA = 10**6


def set_rates(wanted: t.Mapping[str, InForce]) -> None:
    """Set the rates of virtual functions, by their PCI addresses, and read them back. Rates that fall are set before
    others rise. Raises KernelError."""
    functions = {_function(address): force for address, force in wanted.items()}
    set_rates_of(functions)


def set_rates_of(wanted: t.Mapping[vf.Function, InForce]) -> None:
    """As `set_rates`."""
    if not wanted:
        return
    with Netlink() as connection, Devlink() as devlink:
        ways = {one: _way(connection, devlink, one) for one in wanted}
        now: dict[vf.Function, int] = {}
        for one, way in ways.items():
            with step(f"read the rates of {_name(one)}"):
                now[one] = way.guaranteed(one)
        for one in sorted(wanted, key=lambda one: (wanted[one].rate > now[one], one.pf, one.index)):
            with step(f"set the rates of {_name(one)}"):
                ways[one].set(one, _whole(wanted[one].rate), _whole(wanted[one].ceiling))


def clear(address: str) -> None:
    """Remove the rates of a virtual function that the driver has set by devlink: of a share that ends. Those that the
    interface has are restored with its other settings. Raises KernelError."""
    try:
        one = _function(address)
    except KernelError:
        return  # it is gone with its rates
    clear_of(one)


def clear_of(one: vf.Function) -> None:
    """As `clear`."""
    with Devlink() as devlink, step(f"remove the rates of {_name(one)}"), contextlib.suppress(_Gone):
        if devlink.is_switchdev(one):
            _set_by_devlink(devlink, one, Rates(0, 0))


def sent(address: str) -> int | None:
    """The bytes that a virtual function has sent; None if its driver does not count them. Raises KernelError."""
    one = _function(address)
    with Netlink() as connection, step(f"read the counters of {_name(one)}"):
        return vf.sent(connection, one)


class _Gone(Exception):
    """The virtual function has no devlink port: it is gone."""


class _Way(t.Protocol):
    """How the rates of virtual functions are set. Errors are OSError."""

    def guaranteed(self, one: vf.Function) -> int:
        """What it is guaranteed now, in bit/s."""

    def set(self, one: vf.Function, rate: int, ceiling: int) -> None:
        """Set both, in bit/s, and read them back."""


class _ByDevlink:
    def __init__(self, devlink: Devlink) -> None:
        self._devlink = devlink

    def guaranteed(self, one: vf.Function) -> int:
        return self._devlink.read(one).share

    def set(self, one: vf.Function, rate: int, ceiling: int) -> None:
        self._devlink.write(one, Rates(rate, ceiling))


class _ByInterface:
    def __init__(self, connection: Netlink) -> None:
        self._connection = connection

    def guaranteed(self, one: vf.Function) -> int:
        return vf.read(self._connection, one).get("minTxRate", 0) * _MEGA

    def set(self, one: vf.Function, rate: int, ceiling: int) -> None:
        least, most = rate // _MEGA, ceiling // _MEGA
        both = {"minTxRate": least, "maxTxRate": most}
        link = vf.owner(self._connection, one)
        now = vf.parse(link, one.index)
        if _holds(now, both):
            return
        try:
            vf.write_to(self._connection, link.index, one.index, now, both)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            both = {"minTxRate": 0, "maxTxRate": least}
            if _holds(now, both):
                return
            vf.write_to(self._connection, link.index, one.index, now, both)
        now = vf.read(self._connection, one)
        if not _holds(now, both):
            says = ", ".join(f"{name} {now.get(name)}" for name in both)
            raise OSError(errno.EIO, f"it reports {says} in Mbit/s after {least} to {most} were set")


def _way(connection: Netlink, devlink: Devlink, one: vf.Function) -> _Way:
    with step(f"read the switch mode of {one.pf}"):
        return _ByDevlink(devlink) if devlink.is_switchdev(one) else _ByInterface(connection)


def _set_by_devlink(devlink: Devlink, one: vf.Function, wanted: Rates) -> None:
    try:
        devlink.write(one, wanted)
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise _Gone from None
        raise


def _function(address: str) -> vf.Function:
    with step(f"find the virtual function {address}"):
        found = vf.function(address)
        if found is None:
            raise OSError(errno.ENODEV, "it is not a virtual function now")
        return found


def _name(one: vf.Function) -> str:
    return f"the virtual function {one.index} of {one.pf}"


def _whole(rate: int) -> int:
    """A rate in whole Mbit/s, which is what cards take, at least one: 0 would be no limit."""
    return max(1, rate // _MEGA) * _MEGA


def _holds(now: t.Mapping[str, object], wanted: t.Mapping[str, int]) -> bool:
    return all(now.get(name) == rate for name, rate in wanted.items())
