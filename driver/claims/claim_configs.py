# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the configurations of a claim for lanewise.dev, and checks whether the claim may set what it sets.

The scheduler copies the configurations of the DeviceClasses and of the claim into the allocation. Those of classes were
written by the site; those of the claim were written by a tenant.
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
#: Maximum bytes of all our configurations of a claim together, which limits the time to check them. The API allows
#: more: 32 configurations of 10 KiB in a claim.
MAX_CONFIG_BYTES = 128 * 1024
_CONFIG = "status.allocation.devices.config"
#: Configurations that were found valid. The key is whether it is a policy, and its JSON. Pods of one template have the
#: same configurations, so the result is kept for the next pod.
_valid: dict[tuple[bool, str], None] = {}
_MAX_REMEMBERED = 256


@dataclass
class Config:
    """One configuration of a claim: its path, the requests that it is for (empty: all), its fields, and whether it is
    from a DeviceClass."""

    path: str
    requests: list[str]
    fields: Object
    of_class: bool

    def covers(self, request: str) -> bool:
        """Whether the configuration is for this request or subrequest."""
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass
class Configs:
    """`settings`: the InterfaceConfigs in the order in which they apply, those of classes first. `policies`: the
    InterfacePolicies of classes."""

    settings: list[Config] = field(default_factory=list)
    policies: list[Config] = field(default_factory=list)


@dataclass
class AllocatedDevice:
    """One allocated device: the path of its result, its request, whether it is for admin access, and whether it belongs
    to this driver."""

    path: str
    request: str
    admin: bool
    is_own: bool


def read(claim: Object) -> Configs:
    """The configurations of a claim for this driver. Raises Refused."""
    of_claim: list[Config] = []
    configs = Configs()
    opaque_in_spec = _opaque_in_spec(claim)
    spec_index = 0  # the scheduler copies the configurations of the claim's spec in the order of that list
    for index, value in enumerate(get(allocated(claim), "config", list, "status.allocation.devices", [])):
        path = f"{_CONFIG}[{index}]"
        entry = mapping(value, path)
        source = get(entry, "source", str, path)
        if source not in ("FromClass", "FromClaim"):
            raise Refused(f"{path}.source: must be FromClass or FromClaim")
        if source == "FromClaim":
            if spec_index < len(opaque_in_spec) and opaque_in_spec[spec_index] == entry.get("opaque"):
                path = f"spec.devices.config[{spec_index}]"
            spec_index += 1
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
            (configs.policies if tenancy.is_policy(config.fields) else configs.settings).append(config)
    configs.settings += of_claim
    return configs


def _opaque_in_spec(claim: Object) -> list[t.Any]:
    """The opaque configurations in the claim's spec. Unexpected content only makes paths in messages less precise."""
    spec = claim.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    entries = devices.get("config") if isinstance(devices, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry.get("opaque") if isinstance(entry, dict) else None for entry in entries]


def refusal(problems: t.Sequence[Problem]) -> Refused:
    """One error with the texts of the first MAX_PROBLEMS problems."""
    texts = [str(problem) for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > len(texts):
        texts.append(f"there are more errors than these {len(texts)}")
    return Refused("; ".join(texts))


def check(devices: t.Sequence[AllocatedDevice], configs: Configs, namespace: str) -> None:
    """Check the configurations, and whether the classes permit what a claim of this namespace sets. Configurations of
    the claim are ignored if they cover no request with a device of this driver. Raises Refused."""
    held = [device for device in devices if not device.admin]
    own_devices = [device for device in held if device.is_own]
    problems: list[Problem] = []
    size = 0
    for config in configs.policies + configs.settings:
        if not any(config.covers(device.request) for device in (held if config.of_class else own_devices)):
            continue
        size += limits.opaque_size(config.fields)
        if size > MAX_CONFIG_BYTES:
            raise Refused(f"{config.path}: the claim's configurations have more than {MAX_CONFIG_BYTES} bytes together")
        problems += _problems(config)
        if len(problems) > MAX_PROBLEMS:
            break
    if not problems:
        of_claim = [
            config
            for config in configs.settings
            if not config.of_class and any(config.covers(device.request) for device in own_devices)
        ]
        for device in held:
            problems += _tenancy_problems(device, configs, of_claim, namespace)
    if problems:
        raise refusal(problems)


def _problems(config: Config) -> list[Problem]:
    """The problems of one configuration by itself."""
    policy = config.of_class and tenancy.is_policy(config.fields)
    key = (policy, json.dumps(config.fields))
    if key in _valid:
        return []
    validate = tenancy.validate if policy else interface_config.validate
    problems = validate(config.fields, config.path)
    if not problems:
        while len(_valid) >= _MAX_REMEMBERED:
            _valid.clear()  # atomic: other threads may do the same
        _valid[key] = None
    return problems


def _tenancy_problems(
    device: AllocatedDevice, configs: Configs, of_claim: list[Config], namespace: str
) -> list[Problem]:
    """What the DeviceClass of a device's request does not permit. All configurations are valid."""
    class_text = f"the DeviceClass of request {device.request}"
    policies = [config for config in configs.policies if config.covers(device.request)]
    if len(policies) > 1:
        return [Problem(policies[1].path, f"{class_text} has more than one policy", "tenancy")]
    allow = tenancy.allowed_settings(policies[0].fields if policies else None, namespace)
    if allow is None:
        message = f"{class_text} is not for claims of namespace {namespace}"
        return [Problem(device.path, message, "tenancy", "use another class")]
    of_class = tenancy.class_settings(
        config.fields for config in configs.settings if config.of_class and config.covers(device.request)
    )
    return [
        Problem(
            f"{config.path}.{name}",
            f"{class_text} {reason}",
            "tenancy",
            f"remove {name} from the claim, or use another class",
        )
        for config in of_claim
        if config.covers(device.request)
        for name, reason in tenancy.refused_fields(allow, of_class, config.fields)
    ]
