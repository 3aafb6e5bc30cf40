# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NVML answers to each question that NVIDIA's DRA driver asks it, as JSON.

    python -m tests.nvidia.answers

Asks the library libnvidia-ml.so.1 that the loader finds: the real one, or nvml.c by LD_LIBRARY_PATH. Changes nothing.
"""

from __future__ import annotations

import ctypes
import json
import typing as t

import pynvml as nvml

Answers = dict[str, t.Any]

_SYSTEM = ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion_v2")
#: What nvml.c answers of a device with its handle alone.
_OF_DEVICE = (
    "nvmlDeviceGetAddressingMode nvmlDeviceGetArchitecture nvmlDeviceGetBrand nvmlDeviceGetCudaComputeCapability "
    "nvmlDeviceGetIndex nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMemoryInfo nvmlDeviceGetMigMode "
    "nvmlDeviceGetMinorNumber nvmlDeviceGetModuleId nvmlDeviceGetName nvmlDeviceGetPciInfo_v3 "
    "nvmlDeviceGetPersistenceMode nvmlDeviceGetSupportedEventTypes nvmlDeviceGetUUID nvmlDeviceGetVirtualizationMode "
    "nvmlDeviceIsMigDeviceHandle nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId"
).split()
#: Of no GPU.
_NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def _plain(value: t.Any) -> t.Any:
    """An answer as JSON has it."""
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_type in value._fields_}
    if isinstance(value, ctypes.Array):
        return [_plain(one) for one in value]
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else getattr(value, "value", value)


def _ask(function: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
    """What a function of NVML answers; {"error": its number} where it fails."""
    try:
        return _plain(function(*arguments))
    except nvml.NVMLError as error:
        return {"error": error.value}


def _placements(device: t.Any, profile: int) -> list[list[int]]:
    """Start and size of each place of a profile of MIG."""
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, places, ctypes.byref(count))
    return [[place.start, place.size] for place in places[: count.value]]


def _profiles(device: t.Any) -> Answers:
    """The profiles of MIG by their index, with their places."""
    found: Answers = {}
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = _ask(nvml.nvmlDeviceGetGpuInstanceProfileInfo, device, index, 1)
        if "error" not in profile:
            profile["placements"] = _ask(_placements, device, profile["id"])
        found[str(index)] = profile
    return found


def _device(device: t.Any) -> Answers:
    found = {name: _ask(getattr(nvml, name), device) for name in _OF_DEVICE}
    address, uuid = found["nvmlDeviceGetPciInfo_v3"]["busId"], found["nvmlDeviceGetUUID"]
    by_address = {address, address[4:], address[4:].lower()}  # domains of eight and of four digits
    for function, keys in ((nvml.nvmlDeviceGetHandleByUUID, {uuid}), (nvml.nvmlDeviceGetHandleByPciBusId, by_address)):
        for key in sorted(keys):
            found[f"{function.__name__} {key}"] = _ask(_index, function, key)
    for function in (nvml.nvmlDeviceGetMigDeviceHandleByIndex, nvml.nvmlDeviceGetGpuInstanceById):
        found[f"{function.__name__} 0"] = _ask(function, device, 0)
    return {**found, "profiles": _profiles(device)}


def _index(find: t.Callable[[str], t.Any], key: str) -> t.Any:
    """The index of the device that a function finds by a key."""
    return nvml.nvmlDeviceGetIndex(find(key))


def answers() -> Answers:
    """What NVML answers here. Raises pynvml.NVMLError without its library or a driver."""
    nvml.nvmlInit()
    try:
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {
            **{name: _ask(getattr(nvml, name)) for name in _SYSTEM},
            "nvmlDeviceGetCount": len(devices),
            "nvmlDeviceGetHandleByIndex of none": _ask(nvml.nvmlDeviceGetHandleByIndex, len(devices)),
            "nvmlDeviceGetHandleByUUID of none": _ask(nvml.nvmlDeviceGetHandleByUUID, _NO_UUID),
            "nvmlDeviceGetHandleByPciBusId of none": _ask(nvml.nvmlDeviceGetHandleByPciBusId, "0000:fe:1f.0"),
            "devices": [_device(device) for device in devices],
        }
    finally:
        nvml.nvmlShutdown()


if __name__ == "__main__":
    print(json.dumps(answers()))
