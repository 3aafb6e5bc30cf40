# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings of a virtual function (VF) that its physical function (PF) stores. They can be changed only on the node.
Numbers are those of linux/if_link.h.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import typing as t
from dataclasses import dataclass

from . import links, netlink
from .netlink import Netlink

PCI = "/sys/bus/pci/devices"
_INFO = 1
_MAC, _VLAN, _SPOOFCHK, _LINK_STATE, _RATE, _TRUST, _VLAN_LIST = 1, 2, 4, 5, 6, 9, 12
_RSS_QUERY, _STATS, _NODE_GUID, _PORT_GUID = 7, 8, 10, 11
_TX_BYTES = 3
_UNKNOWN = 2**32 - 1
_LINK_STATES = ("auto", "enable", "disable")
#: Length of the address field in ifla_vf_mac, in bytes.
_MAC_FIELD_BYTES = 32
_VLAN_INFO = struct.Struct("=III2s2x")
_8021Q = b"\x81\x00"
#: struct ifla_vf_guid
_GUID = struct.Struct("=I4xQ")
_GUIDS = {"nodeGuid": _NODE_GUID, "portGuid": _PORT_GUID}


class VfSettings(t.TypedDict, total=False):
    """Settings of a virtual function, under the names that an InterfaceConfig uses, without those that the driver does
    not report. Rates are in Mbit/s, and `vlanProtocol` is hexadecimal."""

    mac: str
    vlan: int
    qos: int
    vlanProtocol: str
    minTxRate: int
    maxTxRate: int
    spoofchk: bool
    trust: bool
    rssQuery: bool
    nodeGuid: int
    portGuid: int
    linkState: str


#: Any settings by name, such as `vf` of an InterfaceConfig.
_SettingsByName = t.Mapping[str, object]


@dataclass(frozen=True)
class Function:
    """A virtual function: the device of its physical function (`pf`, a PCI address if the bus is `pci`), the number of
    the virtual function on that device, and the device's bus."""

    pf: str
    index: int
    bus: str = "pci"


def function(address: str, root: str = PCI) -> Function | None:
    """The virtual function at a PCI address, from sysfs; None if it is not a virtual function."""
    try:
        pf = os.path.basename(os.path.realpath(os.path.join(root, address, "physfn"), strict=True))
        entries = os.listdir(os.path.join(root, pf))
    except OSError:
        return None
    for entry in entries:
        match = re.fullmatch(r"virtfn([0-9]+)", entry)
        if match and os.path.basename(os.path.realpath(os.path.join(root, pf, entry))) == address:
            return Function(pf, int(match.group(1)))
    return None


def pf_link(connection: Netlink, function: Function) -> links.Link:
    """The interface of the physical function, with the settings of the virtual functions. Raises OSError (ENODEV) if
    the node has no such interface."""
    for link in links.listed(connection):
        if link.parent == function.pf:
            with_vfs = links.get(connection, index=link.index, vfs=True)  # the list of all links omits VFs
            if with_vfs is not None and with_vfs.number(links.IFLA_NUM_VF) > function.index:
                return with_vfs
    raise OSError(errno.ENODEV, f"the physical function {function.pf} has no interface on the node that manages VFs")


def read(connection: Netlink, function: Function) -> VfSettings:
    """The current settings of a virtual function. Raises OSError (ENODEV) if no interface on the node manages them."""
    return parse(pf_link(connection, function), function.index)


def parse(link: links.Link, index: int) -> VfSettings:
    """The settings of the virtual function `index`, from a link that was read with `vfs`. Raises OSError (ENODEV)."""
    for raw in _infos(link, index):
        width = len(link.raw.get(links.IFLA_ADDRESS, b"")) or 6
        settings: dict[str, str | int] = {"mac": raw[_MAC][4 : 4 + width].hex(":")}
        if _VLAN in raw:
            _unused, settings["vlan"], settings["qos"] = struct.unpack_from("=III", raw[_VLAN])
        for _unused, entry in netlink.pairs(raw.get(_VLAN_LIST, b"")):
            _unused, settings["vlan"], settings["qos"], protocol = _VLAN_INFO.unpack_from(entry)
            if protocol not in (_8021Q, b"\0\0"):
                settings["vlanProtocol"] = protocol.hex()
        if _RATE in raw:
            _unused, settings["minTxRate"], settings["maxTxRate"] = struct.unpack_from("=III", raw[_RATE])
        for key, name in ((_SPOOFCHK, "spoofchk"), (_TRUST, "trust"), (_RSS_QUERY, "rssQuery")):
            value = struct.unpack_from("=II", raw[key])[1] if key in raw else _UNKNOWN
            if value != _UNKNOWN:
                settings[name] = bool(value)
        for name, key in _GUIDS.items():
            if len(raw.get(key, b"")) >= _GUID.size:
                settings[name] = _GUID.unpack_from(raw[key])[1]
        state = struct.unpack_from("=II", raw[_LINK_STATE])[1] if _LINK_STATE in raw else _UNKNOWN
        if state < len(_LINK_STATES):
            settings["linkState"] = _LINK_STATES[state]
        return t.cast("VfSettings", settings)
    raise OSError(errno.ENODEV, f"the physical function does not report its VF {index}")


def sent(connection: Netlink, function: Function) -> int | None:
    """The number of bytes that a virtual function has sent; None if the driver does not count, because the kernel then
    reports 0 for all counters. Raises OSError."""
    link = pf_link(connection, function)
    for info in _infos(links.get(connection, index=link.index, vfs=True, statistics=True), function.index):
        counters = {kind: netlink.number(value) for kind, value in netlink.pairs(info.get(_STATS, b""))}
        return counters.get(_TX_BYTES) if any(counters.values()) else None
    return None


def _infos(link: links.Link | None, index: int) -> t.Iterator[netlink.Attributes]:
    """The attributes of the virtual function `index`, from a link that was read with `vfs`."""
    for kind, info in netlink.pairs(link.raw.get(links.IFLA_VFINFO_LIST, b"") if link else b""):
        raw = netlink.attributes(info)
        if kind == _INFO and _MAC in raw and struct.unpack_from("=I", raw[_MAC])[0] == index:
            yield raw


def write(connection: Netlink, function: Function, wanted: _SettingsByName) -> None:
    """Apply the settings that differ. All are tried even if some are refused; then raises OSError with the error number
    of the first refusal and the names of all refused settings."""
    link = pf_link(connection, function)
    write_to(connection, link.index, function.index, parse(link, function.index), wanted)


def write_to(connection: Netlink, pf: int, index: int, now: _SettingsByName, wanted: _SettingsByName) -> None:
    """As :func:`write`, for the virtual function `index` of the link `pf`, whose current settings are `now`."""
    refused: list[tuple[str, int]] = []
    for name, message in messages(index, now, wanted):
        try:
            links.change(connection, pf, netlink.nest(links.IFLA_VFINFO_LIST, netlink.nest(_INFO, message)))
        except OSError as error:
            refused.append((name, error.errno or 0))
    if refused:
        raise OSError(refused[0][1], ", ".join(f"vf.{name}: {os.strerror(code)}" for name, code in refused))


def count(address: str) -> int:
    """The current number of virtual functions of a PCI function."""
    try:
        with open(f"{PCI}/{address}/sriov_numvfs", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def read_all(connection: Netlink, index: int, number: int) -> dict[str, VfSettings]:
    """The settings of all virtual functions of a link, by number as a string. A pod that has the physical function can
    change these settings. Raises OSError."""
    link = links.get(connection, index=index, vfs=True)
    settings: dict[str, VfSettings] = {}
    if link is None:
        return settings
    for vf_index in range(number):
        try:
            settings[str(vf_index)] = parse(link, vf_index)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
    return settings


def write_all(connection: Netlink, index: int, wanted: t.Mapping[str, VfSettings]) -> None:
    """Restore the settings of a link's virtual functions. All are tried; then raises OSError with the refused ones."""
    now = read_all(connection, index, 1 + max(map(int, wanted), default=-1))
    refused = []
    for number, settings in wanted.items():
        try:
            write_to(connection, index, int(number), now.get(number, {}), settings)
        except OSError as error:
            refused.append((error.errno, f"VF {number}: {error.args[1]}"))
    if refused:
        raise OSError(refused[0][0], "; ".join(text for _code, text in refused))


def set_mac(connection: Netlink, link: links.Link, mac: str) -> None:
    """Set the address of a virtual function's interface, and leave it down. Raises OSError.

    If the physical function has set an address, some drivers (igbvf) refuse any other address. They apply the set one
    only at the reset that happens when the interface goes down.
    """
    links.set_link_state(connection, link.index, up=False)
    address = links.mac_bytes(mac)
    try:
        links.change(connection, link.index, netlink.attribute(links.IFLA_ADDRESS, address))
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES):
            raise
        links.set_link_state(connection, link.index, up=True)
        links.set_link_state(connection, link.index, up=False)
        now = links.get(connection, index=link.index)
        if now is None or links.mac_bytes(now.mac) != address:
            raise


def messages(index: int, now: _SettingsByName, wanted: _SettingsByName) -> t.Iterator[tuple[str, bytes]]:
    """The attributes that change the settings `now` into `wanted`, each with the name of its setting."""
    for name, build in _MESSAGES:
        attribute = build(index, now, wanted)
        if attribute:
            yield name, attribute


def _differs(name: str, now: _SettingsByName, wanted: _SettingsByName) -> bool:
    return name in wanted and wanted[name] != now.get(name)


def _number(name: str, now: _SettingsByName, wanted: _SettingsByName) -> int:
    """The number that a setting has after the change."""
    return int(t.cast("int", wanted.get(name, now.get(name, 0))))


_Builder = t.Callable[[int, _SettingsByName, _SettingsByName], bytes]


def _number_attribute(name: str, kind: int, layout: struct.Struct) -> _Builder:
    """A builder for the attribute of a setting that consists of the function's index and a number."""

    def build(index: int, now: _SettingsByName, wanted: _SettingsByName) -> bytes:
        if not _differs(name, now, wanted):
            return b""
        return netlink.attribute(kind, layout.pack(index, _number(name, now, wanted)))

    return build


def _mac(index: int, now: _SettingsByName, wanted: _SettingsByName) -> bytes:
    mac = str(wanted.get("mac", now.get("mac"))).lower()
    if "mac" not in wanted or mac == now.get("mac"):
        return b""
    return netlink.attribute(_MAC, struct.pack("=I", index) + links.mac_bytes(mac).ljust(_MAC_FIELD_BYTES, b"\0"))


def _vlan(index: int, now: _SettingsByName, wanted: _SettingsByName) -> bytes:
    if "vlan" not in wanted:
        return b""
    protocol = wanted.get("vlanProtocol")
    if not any(_differs(name, now, wanted) for name in ("vlan", "qos")) and protocol == now.get("vlanProtocol"):
        return b""
    number = _number("vlan", now, wanted)
    qos = _number("qos", {}, wanted)  # no priority in the wanted settings means none, not the previous one
    if not protocol:
        return netlink.attribute(_VLAN, struct.pack("=III", index, number, qos))
    entry = _VLAN_INFO.pack(index, number, qos, bytes.fromhex(str(protocol)))
    return netlink.nest(_VLAN_LIST, netlink.attribute(_INFO, entry))


def _rates(index: int, now: _SettingsByName, wanted: _SettingsByName) -> bytes:
    names = ("minTxRate", "maxTxRate")
    if not any(_differs(name, now, wanted) for name in names):
        return b""
    return netlink.attribute(_RATE, struct.pack("=III", index, *(_number(name, now, wanted) for name in names)))


def _link_state(index: int, now: _SettingsByName, wanted: _SettingsByName) -> bytes:
    if not _differs("linkState", now, wanted):
        return b""
    state = _LINK_STATES.index(str(wanted["linkState"]))
    return netlink.attribute(_LINK_STATE, struct.pack("=II", index, state))


_PAIR = struct.Struct("=II")
#: In the order of the requests. Trust comes before the address, because an untrusted function must not change its
#: address.
_MESSAGES: tuple[tuple[str, _Builder], ...] = (
    ("trust", _number_attribute("trust", _TRUST, _PAIR)),
    ("mac", _mac),
    ("vlan", _vlan),
    ("maxTxRate", _rates),
    ("spoofchk", _number_attribute("spoofchk", _SPOOFCHK, _PAIR)),
    ("rssQuery", _number_attribute("rssQuery", _RSS_QUERY, _PAIR)),
    *((name, _number_attribute(name, kind, _GUID)) for name, kind in _GUIDS.items()),
    ("linkState", _link_state),
)
