# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our checks of configurations and feature gates for NVIDIA's driver, against the driver's own checks."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import DRIVERS, knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import DriverKnowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.nvidia_config import problems_of
from ansible_collections.lanewise.dra.tests.oracle.program import Program
from ansible_collections.lanewise.dra.tools.cluster import MODULES

HERE = Path(__file__).resolve().parent
NAME = "gpu.nvidia.com"
VERSIONS = {"0.5.0": "0.5", "0.4.1": "0.4"}
CONFIGURATIONS = 20_000
#: Part of the messages about errors that also the driver's webhook finds. Others occur only when a pod starts.
WEBHOOK = "is refused by NVIDIA GPU DRA driver: "

pytestmark = [
    pytest.mark.long,  # it builds a Go program
    pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain to build the driver's checks with"),
]


@pytest.fixture(name="driver", scope="session", params=VERSIONS)
def _driver(request: pytest.FixtureRequest) -> t.Iterator[tuple[str, Program]]:
    try:
        with Program(HERE / "nvidia", MODULES / "nvidia" / VERSIONS[request.param]) as program:
            yield request.param, program
    except subprocess.CalledProcessError:
        pytest.skip("the Go module of NVIDIA's driver cannot be downloaded")


def test_sets_of_gates(driver: tuple[str, Program], summarize: t.Callable[[t.Any], None]) -> None:
    """With each set of the release's gates the driver starts or not, as predicted."""
    version, program = driver
    known = knowledge(NAME, {"version": version})
    names = [name for name, gate in DRIVERS[NAME].gates.items() if known.version_in_range(gate.since)]
    refused = 0
    for values in itertools.product((False, True), repeat=len(names)):
        gates = dict(zip(names, values))
        try:
            knowledge(NAME, {"version": version, "feature_gates": gates})
            ours = ""
        except Problems as problems:
            ours = str(problems)
        theirs = program.ask({"gates": gates})["error"]
        assert bool(ours) == bool(theirs), (gates, ours, theirs)
        refused += bool(ours)
    summarize(f"gates of {NAME} {version}: {2 ** len(names)} sets, {refused} refused by both")


class Dice:
    """Random configurations, most of them nearly right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *choices: t.Any) -> t.Any:
        return self.random.choice(choices)

    def odd(self) -> t.Any:
        return self.one(None, "", "x", 0, -1, 1.5, True, [], {}, {"a": 1}, 2**63, "100")

    def some(self, **fields: t.Callable[[], t.Any]) -> t.Any:
        """A mapping with some of these fields, rarely with an odd value, an unknown field, or no mapping at all."""
        if self.random.random() < 0.03:
            return self.odd()
        found = {
            name: self.odd() if self.random.random() < 0.04 else make()
            for name, make in fields.items()
            if self.random.random() < 0.7
        }
        if self.random.random() < 0.03:
            found[self.one("Strategy", "interval", "multiuser", "extra")] = 1
        return found

    def amount(self) -> t.Any:
        return self.one("1Gi", "10M", "0", "1k", "-1Gi", "1e3", "12x", " 1Gi ", "", 5, 0.5, "1.5Gi", True, "100Ei")

    def mps(self) -> t.Any:
        return self.some(
            defaultActiveThreadPercentage=lambda: self.one(0, 1, 50, 100, 101, -1, None, "50", 2**40),
            defaultPinnedDeviceMemoryLimit=self.amount,
            defaultPerDevicePinnedMemoryLimit=lambda: {
                self.one("0", "1", "GPU-1", "-1"): self.amount() for _time in range(self.one(0, 1, 2))
            },
            multiUser=lambda: self.one(True, False, None),
        )

    def sharing(self) -> t.Any:
        return self.some(
            strategy=lambda: self.one("MPS", "MPS", "TimeSlicing", "TimeSlicing", "Mps", ""),
            timeSlicingConfig=lambda: self.some(
                interval=lambda: self.one("Default", "Short", "Long", "long", "", None)
            ),
            mpsConfig=self.mps,
        )

    def config(self) -> dict[str, t.Any]:
        kind = self.one("GpuConfig", "GpuConfig", "GpuConfig", "MigDeviceConfig", "VfioDeviceConfig")
        found: dict[str, t.Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
        if self.random.random() < 0.02:
            found[self.one("apiVersion", "kind")] = self.one("", "GpuConfigs", "resource.nvidia.com/v1", "v1")
        if kind == "VfioDeviceConfig":
            policy = ("LegacyOnly", "PreferIommuFD", "", "legacyOnly")
            found["iommu"] = self.some(
                backendPolicy=lambda: self.one(*policy), enableAPIDevice=lambda: self.one(True, False, None)
            )
        elif self.random.random() < 0.95:
            found["sharing"] = self.sharing()
        return found


def _known(version: str) -> list[tuple[dict[str, bool], DriverKnowledge]]:
    sets = [{"MPSSupport": mps, "TimeSlicingSettings": slicing} for mps in (True, False) for slicing in (True, False)]
    return [(gates, knowledge(NAME, {"version": version, "feature_gates": gates})) for gates in sets]


def test_random_configurations(driver: tuple[str, Program], summarize: t.Callable[[t.Any], None]) -> None:
    """The webhook of the release accepts what we accept, and refuses what we refuse."""
    version, program = driver
    known, dice = _known(version), Dice(22)
    seen = {True: 0, False: 0}
    for number in range(CONFIGURATIONS):
        gates, mine = known[number % len(known)]
        config = dice.config()
        problems = [str(one) for one in problems_of(json.loads(json.dumps(config)), "config", mine)]
        ours = any(WEBHOOK in one for one in problems)
        theirs = program.ask({"gates": gates, "parameters": config})["error"]
        assert ours == bool(theirs), (gates, config, problems, theirs)
        seen[ours] += 1
    summarize(f"configurations of {NAME} {version}: {seen[False]} accepted by both, {seen[True]} refused by both")
    assert min(seen.values()) > CONFIGURATIONS / 10
