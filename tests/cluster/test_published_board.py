# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real servers store the driver's attributes for a board with data-direct functions, and schedulers match them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.tests.cluster.boards import CLASSES, PCIE_ROOT, matching_claim
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

pytest.importorskip("lanewise_driver.api.access", reason="the driver's package is not installed")

from ansible_collections.lanewise.dra.tests.cluster.test_driver_cluster import (
    SLICES,
    Installed,
    install,
)
from lanewise_driver.api.features import Features
from lanewise_driver.base.settings import Settings
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.publish.publisher import Publisher

GATE = {"DRAListTypeAttributes": True}
NODE = "gb300"
RESOURCE = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"


def published(plane: ControlPlane, installed: Installed, tree: Path) -> tuple[Features, dict[str, Object]]:
    """The features of the server that the driver detects, and the attributes of the devices that it then publishes."""
    cluster = installed.node(NODE)
    features = cluster.features()
    publisher = Publisher(cluster, Inventory(Settings, lambda: (), str(build(NODE, tree))))
    publisher.publish("test")
    assert publisher._features == features  # the server has dropped nothing
    assert not publisher.publish("again")
    return features, {name: device["attributes"] for name, device in installed.devices(NODE).items()}


def test_roots_are_scalars_if_the_server_stores_no_lists(control_plane: ControlPlane, tmp_path: Path) -> None:
    features, devices = published(control_plane, install(control_plane), tmp_path / "tree")
    assert not features.lists
    board = board_map(facts(NODE))
    direct = 0
    for attributes in devices.values():
        assert set(attributes[PCIE_ROOT]) == {"string"}
        assert attributes["board"] == {"string": board.shape}
        level, nearest = board.nearest_gpus(attributes["resource.kubernetes.io/pciBusID"]["string"])
        assert attributes["nearestGPUs"] == {"string": ",".join(nearest)}
        assert attributes["nearestGPULevel"] == {"string": level}
        direct += "dataDirectPcieRoot" in attributes
    assert direct == 4


def test_lists_pair_data_direct_nics_by_root(tmp_path: Path) -> None:
    """With the gate, a claim that matches pcieRoot gets GPUs with NICs whose DMA function is below the GPU's root."""
    with ControlPlane("1.37", gates=GATE) as plane:
        features, devices = published(plane, install(plane), tmp_path / "tree")
        assert features.lists
        assert sum(set(entry[PCIE_ROOT]) == {"strings"} for entry in devices.values()) == 4
        for resource_slice in slices(offers(NODE, facts(NODE), {"gpu.nvidia.com": {"version": "0.5.0"}})):
            plane.expect("POST", SLICES, resource_slice)
        for deviceclass in CLASSES.values():
            plane.expect("POST", "/apis/resource.k8s.io/v1/deviceclasses", deviceclass)
        spec = matching_claim(("board-nvidia", "board-lanewise"), PCIE_ROOT, 4)
        plane.expect("POST", RESOURCE, {"metadata": {"name": "pairs"}, "spec": spec})
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        claims = [{"name": "d", "resourceClaimName": "pairs"}]
        plane.expect(
            "POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": [container], "resourceClaims": claims}}
        )
        plane.wait_for(lambda: plane.expect("GET", f"{PODS}/p")["spec"].get("nodeName"), "the pod to be bound")
        results = plane.expect("GET", f"{RESOURCE}/pairs")["status"]["allocation"]["devices"]["results"]
        by_name = {device["name"]: device for device in _devices_of(plane)}
        pairs: dict[str, dict[str, str]] = {}
        for result in results:
            kind, _dash, number = result["request"].partition("-")
            address = by_name[result["device"]]["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
            pairs.setdefault(number, {})[kind] = address
        board = board_map(facts(NODE))
        assert len(pairs) == 4, json.dumps(results)
        assert {board.level(pair["gpu"], pair["nic"]) for pair in pairs.values()} == {"PXB"}


def _devices_of(plane: ControlPlane) -> list[Object]:
    return [device for item in plane.expect("GET", SLICES)["items"] for device in item["spec"].get("devices") or ()]
