# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Calls each function of NVML that NVIDIA's DRA driver calls, and prints the results as JSON.

    python -m tests.nvidia.answers

Uses the library libnvidia-ml.so.1 that the loader finds: the real one, or with LD_LIBRARY_PATH the one built from
nvml.c. Changes nothing.
"""

from __future__ import annotations

import ctypes
import json
import typing as t

import pynvml as nvml

Answers = dict[str, t.Any]

_SYSTEM = ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion_v2")
#: The functions of nvml.c that need only the handle of a device.
_DEVICE_FUNCTIONS = (
    "nvmlDeviceGetAddressingMode nvmlDeviceGetArchitecture nvmlDeviceGetBrand nvmlDeviceGetCudaComputeCapability "
    "nvmlDeviceGetIndex nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMemoryInfo nvmlDeviceGetMigMode "
    "nvmlDeviceGetMinorNumber nvmlDeviceGetModuleId nvmlDeviceGetName nvmlDeviceGetPciInfo_v3 "
    "nvmlDeviceGetPersistenceMode nvmlDeviceGetSupportedEventTypes nvmlDeviceGetUUID nvmlDeviceGetVirtualizationMode "
    "nvmlDeviceIsMigDeviceHandle nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId"
).split()
#: A UUID that no GPU has.
_NO_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def _plain(value: t.Any) -> t.Any:
    """A result as a JSON value."""
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_type in value._fields_}
    if isinstance(value, ctypes.Array):
        return [_plain(entry) for entry in value]
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value.decode() if isinstance(value, bytes) else getattr(value, "value", value)


def _call(function: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
    """The result of a function of NVML, or `{"error": NUMBER}` if it fails."""
    try:
        return _plain(function(*arguments))
    except nvml.NVMLError as error:
        return {"error": error.value}


def _placements(device: t.Any, profile: int) -> list[list[int]]:
    """Start and size of each placement of a MIG profile."""
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, ctypes.byref(count))
    placements = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, placements, ctypes.byref(count))
    return [[placement.start, placement.size] for placement in placements[: count.value]]


def _profiles(device: t.Any) -> Answers:
    """The MIG profiles by index, with their placements."""
    results: Answers = {}
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = _call(nvml.nvmlDeviceGetGpuInstanceProfileInfo, device, index, 1)
        if "error" not in profile:
            profile["placements"] = _call(_placements, device, profile["id"])
        results[str(index)] = profile
    return results


def _device(device: t.Any) -> Answers:
    results = {name: _call(getattr(nvml, name), device) for name in _DEVICE_FUNCTIONS}
    address, uuid = results["nvmlDeviceGetPciInfo_v3"]["busId"], results["nvmlDeviceGetUUID"]
    by_address = {address, address[4:], address[4:].lower()}  # domains of eight and of four digits
    for function, keys in ((nvml.nvmlDeviceGetHandleByUUID, {uuid}), (nvml.nvmlDeviceGetHandleByPciBusId, by_address)):
        for key in sorted(keys):
            results[f"{function.__name__} {key}"] = _call(_index, function, key)
    for function in (nvml.nvmlDeviceGetMigDeviceHandleByIndex, nvml.nvmlDeviceGetGpuInstanceById):
        results[f"{function.__name__} 0"] = _call(function, device, 0)
    return {**results, "profiles": _profiles(device)}


def _index(find: t.Callable[[str], t.Any], key: str) -> t.Any:
    """The index of the device that a function returns for a key."""
    return nvml.nvmlDeviceGetIndex(find(key))


def answers() -> Answers:
    """The results of NVML on this machine. Raises pynvml.NVMLError if its library or the driver is missing."""
    nvml.nvmlInit()
    try:
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {
            **{name: _call(getattr(nvml, name)) for name in _SYSTEM},
            "nvmlDeviceGetCount": len(devices),
            "nvmlDeviceGetHandleByIndex of none": _call(nvml.nvmlDeviceGetHandleByIndex, len(devices)),
            "nvmlDeviceGetHandleByUUID of none": _call(nvml.nvmlDeviceGetHandleByUUID, _NO_UUID),
            "nvmlDeviceGetHandleByPciBusId of none": _call(nvml.nvmlDeviceGetHandleByPciBusId, "0000:fe:1f.0"),
            "devices": [_device(device) for device in devices],
        }
    finally:
        nvml.nvmlShutdown()


if __name__ == "__main__":
    print(json.dumps(answers()))
