# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Engines that share a GPU: the parts of a share that can be requested, what is enforced, and the use of idle capacity.

`ran` says which parts of an engine were tested, with a fake NVML library; all else is from the sources that `drivers`
names. No engine was tested on a GPU.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

#: What a share can request.
SHARE_PARTS = ("partition", "memory", "cores", "shares", "interval")

NVIDIA = "gpu.nvidia.com"
NVIDIA_API = "resource.nvidia.com/v1beta1"

INTERVALS = ("Default", "Short", "Medium", "Long")


@dataclass(frozen=True)
class Engine:
    """A way to share a GPU.

    `keeps` are the parts of a share that can be requested, `needs` those of which a share must name one. `gate` is
    the driver's feature gate that it needs, `without` one that must be off; `option` an option of the driver that must
    be set. `enforced` says what enforces a part; other parts are only counted. `config`: it is requested by
    an opaque configuration of the claim, and shares the claim's GPU among the pods that use the claim.
    """

    name: str
    driver: str
    keeps: tuple[str, ...]
    needs: tuple[str, ...]
    lends: str
    ran: str
    enforced: t.Mapping[str, str] = field(default_factory=dict)
    gate: str = ""
    without: str = ""
    option: str = ""
    config: bool = False

    @property
    def accounting(self) -> tuple[str, ...]:
        """The parts that only the scheduler counts: a process can use more."""
        return tuple(part for part in self.keeps if part not in self.enforced)

    def describe(self, parts: t.Iterable[str]) -> str:
        """Text about what enforces each part, and how idle capacity is used."""
        found = [
            f"{part} enforced by {self.enforced[part]}" if part in self.enforced else f"{part} only counted"
            for part in self.keeps
            if part in parts
        ]
        return f"{self.name}: {', '.join(found)}; idle capacity: {self.lends}"


ENGINES = (
    Engine(
        "mig",
        NVIDIA,
        keeps=("partition",),
        needs=("partition",),
        enforced={"partition": "hardware"},
        lends="never lent",
        ran="publication, scheduling, device nodes in pods",
        without="DynamicMIG",
    ),
    Engine(
        "dynamic-mig",
        NVIDIA,
        keeps=("partition",),
        needs=("partition",),
        enforced={"partition": "hardware"},
        lends="never lent, but the place of a partition that has ended is free for any other",
        ran="publication, scheduling, instances made for a pod and destroyed after it",
        gate="DynamicMIG",
    ),
    Engine(
        "consumable-shares",
        NVIDIA,
        keeps=("memory", "shares"),
        needs=("memory", "shares"),
        lends="all of it is open to each process: neither memory nor time is limited",
        ran="publication, scheduling",
        gate="ConsumableShares",
        option="consumable_shares",
    ),
    Engine(
        "mps",
        NVIDIA,
        keeps=("memory", "cores"),
        needs=(),
        enforced={"memory": "the MPS daemon", "cores": "the MPS daemon"},
        lends="never beyond the limits of each process; without limits all of it",
        ran="scheduling, the Deployment of the daemon, its commands and what pods get mounted; not the daemon",
        gate="MPSSupport",
        config=True,
    ),
    Engine(
        "time-slicing",
        NVIDIA,
        keeps=("interval",),
        needs=("interval",),
        enforced={"interval": "the kernel module, a whole GPU at a time"},
        lends="idle time goes to the other processes; memory is not limited",
        ran="scheduling, the commands that set the interval and reset it; not nvidia-smi",
        gate="TimeSlicingSettings",
        config=True,
    ),
    Engine(
        "hami-core",
        "hami-core-gpu.project-hami.io",
        keeps=("memory", "cores"),
        needs=("memory", "cores"),
        enforced={
            "memory": "a library that is preloaded into the container",
            "cores": "a library that is preloaded into the container",
        },
        lends="memory never; cores by HAMi-core's policy",
        ran="",
    ),
    Engine(
        "partitions",
        "gpu.amd.com",
        keeps=("partition",),
        needs=("partition",),
        enforced={"partition": "hardware"},
        lends="never lent",
        ran="",
    ),
)

#: By name; a name belongs to one driver.
BY_NAME: t.Mapping[str, Engine] = {engine.name: engine for engine in ENGINES}


def engines_of(driver: str) -> list[Engine]:
    return [engine for engine in ENGINES if engine.driver == driver]


def engines_for(parts: t.Collection[str]) -> list[Engine]:
    """The engines that support all requested parts of a share."""
    return [
        engine
        for engine in ENGINES
        if set(parts) <= set(engine.keeps) and (not engine.needs or set(parts) & set(engine.needs))
    ]
