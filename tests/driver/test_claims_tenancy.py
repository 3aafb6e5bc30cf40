# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver enforces what classes let claims set, also without an admission policy on the API server. The server has
accepted the claims, and the scheduler has allocated them. This file is separate for the same reason as
test_claims_log.py."""

from __future__ import annotations

import dataclasses
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver.claims_node import NAMESPACE, WIRES, ClaimsNode, Sandbox
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import attach_with_retries
from ansible_collections.lanewise.dra.tests.driver.kubelet import Kubelet
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.kubelet import protocol
from lanewise_driver.kubelet.plugin import Plugin

#: The selector of all wires.
_SELECTORS = ['device.driver == "lanewise.dev" && has(device.attributes["lanewise.dev"].ifName)']


def _class(name: str, **more: t.Any) -> Object:
    return {"name": name, "driver": "lanewise.dev", "cel": _SELECTORS, **more}


#: The policy of class `plain` is the default, `dra_claims_tenants`.
INVENTORY: Object = {
    "dra_claims_drivers": {"lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_tenants": [{"allow": {"name": True, "mtu": {"most": 1450}}}],
    "dra_claims_classes": [
        _class(
            "team",
            interface={"mtu": 1400},
            tenants=[{"namespaces": [NAMESPACE], "allow": {"addresses": {"within": ["198.51.100.0/24"]}}}],
        ),
        _class("others", tenants=[{"namespaces": ["others"], "allow": {}}]),
        _class("plain"),
    ],
}
#: By name of a claim: its class, its InterfaceConfig, and words of the refusal.
REFUSED: dict[str, tuple[str, Object, str]] = {
    "wide": (
        "team",
        {"addresses": ["192.0.2.7/24"]},
        "limits what claims may set as addresses: within 198.51.100.0/24",
    ),
    "changed": ("team", {"mtu": 1300}, "sets mtu, which a claim cannot change or extend"),
    "unlisted": (
        "team",
        {"routes": [{"destination": "192.0.2.0/24", "gateway": "198.51.100.1"}]},
        "does not let claims set routes",
    ),
    "foreign": ("others", {}, f"is not for claims of namespace {NAMESPACE}"),
    "addressed": ("plain", {"addresses": ["198.51.100.9/24"]}, "does not let claims set addresses"),
    "long": ("plain", {"mtu": 1460}, "limits what claims may set as mtu: at most 1450"),
}
#: Claims that their classes allow, in the same form without words.
ACCEPTED = {"right": ("team", {"addresses": ["198.51.100.7/24"], "mtu": 1400}), "named": ("plain", {"name": "net1"})}


def test_claims_are_checked_against_their_classes_without_an_admission_policy(
    node: ClaimsNode, sandbox: Sandbox
) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert node.plane.expect("GET", policies)["items"] == []
    claims = {**{name: (class_name, fields) for name, (class_name, fields, _words) in REFUSED.items()}, **ACCEPTED}
    for wire, (name, (class_name, fields)) in zip(WIRES, claims.items()):
        _create_claim(node, name, class_name, wire, fields)
    service = node.service()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket must be short
        sockets = dataclasses.replace(node.paths, plugin_dir=Path(folder), registry_dir=Path(folder))
        plugin = Plugin(sockets, service, Metrics())
        plugin.start()
        try:
            with Kubelet(plugin.service_socket, protocol.pool) as kubelet:
                reported = _call(kubelet, "NodePrepareResources", node, REFUSED)
                for name, (_class_name, _fields, words) in REFUSED.items():
                    assert words in reported[name], reported
                assert node.files() == []  # there is no record and no CDI file
                assert not any(_call(kubelet, "NodePrepareResources", node, ACCEPTED).values())
                attach_with_retries(service, node.request("right", sandbox.path))
                (link,) = (link for link in sandbox.links().values() if link["ifname"] != "lo")
                assert link["mtu"] == 1400 and "198.51.100.7" in {address["local"] for address in link["addr_info"]}
                assert not any(_call(kubelet, "NodeUnprepareResources", node, claims).values())
        finally:
            plugin.stop()


def _create_claim(node: ClaimsNode, name: str, class_name: str, wire: str, fields: Object) -> None:
    """Create a claim for one interface, as a tenant writes it, and its pod. Returns when the claim is allocated."""
    selector = {"cel": {"expression": f'device.attributes["lanewise.dev"].ifName == "{wire}"'}}
    request = {"name": "nic", "exactly": {"deviceClassName": class_name, "selectors": [selector]}}
    devices: Object = {"requests": [request]}
    if fields:
        devices["config"] = [{"opaque": {"driver": "lanewise.dev", "parameters": parameters(fields)}}]
    metadata = {"name": name, "namespace": NAMESPACE}
    api = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    node.apply({**api, "metadata": metadata, "spec": {"devices": devices}})


def _call(kubelet: Kubelet, method: str, node: ClaimsNode, names: t.Iterable[str]) -> dict[str, str]:
    """Call a method for claims, as kubelet does. Returns the error of each claim, by name."""
    claims = [node.claims[name] for name in names]
    messages = [{"namespace": claim.namespace, "name": claim.name, "uid": claim.uid} for claim in claims]
    response = kubelet.call(protocol.DRA["v1"], method, claims=messages)
    return {claim.name: response.claims[claim.uid].error for claim in claims}
