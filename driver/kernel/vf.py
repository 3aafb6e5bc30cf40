# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings of a virtual function that its physical function holds. They can be changed only on the node, not in a pod.
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
_RSS_QUERY, _NODE_GUID, _PORT_GUID = 7, 10, 11
_UNKNOWN = 2**32 - 1
_LINK_STATES = ("auto", "enable", "disable")
#: Length of the address field in ifla_vf_mac, which fits the longest address.
_MAC_ROOM = 32
_VLAN_INFO = struct.Struct("=III2s2x")
_8021Q = b"\x81\x00"
#: struct ifla_vf_guid
_GUID = struct.Struct("=I4xQ")
_GUIDS = {"nodeGuid": _NODE_GUID, "portGuid": _PORT_GUID}


@dataclass(frozen=True)
class Function:
    """A virtual function: the PCI address of its physical function, and its number there."""

    pf: str
    index: int


def function(address: str, root: str = PCI) -> Function | None:
    """The virtual function at a PCI address, from sysfs; None if it is not a virtual function."""
    try:
        pf = os.path.basename(os.path.realpath(os.path.join(root, address, "physfn"), strict=True))
        entries = os.listdir(os.path.join(root, pf))
    except OSError:
        return None
    for entry in entries:
        found = re.fullmatch(r"virtfn([0-9]+)", entry)
        if found and os.path.basename(os.path.realpath(os.path.join(root, pf, entry))) == address:
            return Function(pf, int(found.group(1)))
    return None


def owner(connection: Netlink, one: Function) -> links.Link:
    """The physical function's interface, with its virtual functions' settings; OSError if it has none here."""
    for link in links.listed(connection):
        if link.parent == one.pf:
            found = links.get(connection, index=link.index, vfs=True)  # a link list omits VFs
            if found is not None and found.number(links.IFLA_NUM_VF) > one.index:
                return found
    raise OSError(errno.ENODEV, f"the physical function {one.pf} has no interface on the node that manages VFs")


def read(connection: Netlink, one: Function) -> dict[str, t.Any]:
    """The settings by their names in an InterfaceConfig, without those that the driver does not report."""
    return parse(owner(connection, one), one.index)


def parse(link: links.Link, index: int) -> dict[str, t.Any]:
    for kind, info in netlink.pairs(link.raw.get(links.IFLA_VFINFO_LIST, b"")):
        raw = netlink.attributes(info)
        if kind != _INFO or _MAC not in raw or struct.unpack_from("=I", raw[_MAC])[0] != index:
            continue
        width = len(link.raw.get(links.IFLA_ADDRESS, b"")) or 6
        settings: dict[str, t.Any] = {"mac": raw[_MAC][4 : 4 + width].hex(":")}
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
        return settings
    raise OSError(errno.ENODEV, f"the physical function does not report its VF {index}")


def write(connection: Netlink, one: Function, wanted: t.Mapping[str, t.Any]) -> None:
    """Applies the settings that differ. All are tried even if some are refused; then raises OSError with the error
    number of the first refusal and the names of all."""
    link = owner(connection, one)
    write_to(connection, link.index, one.index, parse(link, one.index), wanted)


def write_to(
    connection: Netlink, pf: int, index: int, now: t.Mapping[str, t.Any], wanted: t.Mapping[str, t.Any]
) -> None:
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


def read_all(connection: Netlink, index: int, number: int) -> dict[str, t.Any]:
    """The settings of all virtual functions of a link, by their number as a string. A pod that has the physical
    function can change them."""
    link = links.get(connection, index=index, vfs=True)
    found = {}
    for one in range(number if link is not None else 0):
        try:
            found[str(one)] = parse(t.cast(links.Link, link), one)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
    return found


def write_all(connection: Netlink, index: int, wanted: t.Mapping[str, t.Any]) -> None:
    """Restores the settings of a link's virtual functions. All are tried; then raises OSError that names refusals."""
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
    """Sets the address of a virtual function's interface, and leaves it down. Raises OSError.

    If the physical function has set an address, some drivers (igbvf) refuse any other one, and apply that one only at
    the reset that setting the interface down causes.
    """
    links.set_up(connection, link.index, False)
    address = links.mac_bytes(mac)
    try:
        links.change(connection, link.index, netlink.attribute(links.IFLA_ADDRESS, address))
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES):
            raise
        links.set_up(connection, link.index, True)
        links.set_up(connection, link.index, False)
        now = links.get(connection, index=link.index)
        if now is None or links.mac_bytes(now.mac) != address:
            raise


def messages(index: int, now: t.Mapping[str, t.Any], wanted: t.Mapping[str, t.Any]) -> t.Iterator[tuple[str, bytes]]:  # noqa: C901
    """The attributes that change `now` into `wanted`, each with the name of its setting."""

    def differs(*names: str) -> bool:
        return any(name in wanted and wanted[name] != now.get(name) for name in names)

    def after(name: str) -> int:
        return int(wanted.get(name, now.get(name, 0)))

    # trust before the address: an untrusted function may not change its address
    if differs("trust"):
        yield "trust", netlink.attribute(_TRUST, struct.pack("=II", index, after("trust")))
    if "mac" in wanted and wanted["mac"].lower() != now.get("mac"):
        address = links.mac_bytes(wanted["mac"])
        yield "mac", netlink.attribute(_MAC, struct.pack("=I", index) + address.ljust(_MAC_ROOM, b"\0"))
    if "vlan" in wanted and (differs("vlan", "qos") or wanted.get("vlanProtocol") != now.get("vlanProtocol")):
        # no priority in the wanted settings means none, not the previous one
        qos = wanted.get("qos", 0)
        if wanted.get("vlanProtocol"):
            entry = _VLAN_INFO.pack(index, wanted["vlan"], qos, bytes.fromhex(wanted["vlanProtocol"]))
            yield "vlan", netlink.nest(_VLAN_LIST, netlink.attribute(_INFO, entry))
        else:
            yield "vlan", netlink.attribute(_VLAN, struct.pack("=III", index, wanted["vlan"], qos))
    if differs("minTxRate", "maxTxRate"):
        rates = struct.pack("=III", index, after("minTxRate"), after("maxTxRate"))
        yield "maxTxRate", netlink.attribute(_RATE, rates)
    if differs("spoofchk"):
        yield "spoofchk", netlink.attribute(_SPOOFCHK, struct.pack("=II", index, after("spoofchk")))
    if differs("rssQuery"):
        yield "rssQuery", netlink.attribute(_RSS_QUERY, struct.pack("=II", index, after("rssQuery")))
    for name, kind in _GUIDS.items():
        if differs(name):
            yield name, netlink.attribute(kind, _GUID.pack(index, after(name)))
    if differs("linkState"):
        state = _LINK_STATES.index(wanted["linkState"])
        yield "linkState", netlink.attribute(_LINK_STATE, struct.pack("=II", index, state))
