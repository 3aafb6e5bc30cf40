# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The claim variables of a site whose node is an example machine, and how to apply its objects to the cluster."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.driver import API
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import ROOT, MachineTree
from ansible_collections.lanewise.dra.tests.cluster.node import Node

TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
GPU = {"name": "gpu", "kind": "gpu"}


def drivers(version: str) -> Object:
    """`dra_claims_drivers` of a node that has this version of NVIDIA's driver."""
    return {"gpu.nvidia.com": {"version": version}, "lanewise.dev": {"version": "1.0.0"}}


def pair(tree: MachineTree) -> Object:
    """A group of a GPU and a fabric NIC: aligned by PCIe root if every GPU has a NIC below its root, or else by the
    board's map."""
    speed = max(tree.speed.values()) // 1000
    devices = [GPU, {"name": "nic", "kind": "nic", "where": {"min_speed": f"{speed}G"}}]
    if all(tree.nearest_level(gpu) == ROOT for gpu in tree.gpus):
        return {"align": "pcie_root", "devices": devices}
    return {"align": "nearest", "at_least": "NODE", "devices": devices}


def templates(tree: MachineTree) -> list[Object]:
    """Claim templates: one pair, two pairs in one claim, a GPU alone, a NIC of the fabric alone."""
    group = pair(tree)
    return [
        {"name": "pair", "namespace": "default", **group},
        {"name": "two-pairs", "namespace": "default", "groups": [{"count": 2, **group}]},
        {"name": "gpu", "namespace": "default", "devices": [GPU]},
        {"name": "nic", "namespace": "default", "devices": [group["devices"][1]]},
    ]


def variables(version: str, claim_templates: t.Sequence[Object], **more: t.Any) -> Object:
    """The `dra_claims_*` variables of the site. The names in `more` are without that prefix."""
    values = {"site": "pairs", "drivers": drivers(version), "templates": claim_templates, **more}
    return {f"dra_claims_{name}": value for name, value in values.items()}


def apply(node: Node, site_variables: Object, facts: Object | None = None) -> Site:
    """Compile the site, and apply its classes, templates and claims to the cluster. Without `facts` of the node, the
    claims are not checked against its devices."""
    site = compile_site(site_variables, {node.name: facts} if facts else {})
    paths = {"DeviceClass": f"{API}/deviceclasses", "ResourceClaimTemplate": TEMPLATES, "ResourceClaim": CLAIMS}
    for manifest in site.objects:
        if manifest["kind"] in paths:
            path = f"{paths[manifest['kind']]}/{manifest['metadata']['name']}?fieldManager=test&force=true"
            node.plane.expect("PATCH", path, manifest, "application/apply-patch+yaml")
    return site


def remove_templates(node: Node) -> None:
    for item in node.plane.expect("GET", TEMPLATES)["items"]:
        node.plane.expect("DELETE", f"{TEMPLATES}/{item['metadata']['name']}")
