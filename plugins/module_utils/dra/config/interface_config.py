# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""InterfaceConfig, the opaque configuration that the driver C(lanewise.dev) takes for a claimed network interface.

FIELDS is the one table of what it may say. M(validate) reads it, and M(interface_policy) writes the CEL of an admission
policy from it. What only a node can know (that the interface has this feature, ring size, MTU, VF or queue) is left to
the driver, which refuses to prepare the claim.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
import typing as t
import zlib
from dataclasses import dataclass, field, replace

from ..kube import limits
from ..kube.problems import Problem
from ..kube.reader import child, nearest

DRIVER = "lanewise.dev"
API_VERSION = "lanewise.dev/v1alpha1"
KIND = "InterfaceConfig"

#: In the names of sysctls, where the interface's name goes; sysctls of all interfaces cannot be named.
IFNAME = "IFNAME"

_MAC = r"[0-9a-fA-F][02468aceACE](?::[0-9a-fA-F]{2}){5}"
_INTERFACE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"
_IPV4_SYSCTLS = (
    "accept_local",
    "arp_accept",
    "arp_announce",
    "arp_filter",
    "arp_ignore",
    "arp_notify",
    "disable_policy",
    "disable_xfrm",
    "forwarding",
    "log_martians",
    "proxy_arp",
    "route_localnet",
    "rp_filter",
    "src_valid_mark",
)
_IPV6_SYSCTLS = (
    "accept_dad",
    "accept_ra",
    "accept_ra_defrtr",
    "accept_ra_pinfo",
    "addr_gen_mode",
    "autoconf",
    "dad_transmits",
    "disable_ipv6",
    "forwarding",
    "keep_addr_on_down",
    "ndisc_notify",
    "optimistic_dad",
    "proxy_ndp",
    "use_tempaddr",
)
_NEIGH_SYSCTLS = ("base_reachable_time_ms", "gc_stale_time", "mcast_solicit", "retrans_time_ms", "ucast_solicit")
_SYSCTL = (
    rf"net[.]ipv4[.]conf[.]{IFNAME}[.](?:{'|'.join(_IPV4_SYSCTLS)})"
    rf"|net[.]ipv6[.]conf[.]{IFNAME}[.](?:{'|'.join(_IPV6_SYSCTLS)})"
    rf"|net[.]ipv[46][.]neigh[.]{IFNAME}[.](?:{'|'.join(_NEIGH_SYSCTLS)})"
)


@dataclass(frozen=True)
class Rule:
    """What must hold between the fields of one mapping: for a mapping in Python, and in CEL for C({x})."""

    says: str
    holds: t.Callable[[t.Mapping[str, t.Any]], bool]
    cel: str


@dataclass(frozen=True)
class Field:
    """One field. C(type): string, int, bool, setting (a string or an int), ip, address (with a prefix), network
    (without host bits), list, map, object. C(says) is what a value must be, in words."""

    type: str
    says: str
    pattern: str = ""
    words: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    required: bool = False
    item: Field | None = None
    key: str = ""
    fields: t.Mapping[str, Field] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


def _number(least: int, most: int, required: bool = False, says: str = "") -> Field:
    return Field("int", says or f"a whole number from {least} to {most}", least=least, most=most, required=required)


def _word(*words: str, required: bool = False) -> Field:
    return Field("string", f"one of {', '.join(words)}", words=words, required=required)


def _flag() -> Field:
    return Field("bool", "true or false")


def _ip(required: bool = False) -> Field:
    return Field("ip", "an IP address", required=required)


def _network(required: bool = False) -> Field:
    return Field("network", "a network such as 10.0.0.0/8, without host bits", required=required)


def _list(item: Field, most: int, says: str) -> Field:
    return Field("list", f"a list of up to {most} different {says}", item=item, most=most)


def _object(fields: t.Mapping[str, Field], *rules: Rule, says: str = "a mapping", required: bool = False) -> Field:
    return Field("object", says, fields=fields, rules=rules, required=required)


def _map(key: str, item: Field, most: int, says: str) -> Field:
    return Field("map", says, key=key, item=item, most=most)


_UINT32 = 2**32 - 1
#: GSO_MAX_SIZE of include/linux/netdevice.h
_GSO = 8 * 65535


def family(text: str) -> int:
    """4 or 6, for an address or a network that is one."""
    return 6 if ":" in text else 4


def _same_family(*names: str) -> Rule:
    def holds(value: t.Mapping[str, t.Any]) -> bool:
        return len({family(value[name]) for name in names if name in value}) < 2

    pairs = [
        f"(!has({{x}}.{one}) || !has({{x}}.{two}) || {{x}}.{one}.contains(':') == {{x}}.{two}.contains(':'))"
        for index, one in enumerate(names)
        for two in names[index + 1 :]
    ]
    return Rule(f"{', '.join(names)} must be of one IP family", holds, " && ".join(pairs))


def _not_both(one: str, two: str) -> Rule:
    return Rule(
        f"{one} and {two} exclude each other",
        lambda value: one not in value or two not in value,
        f"!has({{x}}.{one}) || !has({{x}}.{two})",
    )


def _needs(one: str, two: str) -> Rule:
    return Rule(
        f"{one} needs {two}",
        lambda value: one not in value or two in value,
        f"!has({{x}}.{one}) || has({{x}}.{two})",
    )


_TABLE = _number(1, _UINT32)
_NAME = Field(
    "string",
    "an interface name: up to 15 letters, digits, '_', '.' and '-', other than lo, all and default",
    pattern=_INTERFACE,
    forbidden=("lo", "all", "default"),
)
_HOP = _object(
    {"gateway": _ip(required=True), "weight": _number(1, 256), "onlink": _flag()}, says="a next hop with a gateway"
)
_ROUTE = _object(
    {
        "destination": _network(required=True),
        "gateway": _ip(),
        "source": _ip(),
        "scope": _word("global", "link"),
        "table": _TABLE,
        "metric": _number(0, _UINT32),
        "onlink": _flag(),
        "mtu": _number(68, 65535),
        "multipath": _list(_HOP, 16, "next hops"),
    },
    _same_family("destination", "gateway", "source"),
    _not_both("gateway", "multipath"),
    Rule(
        "next hops must be of the destination's IP family",
        lambda v: all(family(hop["gateway"]) == family(v["destination"]) for hop in v.get("multipath", ())),
        "!has({x}.multipath) || {x}.multipath.all(h, h.gateway.contains(':') == {x}.destination.contains(':'))",
    ),
    Rule(
        "a route of scope link has no gateway, and any other has one, or multipath",
        lambda v: ("gateway" in v or "multipath" in v) != (v.get("scope", "global") == "link"),
        "(has({x}.gateway) || has({x}.multipath)) != (has({x}.scope) && {x}.scope == 'link')",
    ),
    _needs("onlink", "gateway"),
    says="a route with a destination",
)
_RULE = _object(
    {
        "priority": _number(0, 32765),
        "source": _network(),
        "destination": _network(),
        "table": _number(1, _UINT32, required=True),
        "fwmark": _number(0, _UINT32),
        "fwmask": _number(0, _UINT32),
        "iif": _NAME,
        "oif": _NAME,
        "tos": _number(0, 255),
        "ipproto": _word("tcp", "udp", "icmp", "icmpv6", "sctp"),
        "sourcePort": _number(1, 65535),
        "destinationPort": _number(1, 65535),
        "family": _word("ipv4", "ipv6"),
    },
    _same_family("source", "destination"),
    _needs("fwmask", "fwmark"),
    Rule(
        "family must be that of source and destination",
        lambda v: (
            "family" not in v
            or all(f"ipv{family(v[name])}" == v["family"] for name in ("source", "destination") if name in v)
        ),
        "!has({x}.family) || ((!has({x}.source) || {x}.source.contains(':') == ({x}.family == 'ipv6')) && "
        "(!has({x}.destination) || {x}.destination.contains(':') == ({x}.family == 'ipv6')))",
    ),
    Rule(
        "without source and destination a rule needs a family",
        lambda v: any(name in v for name in ("source", "destination", "family")),
        "has({x}.source) || has({x}.destination) || has({x}.family)",
    ),
    Rule(
        "ports need ipproto tcp, udp or sctp",
        lambda v: not ("sourcePort" in v or "destinationPort" in v) or v.get("ipproto") in ("tcp", "udp", "sctp"),
        "!(has({x}.sourcePort) || has({x}.destinationPort)) || "
        "(has({x}.ipproto) && {x}.ipproto in ['tcp', 'udp', 'sctp'])",
    ),
    says="a rule with a table",
)

#: The fields of an InterfaceConfig, beside apiVersion and kind.
FIELDS: dict[str, Field] = {
    "name": _NAME,
    "addresses": _list(Field("address", "an address with its prefix, such as 10.0.0.2/24"), 32, "addresses"),
    "mtu": _number(68, 65535),
    "mac": Field(
        "string",
        "the MAC address of one interface, such as 02:00:00:00:00:01",
        pattern=_MAC,
        forbidden=("00:00:00:00:00:00",),
    ),
    "gsoMaxSize": _number(1, _GSO),
    "groMaxSize": _number(1, _GSO),
    "gsoIPv4MaxSize": _number(1, _GSO),
    "groIPv4MaxSize": _number(1, _GSO),
    "dhcp": _list(_word("ipv4", "ipv6"), 2, "IP families, ipv4 and ipv6"),
    "dad": _word("optimistic", "wait", "none"),
    "routes": _list(_ROUTE, 64, "routes"),
    "rules": _list(_RULE, 32, "rules"),
    "neighbors": _list(
        _object(
            {
                "destination": _ip(required=True),
                "mac": Field("string", "a MAC address such as 02:00:00:00:00:01", pattern=_MAC, required=True),
            },
            says="a neighbor with a destination and a mac",
        ),
        64,
        "neighbors",
    ),
    "sysctls": _map(
        _SYSCTL,
        Field("setting", "a whole number", pattern=r"-?[0-9]{1,10}", least=-(2**31), most=_UINT32),
        32,
        f"a mapping of allowed sysctls, such as net.ipv4.conf.{IFNAME}.rp_filter, to whole numbers",
    ),
    "ethtool": _object(
        {
            "features": _map(r"[a-z0-9][a-z0-9-]{0,31}", _flag(), 64, "a mapping of features to true or false"),
            "privateFlags": _map(
                r"[A-Za-z0-9][A-Za-z0-9_. -]{0,31}", _flag(), 32, "a mapping of private flags to true or false"
            ),
            "rings": _object(
                {name: _number(1, _UINT32) for name in ("rx", "rxMini", "rxJumbo", "tx")}, says="sizes of rings"
            ),
        },
        says="features, privateFlags and rings",
    ),
    "vrf": _object(
        {
            "name": replace(_NAME, required=True),
            # 253 to 255 are the kernel's own
            "table": _TABLE,
        },
        Rule(
            "table 253 to 255 are the kernel's own",
            lambda v: v.get("table") not in (253, 254, 255),
            "!has({x}.table) || !({x}.table in [253, 254, 255])",
        ),
        says="the name of a VRF, and its table",
    ),
    "vf": _object(
        {
            "vlan": _number(0, 4094),
            "qos": _number(0, 7),
            "minTxRate": _number(0, _UINT32, says="Mbit/s, a whole number"),
            "maxTxRate": _number(0, _UINT32, says="Mbit/s, a whole number"),
            "trust": _flag(),
            "spoofchk": _flag(),
            "mac": Field(
                "string", "a MAC address such as 02:00:00:00:00:01", pattern=_MAC, forbidden=("00:00:00:00:00:00",)
            ),
            "linkState": _word("auto", "enable", "disable"),
        },
        _needs("qos", "vlan"),
        Rule(
            "minTxRate must not be more than maxTxRate",
            lambda v: not v.get("maxTxRate") or v.get("minTxRate", 0) <= v["maxTxRate"],
            "!has({x}.maxTxRate) || {x}.maxTxRate == 0 || !has({x}.minTxRate) || {x}.minTxRate <= {x}.maxTxRate",
        ),
        says="settings of a virtual function",
    ),
    "child": _object(
        {
            "type": _word("macvlan", "ipvlan", required=True),
            "mode": _word("bridge", "private", "vepa", "passthru", "l2", "l3", "l3s"),
        },
        Rule(
            "mode must be bridge, private, vepa or passthru for macvlan, l2, l3 or l3s for ipvlan",
            lambda v: "mode" not in v or v["mode"].startswith("l") == (v["type"] == "ipvlan"),
            "!has({x}.mode) || {x}.mode.startsWith('l') == ({x}.type == 'ipvlan')",
        ),
        says="the type of a child interface",
    ),
}

#: What must hold between the fields of an InterfaceConfig.
RULES: tuple[Rule, ...] = (
    Rule(
        "addresses and dhcp must not be of the same IP family",
        lambda v: not {f"ipv{family(address)}" for address in v.get("addresses", ())} & set(v.get("dhcp", ())),
        "!has({x}.addresses) || !has({x}.dhcp) || "
        "{x}.addresses.all(a, !((a.contains(':') ? 'ipv6' : 'ipv4') in {x}.dhcp))",
    ),
    Rule(
        "IPv6 needs an mtu of 1280 or more",
        lambda v: (
            v.get("mtu", 1280) >= 1280
            or not (any(":" in address for address in v.get("addresses", ())) or "ipv6" in v.get("dhcp", ()))
        ),
        "!has({x}.mtu) || {x}.mtu >= 1280 || !((has({x}.addresses) && {x}.addresses.exists(a, a.contains(':'))) || "
        "(has({x}.dhcp) && 'ipv6' in {x}.dhcp))",
    ),
    _not_both("vf", "child"),
    Rule(
        "an ipvlan child has the mac of its parent",
        lambda v: "mac" not in v or v.get("child", {}).get("type") != "ipvlan",
        "!has({x}.mac) || !has({x}.child) || {x}.child.type != 'ipvlan'",
    ),
    Rule(
        "mac and vf.mac must be the same",
        lambda v: "mac" not in v or v.get("vf", {}).get("mac", v["mac"]).lower() == v["mac"].lower(),
        "!has({x}.mac) || !has({x}.vf) || !has({x}.vf.mac) || {x}.vf.mac.lowerAscii() == {x}.mac.lowerAscii()",
    ),
)

#: Mistakes that are told of one configuration. Whoever writes more shall not make the reader work for them.
MISTAKES = 16

#: The whole object.
CONFIG = _object(
    {
        "apiVersion": Field("string", API_VERSION, words=(API_VERSION,), required=True),
        "kind": Field("string", KIND, words=(KIND,), required=True),
        **FIELDS,
    },
    *RULES,
    says=f"a mapping of kind {KIND}",
)


def parameters(interface: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The opaque parameters for what C(interface) of the inventory says."""
    head = {"apiVersion": API_VERSION, "kind": KIND}
    return {**head, **{key: value for key, value in interface.items() if key not in head}}


def validate(config: t.Any, path: str, complete: bool = True) -> list[Problem]:
    """What is wrong with an InterfaceConfig, the first MISTAKES of it; paths start with C(path).

    Without C(complete) apiVersion and kind may be left out, as in the inventory. Rules: C(unknown-key), C(missing),
    C(wrong-type), C(bad-value), C(too-many), C(duplicate), C(contradiction), C(too-long), C(more-mistakes).
    """
    problems = _Mistakes()
    if isinstance(config, dict) and not complete:
        config = {"apiVersion": API_VERSION, "kind": KIND, **config}
    try:
        _check(CONFIG, config, path, problems)
    except _Enough:
        more = Problem(path, f"has more mistakes; these are the first {MISTAKES}", "more-mistakes")
        return [*problems, more]
    if not problems and limits.opaque_size(config) > limits.OPAQUE_BYTES:
        problems.append(Problem(path, f"is longer than {limits.OPAQUE_BYTES} bytes", "too-long"))
    return list(problems)


class _Enough(Exception):
    """There are more mistakes than are told."""


class _Mistakes(list[Problem]):
    """The problems so far. The one too many ends the check."""

    def append(self, problem: Problem) -> None:
        if len(self) == MISTAKES:
            raise _Enough
        super().append(problem)


def vrf_table(name: str) -> int:
    """The table of a VRF for which a configuration names none: the same for the same name, on every node."""
    return 1000 + zlib.crc32(name.encode()) % 1_000_000


def changed_by_claim(of_class: t.Mapping[str, t.Any], of_claim: t.Mapping[str, t.Any]) -> list[str]:
    """The fields of a class's configuration for which a claim's has something else.

    What a class sets holds, each field as a whole: a claim that could add C(trust) to the C(vf) of its class could
    leave the VLAN that the class is for.
    """

    def text(value: t.Any) -> str:
        return json.dumps(value, sort_keys=True)  # true is no 1

    both = [name for name in of_claim if name in of_class and name not in ("apiVersion", "kind")]
    return [name for name in both if text(of_claim[name]) != text(of_class[name])]


def validate_scalar(form: Field, value: t.Any) -> bool:
    """Whether a value is right for a field that holds no others."""
    return not _SCALARS[form.type](form, value)


def allowed_key(form: Field, key: t.Any) -> bool:
    """Whether a mapping of free keys may have this one."""
    return isinstance(key, str) and re.fullmatch(form.key, key) is not None


def _check(form: Field, value: t.Any, path: str, problems: _Mistakes) -> None:
    said = _SCALARS[form.type](form, value) if form.type in _SCALARS else ""
    if said:
        problems.append(Problem(path, f"must be {form.says}", said))
    elif form.type == "list":
        _check_list(form, value, path, problems)
    elif form.type == "map":
        _check_map(form, value, path, problems)
    elif form.type == "object":
        _check_object(form, value, path, problems)


def _check_list(form: Field, value: t.Any, path: str, problems: _Mistakes) -> None:
    if not isinstance(value, list):
        problems.append(Problem(path, f"must be {form.says}", "wrong-type"))
        return
    if len(value) > form.most:
        problems.append(Problem(path, f"has {len(value)} entries; {form.most} are the limit", "too-many"))
    for index, item in enumerate(value[: form.most]):
        if form.item:
            _check(form.item, item, child(path, index), problems)
        if any(item == other and type(item) is type(other) for other in value[:index]):
            problems.append(Problem(child(path, index), "is there twice", "duplicate"))


def _check_map(form: Field, value: t.Any, path: str, problems: _Mistakes) -> None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"must be {form.says}", "wrong-type"))
        return
    if len(value) > form.most:
        problems.append(Problem(path, f"has {len(value)} entries; {form.most} are the limit", "too-many"))
    for key, item in itertools.islice(value.items(), form.most):
        if not allowed_key(form, key):
            message = f"is not allowed; it must be {form.says}"
            problems.append(Problem(child(path, key), message, "unknown-key"))
        if form.item:
            _check(form.item, item, child(path, key), problems)


def _check_object(form: Field, value: t.Any, path: str, problems: _Mistakes) -> None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"must be {form.says}", "wrong-type"))
        return
    before = len(problems)
    for key in value:
        if key not in form.fields:
            fix = nearest(key, form.fields) or f"known are {', '.join(form.fields)}"
            problems.append(Problem(child(path, key), "is not known", "unknown-key", fix))
    for name, inner in form.fields.items():
        if name in value:
            _check(inner, value[name], child(path, name), problems)
        elif inner.required:
            problems.append(Problem(child(path, name), "is missing", "missing", f"it must be {inner.says}"))
    if len(problems) == before:  # rules read well-formed fields only
        for rule in form.rules:
            if not rule.holds(value):
                problems.append(Problem(path, rule.says, "contradiction"))


def _string(form: Field, value: t.Any) -> str:
    if not isinstance(value, str):
        return "wrong-type"
    if form.words:
        return "" if value in form.words else "bad-value"
    bad = value in form.forbidden or (form.pattern and not re.fullmatch(form.pattern, value))
    return "bad-value" if bad else ""


def _int(form: Field, value: t.Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "wrong-type"
    return "" if form.least <= value <= form.most else "bad-value"


def _setting(form: Field, value: t.Any) -> str:
    return _string(form, value) if isinstance(value, str) else _int(form, value)


def _bool(_form: Field, value: t.Any) -> str:
    return "" if isinstance(value, bool) else "wrong-type"


def _address(form: Field, value: t.Any) -> str:
    """As netip.ParseAddr and ParsePrefix have it: no zone, no IPv4 in IPv6, a prefix length without leading zeros."""
    if not isinstance(value, str):
        return "wrong-type"
    try:
        if form.type == "ip":
            address: t.Any = ipaddress.ip_address(value)
        elif not re.fullmatch(r"[^/]+/(?:0|[1-9][0-9]{0,2})", value):
            return "bad-value"
        else:
            interface = ipaddress.ip_interface(value)
            address = interface.ip
            if form.type == "network" and interface.network.network_address != address:
                return "bad-value"
    except ValueError:
        return "bad-value"
    return "bad-value" if "%" in value or getattr(address, "ipv4_mapped", None) else ""


_SCALARS: dict[str, t.Callable[[Field, t.Any], str]] = {
    "string": _string,
    "int": _int,
    "bool": _bool,
    "setting": _setting,
    "ip": _address,
    "address": _address,
    "network": _address,
}
