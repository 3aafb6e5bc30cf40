# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""For a recorded machine with a real GPU (tests/nvidia/record.py), nvml.c returns the values that its NVML returned."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from ansible_collections.lanewise.dra.tests.nvidia.recorded import names, recording, write
from ansible_collections.lanewise.dra.tests.nvidia.root import Root
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("pynvml", reason="needs nvidia-ml-py")

#: Values that are not compared: those that depend on the machine's current use, and the number of the GPU's module on
#: the board, which only NVML knows.
_IGNORED = (
    "nvmlDeviceGetMemoryInfo free",
    "nvmlDeviceGetMemoryInfo used",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetModuleId",
)


def flat(value: t.Any, path: str = "") -> dict[str, t.Any]:
    """The values of NVML that are compared, by path."""
    if not isinstance(value, dict):
        return {} if path.endswith(_IGNORED) else {path: value}
    return {key: entry for name, inner in value.items() for key, entry in flat(inner, f"{path} {name}".strip()).items()}


@pytest.fixture(name="root", params=names())
def _root(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Root]:
    """A recorded machine with the library nvml.c in place of NVML."""
    try:
        return request.param, Root(write(request.param, tmp_path / "machine"), tmp_path / "nvidia")
    except Missing as missing:
        pytest.skip(str(missing))


def test_the_library_returns_the_recorded_values(root: tuple[str, Root], tmp_path: Path) -> None:
    machine, driver_root = root
    variables = {
        **os.environ,
        **driver_root.variables,
        "LD_LIBRARY_PATH": str(driver_root.folder / "root/usr/lib64"),
        "PYTHONPATH": os.pathsep.join([str(COLLECTIONS), *sys.path]),
    }
    program = "ansible_collections.lanewise.dra.tests.nvidia.answers"
    done = subprocess.run([sys.executable, "-m", program], env=variables, capture_output=True, text=True, check=True)
    answered, real = json.loads(done.stdout), copy.deepcopy(recording(machine)["nvml"])
    assert answered.keys() == real.keys() and len(answered["devices"]) == len(real["devices"]) > 0
    pairs = [(answered, real), *zip(answered.pop("devices"), real.pop("devices"))]
    differences = [
        f"{key}: {returned.get(key)}, recorded {recorded.get(key)}"
        for returned, recorded in ((flat(pair), flat(other)) for pair, other in pairs)
        for key in sorted(returned.keys() | recorded.keys())
        if returned.get(key) != recorded.get(key)
    ]
    assert not differences
