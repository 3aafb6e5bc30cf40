# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""InterfaceConfig, the opaque configuration with which a claim sets up its network interface (driver `lanewise.dev`).

FIELDS is the only definition of its fields. `validate` reads FIELDS, and `interface_policy` writes the CEL of an
admission policy from them. Whether an interface supports a feature, ring size, MTU or VF setting is known only on the
node, so the driver checks that when it prepares the claim.
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


#: The placeholder for the interface's name in a sysctl. A configuration can set only sysctls of its own interface.
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


MAX_UINT32 = 2**32 - 1


#: GSO_MAX_SIZE of include/linux/netdevice.h
_MAX_GSO_BYTES = 8 * 65535


_TABLE = number(1, MAX_UINT32)


_NAME = Field(
    "string",
    "an interface name: up to 15 letters, digits, '_', '.' and '-', other than lo, all and default",
    pattern=_INTERFACE,
    forbidden=("lo", "all", "default"),
)


_NEXT_HOP = object_of(
    {"gateway": ip(required=True), "weight": number(1, 256), "onlink": flag()}, description="a next hop with a gateway"
)


_ROUTE = object_of(
    {
        "destination": network(required=True),
        "gateway": ip(),
        "source": ip(),
        "scope": enum_of("global", "link"),
        "table": _TABLE,
        "metric": number(0, MAX_UINT32),
        "onlink": flag(),
        "mtu": number(68, 65535),
        "multipath": list_of(_NEXT_HOP, 16, "next hops"),
    },
    same_family("destination", "gateway", "source"),
    not_both("gateway", "multipath"),
    Rule(
        "next hops must be of the destination's IP family",
        lambda value: all(family(hop["gateway"]) == family(value["destination"]) for hop in value.get("multipath", ())),
        "!has({x}.multipath) || {x}.multipath.all(h, h.gateway.contains(':') == {x}.destination.contains(':'))",
    ),
    Rule(
        "a route needs gateway or multipath, except with scope link, which allows neither",
        lambda value: ("gateway" in value or "multipath" in value) != (value.get("scope", "global") == "link"),
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
        "table": number(1, MAX_UINT32, required=True),
        "fwmark": number(0, MAX_UINT32),
        "fwmask": number(0, MAX_UINT32),
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
        lambda value: (
            "family" not in value
            or all(
                f"ipv{family(value[name])}" == value["family"] for name in ("source", "destination") if name in value
            )
        ),
        "!has({x}.family) || ((!has({x}.source) || {x}.source.contains(':') == ({x}.family == 'ipv6')) && "
        "(!has({x}.destination) || {x}.destination.contains(':') == ({x}.family == 'ipv6')))",
    ),
    Rule(
        "without source and destination a rule needs a family",
        lambda value: any(name in value for name in ("source", "destination", "family")),
        "has({x}.source) || has({x}.destination) || has({x}.family)",
    ),
    Rule(
        "ports need ipproto tcp, udp or sctp",
        lambda value: (
            not ("sourcePort" in value or "destinationPort" in value) or value.get("ipproto") in ("tcp", "udp", "sctp")
        ),
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
    "addresses": list_of(
        Field("address", "an address with its prefix, such as 10.0.0.2/24"),
        32,
        "addresses with prefix length, such as 10.0.0.2/24",
    ),
    "mtu": number(68, 65535),
    "mac": Field(
        "string",
        "the MAC address of one interface, such as 02:00:00:00:00:01",
        pattern=_MAC,
        forbidden=("00:00:00:00:00:00",),
    ),
    "gsoMaxSize": number(1, _MAX_GSO_BYTES),
    "groMaxSize": number(1, _MAX_GSO_BYTES),
    "gsoIPv4MaxSize": number(1, _MAX_GSO_BYTES),
    "groIPv4MaxSize": number(1, _MAX_GSO_BYTES),
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
        Field("setting", "a whole number", pattern=r"-?[0-9]{1,10}", minimum=-(2**31), maximum=MAX_UINT32),
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
                {name: number(1, MAX_UINT32) for name in ("rx", "rxMini", "rxJumbo", "tx")},
                description="a mapping of rings to their sizes",
            ),
        },
        description="a mapping with features, privateFlags or rings",
    ),
    "vrf": object_of(
        {
            "name": replace(_NAME, required=True),
            "table": _TABLE,
        },
        Rule(
            "table must not be 253, 254 or 255, which the kernel reserves",
            lambda value: value.get("table") not in (253, 254, 255),
            "!has({x}.table) || !({x}.table in [253, 254, 255])",
        ),
        description="a mapping with the name of a VRF, and its table",
    ),
    "vf": object_of(
        {
            "vlan": number(0, 4094),
            "qos": number(0, 7),
            "minTxRate": number(0, MAX_UINT32, description="Mbit/s, a whole number"),
            "maxTxRate": number(0, MAX_UINT32, description="Mbit/s, a whole number"),
            "trust": flag(),
            "spoofchk": flag(),
            "mac": Field(
                "string", "a MAC address such as 02:00:00:00:00:01", pattern=_MAC, forbidden=("00:00:00:00:00:00",)
            ),
            "linkState": enum_of("auto", "enable", "disable"),
        },
        needs("qos", "vlan"),
        Rule(
            "minTxRate must not be more than maxTxRate, unless maxTxRate is 0 (no limit)",
            lambda value: not value.get("maxTxRate") or value.get("minTxRate", 0) <= value["maxTxRate"],
            "!has({x}.maxTxRate) || {x}.maxTxRate == 0 || !has({x}.minTxRate) || {x}.minTxRate <= {x}.maxTxRate",
        ),
        description="a mapping of settings of a virtual function",
    ),
    "child": object_of(
        {
            "type": enum_of("macvlan", "ipvlan", required=True),
            "mode": enum_of("bridge", "private", "vepa", "passthru", "l2", "l3", "l3s"),
        },
        Rule(
            "mode must be bridge, private, vepa or passthru for macvlan, and l2, l3 or l3s for ipvlan",
            lambda value: "mode" not in value or value["mode"].startswith("l") == (value["type"] == "ipvlan"),
            "!has({x}.mode) || {x}.mode.startsWith('l') == ({x}.type == 'ipvlan')",
        ),
        description="a mapping with the type of a child interface",
    ),
    "share": object_of(
        {"burst": _RATE, "hard": flag(), "guarantee": _RATE},
        Rule(
            "a hard share needs guarantee, and other shares must not set it",
            lambda value: value.get("hard", False) == ("guarantee" in value),
            "(has({x}.hard) && {x}.hard) == has({x}.guarantee)",
        ),
        Rule(
            "burst must not be less than guarantee",
            lambda value: (
                not {"burst", "guarantee"} <= set(value)
                or quantity.parse(value["burst"]) >= quantity.parse(value["guarantee"])
            ),
            "!has({x}.burst) || !has({x}.guarantee) || !quantity({x}.burst).isLessThan(quantity({x}.guarantee))",
        ),
        description="a mapping with burst, hard or guarantee of a share",
    ),
}


#: The fields of `vf` that may be set for a share. The others would change the VF's rate, or allow spoofed addresses.
SHARE_VF_FIELDS = ("vlan", "qos", "mac", "linkState")


#: Conditions on several fields of an InterfaceConfig.
RULES: tuple[Rule, ...] = (
    Rule(
        "addresses and dhcp must not be of the same IP family",
        lambda value: (
            not {f"ipv{family(address)}" for address in value.get("addresses", ())} & set(value.get("dhcp", ()))
        ),
        "!has({x}.addresses) || !has({x}.dhcp) || "
        "{x}.addresses.all(a, !((a.contains(':') ? 'ipv6' : 'ipv4') in {x}.dhcp))",
    ),
    Rule(
        "IPv6 needs an mtu of 1280 or more",
        lambda value: (
            value.get("mtu", 1280) >= 1280
            or not (any(":" in address for address in value.get("addresses", ())) or "ipv6" in value.get("dhcp", ()))
        ),
        "!has({x}.mtu) || {x}.mtu >= 1280 || !((has({x}.addresses) && {x}.addresses.exists(a, a.contains(':'))) || "
        "(has({x}.dhcp) && 'ipv6' in {x}.dhcp))",
    ),
    not_both("vf", "child"),
    not_both("share", "child"),
    Rule(
        f"with share, vf may only set {', '.join(SHARE_VF_FIELDS)}",
        lambda value: "share" not in value or set(value.get("vf", ())) <= set(SHARE_VF_FIELDS),
        f"!has({{x}}.share) || !has({{x}}.vf) || {{x}}.vf.all(k, k in {list(SHARE_VF_FIELDS)})",
    ),
    Rule(
        "mac cannot be set for an ipvlan child, which uses the mac of its parent",
        lambda value: "mac" not in value or value.get("child", {}).get("type") != "ipvlan",
        "!has({x}.mac) || !has({x}.child) || {x}.child.type != 'ipvlan'",
    ),
    Rule(
        "mac and vf.mac must be the same",
        lambda value: (
            "mac" not in value or value.get("vf", {}).get("mac", value["mac"]).lower() == value["mac"].lower()
        ),
        "!has({x}.mac) || !has({x}.vf) || !has({x}.vf.mac) || {x}.vf.mac.lowerAscii() == {x}.mac.lowerAscii()",
    ),
    Rule(
        "a VRF must not have the name of its interface",
        lambda value: "name" not in value or value.get("vrf", {}).get("name") != value["name"],
        "!has({x}.name) || !has({x}.vrf) || {x}.vrf.name != {x}.name",
    ),
)


#: The whole object.
CONFIG = object_of(
    {
        "apiVersion": Field("string", API_VERSION, choices=(API_VERSION,), required=True),
        "kind": Field("string", KIND, choices=(KIND,), required=True),
        **FIELDS,
    },
    *RULES,
    description=f"a mapping of kind {KIND}",
)


def parameters(interface: ObjectView) -> Object:
    """The opaque parameters for `interface` of the inventory."""
    header = {"apiVersion": API_VERSION, "kind": KIND}
    return {**header, **{key: value for key, value in interface.items() if key not in header}}


def validate(config: object, path: str, complete: bool = True) -> list[Problem]:
    """The first MAX_PROBLEMS errors of an InterfaceConfig; their paths start with `path`.

    If `complete` is false, apiVersion and kind may be left out, as in the inventory. Rules: `unknown-key`, `missing`,
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
    """The routing table of a VRF without a configured table. It follows from the name, so every node uses the same."""
    return 1000 + zlib.crc32(name.encode()) % 1_000_000


def merge_configs(configs: t.Iterable[ObjectView]) -> Object:
    """The fields that several configurations set together. Later values replace earlier ones.

    The fields of `share` are merged, so a claim can set the others if its class sets only the burst.
    """
    merged: Object = {}
    for config in configs:
        for name, value in config.items():
            if name not in ("apiVersion", "kind"):
                merged[name] = {**merged[name], **value} if name == "share" and name in merged else value
    return merged


def changed_by_claim(class_config: ObjectView, claim_config: ObjectView) -> list[str]:
    """The fields of a class's configuration that a claim's configuration would change.

    A claim cannot change any part of a field that its class sets: with `trust`, for example, a claim could leave the
    VLAN that is set in the `vf` of its class. Only `share` is an exception: a claim may set what the class leaves open,
    and rates up to the burst of the class.
    """
    common = [name for name in claim_config if name in class_config and name not in ("apiVersion", "kind")]
    return [name for name in common if not _is_compatible(name, class_config[name], claim_config[name])]


def _is_compatible(name: str, class_config: t.Any, claim_config: t.Any) -> bool:
    def same(first: object, second: object) -> bool:
        return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)  # unlike ==, tells true from 1

    if name != "share":
        return same(class_config, claim_config)
    changed = [key for key, value in claim_config.items() if not same(value, class_config.get(key))]
    rates = [claim_config[key] for key in changed if key in ("burst", "guarantee") and "burst" in class_config]
    return all(key == "burst" or key not in class_config for key in changed) and all(
        quantity.parse(rate) <= quantity.parse(class_config["burst"]) for rate in rates
    )
