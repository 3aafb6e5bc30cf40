# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The configurations of a claim: what its classes and the claim itself set for lanewise.dev, and whether the claim may
set it.

The scheduler copies the configurations of classes into the allocation. They are the site's; those of the claim are a
tenant's.
"""

from __future__ import annotations

import json
import typing as t
from dataclasses import dataclass, field

from ..base.errors import Refused
from ..base.objects import Object
from ..dra.config import interface_config, tenancy
from ..dra.config.field_checks import MAX_PROBLEMS
from ..dra.kube import limits
from ..dra.kube.problems import Problem
from .claim_fields import allocated, get, mapping

DRIVER = interface_config.DRIVER
#: Maximum bytes of all our configurations of a claim together. The API allows 32 in the claim with 10 KiB each, and the
#: longest valid one has less than 20 KiB.
CONFIG_BYTES = 128 * 1024
_CONFIG = "status.allocation.devices.config"
#: Configurations that were found valid, by (is a policy, JSON): pods of one template have the same configurations.
_valid: dict[tuple[bool, str], None] = {}
_REMEMBERED = 256


@dataclass
class Config:
    """One configuration of a claim: its path, the requests that it is for (empty: all), and its fields."""

    path: str
    requests: list[str]
    fields: Object
    of_class: bool

    def covers(self, request: str) -> bool:
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass
class Configs:
    """The InterfaceConfigs in the order in which they apply, those of classes first, and the InterfacePolicies of
    classes."""

    settings: list[Config] = field(default_factory=list)
    policies: list[Config] = field(default_factory=list)


@dataclass
class AllocatedDevice:
    """One allocated device: the path of its result, its request, whether it is for admin access, and whether it is one
    of this driver's devices."""

    path: str
    request: str
    admin: bool
    ours: bool


def read(claim: Object) -> Configs:
    """Our configurations. Raises Refused."""
    of_claim: list[Config] = []
    found = Configs()
    written = _of_spec(claim)
    number = 0  # index in the claim's spec: the scheduler copies its configurations in this order
    for index, value in enumerate(get(allocated(claim), "config", list, "status.allocation.devices", [])):
        path = f"{_CONFIG}[{index}]"
        entry = mapping(value, path)
        source = get(entry, "source", str, path)
        if source not in ("FromClass", "FromClaim"):
            raise Refused(f"{path}.source: must be FromClass or FromClaim")
        if source == "FromClaim":
            if number < len(written) and written[number] == entry.get("opaque"):
                path = f"spec.devices.config[{number}]"
            number += 1
        opaque = entry.get("opaque")
        if opaque is None:
            continue
        if get(mapping(opaque, f"{path}.opaque"), "driver", str, f"{path}.opaque") != DRIVER:
            continue
        requests = get(entry, "requests", list, path, [])
        if not all(isinstance(request, str) for request in requests):
            raise Refused(f"{path}.requests: must be a list of requests")
        config = Config(f"{path}.opaque.parameters", requests, opaque.get("parameters"), source == "FromClass")
        if not config.of_class:
            of_claim.append(config)
        else:
            (found.policies if tenancy.is_policy(config.fields) else found.settings).append(config)
    found.settings += of_claim
    return found


def _of_spec(claim: Object) -> list[t.Any]:
    """The opaque configurations in the claim's spec. Unexpected content only makes paths in messages less precise."""
    spec = claim.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    entries = devices.get("config") if isinstance(devices, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry.get("opaque") if isinstance(entry, dict) else None for entry in entries]


def refusal(problems: t.Sequence[Problem]) -> Refused:
    """One error with the first MAX_PROBLEMS problems."""
    texts = [str(problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > len(texts):
        texts.append(f"there are more errors than these {len(texts)}")
    return Refused("; ".join(texts))


def check(devices: t.Sequence[AllocatedDevice], configs: Configs, namespace: str) -> None:
    """Check the configurations, and whether the classes let a claim of this namespace set what it sets. Configurations
    of the claim that cover no request with a device of ours are ignored. Raises Refused."""
    held = [one for one in devices if not one.admin]
    ours = [one for one in held if one.ours]
    problems: list[Problem] = []
    size = 0
    for config in configs.policies + configs.settings:
        if not any(config.covers(one.request) for one in (held if config.of_class else ours)):
            continue
        size += limits.opaque_size(config.fields)
        if size > CONFIG_BYTES:
            raise Refused(f"{config.path}: the claim's configurations have more than {CONFIG_BYTES} bytes together")
        problems += _problems(config)
        if len(problems) > MAX_PROBLEMS:
            break
    if not problems:
        of_claim = [
            config for config in configs.settings if not config.of_class and any(config.covers(o.request) for o in ours)
        ]
        for one in held:
            problems += _tenancy(one, configs, of_claim, namespace)
    if problems:
        raise refusal(problems)


def _problems(config: Config) -> list[Problem]:
    policy = config.of_class and tenancy.is_policy(config.fields)
    content = (policy, json.dumps(config.fields))
    if content in _valid:
        return []
    validate = tenancy.validate if policy else interface_config.validate
    found = validate(config.fields, config.path)
    if not found:
        while len(_valid) >= _REMEMBERED:
            _valid.clear()  # atomic: other threads may be here too
        _valid[content] = None
    return found


def _tenancy(one: AllocatedDevice, configs: Configs, of_claim: list[Config], namespace: str) -> list[Problem]:
    """What the DeviceClass of a request refuses. All configurations are valid."""
    policies = [config for config in configs.policies if config.covers(one.request)]
    if len(policies) > 1:
        return [
            Problem(policies[1].path, f"the DeviceClass of request {one.request} has more than one policy", "tenancy")
        ]
    allow = tenancy.allowed_settings(policies[0].fields if policies else None, namespace)
    if allow is None:
        says = f"the DeviceClass of request {one.request} is not for claims of namespace {namespace}"
        return [Problem(one.path, says, "tenancy", "use another class")]
    of_class = tenancy.class_settings(
        config.fields for config in configs.settings if config.of_class and config.covers(one.request)
    )
    return [
        Problem(
            f"{config.path}.{name}",
            f"the DeviceClass of request {one.request} {says}",
            "tenancy",
            f"leave {name} out of the claim, or use another class",
        )
        for config in of_claim
        if config.covers(one.request)
        for name, says in tenancy.refused_fields(allow, of_class, config.fields)
    ]
