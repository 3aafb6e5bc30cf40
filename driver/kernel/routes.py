# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Routes and policy rules, stored as JSON in the host state. Numbers are those of linux/rtnetlink.h and
linux/fib_rules.h.

They are restored exactly: `raw` contains the attributes that have no name in this module, in hexadecimal, by number.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import typing as t

from ..base.objects import Object, ObjectView
from . import links, netlink
from .addresses import family as family_of
from .addresses import ip_bytes, ip_text
from .netlink import Netlink

RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_GETRULE = 32, 34
_DST, _SRC, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH = 1, 2, 4, 5, 6, 7, 8, 9
_CACHEINFO, _TABLE, _VIA, _PREF, _ENCAP_TYPE, _ENCAP, _EXPIRES, _NH_ID = 12, 15, 18, 20, 21, 22, 23, 30
_RTAX_MTU = 2
#: Attributes that report a route's state, not its configuration.
_STATES = {_CACHEINFO, 16, 17, 24, 25}
RTN_UNICAST, RTPROT_KERNEL, RTPROT_STATIC, RTPROT_RA, RTPROT_REDIRECT = 1, 2, 4, 9, 1
TABLE_DEFAULT, TABLE_MAIN, TABLE_LOCAL = 253, 254, 255
SCOPE_UNIVERSE, SCOPE_LINK = 0, 253
_ONLINK, _PERVASIVE = 4, 2
_CLONED = 0x200
_RT = struct.Struct("=BBBBBBBBI")
_NEXTHOP = struct.Struct("=HBBi")

_R_DST, _R_SRC, _R_IIF, _R_GOTO, _R_PRIORITY, _R_FWMARK = 1, 2, 3, 4, 6, 10
_R_TABLE, _R_FWMASK, _R_OIF, _R_PROTOCOL, _R_IP_PROTO, _R_SPORT, _R_DPORT = 15, 16, 17, 21, 22, 23, 24
#: FRA_SUPPRESS_PREFIXLEN and FRA_SUPPRESS_IFGROUP: the kernel reports "none" as 0xffffffff.
_R_SUPPRESS = (13, 14)
#: FRA_FLOW of IPv4: the kernel reports "none" as 0.
_R_FLOW = 11
_RULE_INVERT = 2
#: The attributes of a rule by type, for reading and writing: strings, 32-bit and 8-bit numbers, ranges.
_RULE_TEXTS = ((_R_IIF, "iif"), (_R_OIF, "oif"))
_RULE_NUMBERS = ((_R_FWMARK, "fwmark"), (_R_FWMASK, "fwmask"), (_R_GOTO, "goto"))
_RULE_BYTES = ((_R_PROTOCOL, "protocol"), (_R_IP_PROTO, "ipproto"))
_RULE_RANGES = ((_R_SPORT, "sourcePorts"), (_R_DPORT, "destinationPorts"))
ACTION_TABLE = 1
_RANGE = struct.Struct("=HH")

_IP = {4: socket.AF_INET, 6: socket.AF_INET6}
_VERSION = {socket.AF_INET: 4, socket.AF_INET6: 6}
_IPPROTO = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "sctp": 132}


class Target(t.TypedDict, total=False):
    """Where a route or one of its next hops leads. `device` is a name; an empty name is the interface for which the
    route was read. `via` is the IPv6 gateway of an IPv4 route."""

    device: str
    gateway: str
    via: str
    encapsulation: dict[str, str]


class Hop(Target, total=False):
    """A next hop of a multipath route."""

    weight: int
    onlink: bool


class _Route(t.TypedDict):
    family: int
    destination: str
    scope: int


_RouteFrom = t.TypedDict("_RouteFrom", {"from": str}, total=False)


# pylint takes the TypedDict with the key `from`, a keyword of Python, for a value
class Route(_Route, _RouteFrom, Target, total=False):  # pylint: disable=inherit-non-class
    """A route: `family` is 4 or 6, `destination` and `from` are networks, numbers are the kernel's. `mtu` is only in
    routes of an InterfaceConfig."""

    table: int
    type: int
    protocol: int
    tos: int
    onlink: bool
    source: str
    metric: int
    expires: bool
    hops: list[Hop]
    raw: dict[str, str]
    mtu: int


class _Rule(t.TypedDict):
    family: int
    action: int


class Rule(_Rule, total=False):
    """A policy rule: `family` is 4 or 6, `source` and `destination` are networks, numbers are the kernel's."""

    priority: int
    table: int
    protocol: int
    source: str
    destination: str
    tos: int
    invert: bool
    iif: str
    oif: str
    fwmark: int
    fwmask: int
    goto: int
    ipproto: int
    sourcePorts: list[int]
    destinationPorts: list[int]
    raw: dict[str, str]


def listed(connection: Netlink, index: int, sources: t.Collection[str] = ()) -> list[Route]:
    """The routes of all tables that go through an interface or have one of `sources` as their source address: the
    kernel drops these when the interface leaves. Raises OSError."""
    names = _Names(connection)
    result = []
    packed = {ip_bytes(source) for source in sources}
    needles = [struct.pack("=I", index), *packed]
    for kind in (socket.AF_INET, socket.AF_INET6):
        # a quick pre-filter: a node may have very many routes
        for body in _dumped(connection, kind, lambda message: any(needle in message for needle in needles)):
            raw = netlink.attributes(body, _RT.size)
            uses_link = _OIF in raw and netlink.number(raw[_OIF]) == index
            uses_link = uses_link or any(hop[2] == index for hop in _hops(raw.get(_MULTIPATH, b"")))
            if uses_link or raw.get(_PREFSRC) in packed:
                result.append(_route(body, raw, index, names))
    return result


def _dumped(connection: Netlink, kind: int, keep: t.Callable[[bytes], bool]) -> t.Iterator[bytes]:
    """The messages of a family's routes for which `keep` returns True, without routes that the kernel cloned from
    others."""
    for _unused, body in connection.dump(RTM_GETROUTE, _RT.pack(kind, 0, 0, 0, 0, 0, 0, 0, 0), keep, optional=True):
        family, *_rest, flags = _RT.unpack_from(body)
        if family == kind and not flags & _CLONED:
            yield body


class _Names:
    """Cached interface names by index, and indexes by name."""

    def __init__(self, connection: Netlink) -> None:
        self._connection = connection
        self._names: dict[int, str] = {}
        self._indexes: dict[str, int] = {}

    def name(self, index: int) -> str:
        if index not in self._names:
            self._names[index] = (links.get(self._connection, index=index) or links.Link(0, 0, {})).name
        return self._names[index]

    def index(self, name: str) -> int:
        if name not in self._indexes:
            link = links.get(self._connection, name=name)
            if link is None:
                raise OSError(errno.ENODEV, f"interface {name} not found")
            self._indexes[name] = link.index
        return self._indexes[name]


def _hops(data: bytes) -> t.Iterator[tuple[int, int, int, bytes]]:
    """Flags, weight, interface and attributes of the next hops of a multipath route."""
    offset = 0
    while offset + _NEXTHOP.size <= len(data):
        length, flags, hops, index = _NEXTHOP.unpack_from(data, offset)
        if length < _NEXTHOP.size:
            return
        yield flags, hops + 1, index, data[offset + _NEXTHOP.size : offset + length]
        offset += (length + 3) & ~3


_ROUTE_KNOWN = {_DST, _SRC, _OIF, _GATEWAY, _VIA, _PRIORITY, _PREFSRC, _MULTIPATH, _TABLE, _EXPIRES, _NH_ID} | _STATES


def _route(body: bytes, raw: netlink.Attributes, index: int, names: _Names) -> Route:
    kind, dst, src, tos, table, protocol, scope, route_type, flags = _RT.unpack_from(body)
    version = _VERSION[kind]
    route: Route = {
        "family": version,
        "destination": _network(raw.get(_DST), dst, version),
        "table": netlink.number(raw[_TABLE]) if _TABLE in raw else table,
        "type": route_type,
        "protocol": protocol,
        "scope": scope,
    }
    if src:
        route["from"] = _network(raw.get(_SRC), src, version)
    if tos:
        route["tos"] = tos
    if flags & _ONLINK:
        route["onlink"] = True
    if _PREFSRC in raw:
        route["source"] = ip_text(raw[_PREFSRC])
    if _PRIORITY in raw:
        route["metric"] = netlink.number(raw[_PRIORITY])
    if _EXPIRES in raw or (len(raw.get(_CACHEINFO, b"")) >= 12 and struct.unpack_from("=i", raw[_CACHEINFO], 8)[0]):
        route["expires"] = True
    if _MULTIPATH in raw:
        route["hops"] = [_next_hop(index, names, *hop) for hop in _hops(raw[_MULTIPATH])]
    elif _OIF in raw:
        route = {**route, **_target(index, netlink.number(raw[_OIF]), raw, names)}
    rest = {str(key): value.hex() for key, value in sorted(raw.items()) if key not in _ROUTE_KNOWN}
    if rest.get(str(_PREF)) == "00":  # medium, which the kernel reports for every IPv6 route
        del rest[str(_PREF)]
    if rest:
        route["raw"] = rest
    return route


def _next_hop(index: int, names: _Names, flags: int, weight: int, hop: int, inner: bytes) -> Hop:
    next_hop = t.cast("Hop", _target(index, hop, netlink.attributes(inner), names))
    next_hop["weight"] = weight
    if flags & _ONLINK:
        next_hop["onlink"] = True
    return next_hop


def _target(index: int, hop: int, raw: netlink.Attributes, names: _Names) -> Target:
    target: Target = {"device": "" if hop == index else names.name(hop)}
    if _GATEWAY in raw:
        target["gateway"] = ip_text(raw[_GATEWAY])
    elif _VIA in raw:
        target["via"] = ip_text(raw[_VIA][2:])
    encapsulation = {str(key): raw[key].hex() for key in (_ENCAP_TYPE, _ENCAP) if key in raw}
    if encapsulation:
        target["encapsulation"] = encapsulation
    return target


def _network(value: bytes | None, prefix: int, version: int) -> str:
    return f"{ip_text(value or bytes(4 if version == 4 else 16))}/{prefix}"


def body(route: Route, index: int, names: _Names) -> bytes:
    """The message that creates a route; OSError (ENODEV) if it goes through an interface that does not exist."""
    version = route["family"]
    destination = ipaddress.ip_network(route["destination"])
    origin = ipaddress.ip_network(route["from"]) if "from" in route else None
    table = route.get("table", TABLE_MAIN)
    message = _RT.pack(
        _IP[version],
        destination.prefixlen,
        origin.prefixlen if origin else 0,
        route.get("tos", 0),
        table if table < 256 else 0,
        route.get("protocol", RTPROT_STATIC),
        route.get("scope", SCOPE_UNIVERSE),
        route.get("type", RTN_UNICAST),
        _ONLINK if route.get("onlink") else 0,
    )
    if destination.prefixlen:
        message += netlink.attribute(_DST, destination.network_address.packed)
    if origin:
        message += netlink.attribute(_SRC, origin.network_address.packed)
    message += netlink.u32(_TABLE, table)
    if "source" in route:
        message += netlink.attribute(_PREFSRC, ip_bytes(route["source"]))
    if "metric" in route:
        message += netlink.u32(_PRIORITY, route["metric"])
    if "hops" in route:
        message += netlink.attribute(_MULTIPATH, b"".join(_hop(hop, index, names) for hop in route["hops"]))
    elif "device" in route:
        message += netlink.u32(_OIF, index if not route["device"] else names.index(route["device"]))
        message += _gateway(route)
    for key, value in route.get("raw", {}).items():
        # metrics are nested, and some kernels require NLA_F_NESTED
        message += netlink.attribute(int(key), bytes.fromhex(value), nested=int(key) == _METRICS)
    if "mtu" in route:
        message += netlink.nest(_METRICS, netlink.u32(_RTAX_MTU, route["mtu"]))
    return message


def _gateway(target: Target) -> bytes:
    message = b""
    if "gateway" in target:
        message += netlink.attribute(_GATEWAY, ip_bytes(target["gateway"]))
    elif "via" in target:
        gateway = target["via"]
        message += netlink.attribute(_VIA, struct.pack("=H", family_of(gateway)) + ip_bytes(gateway))
    for key, value in target.get("encapsulation", {}).items():
        message += netlink.attribute(int(key), bytes.fromhex(value), nested=int(key) == _ENCAP)
    return message


def _hop(hop: Hop, index: int, names: _Names) -> bytes:
    inner = _gateway(hop)
    device = index if not hop.get("device") else names.index(hop["device"])
    flags = _ONLINK if hop.get("onlink") else 0
    return _NEXTHOP.pack(_NEXTHOP.size + len(inner), flags, hop.get("weight", 1) - 1, device) + inner


def add(connection: Netlink, index: int, route: Route) -> None:
    """Add a route without replacing other routes; an existing one is not an error. Raises OSError."""
    # an IPv6 multipath route replaces the part of the route that remained when one of its interfaces left
    multipath = route["family"] == 6 and ("hops" in route or route.get("device"))
    flags = netlink.REPLACE if multipath else netlink.APPEND
    connection.ensure(RTM_NEWROUTE, body(route, index, _Names(connection)), flags)


def remove(connection: Netlink, index: int, route: Route) -> None:
    """Remove a route; a missing one is not an error. Raises OSError."""
    connection.drop(RTM_DELROUTE, body(route, index, _Names(connection)))


def in_order(routes: t.Sequence[Route]) -> list[Route]:
    """The routes in an order that adds routes to gateways before the routes that use them."""
    return sorted(routes, key=lambda route: ("gateway" in route or "via" in route or "hops" in route, -route["scope"]))


def add_all(connection: Netlink, index: int, routes: t.Sequence[Route]) -> list[tuple[Route, OSError]]:
    """Add routes. As one route may need another, failed ones are retried while that makes progress. Returns those that
    still fail, each with its error."""
    left = in_order(routes)
    while True:
        failed = []
        for route in left:
            try:
                add(connection, index, route)
            except OSError as error:
                failed.append((route, error))
        if not failed or len(failed) == len(left):
            return failed
        left = [route for route, _unused in failed]


def rules(connection: Netlink) -> list[Rule]:
    """All policy rules of both families, without the three default rules of every namespace."""
    result = []
    for kind in (socket.AF_INET, socket.AF_INET6):
        for _unused, message in connection.dump(RTM_GETRULE, _RT.pack(kind, 0, 0, 0, 0, 0, 0, 0, 0), optional=True):
            if message[0] == kind:
                rule = _rule(message)
                if not (rule["priority"] in (0, 32766, 32767) and set(rule) <= _DEFAULT_RULE_KEYS):
                    result.append(rule)
    return result


_DEFAULT_RULE_KEYS = {"family", "action", "table", "priority", "protocol"}


def _rule(message: bytes) -> Rule:
    kind, dst, src, tos, table, _unused, _unused, action, flags = _RT.unpack_from(message)
    raw = netlink.attributes(message, _RT.size)
    version = _VERSION[kind]
    rule: Object = {
        "family": version,
        "action": action,
        "priority": netlink.number(raw.get(_R_PRIORITY, b"")),
        "table": netlink.number(raw[_R_TABLE]) if _R_TABLE in raw else table,
    }
    if src:
        rule["source"] = _network(raw.get(_R_SRC), src, version)
    if dst:
        rule["destination"] = _network(raw.get(_R_DST), dst, version)
    if tos:
        rule["tos"] = tos
    if flags & _RULE_INVERT:
        rule["invert"] = True
    rule.update(_named(raw))
    rest = {str(key): value.hex() for key, value in sorted(raw.items()) if key not in _RULE_KNOWN}
    for key in map(str, _R_SUPPRESS):
        if rest.get(key) == "ffffffff":
            del rest[key]
    if not rest.get(str(_R_FLOW), "").strip("0"):
        rest.pop(str(_R_FLOW), None)
    if rest:
        rule["raw"] = rest
    return t.cast("Rule", rule)


_RULE_KNOWN = {key for key, _unused in (*_RULE_TEXTS, *_RULE_NUMBERS, *_RULE_BYTES, *_RULE_RANGES)}
_RULE_KNOWN |= {_R_DST, _R_SRC, _R_PRIORITY, _R_TABLE, 18}


def _named(raw: netlink.Attributes) -> Object:
    """The attributes of a rule that have a name in this module."""
    named: Object = {name: netlink.string(raw[key]) for key, name in _RULE_TEXTS if key in raw}
    named |= {name: netlink.number(raw[key]) for key, name in _RULE_NUMBERS if key in raw}
    named |= {name: netlink.number(raw[key]) for key, name in _RULE_BYTES if netlink.number(raw.get(key, b""))}
    return named | {name: list(_RANGE.unpack_from(raw[key])) for key, name in _RULE_RANGES if key in raw}


def _rule_body(rule: ObjectView) -> bytes:
    source = ipaddress.ip_network(rule["source"]) if "source" in rule else None
    destination = ipaddress.ip_network(rule["destination"]) if "destination" in rule else None
    table = rule.get("table", 0)
    message = _RT.pack(
        _IP[rule["family"]],
        destination.prefixlen if destination else 0,
        source.prefixlen if source else 0,
        rule.get("tos", 0),
        table if table < 256 else 0,
        0,
        0,
        rule.get("action", ACTION_TABLE),
        _RULE_INVERT if rule.get("invert") else 0,
    )
    if destination:
        message += netlink.attribute(_R_DST, destination.network_address.packed)
    if source:
        message += netlink.attribute(_R_SRC, source.network_address.packed)
    for key, name in _RULE_TEXTS:
        if name in rule:
            message += netlink.text(key, rule[name])
    for key, name in ((_R_TABLE, "table"), (_R_PRIORITY, "priority"), *_RULE_NUMBERS):
        if name in rule and not (name == "table" and not table):
            message += netlink.u32(key, rule[name])
    for key, name in _RULE_BYTES:
        if name in rule:
            message += netlink.u8(key, rule[name])
    for key, name in _RULE_RANGES:
        if name in rule:
            message += netlink.attribute(key, _RANGE.pack(*rule[name]))
    for key, value in rule.get("raw", {}).items():
        message += netlink.attribute(int(key), bytes.fromhex(value))
    return message


def add_rule(connection: Netlink, rule: Rule) -> None:
    """Add a rule; an existing one is not an error. Raises OSError."""
    connection.ensure(RTM_NEWRULE, _rule_body(rule), netlink.EXCLUSIVE)


def configured(route: ObjectView) -> Route:
    """A route of an InterfaceConfig in the form of this module."""
    version = 6 if ":" in route["destination"] else 4
    scope = SCOPE_LINK if route.get("scope") == "link" else SCOPE_UNIVERSE
    result: Object = {"family": version, "destination": route["destination"], "scope": scope, "device": ""}
    for name in ("gateway", "source", "table", "metric", "onlink", "mtu"):
        if name in route:
            result[name] = route[name]
    if "multipath" in route:
        del result["device"]
        result["hops"] = [{"device": "", **hop} for hop in route["multipath"]]
    return t.cast("Route", result)


def configured_rule(rule: ObjectView) -> Rule:
    """A rule of an InterfaceConfig in the form of this module."""
    addresses = [rule[name] for name in ("source", "destination") if name in rule]
    version = int(rule["family"][-1]) if "family" in rule else (6 if ":" in addresses[0] else 4)
    result: Object = {"family": version, "action": ACTION_TABLE, "protocol": RTPROT_STATIC}
    for name in ("priority", "source", "destination", "table", "fwmark", "fwmask", "iif", "oif", "tos"):
        if name in rule:
            result[name] = rule[name]
    if "ipproto" in rule:
        result["ipproto"] = _IPPROTO[rule["ipproto"]]
    for name, ports in (("sourcePort", "sourcePorts"), ("destinationPort", "destinationPorts")):
        if name in rule:
            result[ports] = [rule[name], rule[name]]
    return t.cast("Rule", result)
