# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why no more shares of devices fit: the reason names the capacity of which too little is left."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    DRIVER,
    claim_spec,
    node,
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def fit_on_shared_devices(
    engine: Engine, requested: str | None, capacity: str, used: t.Sequence[str], fully_used: int = 0
) -> fits.NodeFit:
    """The fit on a node with two devices of this capacity. `used` are the amounts that claims have of the first device,
    and `fully_used` is how many claims have all of the second."""
    policy = {"default": "10G", "validRange": {"min": "5G", "step": "5G"}} if capacity.endswith("G") else {}
    published = {"amount": {"value": capacity, **({"requestPolicy": policy} if policy else {})}}
    objects = [CLASS, *node("a", 2)]
    (resource_slice,) = [obj for obj in objects if obj["kind"] == "ResourceSlice"]
    devices = resource_slice["spec"]["devices"]
    for device in devices:
        device.update(capacity=published, allowMultipleAllocations=True)
    pool = resource_slice["spec"]["pool"]["name"]
    for number, amount in enumerate([*used, *[capacity] * fully_used]):
        name = devices[0 if number < len(used) else 1]["name"]
        result = {"request": "r", "driver": DRIVER, "pool": pool, "device": name, "shareID": f"s{number}"}
        result["consumedCapacity"] = {"amount": amount}
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"c{number}", "namespace": "n"},
                "spec": {"devices": {}},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }
        )
    spec = claim_spec(1)
    if requested:
        spec["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"amount": requested}}
    (found,) = fits.fit(reader.read(objects), [Workload("w", (spec,))], engine)
    return found.nodes["a"]


@pytest.mark.parametrize(
    ("requested", "capacity", "used", "fully_used", "count", "reported"),
    [
        (
            "40G",
            "100G",
            ("70G",),
            0,
            2,
            "2 of them have too little amount left (40G is requested, at most 30G is left)",
        ),
        (
            None,
            "100G",
            ("95G",),
            1,
            0,
            "2 of them have too little amount left (the default is requested, at most 5G is left)",
        ),
        ("30Gi", "100Gi", ("50Gi", "30Gi"), 1, 0, "(30Gi is requested, at most 20Gi is left)"),
    ],
)
def test_the_reason_names_the_capacity(
    engine: Engine,
    requested: str | None,
    capacity: str,
    used: tuple[str, ...],
    fully_used: int,
    count: int,
    reported: str,
) -> None:
    found = fit_on_shared_devices(engine, requested, capacity, used, fully_used)
    assert found.count == count and found.kind == fits.DEVICES
    assert reported in found.reason and "in use" not in found.reason


def test_devices_that_are_not_shared_are_reported_as_in_use(engine: Engine) -> None:
    (found,) = fits.fit(reader.read([CLASS, *node("a", 2)]), [Workload("w", (claim_spec(1),))], engine)
    assert found.nodes["a"].count == 2 and found.nodes["a"].reason.endswith("2 match, 2 of them are in use")
