# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which interfaces the node is reached by."""

from __future__ import annotations

import os
import typing as t

from .system import System

#: The kind of an interface that Open vSwitch has made: a bridge's own, an internal port, and that of the whole switch.
_SWITCH = "openvswitch"


def ssh_connection() -> str:
    """The value of SSH_CONNECTION of the session that this process is in; empty where it is in none.

    sudo takes it out of the environment, so that of the processes above this one is looked at too.
    """
    name = b"SSH_CONNECTION="
    process = "self"
    for _unused in range(32):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                found = [one for one in file.read().split(b"\0") if one.startswith(name)]
            if found:
                return found[0][len(name) :].decode(errors="replace")
            with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
                process = next(line.split()[1] for line in file if line.startswith("PPid:"))
        except (OSError, StopIteration):
            break
        if process == "0":
            break
    return os.environ.get("SSH_CONNECTION", "")


def management_interfaces(system: System, connection: str = "") -> dict[str, str]:
    """Interfaces by name, and why the node must not lose them.

    They carry a default route in any table, or have the node's own address of the SSH C(connection) (the value of
    SSH_CONNECTION: far address, port, own address, port); so does all that these stand on: the ports of a bond or
    bridge, the parent of a VLAN, the PF of a VF. Of Open vSwitch those are the ports of all its bridges, as rtnetlink
    does not tell which bridge a port is of. Raises HostError.
    """
    own = connection.split()[2] if len(connection.split()) == 4 else ""
    rtnl = system.socket("IPRoute")
    links = {one["index"]: one for one in system.dump("list the interfaces", rtnl.get_links)}
    routes = system.dump("list the routes", rtnl.get_routes)
    addresses = system.dump("list the addresses", rtnl.get_addr)
    found: dict[int, str] = {}
    for address in addresses:
        if own and own.partition("%")[0] in (address.get_attr("IFA_LOCAL"), address.get_attr("IFA_ADDRESS")):
            found[address["index"]] = "it carries this SSH connection"
    for route in routes:
        if route["dst_len"] or route["type"] != 1 or route.get_attr("RTA_TABLE") == 255:  # unicast; local table
            continue
        hops = route.get_attr("RTA_MULTIPATH") or []
        for index in (route.get_attr("RTA_OIF"), *(hop["oif"] for hop in hops)):
            if index:
                found.setdefault(index, "it carries the default route")
    return below(links, found, lambda name: _physical(system, name))


def below(
    links: t.Mapping[int, t.Any], found: t.Mapping[int, str], physical: t.Callable[[str], t.Collection[str]]
) -> dict[str, str]:
    """The interfaces C(found) (by index: why) and all that they stand on, by name: why the node must not lose them.

    C(links) are rtnetlink's messages by index; C(physical) tells the interfaces of the PF of a VF's interface.
    """
    # the kernel gives every port of Open vSwitch to the switch's own interface, whichever bridge it is a port of
    switches = {index for index, link in links.items() if _kind(link) == _SWITCH}
    pending = list(found.items())
    names: dict[str, str] = {}
    while pending:
        index, reason = pending.pop()
        link = links.get(index)
        if link is None or link.get_attr("IFLA_IFNAME") in names or link.get_attr("IFLA_IFNAME") == "lo":
            continue
        name = link.get_attr("IFLA_IFNAME")
        names[name] = reason
        why = reason if reason.startswith("it is below") else f"it is below {name}: {reason}"
        masters = switches if index in switches else {index}
        lower = [other for other, one in links.items() if one.get_attr("IFLA_MASTER") in masters]
        parent = link.get_attr("IFLA_LINK")
        if _kind(link) == "veth":  # its other end, which it does not stand on
            parent = None
        if parent and link.get_attr("IFLA_LINK_NETNSID") is None:
            lower.append(parent)
        lower += [other for other, one in links.items() if one.get_attr("IFLA_IFNAME") in physical(name)]
        pending += [(other, why) for other in lower]
    return names


def _kind(link: t.Any) -> str | None:
    attributes = (link.get_attr("IFLA_LINKINFO") or {}).get("attrs") or ()
    return t.cast("str | None", dict(attributes).get("IFLA_INFO_KIND"))


def _physical(system: System, name: str) -> t.Sequence[str]:
    """The interfaces of the PF of a VF's interface."""
    return system.names(f"/sys/class/net/{name}/device/physfn/net")
