# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A ValidatingAdmissionPolicy that refuses what `interface_config.validate` refuses, generated from the same table.

It checks every InterfaceConfig in a ResourceClaim, ResourceClaimTemplate or DeviceClass that is created or whose spec
changes, and the InterfacePolicy of a DeviceClass. Only `interface_config.validate` and the driver check the total size
of a configuration.
"""

from __future__ import annotations

import typing as t

from ..config import tenancy
from ..config.fields import Field
from ..config.interface_config import CONFIG, DRIVER, KIND
from ..kube.objects import Object
from .admission import policy
from .selectors import literal

NAME = "lanewise-dra-interface-config"
_TYPES = {"string": "string", "int": "int", "bool": "bool"}
#: The path of the mapping with the configurations, by the kind of the object.
_CONFIG_PARENTS = {
    "DeviceClass": "object.spec",
    "ResourceClaim": "object.spec.devices",
    "ResourceClaimTemplate": "object.spec.spec.devices",
}


def objects(labels: t.Mapping[str, str]) -> list[Object]:
    """The policy and its binding."""
    spec: Object = {"variables": _variables(), "validations": validations()}
    return policy(NAME, labels, ("deviceclasses", "resourceclaims", "resourceclaimtemplates"), spec)


def _variables() -> list[dict[str, str]]:
    configs = "[]"
    for kind, parent in _CONFIG_PARENTS.items():
        configs = f"object.kind == {literal(kind)} ? (has({parent}.config) ? {parent}.config : []) : {configs}"
    is_lanewise = f"has(c.opaque) && c.opaque.driver == {literal(DRIVER)}"
    is_policy = f"type(p) == map && 'kind' in p && p.kind == {literal(tenancy.POLICY_KIND)}"
    policies = f"object.kind == 'DeviceClass' ? variables.parameters.filter(p, {is_policy}) : []"
    others = f"object.kind == 'DeviceClass' ? variables.parameters.filter(p, !({is_policy})) : variables.parameters"
    return [
        {"name": "configs", "expression": configs},
        {"name": "parameters", "expression": f"variables.configs.filter(c, {is_lanewise}).map(c, c.opaque.parameters)"},
        {"name": "policies", "expression": policies},
        {"name": "interfaceConfigs", "expression": others},
    ]


def validations() -> list[dict[str, str]]:
    """One validation for each field of an InterfaceConfig, and one for each rule between them."""
    known = ", ".join(map(literal, CONFIG.fields))
    entries = [
        _validation(
            f"type(p) == map && p.all(k, k in [{known}])", f"has an unknown field; known: {', '.join(CONFIG.fields)}"
        )
    ]
    for name, form in CONFIG.fields.items():
        test = expression(form, f"p.{name}")
        requirement = f"{name} must be {form.description}"
        if form.required:
            entries.append(_validation(f"has(p.{name}) && {test}", requirement))
        else:
            entries.append(_validation(f"!has(p.{name}) || {test}", requirement))
    entries += [_validation(rule.cel.format(x="p"), rule.description) for rule in CONFIG.rules]
    return entries + _of_policies()


def _of_policies() -> list[dict[str, str]]:
    """The validations of an InterfacePolicy in a DeviceClass."""
    kind = tenancy.POLICY_KIND
    return [
        {
            "expression": f"variables.policies.all(p, {expression(tenancy.POLICY, 'p')})",
            "message": f"{kind}: has an unknown or an invalid field; docs/claims-reference.md lists the fields",
        },
        {"expression": "size(variables.policies) < 2", "message": f"{kind}: a DeviceClass can have only one"},
    ]


def _validation(test: str, requirement: str) -> dict[str, str]:
    return {"expression": f"variables.interfaceConfigs.all(p, {test})", "message": f"{KIND}: {requirement}"}


def expression(form: Field, value: str, depth: int = 0) -> str:
    """A CEL expression, in parentheses, that is true if the CEL expression `value` is valid for the field."""
    return f"({' && '.join(_tests(form, value, depth))})"


def _tests(form: Field, value: str, depth: int) -> list[str]:
    """CEL tests that are all true if the CEL expression `value` is valid for the field."""
    if form.type == "setting":
        text = Field("string", "", pattern=form.pattern)
        number = Field("int", "", minimum=form.minimum, maximum=form.maximum)
        return [f"(type({value}) == string ? {expression(text, value)} : {expression(number, value)})"]
    if form.type in ("ip", "address", "network"):
        read = {"ip": f"isIP({value})", "address": f"isCIDR({value})"}
        tests = [f"type({value}) == string", read.get(form.type, f"isCIDR({value})")]
        if form.type == "network":
            tests.append(f"cidr({value}).masked() == cidr({value})")
        return tests
    if form.type in ("list", "map"):
        variable = f"v{depth}"
        inner = expression(form.item, variable, depth + 1) if form.item else "true"
        tests = [f"type({value}) == {form.type}", f"size({value}) <= {form.maximum}"]
        if form.type == "list":
            return [*tests, f"{value}.all({variable}, {inner} && {value}.exists_one(o, o == {variable}))"]
        key = f"k{depth}"
        inner = expression(form.item, f"{value}[{key}]", depth + 1) if form.item else "true"
        return [*tests, f"{value}.all({key}, {key}.matches({literal(f'^(?:{form.key})$')}) && {inner})"]
    if form.type == "object":
        variable = f"k{depth}"
        tests = [
            f"type({value}) == map",
            f"{value}.all({variable}, {variable} in [{', '.join(map(literal, form.fields))}])",
        ]
        for name, inner_form in form.fields.items():
            inner = expression(inner_form, f"{value}.{name}", depth + 1)
            absent = "" if inner_form.required else f"!has({value}.{name}) || "
            tests.append(f"(has({value}.{name}) && {inner})" if inner_form.required else f"({absent}{inner})")
        return tests + [f"({rule.cel.format(x=value)})" for rule in form.rules]
    tests = [f"type({value}) == {_TYPES[form.type]}"]
    if form.type == "int":
        tests += [f"{value} >= {form.minimum}", f"{value} <= {form.maximum}"]
    if form.choices:
        tests.append(f"{value} in [{', '.join(map(literal, form.choices))}]")
    if form.forbidden:
        tests.append(f"!({value} in [{', '.join(map(literal, form.forbidden))}])")
    if form.pattern:
        tests.append(f"{value}.matches({literal(f'^(?:{form.pattern})$')})")
    return tests
