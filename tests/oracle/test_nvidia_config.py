# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare our checks of configurations and feature gates of NVIDIA's driver with the driver's own checks."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import DRIVERS, knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import DriverKnowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.nvidia_config import problems_of
from ansible_collections.lanewise.dra.tests.oracle.program import Program, needs_go
from ansible_collections.lanewise.dra.tools.cluster import MODULES

HERE = Path(__file__).resolve().parent
NAME = "gpu.nvidia.com"
VERSIONS = {"0.5.0": "0.5", "0.4.1": "0.4"}
CONFIGURATIONS = 20_000
#: Part of the messages about errors that the driver's webhook also finds. Other errors occur only when a pod starts.
WEBHOOK_REFUSAL = "is refused by NVIDIA GPU DRA driver: "

pytestmark = [pytest.mark.long, needs_go("the driver's checks")]  # it builds a Go program


@pytest.fixture(name="driver", scope="session", params=VERSIONS)
def _driver(request: pytest.FixtureRequest) -> t.Iterator[tuple[str, Program]]:
    try:
        with Program(HERE / "nvidia", MODULES / "nvidia" / VERSIONS[request.param]) as program:
            yield request.param, program
    except subprocess.CalledProcessError:
        pytest.skip("the Go module of NVIDIA's driver cannot be downloaded")


def test_the_driver_starts_with_the_feature_gates_that_we_accept(
    driver: tuple[str, Program], summarize: t.Callable[[t.Any], None]
) -> None:
    """Every combination of the release's feature gates is tried."""
    version, program = driver
    known = knowledge(NAME, {"version": version})
    names = [name for name, gate in DRIVERS[NAME].gates.items() if known.version_in_range(gate.since)]
    refused = 0
    for values in itertools.product((False, True), repeat=len(names)):
        gates = dict(zip(names, values))
        try:
            knowledge(NAME, {"version": version, "feature_gates": gates})
            predicted = ""
        except Problems as problems:
            predicted = str(problems)
        error = program.ask({"gates": gates})["error"]
        assert bool(predicted) == bool(error), (gates, predicted, error)
        refused += bool(predicted)
    summarize(f"gates of {NAME} {version}: {2 ** len(names)} sets, {refused} refused by both")


class RandomConfigurations:
    """Random configurations with few errors, so that each check of the driver is reached."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def choose(self, *choices: t.Any) -> t.Any:
        return self.random.choice(choices)

    def any_value(self) -> t.Any:
        return self.choose(None, "", "x", 0, -1, 1.5, True, [], {}, {"a": 1}, 2**63, "100")

    def mapping(self, **fields: t.Callable[[], t.Any]) -> t.Any:
        """A mapping with some of these fields, rarely with any value or an unknown field, or no mapping at all."""
        if self.random.random() < 0.03:
            return self.any_value()
        values = {
            name: self.any_value() if self.random.random() < 0.04 else make()
            for name, make in fields.items()
            if self.random.random() < 0.7
        }
        if self.random.random() < 0.03:
            values[self.choose("Strategy", "interval", "multiuser", "extra")] = 1
        return values

    def quantity(self) -> t.Any:
        return self.choose("1Gi", "10M", "0", "1k", "-1Gi", "1e3", "12x", " 1Gi ", "", 5, 0.5, "1.5Gi", True, "100Ei")

    def mps(self) -> t.Any:
        return self.mapping(
            defaultActiveThreadPercentage=lambda: self.choose(0, 1, 50, 100, 101, -1, None, "50", 2**40),
            defaultPinnedDeviceMemoryLimit=self.quantity,
            defaultPerDevicePinnedMemoryLimit=lambda: {
                self.choose("0", "1", "GPU-1", "-1"): self.quantity() for _limit in range(self.choose(0, 1, 2))
            },
            multiUser=lambda: self.choose(True, False, None),
        )

    def sharing(self) -> t.Any:
        return self.mapping(
            strategy=lambda: self.choose("MPS", "MPS", "TimeSlicing", "TimeSlicing", "Mps", ""),
            timeSlicingConfig=lambda: self.mapping(
                interval=lambda: self.choose("Default", "Short", "Long", "long", "", None)
            ),
            mpsConfig=self.mps,
        )

    def config(self) -> dict[str, t.Any]:
        kind = self.choose("GpuConfig", "GpuConfig", "GpuConfig", "MigDeviceConfig", "VfioDeviceConfig")
        config: dict[str, t.Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
        if self.random.random() < 0.02:
            config[self.choose("apiVersion", "kind")] = self.choose("", "GpuConfigs", "resource.nvidia.com/v1", "v1")
        if kind == "VfioDeviceConfig":
            policies = ("LegacyOnly", "PreferIommuFD", "", "legacyOnly")
            config["iommu"] = self.mapping(
                backendPolicy=lambda: self.choose(*policies), enableAPIDevice=lambda: self.choose(True, False, None)
            )
        elif self.random.random() < 0.95:
            config["sharing"] = self.sharing()
        return config


def _knowledge_by_gates(version: str) -> list[tuple[dict[str, bool], DriverKnowledge]]:
    """What we know about the driver with each combination of two feature gates."""
    sets = [{"MPSSupport": mps, "TimeSlicingSettings": slicing} for mps in (True, False) for slicing in (True, False)]
    return [(gates, knowledge(NAME, {"version": version, "feature_gates": gates})) for gates in sets]


def test_the_webhook_refuses_the_configurations_that_we_refuse(
    driver: tuple[str, Program], summarize: t.Callable[[t.Any], None]
) -> None:
    """The configurations are random, and the webhook is that of the release. It accepts what we accept."""
    version, program = driver
    known, configurations = _knowledge_by_gates(version), RandomConfigurations(22)
    refused = 0
    for number in range(CONFIGURATIONS):
        gates, driver_knowledge = known[number % len(known)]
        config = configurations.config()
        copy = json.loads(json.dumps(config))
        problems = [str(problem) for problem in problems_of(copy, "config", driver_knowledge)]
        predicted = any(WEBHOOK_REFUSAL in problem for problem in problems)
        error = program.ask({"gates": gates, "parameters": config})["error"]
        assert predicted == bool(error), (gates, config, problems, error)
        refused += predicted
    accepted = CONFIGURATIONS - refused
    summarize(f"configurations of {NAME} {version}: {accepted} accepted by both, {refused} refused by both")
    assert min(accepted, refused) > CONFIGURATIONS / 10
