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
from ..kernel import links, vf
from ..kernel.devlink import Devlink, Rates
from ..kernel.links import step
from ..kernel.netlink import Netlink

_MEGA = 10**6


def set_rates(wanted: t.Mapping[str, InForce]) -> dict[str, InForce]:
    """Set the rates of virtual functions, by their PCI addresses, and read them back. Rates that fall are set before
    others rise. Returns what is in force, without functions that are gone with their rates. Raises KernelError."""
    functions = _there(wanted)
    found = set_rates_of({one: wanted[address] for address, one in functions.items()})
    return {address: found[one] for address, one in functions.items()}


def set_rates_of(wanted: t.Mapping[vf.Function, InForce]) -> dict[vf.Function, InForce]:
    """As `set_rates`."""
    found = {}
    with _ways(wanted) as ways:
        now: dict[vf.Function, InForce] = {}
        for one, way in ways.items():
            with step(f"read the rates of {_name(one)}"):
                now[one] = way.read(one)
        for one in sorted(wanted, key=lambda one: (wanted[one].rate > now[one].rate, one.pf, one.index)):
            with step(f"set the rates of {_name(one)}"):
                found[one] = ways[one].set(one, InForce(_whole(wanted[one].rate), _whole(wanted[one].ceiling)))
    return found


def in_force(addresses: t.Iterable[str]) -> dict[str, InForce]:
    """The rates of virtual functions now, by their PCI addresses, without those that are gone. Raises KernelError."""
    functions = _there(addresses)
    found = {}
    with _ways(functions.values()) as ways:
        for address, one in functions.items():
            with step(f"read the rates of {_name(one)}"):
                found[address] = ways[one].read(one)
    return found


def clear(address: str) -> None:
    """Remove the rates that the driver has set by devlink for a virtual function whose share ends. Those that were set
    through the interface are restored with its other settings. Raises KernelError."""
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
    """How the rates of virtual functions are set, in bit/s. Errors are OSError."""

    def read(self, one: vf.Function) -> InForce:
        """What is in force now."""

    def set(self, one: vf.Function, wanted: InForce) -> InForce:
        """Set both rates, read them back, and return what is in force."""


class _ByDevlink:
    def __init__(self, devlink: Devlink) -> None:
        self._devlink = devlink

    def read(self, one: vf.Function) -> InForce:
        return InForce(*self._devlink.read(one))

    def set(self, one: vf.Function, wanted: InForce) -> InForce:
        self._devlink.write(one, Rates(wanted.rate, wanted.ceiling))
        return wanted


class _ByInterface:
    def __init__(self, connection: Netlink) -> None:
        self._connection = connection
        #: The interfaces of physical functions, read once for all their virtual functions.
        self._links: dict[str, links.Link] = {}

    def read(self, one: vf.Function) -> InForce:
        now = self._before(one)
        most = now.get("maxTxRate", 0)
        return InForce((now.get("minTxRate", 0) or most) * _MEGA, most * _MEGA)

    def set(self, one: vf.Function, wanted: InForce) -> InForce:
        least, most = wanted.rate // _MEGA, wanted.ceiling // _MEGA
        now, both = self._before(one), {"minTxRate": least, "maxTxRate": most}
        if _holds(now, both):
            return wanted
        index = self._links[one.pf].index
        try:
            vf.write_to(self._connection, index, one.index, now, both)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            both, wanted = {"minTxRate": 0, "maxTxRate": least}, InForce(wanted.rate, wanted.rate)
            if _holds(now, both):
                return wanted
            vf.write_to(self._connection, index, one.index, now, both)
        now = vf.read(self._connection, one)
        if not _holds(now, both):
            says = ", ".join(f"{name} {now.get(name)}" for name in both)
            raise OSError(errno.EIO, f"it reports {says} in Mbit/s after {least} to {most} were set")
        return wanted

    def _before(self, one: vf.Function) -> vf.VfSettings:
        if one.pf not in self._links:
            self._links[one.pf] = vf.owner(self._connection, one)
        return vf.parse(self._links[one.pf], one.index)


@contextlib.contextmanager
def _ways(functions: t.Iterable[vf.Function]) -> t.Iterator[dict[vf.Function, _Way]]:
    """How the rates of each of these are set."""
    functions = list(functions)
    if not functions:
        yield {}
        return
    with Netlink() as connection, Devlink() as devlink:
        by_interface = _ByInterface(connection)
        of_card: dict[str, _Way] = {}
        for one in functions:
            if one.pf not in of_card:
                with step(f"read the switch mode of {one.pf}"):
                    of_card[one.pf] = _ByDevlink(devlink) if devlink.is_switchdev(one) else by_interface
        yield {one: of_card[one.pf] for one in functions}


def _there(addresses: t.Iterable[str]) -> dict[str, vf.Function]:
    """Those of these PCI addresses that are virtual functions now."""
    found = {address: vf.function(address) for address in addresses}
    return {address: one for address, one in found.items() if one}


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
