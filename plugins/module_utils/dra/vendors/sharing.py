# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Engines that share a GPU: the parts of a share that can be requested, what is enforced, and the use of idle capacity.

`tested` says which parts of an engine ran in our tests, with the driver's own program and a fake NVML library.
Everything else is taken from the driver sources that the other modules of this package cite. Only consumable-shares was
also tested on a GPU.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

#: The parts of a GPU that a share can request.
SHARE_PARTS = ("partition", "memory", "cores", "shares", "interval")

NVIDIA = "gpu.nvidia.com"
NVIDIA_API = "resource.nvidia.com/v1beta1"

#: The time slices that NVIDIA's driver supports.
INTERVALS = ("Default", "Short", "Medium", "Long")


@dataclass(frozen=True)
class Engine:
    """A mechanism that shares a GPU.

    - `supported_parts` are the parts of a share that can be requested. A share must set at least one of
      `required_parts`, if there are any.
    - `enforced` says what enforces a part; other parts are only counted by the scheduler.
    - `idle_capacity` is text about the use of capacity that a share does not use.
    - `gate` is the driver's feature gate that the engine needs, and `excluded_gate` one that must be off.
    - `required_option` is an option of the driver that must be set.
    - `config` says that an opaque configuration of the claim requests the share. Then the GPU of one claim is shared by
      the pods that use this claim.
    """

    name: str
    driver: str
    supported_parts: tuple[str, ...]
    required_parts: tuple[str, ...]
    idle_capacity: str
    tested: str
    enforced: t.Mapping[str, str] = field(default_factory=dict)
    gate: str = ""
    excluded_gate: str = ""
    required_option: str = ""
    config: bool = False

    @property
    def only_counted(self) -> tuple[str, ...]:
        """The parts that only the scheduler counts, so that a process can use more."""
        return tuple(part for part in self.supported_parts if part not in self.enforced)

    def describe(self, parts: t.Iterable[str]) -> str:
        """Text about what enforces each part, and how idle capacity is used."""
        descriptions = [
            f"{part} enforced by {self.enforced[part]}" if part in self.enforced else f"{part} only counted"
            for part in self.supported_parts
            if part in parts
        ]
        return f"{self.name}: {', '.join(descriptions)}; idle capacity: {self.idle_capacity}"


ENGINES = (
    Engine(
        "mig",
        NVIDIA,
        supported_parts=("partition",),
        required_parts=("partition",),
        enforced={"partition": "hardware"},
        idle_capacity="never lent",
        tested="publication, scheduling, device nodes in pods",
        excluded_gate="DynamicMIG",
    ),
    Engine(
        "dynamic-mig",
        NVIDIA,
        supported_parts=("partition",),
        required_parts=("partition",),
        enforced={"partition": "hardware"},
        idle_capacity="never lent; memory slices of a destroyed partition are free for others",
        tested="publication, scheduling, creation of instances for a pod and their destruction after it",
        gate="DynamicMIG",
    ),
    Engine(
        "consumable-shares",
        NVIDIA,
        supported_parts=("memory", "shares"),
        required_parts=("memory", "shares"),
        idle_capacity="any process can use all of it: neither memory nor time is limited",
        tested="publication, scheduling",
        gate="ConsumableShares",
        required_option="consumable_shares",
    ),
    Engine(
        "mps",
        NVIDIA,
        supported_parts=("memory", "cores"),
        required_parts=(),
        enforced={"memory": "the MPS daemon", "cores": "the MPS daemon"},
        idle_capacity="a process can use it up to its limits, or all of it without limits",
        tested="scheduling, the Deployment of the daemon, its commands and the mounts of pods; not the daemon",
        gate="MPSSupport",
        config=True,
    ),
    Engine(
        "time-slicing",
        NVIDIA,
        supported_parts=("interval",),
        required_parts=("interval",),
        enforced={"interval": "the kernel module, a whole GPU at a time"},
        idle_capacity="other processes get the idle time; memory is not limited",
        tested="scheduling, the commands that set and reset the interval; not nvidia-smi",
        gate="TimeSlicingSettings",
        config=True,
    ),
    Engine(
        "hami-core",
        "hami-core-gpu.project-hami.io",
        supported_parts=("memory", "cores"),
        required_parts=("memory", "cores"),
        enforced={
            "memory": "a library that is preloaded into the container",
            "cores": "a library that is preloaded into the container",
        },
        idle_capacity="memory is never lent; cores by HAMi-core's policy",
        tested="",
    ),
    Engine(
        "partitions",
        "gpu.amd.com",
        supported_parts=("partition",),
        required_parts=("partition",),
        enforced={"partition": "hardware"},
        idle_capacity="never lent",
        tested="",
    ),
)

#: The engines by name. Each name is an engine of only one driver.
BY_NAME: t.Mapping[str, Engine] = {engine.name: engine for engine in ENGINES}


def engines_of(driver: str) -> list[Engine]:
    return [engine for engine in ENGINES if engine.driver == driver]


def engines_for(parts: t.Collection[str]) -> list[Engine]:
    """The engines that can provide a share with these parts."""
    return [
        engine
        for engine in ENGINES
        if set(parts) <= set(engine.supported_parts)
        and (not engine.required_parts or set(parts) & set(engine.required_parts))
    ]
