# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares through virtual functions (VFs): the VFs' rates, which the NIC enforces.

Rates are set through devlink if the card's embedded switch is in switchdev mode, and otherwise through the interface of
the physical function, never through both. If the driver of that interface does not support a minimum rate (igb), the
guaranteed rate is set as the maximum: then no share can exceed its guarantee, and idle capacity stays unused.
"""

from __future__ import annotations

import contextlib
import errno
import typing as t

from ..base.errors import KernelError
from ..dra.config.share_rates import EffectiveRate
from ..kernel import links, vf
from ..kernel.devlink import Devlink, Rates
from ..kernel.links import step
from ..kernel.netlink import Netlink

_MEGA = 10**6


def set_rates(wanted: t.Mapping[str, EffectiveRate]) -> dict[str, EffectiveRate]:
    """Set the rates of virtual functions, keyed by PCI address, and read them back. Rates that fall are changed before
    those that rise. Returns the rates in force, without functions that do not exist any more. Raises KernelError."""
    functions = _existing_functions(wanted)
    rates = set_rates_of({function: wanted[address] for address, function in functions.items()})
    return {address: rates[function] for address, function in functions.items()}


def set_rates_of(wanted: t.Mapping[vf.Function, EffectiveRate]) -> dict[vf.Function, EffectiveRate]:
    """As `set_rates`, keyed by function instead of address."""
    in_force = {}
    with _rate_setters(wanted) as setters:
        now: dict[vf.Function, EffectiveRate] = {}
        for function, setter in setters.items():
            with step(f"read the rates of {_description(function)}"):
                now[function] = setter.read(function)

        def order(function: vf.Function) -> tuple[bool, str, int]:
            return wanted[function].rate > now[function].rate, function.pf, function.index

        for function in sorted(wanted, key=order):
            with step(f"set the rates of {_description(function)}"):
                rates = wanted[function]
                whole = EffectiveRate(_whole_mbits(rates.rate), _whole_mbits(rates.ceiling))
                in_force[function] = setters[function].set(function, whole)
    return in_force


def current_rates(addresses: t.Iterable[str]) -> dict[str, EffectiveRate]:
    """The current rates of virtual functions, by PCI address, without functions that do not exist. Raises
    KernelError."""
    functions = _existing_functions(addresses)
    rates = {}
    with _rate_setters(functions.values()) as setters:
        for address, function in functions.items():
            with step(f"read the rates of {_description(function)}"):
                rates[address] = setters[function].read(function)
    return rates


def clear(address: str) -> None:
    """Remove the rates that the driver has set through devlink for a virtual function whose share ends. Rates that were
    set through the interface are restored with the other settings of the VF. Raises KernelError."""
    try:
        function = _function(address)
    except KernelError:
        return  # the function does not exist any more, nor do its rates
    clear_of(function)


def clear_of(function: vf.Function) -> None:
    """As `clear`, for a function instead of an address."""
    with Devlink() as devlink, step(f"remove the rates of {_description(function)}"), contextlib.suppress(_NoPort):
        if devlink.is_switchdev(function):
            _set_by_devlink(devlink, function, Rates(0, 0))


def sent(address: str) -> int | None:
    """The bytes that a virtual function has sent; None if its driver does not count them. Raises KernelError."""
    function = _function(address)
    with Netlink() as connection, step(f"read the counters of {_description(function)}"):
        return vf.sent(connection, function)


class _NoPort(Exception):
    """The virtual function has no devlink port, so it does not exist any more."""


class _RateSetter(t.Protocol):
    """Reads and sets the rates of virtual functions, in bit/s. Errors are OSError."""

    def read(self, function: vf.Function) -> EffectiveRate:
        """The rates in force."""

    def set(self, function: vf.Function, wanted: EffectiveRate) -> EffectiveRate:
        """Set both rates, read them back, and return the rates in force."""


class _ByDevlink:
    def __init__(self, devlink: Devlink) -> None:
        self._devlink = devlink

    def read(self, function: vf.Function) -> EffectiveRate:
        return EffectiveRate(*self._devlink.read(function))

    def set(self, function: vf.Function, wanted: EffectiveRate) -> EffectiveRate:
        self._devlink.write(function, Rates(wanted.rate, wanted.ceiling))
        return wanted


class _ByInterface:
    def __init__(self, connection: Netlink) -> None:
        self._connection = connection
        #: The interfaces of physical functions, read once for all their virtual functions.
        self._links: dict[str, links.Link] = {}

    def read(self, function: vf.Function) -> EffectiveRate:
        now = self._current(function)
        maximum = now.get("maxTxRate", 0)
        return EffectiveRate((now.get("minTxRate", 0) or maximum) * _MEGA, maximum * _MEGA)

    def set(self, function: vf.Function, wanted: EffectiveRate) -> EffectiveRate:
        min_mbits, max_mbits = wanted.rate // _MEGA, wanted.ceiling // _MEGA
        now, settings = self._current(function), {"minTxRate": min_mbits, "maxTxRate": max_mbits}
        if _are_set(now, settings):
            return wanted
        index = self._links[function.pf].index
        try:
            vf.write_to(self._connection, index, function.index, now, settings)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            # the driver supports no minimum rate
            settings, wanted = {"minTxRate": 0, "maxTxRate": min_mbits}, EffectiveRate(wanted.rate, wanted.rate)
            if _are_set(now, settings):
                return wanted
            vf.write_to(self._connection, index, function.index, now, settings)
        now = vf.read(self._connection, function)
        if not _are_set(now, settings):
            reported = ", ".join(f"{name} {now.get(name)}" for name in settings)
            raise OSError(errno.EIO, f"it reports {reported} in Mbit/s after {min_mbits} to {max_mbits} were set")
        return wanted

    def _current(self, function: vf.Function) -> vf.VfSettings:
        """The settings of the function when its physical function was first read."""
        if function.pf not in self._links:
            self._links[function.pf] = vf.pf_link(self._connection, function)
        return vf.parse(self._links[function.pf], function.index)


@contextlib.contextmanager
def _rate_setters(functions: t.Iterable[vf.Function]) -> t.Iterator[dict[vf.Function, _RateSetter]]:
    """For each function, the object that reads and sets its rates."""
    functions = list(functions)
    if not functions:
        yield {}
        return
    with Netlink() as connection, Devlink() as devlink:
        by_interface = _ByInterface(connection)
        by_pf: dict[str, _RateSetter] = {}
        for function in functions:
            if function.pf not in by_pf:
                with step(f"read the switch mode of {function.pf}"):
                    by_pf[function.pf] = _ByDevlink(devlink) if devlink.is_switchdev(function) else by_interface
        yield {function: by_pf[function.pf] for function in functions}


def _existing_functions(addresses: t.Iterable[str]) -> dict[str, vf.Function]:
    """The virtual functions that exist, by PCI address."""
    functions = {address: vf.function(address) for address in addresses}
    return {address: function for address, function in functions.items() if function}


def _set_by_devlink(devlink: Devlink, function: vf.Function, wanted: Rates) -> None:
    """Raises _NoPort if the function does not exist any more, and OSError."""
    try:
        devlink.write(function, wanted)
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise _NoPort from None
        raise


def _function(address: str) -> vf.Function:
    with step(f"find the virtual function {address}"):
        function = vf.function(address)
        if function is None:
            raise OSError(errno.ENODEV, "there is no such virtual function")
        return function


def _description(function: vf.Function) -> str:
    return f"the virtual function {function.index} of {function.pf}"


def _whole_mbits(rate: int) -> int:
    """A rate rounded down to whole Mbit/s, as cards require; at least one, because 0 would mean no limit."""
    return max(1, rate // _MEGA) * _MEGA


def _are_set(now: t.Mapping[str, object], wanted: t.Mapping[str, int]) -> bool:
    return all(now.get(name) == rate for name, rate in wanted.items())
