# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""InterfacePolicy: which namespaces may use a DeviceClass, and what their claims may set in an InterfaceConfig.

It is an opaque configuration of a DeviceClass, in addition to the class's InterfaceConfig:

    apiVersion: lanewise.dev/v1alpha1
    kind: InterfacePolicy
    tenants:                          # the first tenant with the claim's namespace applies; without one, it is refused
      - namespaces: [team-a]          # default: all namespaces
        allow:                        # {} allows any value; fields that are not listed are refused
          name: {}
          mtu: {most: 9000}
          addresses: {within: [10.1.0.0/16]}
          vf: {vlan: {least: 100, most: 199}}

CHOICES is the only definition of what a policy can allow. The driver checks claims against CHOICES, and
`claims/tenancy_policy.py` writes the CEL of an admission policy from them. DEFAULT applies to a class without an
InterfacePolicy.
"""

from __future__ import annotations

import ipaddress
import typing as t
from dataclasses import dataclass

from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem
from .field_checks import MAX_PROBLEMS, LimitedProblems, TooManyProblems, check
from .fields import Field, Rule, enum_of, list_of, network, number, object_of
from .interface_config import (
    API_VERSION,
    FIELDS,
    IFNAME,
    IPV4_SYSCTLS,
    IPV6_SYSCTLS,
    KIND,
    MAX_UINT32,
    NEIGH_SYSCTLS,
    changed_by_claim,
    merge_configs,
)

POLICY_KIND = "InterfacePolicy"

#: Sysctls that a claim may set only if its class allows them. A pod could use them to forward packets of other hosts,
#: or to answer ARP and neighbor requests for their addresses.
CLOSED_SYSCTLS = ("forwarding", "proxy_arp", "proxy_ndp")


@dataclass(frozen=True)
class Bound:
    """A kind of limit for values. `field` defines what a policy writes as the limit. `allows` tests one item against a
    limit, and `cel` is the same test in CEL, for the limit `{b}` and the item `{i}`."""

    field: Field
    allows: t.Callable[[ObjectView, t.Any], bool]
    cel: str


@dataclass(frozen=True)
class Choice:
    """A setting that a policy can allow, and its kind of limit, `bound`.

    `items` returns the limited items of a value of the setting. `cel` is the same in CEL, for the value `{v}`.
    `default` is the limit for classes without a policy; None if their claims may not use the setting.
    """

    path: tuple[str, ...]
    bound: Bound
    items: t.Callable[[t.Any], t.Iterable[t.Any]] = lambda value: [value]
    cel: str = "[{v}]"
    default: ObjectView | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


def _any() -> Bound:
    return Bound(object_of({}, description="an empty mapping, for any value"), lambda _bound, _item: True, "true")


def _range() -> Bound:
    fields = {"least": number(0, MAX_UINT32), "most": number(0, MAX_UINT32)}
    ordered = Rule(
        "least must not be more than most",
        lambda value: value.get("least", 0) <= value.get("most", MAX_UINT32),
        "!has({x}.least) || !has({x}.most) || {x}.least <= {x}.most",
    )
    return Bound(
        object_of(fields, ordered, description="a mapping with least and most, or an empty one for any value"),
        lambda bound, item: bound.get("least", item) <= item <= bound.get("most", item),
        "(!has({b}.least) || {i} >= {b}.least) && (!has({b}.most) || {i} <= {b}.most)",
    )


def _only(item: Field) -> Bound:
    return Bound(
        object_of(
            {"only": list_of(item, 64, "values")}, description="a mapping with only, or an empty one for any value"
        ),
        lambda bound, item: "only" not in bound or item in bound["only"],
        "(!has({b}.only) || {i} in {b}.only)",
    )


def _within() -> Bound:
    return Bound(
        object_of(
            {"within": list_of(network(), 32, "networks")},
            description="a mapping with within, or an empty one for any value",
        ),
        lambda bound, item: "within" not in bound or any(_is_subnet(item, limit) for limit in bound["within"]),
        "(!has({b}.within) || {b}.within.exists(n, cidr(n).containsCIDR({i})))",
    )


def _is_subnet(item: str, limit: str) -> bool:
    inner, outer = ipaddress.ip_network(item, strict=False), ipaddress.ip_network(limit)
    return inner.version == outer.version and inner.subnet_of(t.cast(t.Any, outer))


def _prefixes(pattern: str, description: str) -> Bound:
    return Bound(
        object_of(
            {"prefixes": list_of(Field("string", description, pattern=pattern), 32, "prefixes")},
            description="a mapping with prefixes, or an empty one for any value",
        ),
        lambda bound, item: "prefixes" not in bound or any(item.startswith(prefix) for prefix in bound["prefixes"]),
        "(!has({b}.prefixes) || {b}.prefixes.exists(n, {i}.startsWith(n)))",
    )


def _keys(path: tuple[str, ...], key: str, default: ObjectView | None = None) -> Choice:
    """A setting that is a mapping; a policy limits its keys."""
    return Choice(path, _only(Field("string", "a key of the mapping", pattern=key)), list, "{v}.map(k, k)", default)


def _mac(*path: str) -> Choice:
    prefix = _prefixes(
        "[0-9a-f]{2}(?::[0-9a-f]{2}){0,5}", "the first bytes of MAC addresses in lower case, such as 02:00:5e"
    )
    return Choice(path, prefix, lambda value: [value.lower()], "[{v}.lowerAscii()]")


def _sysctls() -> list[str]:
    conf = [("ipv4.conf", IPV4_SYSCTLS), ("ipv6.conf", IPV6_SYSCTLS)]
    neigh = [("ipv4.neigh", NEIGH_SYSCTLS), ("ipv6.neigh", NEIGH_SYSCTLS)]
    return [f"net.{group}.{IFNAME}.{name}" for group, names in conf + neigh for name in names]


def _number(*path: str, default: ObjectView | None = None) -> Choice:
    return Choice(path, _range(), default=default)


def _any_value_of(name: str, default: ObjectView | None = None) -> Choice:
    return Choice((name,), _any(), default=default)


_ANY_VALUE: ObjectView = {}
_OPEN_SYSCTLS = [name for name in _sysctls() if name.rpartition(".")[2] not in CLOSED_SYSCTLS]
_ETHTOOL = FIELDS["ethtool"].fields

CHOICES: tuple[Choice, ...] = (
    Choice(
        ("name",),
        _prefixes(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", "the first characters of interface names"),
        default=_ANY_VALUE,
    ),
    Choice(("addresses",), _within(), list, "{v}", _ANY_VALUE),
    _number("mtu", default=_ANY_VALUE),
    _mac("mac"),
    *(_number(name, default=_ANY_VALUE) for name in ("gsoMaxSize", "groMaxSize", "gsoIPv4MaxSize", "groIPv4MaxSize")),
    Choice(("dhcp",), _only(enum_of("ipv4", "ipv6")), list, "{v}", _ANY_VALUE),
    _any_value_of("railAddresses", _ANY_VALUE),
    _any_value_of("dad", _ANY_VALUE),
    Choice(
        ("routes",),
        _within(),
        lambda value: [route["destination"] for route in value],
        "{v}.map(r, r.destination)",
        default=_ANY_VALUE,
    ),
    _any_value_of("rules", _ANY_VALUE),
    _any_value_of("neighbors", _ANY_VALUE),
    _keys(("sysctls",), FIELDS["sysctls"].key, {"only": _OPEN_SYSCTLS}),
    _keys(("ethtool", "features"), _ETHTOOL["features"].key, _ANY_VALUE),
    _keys(("ethtool", "privateFlags"), _ETHTOOL["privateFlags"].key),
    Choice(("ethtool", "rings"), _any(), default=_ANY_VALUE),
    _any_value_of("vrf", _ANY_VALUE),
    _number("vf", "vlan"),
    _number("vf", "qos"),
    _number("vf", "minTxRate"),
    _number("vf", "maxTxRate"),
    Choice(("vf", "trust"), _any()),
    Choice(("vf", "spoofchk"), _any()),
    _mac("vf", "mac"),
    Choice(("vf", "linkState"), _only(enum_of("auto", "enable", "disable"))),
    Choice(("child",), _only(enum_of("macvlan", "ipvlan")), lambda value: [value["type"]], "[{v}.type]", _ANY_VALUE),
    _any_value_of("share", _ANY_VALUE),
)


def _allow() -> Field:
    fields: dict[str, Field] = {}
    for choice in CHOICES:
        if len(choice.path) == 1:
            fields[choice.name] = choice.bound.field
    for parent in dict.fromkeys(choice.path[0] for choice in CHOICES if len(choice.path) > 1):
        inner = {choice.path[1]: choice.bound.field for choice in CHOICES if choice.path[0] == parent}
        fields[parent] = object_of(inner, description=f"a mapping with any of {', '.join(inner)}")
    return object_of(fields, description="a mapping of what claims may set", required=True)


#: The whole object.
POLICY = object_of(
    {
        "apiVersion": Field("string", API_VERSION, choices=(API_VERSION,), required=True),
        "kind": Field("string", POLICY_KIND, choices=(POLICY_KIND,), required=True),
        "tenants": Field(
            "list",
            "a list of up to 32 different tenants",
            item=object_of(
                {
                    "namespaces": list_of(
                        Field("string", "a namespace", pattern="[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"), 64, "namespaces"
                    ),
                    "allow": _allow(),
                },
                description="a mapping with allow, and namespaces",
            ),
            maximum=32,
            required=True,
        ),
    },
    description=f"a mapping of kind {POLICY_KIND}",
)


def _default() -> Object:
    allow: Object = {}
    for choice in CHOICES:
        if choice.default is not None:
            parent = allow
            for name in choice.path[:-1]:
                parent = parent.setdefault(name, {})
            parent[choice.path[-1]] = choice.default
    return allow


#: What claims may set if the class has no policy.
DEFAULT: ObjectView = _default()


def parameters(tenants: t.Sequence[t.Any]) -> Object:
    """The opaque parameters for `tenants` of the inventory."""
    return {"apiVersion": API_VERSION, "kind": POLICY_KIND, "tenants": [_without_true(tenant) for tenant in tenants]}


def _without_true(tenant: t.Any) -> t.Any:
    """A tenant with an empty limit wherever the inventory allows any value by `true`.

    `true` for `vf` or `ethtool` as a whole stays, so that `validate` refuses it: their inner fields have limits.
    """
    allow = tenant.get("allow") if isinstance(tenant, dict) else None
    if not isinstance(allow, dict):
        return tenant
    limits: Object = {}
    parents = {choice.path[0] for choice in CHOICES if len(choice.path) > 1}
    for name, value in allow.items():
        if name not in parents:
            limits[name] = {} if value is True else value
        elif isinstance(value, dict):
            limits[name] = {key: {} if item is True else item for key, item in value.items()}
        else:
            limits[name] = value
    return {**tenant, "allow": limits}


def is_policy(config: object) -> bool:
    """Whether a configuration of a class is an InterfacePolicy."""
    return isinstance(config, dict) and config.get("kind") == POLICY_KIND


def validate(policy: object, path: str) -> list[Problem]:
    """The first MAX_PROBLEMS errors of an InterfacePolicy. Their rules are those of `interface_config.validate`."""
    problems = LimitedProblems()
    try:
        check(POLICY, policy, path, problems)
    except TooManyProblems:
        more = Problem(path, f"has more errors; these are the first {MAX_PROBLEMS}", "more-errors")
        return [*problems, more]
    return list(problems)


def allowed_settings(policy: ObjectView | None, namespace: str) -> ObjectView | None:
    """What claims of a namespace may set, according to the valid `policy` of a class.

    Returns None if they may not use the class at all. `policy` is None for a class without a policy: DEFAULT applies.
    """
    if policy is None:
        return DEFAULT
    for tenant in policy["tenants"]:
        if "namespaces" not in tenant or namespace in tenant["namespaces"]:
            return t.cast(ObjectView, tenant["allow"])
    return None


def refused_fields(allow: ObjectView, class_config: ObjectView, claim_config: ObjectView) -> list[tuple[str, str]]:
    """The fields of a claim's valid InterfaceConfig that its class refuses, each with the reason.

    `allow` is what `allowed_settings` returned, `class_config` the fields that the class itself sets. A reason is the
    rest of a sentence whose subject is the class.
    """
    refused = [(name, _class_sets(name, class_config[name])) for name in changed_by_claim(class_config, claim_config)]
    for choice in CHOICES:
        value, field = _value_at(claim_config, choice.path), choice.path[0]
        if value is None or field in class_config and (field != "share" or value == class_config[field]):
            continue
        bound = _value_at(allow, choice.path)
        if bound is None:
            refused.append((choice.name, f"does not let claims set {choice.name}"))
        elif not all(choice.bound.allows(bound, item) for item in choice.items(value)):
            refused.append((choice.name, f"limits what claims may set as {choice.name}: {_limit_text(bound)}"))
    return refused


def _class_sets(name: str, value: t.Any) -> str:
    """The reason why a claim cannot change this field of its class."""
    if name == "share" and "burst" in value:
        return f"sets share, of which a claim can only lower the burst of {value['burst']}bit/s"
    return f"sets {name}, which a claim cannot change or extend"


def _value_at(mapping: ObjectView, path: tuple[str, ...]) -> t.Any:
    value: t.Any = mapping
    for name in path:
        value = value.get(name)
        if value is None:
            return None
    return value


def _limit_text(bound: ObjectView) -> str:
    """A limit as text for a message."""
    phrases = {"least": "at least", "most": "at most", "only": "only", "within": "within", "prefixes": "starting with"}
    parts = []
    for name, limit in bound.items():
        values = [str(value) for value in limit] if isinstance(limit, list) else [str(limit)]
        more = f" and {len(values) - 8} more" if len(values) > 8 else ""
        parts.append(f"{phrases[name]} {', '.join(values[:8]) or 'none'}{more}".strip())
    return ", ".join(parts)


def class_settings(configs: t.Iterable[ObjectView]) -> Object:
    """The fields that the InterfaceConfigs of a class set together."""
    return merge_configs(config for config in configs if config.get("kind") == KIND)
