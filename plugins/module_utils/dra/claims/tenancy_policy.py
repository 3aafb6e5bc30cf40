# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A ValidatingAdmissionPolicy that refuses claims that the InterfacePolicies of their DeviceClasses do not allow.

It is generated from the table `tenancy.CHOICES`. Each DeviceClass of the cluster is a parameter of the policy. So for
claims and templates with a request for the class, the policy reads from the class itself what it sets and allows. The
policy requires that every alternative of a request is allowed. The driver checks what the policy cannot: classes that
are created later, and the alternative that was allocated.
"""

from __future__ import annotations

import typing as t

from ..config import tenancy
from ..config.interface_config import DRIVER, FIELDS, KIND, RULES
from ..config.tenancy import CHOICES, Choice
from ..kube.objects import Object
from .admission import policy
from .selectors import literal

NAME = "lanewise-dra-interface-tenancy"
_CLASS = "params.metadata.name"
_DEVICES = "object.kind == 'ResourceClaim' ? object.spec.devices : object.spec.spec.devices"
_ALTERNATIVES = f"(has(r.firstAvailable) ? r.firstAvailable : []).filter(s, s.deviceClassName == {_CLASS})"
#: Whether a request `r` is for the class. Requests with admin access do not count.
_REQUESTS_CLASS = (
    f"has(r.exactly) ? r.exactly.deviceClassName == {_CLASS} && !(has(r.exactly.adminAccess) && r.exactly.adminAccess) "
    f": size({_ALTERNATIVES}) > 0"
)
#: The names by which configurations refer to a request `r`: one list, or one for each alternative with this class.
_REFERENCES = "[string(r.name), r.name + '/' + s.name]"
_NAMES = f"has(r.exactly) ? [[string(r.name)]] : {_ALTERNATIVES}.map(s, {_REFERENCES})"
_FOR_DRIVER = f"has(c.opaque) && c.opaque.driver == {literal(DRIVER)}"

#: The fields of a share that a claim must not change if the class sets them.
_FINAL_SHARE_FIELDS = ("hard", "guarantee")


def objects(labels: t.Mapping[str, str]) -> list[Object]:
    """The policy and its binding."""
    condition = {
        "name": "requests-the-class",
        "expression": f"has(({_DEVICES}).requests) && ({_DEVICES}).requests.exists(r, {_REQUESTS_CLASS})",
    }
    spec: Object = {
        "paramKind": {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"},
        "matchConditions": [condition],
        "variables": [{"name": name, "expression": text} for name, text in _variables().items()],
        "validations": validations(),
    }
    # applies to every class; without any class, claims are allowed
    classes: Object = {"selector": {}, "parameterNotFoundAction": "Allow"}
    return policy(NAME, labels, ("resourceclaims", "resourceclaimtemplates"), spec, paramRef=classes)


def _variables() -> dict[str, str]:
    """The policy's variables. Each may use the variables before it."""
    default = f"[{_constant({'allow': tenancy.DEFAULT})}]"
    combined = "variables.settings + ps"
    merged = ", ".join(f"?{literal(name)}: {_last(name, combined)}" for name in FIELDS)
    shares = f"({combined}).filter(s, has(s.share)).map(s, s.share)"
    share = ", ".join(f"?{literal(name)}: {_last(name, shares)}" for name in FIELDS["share"].fields)
    return {
        "devices": _DEVICES,
        "requests": f"variables.devices.requests.filter(r, {_REQUESTS_CLASS})",
        "configs": f"(has(variables.devices.config) ? variables.devices.config : []).filter(c, {_FOR_DRIVER})",
        # for each request for the class, and each of its alternatives, the configurations that cover it
        "claimConfigs": f"variables.requests.map(r, ({_NAMES}).map(names, variables.configs.filter(c, "
        "!has(c.requests) || size(c.requests) == 0 || c.requests.exists(n, n in names)).map(c, c.opaque.parameters)))",
        "classConfigs": "(has(params.spec.config) ? params.spec.config : [])"
        f".filter(c, {_FOR_DRIVER}).map(c, c.opaque.parameters)",
        "settings": f"variables.classConfigs.filter(p, p.kind == {literal(KIND)})",
        "policies": f"variables.classConfigs.filter(p, p.kind == {literal(tenancy.POLICY_KIND)})",
        "tenants": f"size(variables.policies) == 0 ? dyn({default}) : dyn(variables.policies[0].tenants)"
        ".filter(t, !has(t.namespaces) || request.namespace in t.namespaces)",
        "allow": "size(variables.tenants) > 0 ? dyn(variables.tenants[0].allow) : dyn({})",
        "merged": f"variables.claimConfigs.map(alternatives, alternatives.map(ps, {{{merged}}}))",
        "shares": f"variables.claimConfigs.map(alternatives, alternatives.map(ps, {{{share}}}))",
    }


def _constant(value: t.Any) -> str:
    """A constant in CEL. A server accepts a mapping with values of different types only if they are wrapped in dyn."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: dyn({_constant(item)})' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_constant, value))}]"
    return literal(value)


def _last(name: str, configs: str) -> str:
    """A CEL optional with the last value of a field in a list of configurations."""
    values = f"({configs}).filter(s, has(s.{name})).map(s, s.{name})"
    return f"{values}[?size({values}) - 1]"


def validations() -> list[dict[str, str]]:
    """One validation for each field that a class can set, each choice, and each rule between fields."""
    entries = [
        _validation("size(variables.policies) < 2", f"has more than one {tenancy.POLICY_KIND}"),
        _validation("size(variables.tenants) > 0", "is not for claims of this namespace"),
    ]
    for name in FIELDS:
        if name == "share":
            test = f"!has(p.share) || variables.settings.filter(s, has(s.share)).all(s, {_keeps_share()})"
            entries.append(_validation(_every(test), "sets share, whose burst a claim can only lower"))
            continue
        value = _last(name, "variables.settings")
        test = f"!has(p.{name}) || {value}.orValue(p.{name}) == p.{name}"
        entries.append(_validation(_every(test), f"sets {name}, which a claim cannot change or extend"))
    entries += [_validation(_every(_choice(choice)), _refusal(choice)) for choice in CHOICES]
    for variable, rules in (("merged", RULES), ("shares", FIELDS["share"].rules)):
        for rule in rules:
            test = f"variables.{variable}.all(alternatives, alternatives.all(m, {rule.cel.format(x='m')}))"
            entries.append(_validation(test, f"and the claim together: {rule.description}"))
    return entries


def _keeps_share() -> str:
    """A test that the share of a claim's `p` does not change that of the class's `s`, as in `changed_by_claim`."""

    def below(key: str) -> str:
        return f"(!has(p.share.{key}) || !quantity(p.share.{key}).isGreaterThan(quantity(s.share.burst)))"

    same = [
        f"(!has(s.share.{key}) || !has(p.share.{key}) || s.share.{key} == p.share.{key})" for key in _FINAL_SHARE_FIELDS
    ]
    capped = f"(!has(s.share.burst) || ({below('burst')} && (has(s.share.guarantee) || {below('guarantee')})))"
    return " && ".join([capped, *same])


def _every(test: str) -> str:
    """A test that is true if `test` is true for each configuration `p` that covers a request for the class."""
    return f"variables.claimConfigs.all(alternatives, alternatives.all(ps, ps.all(p, {test})))"


def _choice(choice: Choice) -> str:
    """A test that the claim's `p` does not set a choice, or that the class sets or allows the value."""
    field = choice.path[0]
    bound = f"variables.allow.{choice.name}"
    limit = choice.bound.cel.format(b=bound, i="i")
    items = choice.cel.format(v=f"p.{choice.name}")
    within = "" if limit == "true" else f" && {items}.all(i, {limit})"
    same = " && s.share == p.share" if field == "share" else ""
    return (
        f"{_lacks('p', choice.path)} || variables.settings.exists(s, has(s.{field}){same}) || "
        f"(!({_lacks('variables.allow', choice.path)}){within})"
    )


def _lacks(mapping: str, path: tuple[str, ...]) -> str:
    """A test that the CEL expression `mapping` has no value at a path."""
    parts = [f"!has({mapping}.{'.'.join(path[: depth + 1])})" for depth in range(len(path))]
    return " || ".join(parts)


def _refusal(choice: Choice) -> str:
    return f"does not let claims set {choice.name}, or does not allow this value"


def _validation(test: str, predicate: str) -> dict[str, str]:
    return {
        "expression": test,
        "message": f"{KIND}: the DeviceClass {predicate}",
        "messageExpression": f"{literal(f'{KIND}: DeviceClass ')} + {_CLASS} + {literal(f' {predicate}')}",
    }
