# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A routing table for each rail, so that what a NIC's address sends leaves by that NIC (linux/rtnetlink.h)."""

from __future__ import annotations

import ipaddress
import socket
import struct
import typing as t

from . import netlink
from .links import index
from .node import Node
from .resource import Change, Plan, Refusal, Resource, State
from .system import System

#: family, dst_len, src_len, tos, table, protocol (of a rule: 0), scope (0), type (action), flags
_ROUTE = struct.Struct("=BBBBBBBBI")
_ADDRESS = struct.Struct("=BBBBI")
_NEWADDR, _GETADDR, _NEWROUTE, _DELROUTE, _GETROUTE, _NEWRULE, _DELRULE, _GETRULE = 20, 22, 24, 25, 26, 32, 33, 34
_DST, _OIF, _GATEWAY, _METRIC, _PREFSRC, _MULTIPATH, _TABLE = 1, 4, 5, 6, 7, 9, 15
_RULE_SRC, _RULE_PRIORITY, _RULE_PROTOCOL, _RULE_TABLE = 2, 6, 21, 15
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_TEMPORARY_OR_TENTATIVE = 0x01 | 0x40
_STATIC, _UNICAST, _TO_TABLE, _LINK, _UNIVERSE = 4, 1, 1, 253, 0
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
#: Tables of the kernel's own: compat, default, main, local.
_TAKEN = (0, 252, 253, 254, 255)
_IPV6_METRIC = 1024
#: What a rule or route made here has in a dump, with what the kernel adds (suppress_prefixlength; cache, preference).
_OF_RULES = {_RULE_SRC, _RULE_PRIORITY, _RULE_TABLE, _RULE_PROTOCOL, 14}
_METRICS = 8
_OF_ROUTES = {_DST, _OIF, _GATEWAY, _METRIC, _PREFSRC, _TABLE, _METRICS, 12, 20}

Interface = t.Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]


class RailRoutes(Resource):
    """C(rail_routes) of a NIC: C(table), C(priority) of its rules, C(gateway) if there is one.

    A table is one NIC's own: its routes, and the rules that lead to it, are those wanted and no others.
    """

    name = "rail_routes"

    def wanted(self, node: Node) -> State:
        found: State = {}
        for key, settings in node.settings.items():
            asked = settings.get("rail_routes")
            if asked:
                own = self._addresses(node, key)
                table = f"table {asked['table']}"
                found[key] = {f"{table} rules": _rules(own, asked), f"{table} routes": _routes(own, asked)}
        return found

    def read(self, node: Node, wanted: State) -> State:
        return {
            key: {setting: [one.text for one in self._present(node, key, setting)] for setting in settings}
            for key, settings in wanted.items()
        }

    def _present(self, node: Node, key: str, setting: str) -> list[_Entry]:
        """What the table of a setting (C(table NUMBER rules), C(table NUMBER routes)) has."""
        _unused, table, kind = setting.split()
        if kind == "rules":
            return sorted(one for one in self._all_rules() if one.table == int(table))
        own = index(self.system, node.device(key).interface)
        return sorted(one for one in self._all_routes() if one.table == int(table) and one.out == own)

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        plan = super().plan(node, wanted)
        if wanted is not None:  # what was there before, and no rule's wish
            return plan
        wanted = self.wanted(node)
        entries = [*self._all_rules(), *self._all_routes()] if wanted else []
        tables: dict[int, str] = {}
        for key in wanted:
            asked = node.settings[key]["rail_routes"]
            interface, table = node.device(key).interface, asked["table"]

            def refuse(message: str, fix: str, key: str = key) -> None:
                plan.refusals.append(Refusal(key, "rail_routes", message, fix))

            own = index(self.system, interface)
            strange = [one for one in entries if one.table == table and not (one.plain and one.out in (0, own))]
            addresses = self._addresses(node, key)
            if table in _TAKEN:
                refuse(f"table {table} is the kernel's own", "choose another number, such as 100 and the rail's")
            elif table in tables:
                refuse(f"table {table} is that of {tables[table]} already", "give each NIC a table of its own")
            elif strange:
                fix = "choose a table that nothing else uses"
                refuse(f"table {table} is used for something else: {strange[0].text}", fix)
            tables.setdefault(table, key)
            if not addresses:
                refuse(f"{interface} has no IP address", "give it one first: the routes are made from it")
            elif not self._up(interface):
                refuse(f"{interface} is down, and takes no routes", "bring it up first")
            for gateway in _gateways(asked) if addresses else ():
                if not any(gateway in one.network for one in addresses):
                    refuse(f"the gateway {gateway} is in no network of {interface}", "look at its addresses")
        return plan

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        _unused, number, kind = change.setting.split()
        table, rule, out = int(number), kind == "rules", index(self.system, device.interface)
        kernel = self.system.netlink(netlink.ROUTE)
        present = [one.text for one in self._present(node, change.device, change.setting)]

        def ask(message: int, text: str, verb: str, flags: int = 0) -> None:
            step = f"{verb} the {kind[:-1]} '{text}' of table {table} for {device}"
            body = _rule_body(text, table) if rule else _route_body(text, table, out)
            self.system.ask(step, lambda: kernel.request(message, body, flags))

        # a default route stands on the route to its gateway: it comes after it, and goes before it
        for text in sorted((one for one in present if one not in change.after), key=lambda one: "via" not in one):
            ask(_DELRULE if rule else _DELROUTE, text, "remove")
        for text in sorted((one for one in change.after if one not in present), key=lambda one: "via" in one):
            ask(_NEWRULE if rule else _NEWROUTE, text, "add", netlink.CREATE | netlink.EXCLUSIVE)

    def _up(self, interface: str) -> bool:
        try:
            return bool(int(self.system.text(f"/sys/class/net/{interface}/flags") or "0", 16) & 1)
        except ValueError:
            return False

    def _addresses(self, node: Node, key: str) -> list[Interface]:
        """The addresses that packets are sent from: global ones that stay."""
        own = index(self.system, node.device(key).interface)
        found: list[Interface] = []
        for body in _dumped(self.system, "addresses", _GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0)):
            _family, length, flags, scope, at = _ADDRESS.unpack_from(body)
            told = netlink.attributes(body, _ADDRESS.size)
            flags |= netlink.number(told.get(_IFA_FLAGS, b""))
            raw = told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS)
            if at == own and scope == _UNIVERSE and raw:
                address = ipaddress.ip_interface(f"{ipaddress.ip_address(raw)}/{length}")
                if address.version == 4 or not flags & _TEMPORARY_OR_TENTATIVE:
                    found.append(address)
        return sorted(found, key=lambda one: (one.version, int(one.ip)))

    def _all_rules(self) -> list[_Entry]:
        bodies = _dumped(self.system, "rules", _GETRULE, _ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))
        return [one for one in map(_rule, bodies) if one]

    def _all_routes(self) -> list[_Entry]:
        bodies = _dumped(self.system, "routes", _GETROUTE, _ROUTE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))
        return [one for one in map(_route, bodies) if one]


class _Entry(t.NamedTuple):
    """A rule or a route as text, its table, and the interface that it leads out by.

    C(plain) tells that it has nothing beyond that text, so that it can be made again from it.
    """

    text: str
    table: int
    out: int = 0
    plain: bool = True


def _gateways(settings: t.Mapping[str, t.Any]) -> list[t.Any]:
    given = settings.get("gateway") or []
    return [ipaddress.ip_address(one) for one in ([given] if isinstance(given, str) else given)]


def _rules(own: t.Sequence[Interface], settings: t.Mapping[str, t.Any]) -> list[str]:
    priority = settings.get("priority", 1000)
    return sorted(f"from {one.ip}/{one.max_prefixlen} priority {priority}" for one in own)


def _routes(own: t.Sequence[Interface], settings: t.Mapping[str, t.Any]) -> list[str]:
    found: dict[t.Any, str] = {}
    for one in own:
        metric = f" metric {_IPV6_METRIC}" if one.version == 6 else ""
        found.setdefault(one.network, f"{one.network} src {one.ip}{metric}")
        for gateway in _gateways(settings):
            if gateway in one.network:
                found.setdefault(gateway, f"default via {gateway} src {one.ip}{metric}")
    return sorted(found.values())


def _words(text: str) -> dict[str, str]:
    words = text.split()
    start = 0 if words[0] == "from" else 1
    found = dict(zip(words[start::2], words[start + 1 :: 2]))
    if start:
        found["to"] = words[0]
    return found


def _rule_body(text: str, table: int) -> bytes:
    words = _words(text)
    source = ipaddress.ip_network(words["from"])
    family = _FAMILIES[source.version]
    return (
        _ROUTE.pack(family, 0, source.prefixlen, 0, table if table < 256 else 0, 0, 0, _TO_TABLE, 0)
        + netlink.attribute(_RULE_SRC, source.network_address.packed)
        + netlink.attribute(_RULE_PRIORITY, struct.pack("=I", int(words["priority"])))
        + netlink.attribute(_RULE_TABLE, struct.pack("=I", table))
        + netlink.attribute(_RULE_PROTOCOL, struct.pack("=B", _STATIC))
    )


def _route_body(text: str, table: int, out: int) -> bytes:
    words = _words(text)
    message = netlink.attribute(_OIF, struct.pack("=I", out)) + netlink.attribute(_TABLE, struct.pack("=I", table))
    length, scope = 0, _UNIVERSE
    if words["to"] != "default":
        target = ipaddress.ip_network(words["to"])
        length, scope = target.prefixlen, _LINK if target.version == 4 else _UNIVERSE
        message += netlink.attribute(_DST, target.network_address.packed)
    if "via" in words:
        scope = _UNIVERSE
        message += netlink.attribute(_GATEWAY, ipaddress.ip_address(words["via"]).packed)
    if "metric" in words:
        message += netlink.attribute(_METRIC, struct.pack("=I", int(words["metric"])))
    source = ipaddress.ip_address(words["src"])
    message += netlink.attribute(_PREFSRC, source.packed)
    family = _FAMILIES[source.version]
    small = table if table < 256 else 0
    return _ROUTE.pack(family, length, 0, 0, small, _STATIC, scope, _UNICAST, 0) + message


def _rule(body: bytes) -> _Entry | None:
    family, to_length, length, tos, small, _res1, _res2, action, _flags = _ROUTE.unpack_from(body)
    if family not in _FAMILIES.values():
        return None
    told = netlink.attributes(body, _ROUTE.size)
    table = netlink.number(told.get(_RULE_TABLE, bytes((small,))))
    zeros = bytes(4 if family == socket.AF_INET else 16)
    source = ipaddress.ip_network((told.get(_RULE_SRC, zeros), length), strict=False)
    text = f"from {source} priority {netlink.number(told.get(_RULE_PRIORITY, b''))}"
    plain = length == source.max_prefixlen and not (to_length or tos or set(told) - _OF_RULES)
    return _Entry(text, table, 0, plain) if action == _TO_TABLE else None


def _route(body: bytes) -> _Entry | None:
    family, length, _src, tos, small, _protocol, _scope, kind, _flags = _ROUTE.unpack_from(body)
    if family not in _FAMILIES.values():
        return None
    told = netlink.attributes(body, _ROUTE.size)
    zeros = bytes(4 if family == socket.AF_INET else 16)
    text = str(ipaddress.ip_network((told.get(_DST, zeros), length), strict=False)) if length else "default"
    if _GATEWAY in told:
        text += f" via {ipaddress.ip_address(told[_GATEWAY])}"
    if _PREFSRC in told:
        text += f" src {ipaddress.ip_address(told[_PREFSRC])}"
    if _METRIC in told and netlink.number(told[_METRIC]):
        text += f" metric {netlink.number(told[_METRIC])}"
    out = 0 if _MULTIPATH in told else netlink.number(told.get(_OIF, b""))
    plain = kind == _UNICAST and _PREFSRC in told and not (tos or told.get(_METRICS) or set(told) - _OF_ROUTES)
    return _Entry(text, netlink.number(told.get(_TABLE, bytes((small,)))), out, plain)


def _dumped(system: System, what: str, kind: int, body: bytes) -> list[bytes]:
    kernel = system.netlink(netlink.ROUTE)
    return system.read(f"list the {what}", lambda: kernel.dump(kind, body))
