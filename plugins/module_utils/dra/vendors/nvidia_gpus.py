# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NVIDIA's GPUs by PCI device ID: what NVML reports about each model, and its MIG profiles.

Sources: NVIDIA's Multi-Instance GPU User Guide (profiles, placements, engines; `nvidia-smi mig -lgip` and `-lgipp` of
A100), `nvidia-smi` for memory, NVIDIA's list of compute capabilities. The values of H100 and H200 are those of NVML on
such a GPU with a driver of the R580 branch (tests/nvidia/recorded). For B200 and GB200 the guide has neither the
multiprocessors of a profile nor its memory in MiB: these are computed from the fractions in the guide.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass


@dataclass(frozen=True)
class MigProfile:
    """A MIG profile: a type of GPU instance.

    `index` is NVML's constant NVML_GPU_INSTANCE_PROFILE_*, and `id` the argument of `nvidia-smi mig -cgi`. `slices` is
    the number of compute slices, of seven. `size` is the number of memory slices, the first of which is one of
    `starts`. `instances` is the maximum number of instances at the same time.
    """

    index: int
    id: int
    slices: int
    instances: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    memory_mib: int
    size: int
    starts: tuple[int, ...]
    media: bool = False  # the media extensions: `+me`


@dataclass(frozen=True)
class Model:
    """A model as NVML reports it. `memory_mib` is the memory in MiB with a driver of the R570 branch."""

    architecture: str
    compute_capability: str
    memory_mib: int
    mig: tuple[MigProfile, ...] = ()
    coherent: bool = False  # the CPU can address the memory coherently, so NVML reports an addressing mode

    @property
    def memory_gb(self) -> int:
        """The memory as the names of MIG profiles count it: in whole GiB, rounded up."""
        return -(-self.memory_mib // 1024)

    def name(self, profile: MigProfile) -> str:
        """A profile's name such as 1g.10gb+me. As in go-nvlib, its memory is rounded up to eighths of the GPU's
        memory."""
        eighths = -(-profile.memory_mib * 8 // self.memory_mib)
        gigabytes = int(eighths * self.memory_gb / 8 + 0.5)
        return f"{profile.slices}g.{gigabytes}gb{'+me' if profile.media else ''}"


#: A profile of one memory slice can start at any of these.
_ANY_START = (0, 1, 2, 3, 4, 5, 6)

_A100_40 = (
    MigProfile(0, 19, 1, 7, 14, 1, 0, 0, 0, 0, 4864, 1, _ANY_START),
    MigProfile(7, 20, 1, 1, 14, 1, 1, 0, 1, 1, 4864, 1, _ANY_START, media=True),
    MigProfile(9, 15, 1, 4, 14, 1, 1, 0, 0, 0, 9856, 2, (0, 2, 4, 6)),
    MigProfile(1, 14, 2, 3, 28, 2, 1, 0, 0, 0, 9856, 2, (0, 2, 4)),
    MigProfile(2, 9, 3, 2, 42, 3, 2, 0, 0, 0, 19968, 4, (0, 4)),
    MigProfile(3, 5, 4, 1, 56, 4, 2, 0, 0, 0, 19968, 4, (0,)),
    MigProfile(4, 0, 7, 1, 98, 7, 5, 0, 1, 1, 40192, 8, (0,)),
)


def _hopper(one_slice: int, two_slices: int, four_slices: int, eight_slices: int) -> tuple[MigProfile, ...]:
    """The profiles of a Hopper GPU. Each argument is the memory in MiB of an instance with that many memory slices."""
    return (
        MigProfile(0, 19, 1, 7, 16, 1, 1, 0, 1, 0, one_slice, 1, _ANY_START),
        MigProfile(7, 20, 1, 1, 16, 1, 1, 0, 1, 1, one_slice, 1, _ANY_START, media=True),
        MigProfile(9, 15, 1, 4, 26, 1, 1, 0, 1, 0, two_slices, 2, (0, 2, 4, 6)),
        MigProfile(1, 14, 2, 3, 32, 2, 2, 0, 2, 0, two_slices, 2, (0, 2, 4)),
        MigProfile(2, 9, 3, 2, 60, 3, 3, 0, 3, 0, four_slices, 4, (0, 4)),
        MigProfile(3, 5, 4, 1, 64, 4, 4, 0, 4, 0, four_slices, 4, (0,)),
        MigProfile(4, 0, 7, 1, 132, 8, 7, 0, 7, 1, eight_slices, 8, (0,)),
    )


def _blackwell(eighth: int) -> tuple[MigProfile, ...]:
    """The profiles of a Blackwell GPU. `eighth` is the memory of one memory slice in MiB."""
    return (
        MigProfile(0, 19, 1, 7, 18, 2, 1, 0, 1, 0, eighth, 1, _ANY_START),
        MigProfile(7, 20, 1, 1, 18, 2, 1, 0, 1, 1, eighth, 1, _ANY_START, media=True),
        MigProfile(9, 15, 1, 4, 30, 2, 1, 0, 1, 0, 2 * eighth, 2, (0, 2, 4, 6)),
        MigProfile(1, 14, 2, 3, 36, 3, 1, 0, 1, 0, 2 * eighth, 2, (0, 2, 4)),
        MigProfile(2, 9, 3, 2, 70, 6, 1, 0, 1, 0, 4 * eighth, 4, (0, 4)),
        MigProfile(3, 5, 4, 1, 72, 8, 1, 0, 1, 0, 4 * eighth, 4, (0,)),
        MigProfile(4, 0, 7, 1, 148, 16, 1, 0, 1, 1, 8 * eighth, 8, (0,)),
    )


_A100 = Model("Ampere", "8.0", 40960, _A100_40)
_H100 = Model("Hopper", "9.0", 81559, _hopper(9984, 20096, 40448, 81152))
_H200 = Model("Hopper", "9.0", 143771, _hopper(16384, 33280, 71424, 143360))
_B200 = Model("Blackwell", "10.0", 183359, _blackwell(22784))
_GB200 = Model("Blackwell", "10.0", 189471, _blackwell(23552), coherent=True)

#: The models by PCI device ID, four hexadecimal digits.
MODELS: t.Mapping[str, Model] = {
    "20b0": _A100,  # A100-SXM4-40GB
    "20f1": _A100,  # A100-PCIE-40GB
    "2330": _H100,  # H100 80GB HBM3 (SXM5)
    "2335": _H200,  # H200 (SXM5)
    "2901": _B200,
    "2941": _GB200,
}
