# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""InterfaceConfig, the opaque configuration that the driver `lanewise.dev` takes for a claimed network interface.

FIELDS is the only definition of its fields. `validate` reads it, and `interface_policy` writes the CEL of an admission
policy from it. Whether the interface supports a feature, ring size, MTU, VF or queue is known only on
the node: the driver checks it when it prepares the claim.
"""

from __future__ import annotations

import json
import typing as t
import zlib
from dataclasses import replace

from ..kube import limits, quantity
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem
from .field_checks import MAX_PROBLEMS, LimitedProblems, TooManyProblems, check
from .fields import (
    Field,
    Rule,
    enum_of,
    family,
    flag,
    ip,
    list_of,
    map_of,
    needs,
    network,
    not_both,
    number,
    object_of,
    same_family,
)

DRIVER = "lanewise.dev"


API_VERSION = "lanewise.dev/v1alpha1"


KIND = "InterfaceConfig"


#: The placeholder for the interface's name in a sysctl; sysctls for all interfaces are not allowed.
IFNAME = "IFNAME"


_MAC = r"[0-9a-fA-F][02468aceACE](?::[0-9a-fA-F]{2}){5}"


_INTERFACE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}"


IPV4_SYSCTLS = (
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


IPV6_SYSCTLS = (
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


NEIGH_SYSCTLS = ("base_reachable_time_ms", "gc_stale_time", "mcast_solicit", "retrans_time_ms", "ucast_solicit")


_SYSCTL = (
    rf"net[.]ipv4[.]conf[.]{IFNAME}[.](?:{'|'.join(IPV4_SYSCTLS)})"
    rf"|net[.]ipv6[.]conf[.]{IFNAME}[.](?:{'|'.join(IPV6_SYSCTLS)})"
    rf"|net[.]ipv[46][.]neigh[.]{IFNAME}[.](?:{'|'.join(NEIGH_SYSCTLS)})"
)


UINT32 = 2**32 - 1


#: GSO_MAX_SIZE of include/linux/netdevice.h
_GSO = 8 * 65535


_TABLE = number(1, UINT32)


_NAME = Field(
    "string",
    "an interface name: up to 15 letters, digits, '_', '.' and '-', other than lo, all and default",
    pattern=_INTERFACE,
    forbidden=("lo", "all", "default"),
)


_HOP = object_of(
    {"gateway": ip(required=True), "weight": number(1, 256), "onlink": flag()}, description="a next hop with a gateway"
)


_ROUTE = object_of(
    {
        "destination": network(required=True),
        "gateway": ip(),
        "source": ip(),
        "scope": enum_of("global", "link"),
        "table": _TABLE,
        "metric": number(0, UINT32),
        "onlink": flag(),
        "mtu": number(68, 65535),
        "multipath": list_of(_HOP, 16, "next hops"),
    },
    same_family("destination", "gateway", "source"),
    not_both("gateway", "multipath"),
    Rule(
        "next hops must be of the destination's IP family",
        lambda v: all(family(hop["gateway"]) == family(v["destination"]) for hop in v.get("multipath", ())),
        "!has({x}.multipath) || {x}.multipath.all(h, h.gateway.contains(':') == {x}.destination.contains(':'))",
    ),
    Rule(
        "a route needs gateway or multipath, except with scope link, which allows neither",
        lambda v: ("gateway" in v or "multipath" in v) != (v.get("scope", "global") == "link"),
        "(has({x}.gateway) || has({x}.multipath)) != (has({x}.scope) && {x}.scope == 'link')",
    ),
    needs("onlink", "gateway"),
    description="a route with a destination",
)


_RULE = object_of(
    {
        "priority": number(0, 32765),
        "source": network(),
        "destination": network(),
        "table": number(1, UINT32, required=True),
        "fwmark": number(0, UINT32),
        "fwmask": number(0, UINT32),
        "iif": _NAME,
        "oif": _NAME,
        "tos": number(0, 255),
        "ipproto": enum_of("tcp", "udp", "icmp", "icmpv6", "sctp"),
        "sourcePort": number(1, 65535),
        "destinationPort": number(1, 65535),
        "family": enum_of("ipv4", "ipv6"),
    },
    same_family("source", "destination"),
    needs("fwmask", "fwmark"),
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
    description="a rule with a table",
)


_RATE = Field(
    "string",
    "a rate in bit/s such as 25G, a whole number with M, G or T",
    pattern="[1-9][0-9]{0,6}M|[1-9][0-9]{0,3}[GT]",
)


#: The fields of an InterfaceConfig, besides apiVersion and kind.
FIELDS: dict[str, Field] = {
    "name": _NAME,
    "addresses": list_of(Field("address", "an address with its prefix, such as 10.0.0.2/24"), 32, "addresses"),
    "mtu": number(68, 65535),
    "mac": Field(
        "string",
        "the MAC address of one interface, such as 02:00:00:00:00:01",
        pattern=_MAC,
        forbidden=("00:00:00:00:00:00",),
    ),
    "gsoMaxSize": number(1, _GSO),
    "groMaxSize": number(1, _GSO),
    "gsoIPv4MaxSize": number(1, _GSO),
    "groIPv4MaxSize": number(1, _GSO),
    "dhcp": list_of(enum_of("ipv4", "ipv6"), 2, "IP families, ipv4 and ipv6"),
    "railAddresses": flag(),
    "dad": enum_of("optimistic", "wait", "none"),
    "routes": list_of(_ROUTE, 64, "routes"),
    "rules": list_of(_RULE, 32, "rules"),
    "neighbors": list_of(
        object_of(
            {
                "destination": ip(required=True),
                "mac": Field("string", "a MAC address such as 02:00:00:00:00:01", pattern=_MAC, required=True),
            },
            description="a neighbor with a destination and a mac",
        ),
        64,
        "neighbors",
    ),
    "sysctls": map_of(
        _SYSCTL,
        Field("setting", "a whole number", pattern=r"-?[0-9]{1,10}", least=-(2**31), most=UINT32),
        32,
        f"a mapping of allowed sysctls, such as net.ipv4.conf.{IFNAME}.rp_filter, to whole numbers",
    ),
    "ethtool": object_of(
        {
            "features": map_of(r"[a-z0-9][a-z0-9-]{0,31}", flag(), 64, "a mapping of features to true or false"),
            "privateFlags": map_of(
                r"[A-Za-z0-9][A-Za-z0-9_. -]{0,31}", flag(), 32, "a mapping of private flags to true or false"
            ),
            "rings": object_of(
                {name: number(1, UINT32) for name in ("rx", "rxMini", "rxJumbo", "tx")}, description="sizes of rings"
            ),
        },
        description="features, privateFlags and rings",
    ),
    "vrf": object_of(
        {
            "name": replace(_NAME, required=True),
            "table": _TABLE,
        },
        Rule(
            "table must not be 253, 254 or 255, which the kernel reserves",
            lambda v: v.get("table") not in (253, 254, 255),
            "!has({x}.table) || !({x}.table in [253, 254, 255])",
        ),
        description="the name of a VRF, and its table",
    ),
    "vf": object_of(
        {
            "vlan": number(0, 4094),
            "qos": number(0, 7),
            "minTxRate": number(0, UINT32, description="Mbit/s, a whole number"),
            "maxTxRate": number(0, UINT32, description="Mbit/s, a whole number"),
            "trust": flag(),
            "spoofchk": flag(),
            "mac": Field(
                "string", "a MAC address such as 02:00:00:00:00:01", pattern=_MAC, forbidden=("00:00:00:00:00:00",)
            ),
            "linkState": enum_of("auto", "enable", "disable"),
        },
        needs("qos", "vlan"),
        Rule(
            "minTxRate must not be more than maxTxRate",
            lambda v: not v.get("maxTxRate") or v.get("minTxRate", 0) <= v["maxTxRate"],
            "!has({x}.maxTxRate) || {x}.maxTxRate == 0 || !has({x}.minTxRate) || {x}.minTxRate <= {x}.maxTxRate",
        ),
        description="settings of a virtual function",
    ),
    "child": object_of(
        {
            "type": enum_of("macvlan", "ipvlan", required=True),
            "mode": enum_of("bridge", "private", "vepa", "passthru", "l2", "l3", "l3s"),
        },
        Rule(
            "mode must be bridge, private, vepa or passthru for macvlan, l2, l3 or l3s for ipvlan",
            lambda v: "mode" not in v or v["mode"].startswith("l") == (v["type"] == "ipvlan"),
            "!has({x}.mode) || {x}.mode.startsWith('l') == ({x}.type == 'ipvlan')",
        ),
        description="the type of a child interface",
    ),
    "share": object_of(
        {"burst": _RATE, "hard": flag(), "guarantee": _RATE},
        Rule(
            "a hard share needs guarantee, and other shares must not set it",
            lambda v: v.get("hard", False) == ("guarantee" in v),
            "(has({x}.hard) && {x}.hard) == has({x}.guarantee)",
        ),
        Rule(
            "burst must not be less than guarantee",
            lambda v: (
                not {"burst", "guarantee"} <= set(v) or quantity.parse(v["burst"]) >= quantity.parse(v["guarantee"])
            ),
            "!has({x}.burst) || !has({x}.guarantee) || !quantity({x}.burst).isLessThan(quantity({x}.guarantee))",
        ),
        description="burst, hard and guarantee of a share",
    ),
}


#: The fields of `vf` that a share may set. The others would change the VF's rate, or allow spoofed addresses.
SHARE_VF_FIELDS = ("vlan", "qos", "mac", "linkState")


#: Conditions on the fields of an InterfaceConfig.
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
    not_both("vf", "child"),
    not_both("share", "child"),
    Rule(
        f"with share, vf may only set {', '.join(SHARE_VF_FIELDS)}",
        lambda v: "share" not in v or set(v.get("vf", ())) <= set(SHARE_VF_FIELDS),
        f"!has({{x}}.share) || !has({{x}}.vf) || {{x}}.vf.all(k, k in {list(SHARE_VF_FIELDS)})",
    ),
    Rule(
        "mac cannot be set for an ipvlan child, which uses the mac of its parent",
        lambda v: "mac" not in v or v.get("child", {}).get("type") != "ipvlan",
        "!has({x}.mac) || !has({x}.child) || {x}.child.type != 'ipvlan'",
    ),
    Rule(
        "mac and vf.mac must be the same",
        lambda v: "mac" not in v or v.get("vf", {}).get("mac", v["mac"]).lower() == v["mac"].lower(),
        "!has({x}.mac) || !has({x}.vf) || !has({x}.vf.mac) || {x}.vf.mac.lowerAscii() == {x}.mac.lowerAscii()",
    ),
    Rule(
        "a VRF must not have the name of its interface",
        lambda v: "name" not in v or v.get("vrf", {}).get("name") != v["name"],
        "!has({x}.name) || !has({x}.vrf) || {x}.vrf.name != {x}.name",
    ),
)


#: The whole object.
CONFIG = object_of(
    {
        "apiVersion": Field("string", API_VERSION, words=(API_VERSION,), required=True),
        "kind": Field("string", KIND, words=(KIND,), required=True),
        **FIELDS,
    },
    *RULES,
    description=f"a mapping of kind {KIND}",
)


def parameters(interface: ObjectView) -> Object:
    """The opaque parameters for `interface` of the inventory."""
    head = {"apiVersion": API_VERSION, "kind": KIND}
    return {**head, **{key: value for key, value in interface.items() if key not in head}}


def validate(config: object, path: str, complete: bool = True) -> list[Problem]:
    """The first MAX_PROBLEMS errors of an InterfaceConfig; paths start with `path`.

    Without `complete` apiVersion and kind may be left out, as in the inventory. Rules: `unknown-key`, `missing`,
    `wrong-type`, `bad-value`, `too-many`, `duplicate`, `contradiction`, `too-long`, `more-errors`.
    """
    problems = LimitedProblems()
    if isinstance(config, dict) and not complete:
        config = {"apiVersion": API_VERSION, "kind": KIND, **config}
    try:
        check(CONFIG, config, path, problems)
    except TooManyProblems:
        more = Problem(path, f"has more errors; these are the first {MAX_PROBLEMS}", "more-errors")
        return [*problems, more]
    if not problems and limits.opaque_size(config) > limits.OPAQUE_BYTES:
        problems.append(Problem(path, f"is longer than {limits.OPAQUE_BYTES} bytes", "too-long"))
    return list(problems)


def vrf_table(name: str) -> int:
    """The table of a VRF without a configured table. It depends only on the name, so it is the same on every node."""
    return 1000 + zlib.crc32(name.encode()) % 1_000_000


def merge_configs(configs: t.Iterable[ObjectView]) -> Object:
    """The fields that several configurations set together. Later ones replace earlier ones, but those of `share` are
    merged: a class that caps the burst leaves the rest to claims."""
    found: Object = {}
    for config in configs:
        for name, value in config.items():
            if name not in ("apiVersion", "kind"):
                found[name] = {**found[name], **value} if name == "share" and name in found else value
    return found


def changed_by_claim(of_class: ObjectView, of_claim: ObjectView) -> list[str]:
    """The fields of a class's configuration that a claim's configuration would change.

    What a class sets is final, each field as a whole: a claim that could add `trust` to the `vf` of its class could
    leave the class's VLAN. In a share, a claim may set what the class does not set, up to its burst.
    """
    both = [name for name in of_claim if name in of_class and name not in ("apiVersion", "kind")]
    return [name for name in both if not _is_compatible(name, of_class[name], of_claim[name])]


def _is_compatible(name: str, of_class: t.Any, of_claim: t.Any) -> bool:
    def same(one: object, other: object) -> bool:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)  # true is not 1

    if name != "share":
        return same(of_class, of_claim)
    changed = [key for key, value in of_claim.items() if not same(value, of_class.get(key))]
    amounts = [of_claim[key] for key in changed if key in ("burst", "guarantee") and "burst" in of_class]
    return all(key == "burst" or key not in of_class for key in changed) and all(
        quantity.parse(one) <= quantity.parse(of_class["burst"]) for one in amounts
    )
