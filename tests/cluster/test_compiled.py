# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compiled objects on real API servers.

Sites are generated from all variables that an inventory can set. A server with strict field validation must accept
every object and return it unchanged. LANEWISE_COMPILED_SITES and LANEWISE_COMPILED_CONFIGS set how many are generated.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import typing as t
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import interface_policy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.dry_run import path_of, rejection
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import HealthCheck, Phase, given, seed, settings

SITES = int(os.environ.get("LANEWISE_COMPILED_SITES", "40"))
CONFIGS = int(os.environ.get("LANEWISE_COMPILED_CONFIGS", "300"))
SEED = 20261121


def _generated(number: int) -> t.Callable[[t.Any], t.Any]:
    """A decorator for Hypothesis: `number` examples, the same in every run, without a database, and without a deadline,
    because servers can be slow."""
    options = settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(options(test))


def _prepare(plane: ControlPlane) -> None:
    for name in claims_strategies.NAMESPACES:
        labels = {"resource.kubernetes.io/admin-access": "true"} if name == "monitoring" else None
        with contextlib.suppress(Exception):  # an earlier test may have created it
            plane.add_namespace(name, labels)
        status, _answer = plane.request("GET", f"/api/v1/namespaces/{name}")
        assert status == 200


def _check_all_accepted(plane: ControlPlane, kubernetes: str, modern: bool) -> None:
    require_engine()  # skips the test if there is no CEL engine
    _prepare(plane)
    kinds: dict[str, int] = {}
    known: set[str] = set()

    with ThreadPoolExecutor(4) as pool:  # each thread keeps its connection

        @_generated(SITES)
        @given(claims_strategies.sites(modern))
        def accepted(values: Object) -> None:
            objects = {
                json.dumps(item, sort_keys=True): item
                for item in claims_strategies.compiled(values, kubernetes).objects
            }
            fresh = {text: item for text, item in objects.items() if text not in known}
            for item, reported in zip(fresh.values(), pool.map(lambda item: rejection(plane, item), fresh.values())):
                assert not reported, f"{reported}\n{json.dumps(item, indent=1)}"
                kinds[item["kind"]] = kinds.get(item["kind"], 0) + 1
            known.update(fresh)

        accepted()
    expected = {"Namespace", "DeviceClass", "ResourceClaimTemplate", "ResourceClaim", "ResourceQuota"}
    expected |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    expected |= {"DeviceTaintRule"} if modern else set()
    assert set(kinds) == expected
    assert kinds["ResourceClaimTemplate"] > SITES // 4, kinds


def test_the_newest_server_accepts_every_compiled_object_unchanged(newest: ControlPlane) -> None:
    _check_all_accepted(newest, "1.37", modern=True)


def test_the_oldest_server_accepts_every_compiled_object_unchanged(oldest: ControlPlane) -> None:
    _check_all_accepted(oldest, "1.34", modern=False)


@pytest.fixture
def guarded(control_plane: ControlPlane) -> t.Iterator[ControlPlane]:
    """A control plane on which the policy is in force."""
    _prepare(control_plane)
    with _in_force(control_plane):
        yield control_plane


@contextlib.contextmanager
def _in_force(plane: ControlPlane) -> t.Iterator[None]:
    """Create the policy of interface configurations, and wait until it takes effect. Delete it afterwards."""
    policy_objects = interface_policy.objects({})
    for item in policy_objects:
        plane.expect("POST", path_of(item), item)
    wrong = _carrier({**_head(), "mtu": 1}, "ResourceClaim")
    try:
        plane.wait_for(lambda: "mtu must be" in rejection(plane, wrong), "the policy to be in force")
        yield
    finally:
        for item in reversed(policy_objects):
            plane.expect("DELETE", f"{path_of(item)}/{item['metadata']['name']}")


def _head() -> Object:
    return {"apiVersion": interface_config.API_VERSION, "kind": interface_config.KIND}


def _carrier(parameters: t.Any, kind: str) -> Object:
    """An object of this kind with two configurations: one for another driver, and then one for lanewise.dev."""
    config: list[Object] = [
        {"opaque": {"driver": "dra.net", "parameters": {"interface": {"mtu": "any"}}}},
        {"opaque": {"driver": interface_config.DRIVER, "parameters": parameters}},
    ]
    metadata = {"name": "tried"} if kind == "DeviceClass" else {"name": "tried", "namespace": "ml"}
    devices = {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}], "config": config}
    spec: Object = {
        "DeviceClass": {"config": config},
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"spec": {"devices": devices}},
    }[kind]
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def test_policy_and_validator_agree(guarded: ControlPlane) -> None:
    verdicts: list[bool] = []

    @_generated(CONFIGS)
    @given(claims_strategies.configs())
    def agree(config: Object) -> None:
        problems = interface_config.validate(config, "config")
        kinds = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
        reported = rejection(guarded, _carrier(config, kinds[len(verdicts) % 3]))
        shown = "\n".join(map(str, problems))
        assert bool(reported) == bool(problems), f"server: {reported}\nours: {shown}\n{json.dumps(config, indent=1)}"
        assert not reported or interface_policy.NAME in reported, reported
        verdicts.append(not problems)

    agree()
    # both verdicts must be common: otherwise the comparison would prove little
    assert len(verdicts) // 5 < sum(verdicts) < len(verdicts) * 4 // 5, (sum(verdicts), len(verdicts))


def test_policy_ignores_configurations_of_other_drivers(guarded: ControlPlane) -> None:
    for kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass"):
        item = _carrier({"anything": 1}, kind)
        devices = item["spec"] if kind == "DeviceClass" else item["spec"].get("spec", item["spec"])["devices"]
        assert "has an unknown field" in rejection(guarded, item)
        devices["config"].pop()
        assert not rejection(guarded, item)
        del devices["config"]
        assert not rejection(guarded, item)


def test_policy_applies_to_other_api_versions(guarded: ControlPlane) -> None:
    """The server converts a request in another version before it evaluates the policy."""
    for version in ("v1beta1", "v1beta2"):
        for mtu, expected in ((1, "mtu must be"), (1500, "")):
            item = _carrier({**_head(), "mtu": mtu}, "ResourceClaim")
            reported = rejection(guarded, versions.convert(item, f"resource.k8s.io/{version}"))
            assert expected in reported and bool(expected) == bool(reported), reported


def test_policy_allows_the_deletion_of_older_objects(control_plane: ControlPlane) -> None:
    """Objects that are older than the policy can be deleted and lose their finalizers. A changed spec is checked."""
    _prepare(control_plane)
    older, merge = {}, "application/merge-patch+json"
    for kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass"):
        item = _carrier({**_head(), "mtu": 1}, kind)
        item["metadata"].update(name="older", finalizers=["example.com/held"])
        control_plane.wait_for(lambda item=item: not rejection(control_plane, item), "no policy to be in force")
        control_plane.expect("POST", path_of(item), item)
        older[f"{path_of(item)}/older"] = item
    with _in_force(control_plane):
        for path, item in older.items():
            control_plane.expect("PATCH", path, {"metadata": {"labels": {"seen": "true"}}}, merge)
            if item["kind"] == "DeviceClass":  # the only one whose spec can change
                spec = copy.deepcopy(item["spec"])
                spec["config"][1]["opaque"]["parameters"]["mtu"] = 2
                status, answer = control_plane.request("PATCH", path, {"spec": spec}, merge)
                assert status == 422 and "mtu must be" in answer["message"], answer
                spec["config"][1]["opaque"]["parameters"]["mtu"] = 1500
                control_plane.expect("PATCH", path, {"spec": spec}, merge)
            control_plane.expect("DELETE", path)
            control_plane.expect("PATCH", path, {"metadata": {"finalizers": None}}, merge)
            assert control_plane.request("GET", path)[0] == 404
