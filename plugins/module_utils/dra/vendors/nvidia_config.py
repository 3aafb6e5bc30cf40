# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Checks an opaque configuration as NVIDIA's driver does.

Source: sigs.k8s.io/dra-driver-nvidia-gpu. The driver's webhook checks claims when they are created (strict decoding,
Normalize and Validate of api/nvidia.com/resource/v1beta1). cmd/gpu-kubelet-plugin/device_state.go checks more when a
claim is prepared.
"""

from __future__ import annotations

import typing as t

from ..kube import quantity
from ..kube.objects import Object
from ..kube.problems import Problem
from ..kube.reader import child, nearest
from .knowledge import DriverKnowledge
from .sharing import INTERVALS, NVIDIA_API

KINDS = ("GpuConfig", "MigDeviceConfig", "VfioDeviceConfig")
_POLICIES = ("LegacyOnly", "PreferIommuFD")
_GATES = {"TimeSlicing": "TimeSlicingSettings", "MPS": "MPSSupport"}
_INT64 = range(-(2**63), 2**63)


def problems_of(parameters: Object, path: str, driver: DriverKnowledge) -> list[Problem]:
    """The errors for which a driver of this version and with these feature gates would refuse the configuration.

    They are those of the webhook, or, if there are none, those at the preparation of the claim. Paths start with
    `path`.
    """
    check = _Check(driver)
    check.config(parameters, path)
    return check.problems or _at_prepare(parameters, path, driver)


class _Check:
    """Decodes a configuration as the driver does, and collects errors. `None` counts as a missing field."""

    def __init__(self, driver: DriverKnowledge) -> None:
        self.driver = driver
        self.problems: list[Problem] = []

    def wrong(self, path: str, message: str, fix: str = "", rule: str = "bad-value") -> None:
        self.problems.append(Problem(path, f"is refused by {self.driver.title}: {message}", rule, fix))

    def fields(self, value: object, path: str, names: t.Sequence[str]) -> Object:
        """The fields of a mapping that are set. Fields other than `names` are errors; empty if it is not a mapping."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(path, "must be a mapping")
            return {}
        for name in value:
            if name not in names:
                fix = nearest(str(name), names) or f"known: {', '.join(names)}"
                self.wrong(child(path, str(name)), "unknown field", fix, "unknown")
        return {name: field for name, field in value.items() if field is not None}

    def text(self, value: object, path: str) -> str:
        if value is not None and not isinstance(value, str):
            self.wrong(path, "must be a string")
        return value if isinstance(value, str) else ""

    def boolean(self, value: object, path: str) -> None:
        if value is not None and not isinstance(value, bool):
            self.wrong(path, "must be true or false")

    def integer(self, value: object, path: str) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value not in _INT64:
            self.wrong(path, "must be a 64-bit integer")
            return None
        return value

    def amount(self, value: object, path: str) -> None:
        if value is None:
            return
        valid = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        try:
            quantity.parse(value.strip() if isinstance(value, str) else str(value)) if valid else None
        except ValueError:
            valid = False
        if not valid:
            self.wrong(path, f"{value!r} is not an amount", "write an amount such as 10Gi")

    def config(self, parameters: Object, path: str) -> None:
        kind = parameters.get("kind")
        if parameters.get("apiVersion") != NVIDIA_API:
            self.wrong(child(path, "apiVersion"), f"must be {NVIDIA_API}")
        if kind not in KINDS:
            self.wrong(child(path, "kind"), f"must be one of {', '.join(KINDS)}", nearest(str(kind), KINDS))
            return
        section = "iommu" if kind == "VfioDeviceConfig" else "sharing"
        fields = self.fields(parameters, path, ("apiVersion", "kind", section))
        if section not in fields:
            return
        if section == "iommu":
            self._iommu(fields[section], child(path, section))
        else:
            self._sharing(fields[section], child(path, section), kind == "GpuConfig")

    def _iommu(self, value: object, path: str) -> None:
        fields = self.fields(value, path, ("backendPolicy", "enableAPIDevice"))
        policy = self.text(fields.get("backendPolicy"), child(path, "backendPolicy"))
        self.boolean(fields.get("enableAPIDevice"), child(path, "enableAPIDevice"))
        if policy and policy not in _POLICIES:
            fix = nearest(policy, _POLICIES)
            self.wrong(child(path, "backendPolicy"), f"must be one of {', '.join(_POLICIES)}", fix)

    def _sharing(self, value: object, path: str, whole: bool) -> None:
        fields = self.fields(value, path, ("strategy", *(["timeSlicingConfig"] if whole else []), "mpsConfig"))
        strategy = self.text(fields.get("strategy"), child(path, "strategy"))
        slicing, mps = fields.get("timeSlicingConfig"), fields.get("mpsConfig")
        interval = self._interval(slicing, child(path, "timeSlicingConfig")) if whole else ""
        percentage = self._mps(mps, child(path, "mpsConfig"))
        gate = _GATES.get(strategy)
        if gate is None:
            self.wrong(child(path, "strategy"), "must be TimeSlicing or MPS", nearest(strategy, _GATES))
        elif gate not in self.driver.enabled:
            fix = f"dra_claims_drivers.{self.driver.name}.feature_gates: {{{gate}: true}}, if the gate is on"
            self.wrong(child(path, "strategy"), f"the feature gate {gate} is off", fix, "gate")
        elif strategy == "MPS" and percentage is not None and not 0 <= percentage <= 100:
            place = child(child(path, "mpsConfig"), "defaultActiveThreadPercentage")
            self.wrong(place, "must be from 0 to 100")
        elif strategy == "TimeSlicing" and whole and slicing is not None and interval not in INTERVALS:
            place = child(child(path, "timeSlicingConfig"), "interval")
            self.wrong(place, f"must be one of {', '.join(INTERVALS)}", nearest(interval, INTERVALS))

    def _interval(self, value: object, path: str) -> str:
        fields = self.fields(value, path, ("interval",))
        return self.text(fields.get("interval"), child(path, "interval"))

    def _mps(self, value: object, path: str) -> int | None:
        names = ["defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit"]
        names += ["multiUser"] if self.driver.version_in_range("0.5.0") else []
        fields = self.fields(value, path, names)
        self.amount(fields.get(names[1]), child(path, names[1]))
        limits = fields.get(names[2])
        if limits is not None and not isinstance(limits, dict):
            self.wrong(child(path, names[2]), "must be a mapping")
        for device, limit in limits.items() if isinstance(limits, dict) else ():
            self.amount(limit, child(child(path, names[2]), str(device)))
        self.boolean(fields.get("multiUser"), child(path, "multiUser"))
        return self.integer(fields.get(names[0]), child(path, names[0]))


def _at_prepare(parameters: Object, path: str, driver: DriverKnowledge) -> list[Problem]:
    """Errors of a configuration that the webhook accepts, but the kubelet plugin refuses for every device."""
    problems: list[Problem] = []

    def wrong(place: str, message: str, fix: str = "") -> None:
        problems.append(
            Problem(place, f"is refused by {driver.title} when the pod starts: {message}", "bad-value", fix)
        )

    if parameters["kind"] == "VfioDeviceConfig":
        if "PassthroughSupport" not in driver.enabled:
            wrong(
                child(path, "kind"),
                "without its feature gate PassthroughSupport, the driver has no devices of type vfio",
            )
        return problems
    sharing = parameters.get("sharing") or {}
    place = child(path, "sharing")
    if sharing.get("strategy") == "TimeSlicing" and sharing.get("mpsConfig") is not None:
        wrong(child(place, "mpsConfig"), "mpsConfig cannot be combined with TimeSlicing", "leave it out")
    if sharing.get("strategy") != "MPS":
        return problems
    if sharing.get("timeSlicingConfig") is not None:
        wrong(child(place, "timeSlicingConfig"), "timeSlicingConfig cannot be combined with MPS", "leave it out")
    if "ConsumableShares" in driver.enabled:
        wrong(child(place, "strategy"), "MPS cannot be combined with consumable shares")
    mps = sharing.get("mpsConfig") or {}
    limits = {"": mps.get("defaultPinnedDeviceMemoryLimit"), **(mps.get("defaultPerDevicePinnedMemoryLimit") or {})}
    for device, limit in limits.items():
        name = "defaultPerDevicePinnedMemoryLimit" if device else "defaultPinnedDeviceMemoryLimit"
        if limit is not None and quantity.parse(str(limit).strip()) < 2**20:
            wrong(child(child(place, "mpsConfig"), name), "the limit is below 1Mi")
    return problems
