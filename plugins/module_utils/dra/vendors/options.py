# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The options of a driver in dra_claims_drivers besides version and knowledge."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ...topology import cpuset
from ..kube.objects import ObjectView
from ..kube.problems import Problem
from ..kube.reader import nearest
from . import sharing
from .knowledge import DriverKnowledge

_NVIDIA = "gpu.nvidia.com"
_CPU = "dra.cpu"


@dataclass(frozen=True)
class Option:
    """An option of a driver.

    `description` says what a value must be, and `is_valid` tests one. `driver` is the only driver with this option, or
    empty if all drivers have it; `since` is the first version with it. `gate` is the feature gate that it switches on.
    """

    description: str
    is_valid: t.Callable[[object], bool]
    driver: str = ""
    since: str = ""
    gate: str = ""


_GROUPS = ("numa_node", "socket", "machine", "individual")


def _is_consumable_shares(value: object) -> bool:
    return value in ("memory", "unlimited") or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


#: The options by name, besides `version` and `knowledge`.
OPTIONS = {
    "feature_gates": Option(
        "a mapping of feature gates to true or false",
        lambda value: isinstance(value, dict) and all(isinstance(setting, bool) for setting in value.values()),
    ),
    "engine": Option(
        f"one of {', '.join(sharing.BY_NAME)}", lambda value: isinstance(value, str) and value in sharing.BY_NAME
    ),
    "group_by": Option(f"one of {', '.join(_GROUPS)}", lambda value: value in _GROUPS, _CPU),
    "reserved_cpus": Option(
        'a list of CPUs as the kernel writes it, such as "0-3,64"',
        lambda value: isinstance(value, str) and cpuset.from_list(value) is not None,
        _CPU,
    ),
    "consumable_shares": Option(
        "memory, unlimited or a whole number of at least 1", _is_consumable_shares, _NVIDIA, "0.5.0", "ConsumableShares"
    ),
}


def problems_of(options: ObjectView, path: str) -> list[Problem]:
    """Unknown options and invalid values."""
    problems = [
        Problem(
            f"{path}.{key}", "unknown option", "unknown", "known: version, knowledge, " + ", ".join(sorted(OPTIONS))
        )
        for key in sorted(set(options) - {"version", "knowledge", *OPTIONS}, key=str)
    ]
    for key, option in OPTIONS.items():
        if options.get(key) is not None and not option.is_valid(options[key]):
            problems.append(
                Problem(f"{path}.{key}", f"must be {option.description}, not {options[key]!r}", "bad-value")
            )
    return problems


def unavailable_options(driver: DriverKnowledge, options: ObjectView, path: str) -> list[Problem]:
    """Options that the driver, or this version of it, does not have."""
    problems = []
    for key, option in OPTIONS.items():
        if not options.get(key) or not option.driver:
            continue
        if driver.name != option.driver:
            problems.append(
                Problem(f"{path}.{key}", f"only {option.driver} has this option", "unknown", "leave it out")
            )
        elif not driver.version_in_range(option.since):
            reason = f"{driver.title} has this option from {option.since} on, but version is {driver.version}"
            problems.append(Problem(f"{path}.{key}", reason, "version", "upgrade the driver, or leave it out"))
    return problems


def enabled_gates(driver: DriverKnowledge, options: ObjectView, path: str, problems: list[Problem]) -> frozenset[str]:
    """The driver's feature gates that are on. Violations of the driver's rules are added to `problems`."""
    settings = _gate_settings(options)
    gates_path = f"{path}.feature_gates"
    enabled = {name for name, gate in driver.gates.items() if gate.default and driver.version_in_range(gate.since)}
    enabled |= _gate_of_engine(driver, options, path, problems)
    for key, option in OPTIONS.items():
        if not option.gate or not options.get(key) or driver.name != option.driver:
            continue
        enabled.add(option.gate)
        if settings.get(option.gate) is False:
            message = f"{key} needs the feature gate {option.gate}"
            fix = "switch the gate on, or leave it out"
            problems.append(Problem(f"{gates_path}.{option.gate}", message, "contradiction", fix))
    for name, value in settings.items():
        gate = driver.gates.get(name)
        if gate is None:
            known = sorted(driver.gates)
            fix = nearest(name, known) or (f"known: {', '.join(known)}" if known else "leave it out")
            problems.append(Problem(f"{gates_path}.{name}", f"{driver.title} has no such feature gate", "unknown", fix))
        elif not driver.version_in_range(gate.since):
            since = f"in builds after {gate.since[1:]}" if gate.since.startswith(">") else f"from {gate.since} on"
            reason = f"{driver.title} has this feature gate {since}, but version is {driver.version}"
            problems.append(Problem(f"{gates_path}.{name}", reason, "version", "upgrade the driver, or leave it out"))
        elif value:
            enabled.add(name)
        else:
            enabled.discard(name)
    problems += _broken_rules(driver, enabled, gates_path)
    return frozenset(enabled)


def _gate_settings(options: ObjectView) -> dict[str, t.Any]:
    """The option `feature_gates`; empty if it is missing or not a mapping."""
    settings = options.get("feature_gates")
    return settings if isinstance(settings, dict) else {}


def _gate_of_engine(driver: DriverKnowledge, options: ObjectView, path: str, problems: list[Problem]) -> set[str]:
    """The gate that the site's engine needs. Conflicts of the engine with other options are added to `problems`."""
    engine = sharing.BY_NAME.get(str(options.get("engine")))
    engine_path = f"{path}.engine"
    if engine is None:
        return set()
    if engine.driver != driver.name:
        engines = ", ".join(candidate.name for candidate in sharing.engines_of(driver.name))
        fix = f"use one of {engines}" if engines else "leave it out"
        problems.append(Problem(engine_path, f"{engine.name} is an engine of {engine.driver}", "unknown", fix))
        return set()
    settings = _gate_settings(options)
    if engine.gate and not driver.version_in_range(driver.gates[engine.gate].since):
        since = driver.gates[engine.gate].since
        reason = f"{driver.title} has {engine.name} from {since} on, but version is {driver.version}"
        problems.append(Problem(engine_path, reason, "version", "upgrade the driver, or use another engine"))
        return set()
    if engine.gate and settings.get(engine.gate) is False:
        message = f"{engine.name} needs the feature gate {engine.gate}"
        problems.append(Problem(engine_path, message, "contradiction", "switch the gate on, or use another engine"))
    if engine.excluded_gate and settings.get(engine.excluded_gate):
        message = f"{engine.name} cannot be used with the feature gate {engine.excluded_gate}"
        fix = f"switch {engine.excluded_gate} off, or use dynamic-mig"
        problems.append(Problem(engine_path, message, "contradiction", fix))
    if engine.required_option and not options.get(engine.required_option):
        message = f"{engine.name} needs {engine.required_option}"
        problems.append(Problem(engine_path, message, "missing", f"set {path}.{engine.required_option}"))
    if engine.name == "mps" and options.get("consumable_shares"):
        message = f"{driver.title} prepares no claim with MPS while consumable_shares is set"
        problems.append(Problem(engine_path, message, "contradiction", "leave consumable_shares out"))
    return {engine.gate} if engine.gate else set()


def _broken_rules(driver: DriverKnowledge, enabled: t.Collection[str], path: str) -> list[Problem]:
    """Combinations of gates with which the driver does not start."""
    problems = []
    for name in sorted(enabled):
        gate = driver.gates[name]
        for other in gate.excludes:
            if other in enabled:
                message = f"{driver.title} does not start with {name} and {other} together"
                problems.append(Problem(f"{path}.{name}", message, "contradiction", f"switch {name} or {other} off"))
        for other in gate.needs:
            if other not in enabled:
                message = f"{driver.title} does not start with {name} unless {other} is on"
                problems.append(Problem(f"{path}.{name}", message, "contradiction", f"switch {other} on"))
    return problems
