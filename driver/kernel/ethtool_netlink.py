# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All settings of the netlink family "ethtool". Each is read with a GET command and restored with the SET command that
takes the same attributes. Numbers are those of linux/ethtool_netlink.h.

Features and private flags are in ethtool.py only: their SET commands need other attributes than their GET commands
return.
"""

from __future__ import annotations

import contextlib
import struct
import typing as t

from . import generic, netlink

_HEADER, _DEV_NAME, _FLAGS = 1, 2, 3
_COMPACT = 1
_ETHTOOL_VERSION = 1

Settings = dict[str, dict[str, str]]


class _Setting(t.NamedTuple):
    """The command numbers of a GET and of the matching SET. `state` are the attributes that are not settings: states,
    statistics, maxima. `accepted` are those that the SET accepts (empty: all that the GET returns)."""

    get: int
    set_command: int
    state: frozenset[int] = frozenset()
    accepted: frozenset[int] = frozenset()


def _setting(get: int, set_command: int, state: t.Iterable[int] = (), accepted: t.Iterable[int] = ()) -> _Setting:
    return _Setting(get, set_command, frozenset(state), frozenset(accepted))


#: In the order in which they are restored: the number of channels affects the settings after it.
_SETTINGS = {
    "linkmodes": _setting(4, 5, state=(4, 5, 6, 8, 9, 10), accepted=(2, 3)),
    "debug": _setting(7, 8),
    "wake on LAN": _setting(9, 10, accepted=(2, 3)),
    "channels": _setting(17, 18, accepted=(6, 7, 8, 9)),
    "rings": _setting(15, 16, accepted=(6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17)),
    "coalesce": _setting(19, 20),
    "pause": _setting(21, 22, state=(5, 6)),
    "energy efficient": _setting(23, 24, state=(3, 4)),
    "time stamping": _setting(46, 47),
    "error correction": _setting(29, 30, state=(4, 5)),
    "module": _setting(34, 35, state=(3,)),
    "receive side scaling": _setting(38, 48, accepted=(2, 3, 4, 5, 6)),
    "collision avoidance": _setting(39, 40, state=(9,)),
    "frame preemption": _setting(42, 43, state=(3, 5, 7, 8, 9, 11, 12)),
}


class EthtoolNetlink(generic.Family):
    """The settings of links in one network namespace, as a context manager. Errors are OSError.

    Kernels before Linux 5.6 do not have the family; then there are no settings.
    """

    name = "ethtool"

    def read(self, name: str) -> Settings:
        """The reported attributes of each setting, by number, in hexadecimal."""
        settings: Settings = {}
        for setting, commands in _SETTINGS.items() if self._family else ():
            try:
                replies = self._connection.request(self._family, self._header(commands.get, name))
            except OSError as error:
                if error.errno in generic.UNSUPPORTED:
                    continue
                raise
            reply = netlink.attributes(replies[0][1], generic.HEADER.size) if replies else {}
            values = {
                str(kind): value.hex()
                for kind, value in reply.items()
                if kind != _HEADER
                and kind not in commands.state
                and (not commands.accepted or kind in commands.accepted)
            }
            if values:
                settings[setting] = values
        return settings

    def write(self, name: str, wanted: Settings) -> None:
        """Restore the attributes that differ. A setting that the driver does not accept still differs afterwards; this
        is not an error."""
        now = self.read(name)
        for setting, commands in _SETTINGS.items() if self._family else ():
            values = wanted.get(setting)
            if not values or values == now.get(setting):
                continue
            body = self._header(commands.set_command, name)
            for kind, value in values.items():
                if now.get(setting, {}).get(kind) != value or commands.set_command in _SET_AS_A_WHOLE:
                    body += netlink.attribute(int(kind), bytes.fromhex(value), nested=_is_nest(bytes.fromhex(value)))
            with contextlib.suppress(OSError):
                self._connection.request(self._family, body)

    def _header(self, command: int, name: str) -> bytes:
        flags = netlink.u32(_FLAGS, _COMPACT)
        return generic.HEADER.pack(command, _ETHTOOL_VERSION) + netlink.nest(
            _HEADER, netlink.text(_DEV_NAME, name), flags
        )


#: SET commands that turn off the attributes that a request leaves out.
_SET_AS_A_WHOLE = (10, 24, 30)


def _is_nest(value: bytes) -> bool:
    """Whether an attribute looks nested; nested attributes are sent back with NLA_F_NESTED."""
    if len(value) < 8:
        return False
    offset = 0
    while offset + 4 <= len(value):
        length, kind = struct.unpack_from("=HH", value, offset)
        if length < 4 or offset + length > len(value) or not 0 < kind & 0x3FFF < 64:
            return False
        offset += (length + 3) & ~3
    return offset >= len(value)
