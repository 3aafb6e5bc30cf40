# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Makes the part of Kueue's configuration that the queues need, and compares it with that of a running Kueue.

When Kueue starts, it reads from its configuration (apis/config/v1beta2 of 0.19.2) which device classes it counts, how,
and the settings of fair sharing. The configuration is one YAML document that the cluster's administrators own. This
module only makes and compares a part of the document.
"""

from __future__ import annotations

import json
import typing as t

from ..cel.engine import Engine
from ..kube.objects import Object, ObjectView
from .inventory import Queues, Resource, counted_separately
from .language import MAX_MAPPINGS

API_VERSION = "config.kueue.x-k8s.io/v1beta2"
#: The older version that Kueue 0.19 still reads. Its mappings have no sources, and fairSharing needs `enable`.
_V1BETA1 = "config.kueue.x-k8s.io/v1beta1"
CAPACITY_GATE = "KueueDRAIntegrationConsumableCapacity"
COUNTER_GATE = "KueueDRAIntegrationPartitionableDevices"
_GATES = {"KueueDRAIntegration": True, COUNTER_GATE: True, CAPACITY_GATE: False}  # their defaults in 0.19
_STRATEGIES = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
#: The values of fairSharing.preemptionStrategies that Kueue accepts. None is a default.
_ACCEPTED_STRATEGIES = (_STRATEGIES[:1], _STRATEGIES[1:], _STRATEGIES)


def fragment(queues: Queues) -> Object:
    """The fields of a Configuration that the queues need, and no others."""
    mappings = [_device_class_mapping(resource) for resource in queues.resources if resource.classes]
    configuration: Object = {}
    if mappings:
        configuration["resources"] = {"deviceClassMappings": mappings}
    if queues.uncounted:
        configuration.setdefault("resources", {})["excludeResourcePrefixes"] = list(queues.uncounted)
    gates = {"KueueDRAIntegration": True} if mappings else {}
    if any(resource.capacity for resource in queues.resources):
        gates[CAPACITY_GATE] = True
    if any(resource.counter for resource in queues.resources):
        gates[COUNTER_GATE] = True
    if gates:
        configuration["featureGates"] = gates
    if any(team.weight is not None for team in queues.teams):
        configuration["fairSharing"] = {"preemptionStrategies": list(_STRATEGIES)}
    return configuration


def _device_class_mapping(resource: Resource) -> Object:
    mapping: Object = {"name": resource.name, "deviceClassNames": list(resource.classes)}
    if not resource.whole_devices:
        selector = resource.selector or f"device.driver == {json.dumps(resource.driver)}"
        source = {
            "name": resource.capacity or resource.counter,
            "driver": resource.driver,
            "deviceSelector": {"cel": {"expression": selector}},
        }
        mapping["sources"] = [{"capacity" if resource.capacity else "counter": source}]
    return mapping


def selector_error(resource: Resource, kueue_cel: Engine) -> str:
    """Why Kueue would not start with the selector of a resource; empty if no error is known."""
    errors = kueue_cel.check(resource.selector) if resource.selector else []
    return str(errors[0]) if errors else ""


def merged(base: ObjectView, part: ObjectView) -> Object:
    """A complete Configuration: `base`, which has no `conflicts`, merged with the fragment.

    Gates, fields of fairSharing and prefixes are added to those of `base`; a mapping replaces the one with the same
    name. Preemption strategies of `base` are kept. In v1beta1, fairSharing is also enabled. Prefixes are not added if
    `base` has the strategy IgnoreUndeclared, which already leaves these resources out.
    """
    configuration: Object = {"apiVersion": API_VERSION, "kind": "Configuration", **base}
    if "featureGates" in part:
        configuration["featureGates"] = {**(base.get("featureGates") or {}), **part["featureGates"]}
    if "fairSharing" in part:
        configuration["fairSharing"] = {**(base.get("fairSharing") or {})}
        if not configuration["fairSharing"].get("preemptionStrategies"):
            configuration["fairSharing"].update(part["fairSharing"])
        if _version(base) == _V1BETA1:
            configuration["fairSharing"]["enable"] = True
    if "resources" in part:
        resources = dict(base.get("resources") or {})
        required = part["resources"]
        mappings = required.get("deviceClassMappings") or ()
        others = _other_mappings(base, mappings)
        if others or mappings:
            resources["deviceClassMappings"] = [*others, *mappings]
        prefixes = [*(resources.get("excludeResourcePrefixes") or ()), *(required.get("excludeResourcePrefixes") or ())]
        if prefixes and not _ignores_undeclared(base):
            resources["excludeResourcePrefixes"] = list(dict.fromkeys(prefixes))
        configuration["resources"] = resources
    return configuration


def differences(part: ObjectView, running: ObjectView) -> list[str]:
    """The fields of the fragment that are missing from a running Configuration or differ there, one line each."""
    malformed = _malformed_fields(running)
    if malformed:
        return malformed
    lines = [*_mapping_differences(part, running), *conflicts(part, running)]
    prefixes = _as_dict(running.get("resources")).get("excludeResourcePrefixes") or []
    for prefix in (part.get("resources") or {}).get("excludeResourcePrefixes") or ():
        if prefix not in prefixes and not _ignores_undeclared(running):
            lines.append(f"resources.excludeResourcePrefixes lacks {prefix}: pods that request it are not admitted")
    gates = _as_dict(running.get("featureGates"))
    for name, value in (part.get("featureGates") or {}).items():
        if gates.get(name, _GATES[name]) is not value:
            lines.append(
                f"featureGates.{name} is not {str(value).lower()} in the configuration, which is correct only if "
                "Kueue's option --feature-gates sets it"
            )
    if "fairSharing" in part and not running.get("fairSharing"):
        lines.append("fairSharing is missing: the weights of teams have no effect")
    elif "fairSharing" in part and _version(running) == _V1BETA1:
        if _as_dict(running["fairSharing"]).get("enable") is not True:
            lines.append("fairSharing.enable is not true: the weights of teams have no effect")
    return lines


def _mapping_differences(part: ObjectView, running: ObjectView) -> t.Iterator[str]:
    """The device class mappings of the fragment that are missing from a running Configuration or differ there."""
    resources = _as_dict(running.get("resources"))
    mappings = {str(mapping.get("name")): mapping for mapping in _as_dicts(resources.get("deviceClassMappings"))}
    for mapping in (part.get("resources") or {}).get("deviceClassMappings") or ():
        path = f"resources.deviceClassMappings[{mapping['name']}]"
        current = mappings.get(mapping["name"])
        if current is None:
            yield f"{path} is missing"
            continue
        if sorted(current.get("deviceClassNames") or ()) != sorted(mapping["deviceClassNames"]):
            yield f"{path}.deviceClassNames is {current.get('deviceClassNames')}, not {mapping['deviceClassNames']}"
        if (current.get("sources") or []) != (mapping.get("sources") or []):
            yield f"{path}.sources differs"


def conflicts(part: ObjectView, running: ObjectView) -> list[str]:
    """Why Kueue would not start with a running Configuration that the fragment is merged into, one line each.

    Source: pkg/config/validation.go of Kueue 0.19.2.
    """
    malformed = _malformed_fields(running)
    if malformed:
        return malformed
    required = (part.get("resources") or {}).get("deviceClassMappings") or ()
    others = _other_mappings(running, required)
    lines = _version_conflicts(required, running)
    for mapping in others:
        common = sorted({name for other in required for name in _shared_classes(mapping, other)})
        if common:
            name = mapping.get("name")
            lines.append(
                f"resources.deviceClassMappings[{name}] has class {common[0]}, which queues_resources maps "
                "too: Kueue does not start with both mappings"
            )
    if len(others) + len(required) > MAX_MAPPINGS:
        lines.append(
            f"resources.deviceClassMappings has {len(others)} other mappings, and the queues need {len(required)}: "
            f"Kueue accepts at most {MAX_MAPPINGS}"
        )
    if _ignores_undeclared(running) and _as_dict(running.get("resources")).get("excludeResourcePrefixes"):
        lines.append(
            "resources.excludeResourcePrefixes is set together with quotaCheckStrategy IgnoreUndeclared: "
            "Kueue does not start with both"
        )
    strategies = _as_dict(running.get("fairSharing")).get("preemptionStrategies")
    if "fairSharing" in part and strategies and list(strategies) not in _ACCEPTED_STRATEGIES:
        lines.append(
            f"fairSharing.preemptionStrategies is {', '.join(strategies)}: Kueue accepts {_STRATEGIES[0]}, "
            f"{_STRATEGIES[1]}, or both in this order"
        )
    return lines


def _malformed_fields(running: ObjectView) -> list[str]:
    """The fields of a Configuration that this module reads and that have another type, one line each."""
    lines = [
        f"{name} is not a mapping"
        for name in ("resources", "featureGates", "fairSharing")
        if not isinstance(running.get(name), (dict, type(None)))
    ]
    resources = _as_dict(running.get("resources"))
    mappings = resources.get("deviceClassMappings")
    if mappings is not None and _as_dicts(mappings) != mappings:
        lines.append("resources.deviceClassMappings is not a list of mappings")
    texts = {
        f"resources.deviceClassMappings[{mapping.get('name')}].deviceClassNames": mapping.get("deviceClassNames")
        for mapping in _as_dicts(mappings)
    }
    texts["resources.excludeResourcePrefixes"] = resources.get("excludeResourcePrefixes")
    texts["fairSharing.preemptionStrategies"] = _as_dict(running.get("fairSharing")).get("preemptionStrategies")
    lines += [f"{path} is not a list of strings" for path, value in texts.items() if not _is_text_list(value)]
    return [f"{line}: Kueue does not start with it" for line in lines]


def _is_text_list(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(entry, str) for entry in value))


def _version_conflicts(required: t.Sequence[ObjectView], running: ObjectView) -> list[str]:
    """What the API version of a Configuration does not allow. Kueue does not start with unknown fields."""
    version = _version(running)
    if version not in (API_VERSION, _V1BETA1):
        return [f"apiVersion {version} is unknown to Kueue 0.19: convert the configuration to {API_VERSION}"]
    if version == _V1BETA1 and any(mapping.get("sources") for mapping in required):
        return [
            f"apiVersion {version} has no sources of device class mappings, which capacities and counters need: "
            f"convert the configuration to {API_VERSION}"
        ]
    if version == API_VERSION and "enable" in _as_dict(running.get("fairSharing")):
        return [f"fairSharing.enable does not exist in {version}: remove it"]
    return []


def _version(configuration: ObjectView) -> str:
    return str(configuration.get("apiVersion") or API_VERSION)


def _ignores_undeclared(running: ObjectView) -> bool:
    """Whether Kueue ignores all resources that a ClusterQueue does not have. Then no prefixes may be set."""
    strategy = _as_dict(running.get("resources")).get("quotaCheckStrategy")
    enabled = _as_dict(running.get("featureGates")).get("QuotaCheckStrategy") is not False  # enabled by default
    return enabled and strategy == "IgnoreUndeclared"


def _other_mappings(running: ObjectView, required: t.Sequence[ObjectView]) -> list[ObjectView]:
    """The mappings of a Configuration that are for other resources than the required ones."""
    names = {str(mapping["name"]) for mapping in required}
    mappings = _as_dicts(_as_dict(running.get("resources")).get("deviceClassMappings"))
    return [mapping for mapping in mappings if str(mapping.get("name")) not in names]


def _shared_classes(first: ObjectView, second: ObjectView) -> set[str]:
    """The classes that Kueue does not accept in both mappings. It accepts those whose mappings count different
    counters."""
    if counted_separately(_counter(first), _counter(second)):
        return set()
    return set(map(str, first.get("deviceClassNames") or ())) & set(map(str, second.get("deviceClassNames") or ()))


def _counter(mapping: ObjectView) -> str:
    """The counter of a mapping, which Kueue takes from the first source; empty if that has none."""
    sources = _as_dicts(mapping.get("sources"))
    return str(_as_dict(sources[0].get("counter")).get("name") or "") if sources else ""


def _as_dict(value: object) -> ObjectView:
    return value if isinstance(value, dict) else {}


def _as_dicts(value: object) -> t.Sequence[ObjectView]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
