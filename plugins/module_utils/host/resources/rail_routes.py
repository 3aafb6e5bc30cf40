# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A routing table for each rail, so that packets from a NIC's address leave through that NIC (linux/rtnetlink.h)."""

from __future__ import annotations

import ipaddress
import socket
import typing as t
from dataclasses import dataclass

from ..access.links import index
from ..access.pyroute2_types import Message
from ..access.system import HostError
from ..engine.change import Change, Plan, Refusal, State, Value
from ..engine.node import Node
from ..engine.resource import Resource
from ..engine.settings import RailRoutesSettings

_TEMPORARY_OR_TENTATIVE = 0x01 | 0x40
_PROTOCOL_STATIC, _TYPE_UNICAST, _ACTION_TO_TABLE = 4, 1, 1
_SCOPE_LINK, _SCOPE_UNIVERSE, _FLAG_INVERT = 253, 0, 2
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_ADDRESS_FAMILIES = tuple(_FAMILIES.values())
#: Tables of the kernel: unspecified, compat, default, main, local.
_RESERVED_TABLES = (0, 252, 253, 254, 255)
_IPV6_METRIC = 1024
#: The attributes of this resource's rules and routes in a dump, including those that the kernel adds
#: (suppress_prefixlength; cache, preference).
_RULE_ATTRIBUTES = {"FRA_SRC", "FRA_PRIORITY", "FRA_TABLE", "FRA_PROTOCOL", "FRA_SUPPRESS_PREFIXLEN"}
_ROUTE_ATTRIBUTES = {
    *("RTA_DST", "RTA_OIF", "RTA_GATEWAY", "RTA_PRIORITY", "RTA_PREFSRC", "RTA_TABLE", "RTA_METRICS"),
    *("RTA_CACHEINFO", "RTA_PREF"),
}
_NOTHING_SUPPRESSED = 2**32 - 1

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Interface = t.Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]
Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class RailRoutes(Resource):
    """`rail_routes` of a NIC: `table`, `priority` of its rules, `gateway` if there is one.

    A table belongs to one NIC: it contains only the wanted routes, and only the wanted rules refer to it.
    """

    name = "rail_routes"
    network = True

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            requested = settings.get("rail_routes")
            if requested:
                _check_values(key, requested)
                addresses = self._addresses(node, key)
                table = f"table {requested['table']}"
                state[key] = {
                    f"{table} rules": _rules(addresses, requested),
                    f"{table} routes": _routes(addresses, requested),
                }
        return state

    def read(self, node: Node, wanted: State) -> State:
        return {
            key: {setting: [entry.value for entry in self._current(node, key, setting)] for setting in settings}
            for key, settings in wanted.items()
        }

    def _current(self, node: Node, key: str, setting: str) -> list[_Entry]:
        """The current entries of a setting (`table NUMBER rules`, `table NUMBER routes`)."""
        _unused, table, kind = setting.split()
        if kind == "rules":
            return _sorted(entry for entry in self._all_rules() if entry.table == int(table))
        interface_index = index(self.system, node.device(key).interface)
        return _sorted(
            entry for entry in self._all_routes() if entry.table == int(table) and entry.out == interface_index
        )

    def from_stored(self, setting: str, value: object) -> object:
        kind = SourceRule if setting.endswith(" rules") else RailRoute
        return [kind.parse(str(text)) for text in value] if isinstance(value, list) else value

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        plan = super().plan(node, wanted)
        if wanted is not None:  # an earlier state is restored, which needs no checks
            return plan
        wanted = self.wanted(node)
        entries = [*self._all_rules(), *self._all_routes()] if wanted else []
        tables: dict[int, str] = {}
        for key in wanted:
            requested = node.settings[key]["rail_routes"]
            interface, table = node.device(key).interface, requested["table"]

            def refuse(message: str, fix: str, key: str = key) -> None:
                plan.refusals.append(Refusal(key, "rail_routes", message, fix))

            interface_index = index(self.system, interface)
            foreign = [
                entry
                for entry in entries
                if entry.table == table and not (entry.plain and entry.out in (0, interface_index))
            ]
            addresses = self._addresses(node, key)
            if table in _RESERVED_TABLES:
                refuse(f"table {table} is reserved by the kernel", "choose another number, such as 100 plus the rail")
            elif table in tables:
                refuse(f"table {table} is already used by {tables[table]}", "set another table for each NIC")
            elif foreign:
                fix = "choose a table that nothing else uses"
                refuse(f"table {table} is used for something else: {foreign[0].value}", fix)
            tables.setdefault(table, key)
            if not addresses:
                refuse(f"{interface} has no IP address", "configure one first, as the routes depend on it")
            elif not self._up(interface):
                refuse(f"{interface} is down, and does not accept routes", "bring it up first")
            for gateway in _gateways(requested) if addresses else ():
                if not any(gateway in address.network for address in addresses):
                    refuse(f"the gateway {gateway} is not in a network of {interface}", "look at its addresses")
        return plan

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        _unused, number, kind = change.setting.split()
        table, out = int(number), index(self.system, device.interface)
        netlink = self.system.socket("IPRoute")
        current = [entry.value for entry in self._current(node, change.device, change.setting)]

        def request(verb: str, value: SourceRule | RailRoute) -> None:
            step = f"{verb} the {kind[:-1]} '{value}' of table {table} for {device}"
            if isinstance(value, SourceRule):
                self.system.request_change(step, lambda: netlink.rule(verb, **value.message(table)))
            else:
                self.system.request_change(step, lambda: netlink.route(verb, **value.message(table, out)))

        # a default route needs the route to its gateway, so it is added after that route and removed before it
        for value in sorted(
            (value for value in current if value not in change.after), key=lambda value: not _has_gateway(value)
        ):
            request("remove", value)
        for value in sorted((value for value in change.after if value not in current), key=_has_gateway):
            request("add", value)

    def _up(self, interface: str) -> bool:
        try:
            return bool(int(self.system.text(f"/sys/class/net/{interface}/flags") or "0", 16) & 1)
        except ValueError:
            return False

    def _addresses(self, node: Node, key: str) -> list[Interface]:
        """The permanent global addresses of a NIC, from which packets are sent."""
        interface_index = index(self.system, node.device(key).interface)
        addresses: list[Interface] = []
        for message in self.system.dump("list the addresses", self.system.socket("IPRoute").get_addr):
            flags = message["flags"] | (message.get_attr("IFA_FLAGS") or 0)
            raw = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            if message["index"] == interface_index and message["scope"] == _SCOPE_UNIVERSE and raw:
                address = ipaddress.ip_interface(f"{raw}/{message['prefixlen']}")
                if address.version == 4 or not flags & _TEMPORARY_OR_TENTATIVE:
                    addresses.append(address)
        return sorted(addresses, key=lambda interface: (interface.version, int(interface.ip)))

    def _all_rules(self) -> list[_Entry]:
        messages = self.system.dump("list the rules", self.system.socket("IPRoute").get_rules)
        return [
            _rule(message)
            for message in messages
            if message["family"] in _ADDRESS_FAMILIES and message["action"] == _ACTION_TO_TABLE
        ]

    def _all_routes(self) -> list[_Entry]:
        messages = self.system.dump("list the routes", self.system.socket("IPRoute").get_routes)
        return [_route(message) for message in messages if message["family"] in _ADDRESS_FAMILIES]


@dataclass(frozen=True)
class SourceRule(Value):
    """A rule for packets from a source."""

    source: Network
    priority: int

    def __str__(self) -> str:
        return f"from {self.source} priority {self.priority}"

    @classmethod
    def parse(cls, text: str) -> SourceRule:
        """Parse the text in a file. Raises ValueError."""
        _from, source, _priority, priority = text.split()
        return cls(ipaddress.ip_network(source), int(priority))

    def message(self, table: int) -> dict[str, object]:
        """pyroute2's arguments for the rule that selects a table."""
        return {
            "family": _FAMILIES[self.source.version],
            "src": str(self.source.network_address),
            "src_len": self.source.prefixlen,
            "priority": self.priority,
            "table": table,
            "protocol": _PROTOCOL_STATIC,
        }


@dataclass(frozen=True)
class RailRoute(Value):
    """A route to a network, or the default route if `destination` is None. A metric of 0 means none."""

    destination: Network | None
    gateway: Address | None = None
    source: Address | None = None
    metric: int = 0

    def __str__(self) -> str:
        parts = [str(self.destination or "default")]
        for keyword, value in (("via", self.gateway), ("src", self.source), ("metric", self.metric)):
            parts += [keyword, str(value)] if value else []
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> RailRoute:
        """Parse the text in a file. Raises ValueError."""
        destination, *rest = text.split()
        values = dict(zip(rest[::2], rest[1::2]))
        gateway, source = (ipaddress.ip_address(values[name]) if name in values else None for name in ("via", "src"))
        network = None if destination == "default" else ipaddress.ip_network(destination)
        return cls(network, gateway, source, int(values.get("metric", 0)))

    def message(self, table: int, out: int) -> dict[str, object]:
        """pyroute2's arguments for the route in a table, through the interface with index `out`. Raises ValueError."""
        if self.source is None:  # all routes that this resource adds and deletes have a source
            raise ValueError(f"the route {self} has no source")
        on_link = self.source.version == 4 and not self.gateway
        return {
            "family": _FAMILIES[self.source.version],
            "dst": str(self.destination or "default"),
            "prefsrc": str(self.source),
            "oif": out,
            "table": table,
            "proto": _PROTOCOL_STATIC,
            "scope": _SCOPE_LINK if on_link else _SCOPE_UNIVERSE,
            **({"gateway": str(self.gateway)} if self.gateway else {}),
            **({"priority": self.metric} if self.metric else {}),
        }


class _Entry(t.NamedTuple):
    """A rule or a route, its table, and the index of its outgoing interface.

    It is `plain` if it has no other attributes, so that it can be recreated from its `value`.
    """

    value: SourceRule | RailRoute
    table: int
    out: int = 0
    plain: bool = True


def _sorted(entries: t.Iterable[_Entry]) -> list[_Entry]:
    return sorted(entries, key=lambda entry: (str(entry.value), entry[1:]))


def _has_gateway(value: SourceRule | RailRoute) -> bool:
    """Whether a rule or route is a route through a gateway."""
    return isinstance(value, RailRoute) and value.gateway is not None


def _check_values(key: str, settings: RailRoutesSettings) -> None:
    """Check the numbers and addresses of the settings. Raises HostError."""
    for name, value in (("table", settings["table"]), ("priority", settings.get("priority", 0))):
        if not 0 <= value < 2**32:
            raise HostError(f"set rail_routes {name} of {key}", f"{value} is not in the range 0 to {2**32 - 1}")
    try:
        _gateways(settings)
    except ValueError as error:
        raise HostError(f"set rail_routes gateway of {key}", str(error), "write an IP address") from None


def _gateways(settings: RailRoutesSettings) -> list[Address]:
    gateways = settings.get("gateway") or []
    return [ipaddress.ip_address(gateway) for gateway in ([gateways] if isinstance(gateways, str) else gateways)]


def _rules(addresses: t.Sequence[Interface], settings: RailRoutesSettings) -> list[SourceRule]:
    priority = settings.get("priority", 1000)
    return sorted((SourceRule(ipaddress.ip_network(address.ip), priority) for address in addresses), key=str)


def _routes(addresses: t.Sequence[Interface], settings: RailRoutesSettings) -> list[RailRoute]:
    routes: dict[Network | Address, RailRoute] = {}
    for address in addresses:
        metric = _IPV6_METRIC if address.version == 6 else 0
        routes.setdefault(address.network, RailRoute(address.network, None, address.ip, metric))
        for gateway in _gateways(settings):
            if gateway in address.network:
                routes.setdefault(gateway, RailRoute(None, gateway, address.ip, metric))
    return sorted(routes.values(), key=str)


def _rule(message: Message) -> _Entry:
    source = _network(message["family"], message.get_attr("FRA_SRC"), message["src_len"])
    suppressed = message.get_attr("FRA_SUPPRESS_PREFIXLEN", _NOTHING_SUPPRESSED) != _NOTHING_SUPPRESSED
    special = message["dst_len"] or message["tos"] or message["flags"] & _FLAG_INVERT or suppressed
    plain = source.prefixlen == source.max_prefixlen and not special and _has_only(_RULE_ATTRIBUTES, message)
    rule = SourceRule(source, message.get_attr("FRA_PRIORITY") or 0)
    return _Entry(rule, message.get_attr("FRA_TABLE", message["table"]), 0, plain)


def _route(message: Message) -> _Entry:
    length = message["dst_len"]
    route = RailRoute(
        _network(message["family"], message.get_attr("RTA_DST"), length) if length else None,
        _address(message.get_attr("RTA_GATEWAY")),
        _address(message.get_attr("RTA_PREFSRC")),
        message.get_attr("RTA_PRIORITY") or 0,
    )
    metrics = message.get_attr("RTA_METRICS")
    special = message["type"] != _TYPE_UNICAST or message["tos"] or (metrics and metrics["attrs"])
    plain = not special and bool(message.get_attr("RTA_PREFSRC")) and _has_only(_ROUTE_ATTRIBUTES, message)
    out = 0 if message.get_attr("RTA_MULTIPATH") else message.get_attr("RTA_OIF") or 0
    return _Entry(route, message.get_attr("RTA_TABLE", message["table"]), out, plain)


def _address(text: str | None) -> Address | None:
    return ipaddress.ip_address(text) if text else None


def _network(family: int, address: str | None, length: int) -> Network:
    unspecified = "0.0.0.0" if family == socket.AF_INET else "::"
    return ipaddress.ip_network(f"{address or unspecified}/{length}", strict=False)


def _has_only(names: set[str], message: Message) -> bool:
    return all(attribute[0] in names for attribute in message["attrs"])
