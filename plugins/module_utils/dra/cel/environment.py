# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The server's environment for selectors, declared to the engine.

It corresponds to k8s.io/dynamic-resource-allocation/cel/compile.go on top of
k8s.io/apiserver/pkg/cel/environment/base.go.
"""

from __future__ import annotations

import typing as t

from .functions import EXACT_OPERATORS, FUNCTIONS, MAPS_WITH_DEFAULTS
from .values import cel_equal, cel_in_list

# The engine's Python package has no type annotations.
CelModule = t.Any
CelEnvironment = t.Any
CelProgram = t.Any
CelType = t.Any
CelFunction = t.Any


_EXTENSIONS = {
    "strings": 2,
    "sets": 0,
    "lists": "latest",
    "two-var-comprehensions": 0,
    "optional": "latest",
    "bindings": 0,
}


def make_environment(cel: CelModule, attribute: str, consumable_capacity: bool, strict: bool) -> CelEnvironment:
    """The environment that checks expressions by the server's types (`strict`), or the one that evaluates them.

    `cel` is the engine's module, `attribute` the type of attributes (any or dyn), used only if `strict`. The
    environment for evaluation also declares the variables of MAPS_WITH_DEFAULTS, which replace those of the server.
    """
    any_type = cel.Type("google.protobuf.Any")
    quantity = cel.Type.AbstractType("kubernetes.Quantity")
    value = any_type if attribute == "any" else cel.Type.DYN
    variables = {
        "device.driver": cel.Type.STRING,
        "device.attributes": _by_name(cel, value if strict else cel.Type.DYN),
        "device.capacity": _by_name(cel, quantity if strict else cel.Type.DYN),
    }
    if consumable_capacity:
        variables["device.allowMultipleAllocations"] = cel.Type.BOOL
    if not strict:
        variables.update({shadow: _by_name(cel, cel.Type.DYN) for shadow in MAPS_WITH_DEFAULTS.values()})
    functions = _typed_functions(cel) if strict else _untyped_functions(cel, any_type)
    lines = [f"- name: {name}\n  version: {version}" for name, version in _EXTENSIONS.items()]
    config = cel.NewEnvConfigFromYaml("\n".join(["name: selectors", "extensions:", *lines, ""]))
    return cel.NewEnv(config=config, variables=variables, functions=functions)


def _by_name(cel: CelModule, value: CelType) -> CelType:
    """The type of a map from domains to maps from names to values."""
    return cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, value))


def _types(cel: CelModule) -> dict[str, CelType]:
    """The types for the letters in `Function.overloads`."""
    return {
        "s": cel.Type.STRING,
        "b": cel.Type.BOOL,
        "i": cel.Type.INT,
        "d": cel.Type.DOUBLE,
        "Q": cel.Type.AbstractType("kubernetes.Quantity"),
        "V": cel.Type.AbstractType("kubernetes.Semver"),
    }


def _typed_functions(cel: CelModule) -> list[CelFunction]:
    """The functions with the types of their parameters, to check expressions."""
    types = _types(cel)
    functions = []
    for function in FUNCTIONS:
        overloads = [
            cel.Overload(
                name,
                return_type=types[result],
                parameters=[types[letter] for letter in letters],
                is_member=function.member,
                impl=function.call,
            )
            for name, letters, result in function.overloads
        ]
        functions.append(cel.FunctionDecl(function.name, overloads))
    return functions


def _untyped_functions(cel: CelModule, any_type: CelType) -> list[CelFunction]:
    """The functions with parameters of any type, to evaluate expressions.

    When it evaluates, the engine distinguishes overloads only by its own types, so the functions check the types.
    """
    types = _types(cel)
    functions = []
    for function in FUNCTIONS:
        arities = {len(letters): (name, result) for name, letters, result in function.overloads}
        overloads = [
            cel.Overload(
                name,
                return_type=types[result] if result in "sbid" else cel.Type.DYN,
                parameters=[any_type] * arity,
                is_member=function.member,
                impl=function.call,
            )
            for arity, (name, result) in arities.items()
        ]
        functions.append(cel.FunctionDecl(function.name, overloads))
    for name, call in zip(EXACT_OPERATORS.values(), (cel_equal, cel_in_list)):
        overload = cel.Overload(name, return_type=cel.Type.BOOL, parameters=[any_type] * 2, impl=call)
        functions.append(cel.FunctionDecl(name, [overload]))
    return functions
