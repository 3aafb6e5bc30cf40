# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A part of a GPU, written for the engine that the site names: as a filter, as amounts or as a configuration.

Parts of NICs are written by `nic_shares`."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..kube import quantity
from ..kube.objects import Object, ObjectView
from ..kube.reader import Reader, child
from ..vendors.knowledge import DriverKnowledge
from ..vendors.sharing import BY_NAME, NVIDIA_API, Engine, that_keep
from .inventory import PREFIX, SHARE_ANNOTATION, Claim, Device
from .selectors import Selector

_MEBIBYTE = 2**20


@dataclass
class Share:
    """What a share becomes: filters, selectors with their paths, amounts by neutral name, configurations.

    `says` describes it: what enforces it, and what is lent. `engine` is that of a GPU.
    """

    says: str
    engine: Engine | None = None
    where: Object = field(default_factory=dict)
    selectors: list[tuple[Selector, str]] = field(default_factory=list)
    capacity: dict[str, str] = field(default_factory=dict)
    configs: list[Object] = field(default_factory=list)


def share_of(device: Device, driver: DriverKnowledge, options: ObjectView, reader: Reader) -> Share | None:
    """What a share of a GPU becomes with the site's driver; None where the engine cannot keep it, with a problem."""
    path, parts = child(device.path, "share"), device.share
    engine = BY_NAME.get(str(options.get("engine") or _only(driver)))
    could = that_keep(parts)
    names = ", ".join(f"{one.name} of {one.driver}" for one in could)
    fix = f"engines that could: {names}" if names else "no engine keeps all of these; ask for fewer"
    if engine is None:
        message = f"the site names no engine for {driver.name}"
        reader.problem(path, message, "no-engine", f"set {PREFIX}drivers.{driver.name}.engine; {fix}")
        return None
    if engine not in could:
        lost = [part for part in parts if part not in engine.keeps] or list(engine.needs)
        word = "cannot keep" if set(lost) & set(parts) else "needs"
        reader.problem(path, f"{engine.name} of {driver.name} {word} {', '.join(lost)}", "engine", fix)
        return None
    for key in ("partition", "memory", "cores", "shares"):
        if key in parts and (key in device.where or key in device.capacity):
            reader.problem(child(path, key), "is also in where or capacity", "contradiction", "write it once")
            return None
    if engine.config:
        return _configured(device, engine, path, reader)
    if "shares" in parts and not str(options.get("consumable_shares")).isdigit():
        message = f"the driver counts no shares: consumable_shares is {options.get('consumable_shares')}"
        reader.problem(child(path, "shares"), message, "engine", "ask for memory, or set consumable_shares to a number")
        return None
    where: Object = {"partition": parts["partition"]} if "partition" in parts else {}
    capacity: dict[str, str] = {key: str(parts[key]) for key in ("memory", "cores", "shares") if key in parts}
    return Share(engine.says(parts), engine, where, capacity=capacity, configs=device.configs)


def _only(driver: DriverKnowledge) -> str:
    """The engine of a driver that has only one; empty if the site must name one."""
    mine = [engine for engine in BY_NAME.values() if engine.driver == driver.name]
    return mine[0].name if len(mine) == 1 else ""


def _configured(device: Device, engine: Engine, path: str, reader: Reader) -> Share | None:
    """A share that a GpuConfig requests from the driver."""
    parts = device.share
    if engine.name == "time-slicing":
        sharing: Object = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": parts["interval"]}}
    else:
        mps: Object = {}
        if "cores" in parts:
            mps["defaultActiveThreadPercentage"] = parts["cores"]
        if "memory" in parts:
            if quantity.parse(parts["memory"]) < _MEBIBYTE:
                reader.problem(child(path, "memory"), "is less than 1Mi", "bad-value", "MPS limits whole MiB")
                return None
            mps["defaultPinnedDeviceMemoryLimit"] = str(parts["memory"])
        sharing = {"strategy": "MPS", **({"mpsConfig": mps} if mps else {})}
    config: Object = {"apiVersion": NVIDIA_API, "kind": "GpuConfig", "sharing": sharing}
    return Share(engine.says(parts), engine, configs=[*device.configs, {"driver": engine.driver, "parameters": config}])


def alone(device: Device, driver: DriverKnowledge, options: ObjectView) -> list[str]:
    """Warnings for a GPU that is requested without a share, where the site's driver shares all GPUs."""
    counted = options.get("consumable_shares")
    if driver.name != "gpu.nvidia.com" or device.kind != "gpu" or counted in (None, "memory"):
        return []
    if device.share or device.capacity or "partition" in device.where:
        return []
    return [
        f"{device.path}: with consumable_shares: {counted}, other claims can get the same GPU, because a claim that "
        "asks for no amount takes the least; ask for a share, or run the driver with consumable_shares: memory"
    ]


def share_notes(claim: Claim, shares: t.Mapping[int, Share]) -> dict[str, str]:
    """For each share of a claim, the annotation that describes it; `shares` are by the id() of their device."""
    return {
        SHARE_ANNOTATION + choice.name: shares[id(choice)].says for choice in _choices(claim) if id(choice) in shares
    }


def _choices(claim: Claim) -> list[Device]:
    return [choice for group in claim.groups for device in group.devices for choice in device.choices()]


def warnings_of(claim: Claim, shares: t.Mapping[int, Share]) -> list[str]:
    """What the shares of a claim do not guarantee, although a reader may expect it."""
    return [
        words
        for choice in _choices(claim)
        if id(choice) in shares
        for words in _warnings(claim, choice, shares[id(choice)])
    ]


def _warnings(claim: Claim, device: Device, share: Share) -> list[str]:
    found: list[str] = []
    if share.engine is None:
        return found
    path = child(device.path, "share")
    if share.engine.config and claim.template:
        found.append(
            f"{path}: {share.engine.name} shares the GPU of one claim, and each pod of a template gets a claim of its "
            f"own: write it in {PREFIX}claims, and name that claim in several pods"
        )
    counted = [part for part in share.engine.accounting if part in device.share]
    if counted:
        found.append(
            f"{path}: {share.engine.name} only counts {', '.join(counted)}: nothing keeps a process from taking more"
        )
    rest = [part for part in ("memory", "cores") if part not in device.share]
    if share.engine.name == "hami-core" and rest:
        found.append(f"{path}: without {rest[0]} it takes all of the GPU's, and no other share fits beside it")
    return found
