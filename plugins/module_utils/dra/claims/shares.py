# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a share of a GPU to a filter, amounts or a configuration, depending on the sharing engine of the site.

`nic_shares` compiles shares of NICs.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..kube import quantity
from ..kube.objects import Object, ObjectView
from ..kube.reader import Reader, child
from ..vendors.knowledge import DriverKnowledge
from ..vendors.sharing import BY_NAME, NVIDIA_API, Engine, engines_for
from .inventory import PREFIX, SHARE_ANNOTATION, Claim, Device
from .selectors import Selector

_MEBIBYTE = 2**20


@dataclass
class Share:
    """What a share is compiled to: filters, selectors with their paths, amounts by vendor-neutral name, configurations.

    `description` says what enforces the share, and how idle capacity is used. `engine` is the sharing engine of a GPU,
    or None for a share of a NIC.
    """

    description: str
    engine: Engine | None = None
    where: Object = field(default_factory=dict)
    selectors: list[tuple[Selector, str]] = field(default_factory=list)
    capacity: dict[str, str] = field(default_factory=dict)
    configs: list[Object] = field(default_factory=list)


def share_of(device: Device, driver: DriverKnowledge, options: ObjectView, reader: Reader) -> Share | None:
    """What a share of a GPU is compiled to, or None after recording why the engine cannot provide it."""
    path, parts = child(device.path, "share"), device.share
    engine = BY_NAME.get(str(options.get("engine") or _only_engine(driver)))
    suitable = engines_for(parts)
    names = ", ".join(f"{candidate.name} of {candidate.driver}" for candidate in suitable)
    fix = f"engines for such a share: {names}" if names else "no engine supports all of these; request fewer"
    if engine is None:
        message = f"the site sets no engine for {driver.name}"
        reader.problem(path, message, "no-engine", f"set {PREFIX}drivers.{driver.name}.engine; {fix}")
        return None
    if engine not in suitable:
        unsupported = [part for part in parts if part not in engine.supported_parts]
        if unsupported:
            reason = f"does not support {', '.join(unsupported)}"
        else:
            reason = f"needs {', '.join(engine.required_parts)}"
        reader.problem(path, f"{engine.name} of {driver.name} {reason}", "engine", fix)
        return None
    for key in ("partition", "memory", "cores", "shares"):
        if key in parts and (key in device.where or key in device.capacity):
            reader.problem(child(path, key), "is also in where or capacity", "contradiction", "set it only once")
            return None
    if engine.config:
        return _configured(device, engine, path, reader)
    if "shares" in parts and not str(options.get("consumable_shares")).isdigit():
        message = f"the driver counts no shares: consumable_shares is {options.get('consumable_shares') or 'not set'}"
        reader.problem(child(path, "shares"), message, "engine", "request memory, or set consumable_shares to a number")
        return None
    where: Object = {"partition": parts["partition"]} if "partition" in parts else {}
    capacity: dict[str, str] = {key: str(parts[key]) for key in ("memory", "cores", "shares") if key in parts}
    return Share(engine.describe(parts), engine, where, capacity=capacity, configs=device.configs)


def _only_engine(driver: DriverKnowledge) -> str:
    """The name of a driver's only engine; empty if it has several or none."""
    engines = [engine for engine in BY_NAME.values() if engine.driver == driver.name]
    return engines[0].name if len(engines) == 1 else ""


def _configured(device: Device, engine: Engine, path: str, reader: Reader) -> Share | None:
    """A share that is requested by a GpuConfig; None after recording an error."""
    parts = device.share
    if engine.name == "time-slicing":
        sharing: Object = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": parts["interval"]}}
    else:
        mps: Object = {}
        if "cores" in parts:
            mps["defaultActiveThreadPercentage"] = parts["cores"]
        if "memory" in parts:
            if quantity.parse(parts["memory"]) < _MEBIBYTE:
                reader.problem(
                    child(path, "memory"),
                    "is less than 1Mi",
                    "bad-value",
                    "request at least 1Mi, as MPS counts whole MiB",
                )
                return None
            mps["defaultPinnedDeviceMemoryLimit"] = str(parts["memory"])
        sharing = {"strategy": "MPS", **({"mpsConfig": mps} if mps else {})}
    config: Object = {"apiVersion": NVIDIA_API, "kind": "GpuConfig", "sharing": sharing}
    configs = [*device.configs, {"driver": engine.driver, "parameters": config}]
    return Share(engine.describe(parts), engine, configs=configs)


def unshared_warnings(device: Device, driver: DriverKnowledge, options: ObjectView) -> list[str]:
    """A warning for a GPU that is requested without a share, if the site's driver shares all GPUs."""
    counted = options.get("consumable_shares")
    if driver.name != "gpu.nvidia.com" or device.kind != "gpu" or counted in (None, "memory"):
        return []
    if device.share or device.capacity or "partition" in device.where:
        return []
    return [
        f"{device.path}: with consumable_shares: {counted}, other claims can get the same GPU, because a claim that "
        "requests no amount gets the minimum; request a share, or run the driver with consumable_shares: memory"
    ]


def share_notes(claim: Claim, shares: t.Mapping[int, Share]) -> dict[str, str]:
    """Annotations that describe each share of a claim. `shares` are by the id() of their device."""
    return {
        SHARE_ANNOTATION + choice.name: shares[id(choice)].description
        for choice in _choices(claim)
        if id(choice) in shares
    }


def _choices(claim: Claim) -> list[Device]:
    return [choice for group in claim.groups for device in group.devices for choice in device.choices()]


def warnings_of(claim: Claim, shares: t.Mapping[int, Share]) -> list[str]:
    """Warnings about what the shares of a claim do not guarantee, although users may expect it."""
    return [
        warning
        for choice in _choices(claim)
        if id(choice) in shares
        for warning in _warnings(claim, choice, shares[id(choice)])
    ]


def _warnings(claim: Claim, device: Device, share: Share) -> list[str]:
    warnings: list[str] = []
    if share.engine is None:
        return warnings
    path = child(device.path, "share")
    if share.engine.config and claim.template:
        warnings.append(
            f"{path}: {share.engine.name} shares the GPU of one claim, but each pod of a template gets its own claim; "
            f"define it in {PREFIX}claims instead, and refer to that claim in several pods"
        )
    counted = [part for part in share.engine.only_counted if part in device.share]
    if counted:
        warnings.append(
            f"{path}: {share.engine.name} only counts {', '.join(counted)}: nothing prevents a process from using more"
        )
    missing = [part for part in ("memory", "cores") if part not in device.share]
    if share.engine.name == "hami-core" and missing:
        warnings.append(
            f"{path}: a share without {missing[0]} takes all of the GPU's {missing[0]}, so no other share fits"
        )
    return warnings
