# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module dra_manifests under a real ansible, on manifest files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

ANSIBLE = Path(sys.executable).with_name("ansible")
API = "resource.k8s.io/v1"
DRIVERS = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
pytestmark = pytest.mark.skipif(not ANSIBLE.exists(), reason="needs ansible-core beside this Python")


@pytest.fixture(name="check")
def _check(tmp_path: Path) -> t.Callable[..., Object]:
    def check(*objects: Object, text: str = "", **arguments: t.Any) -> Object:
        path = tmp_path / "claims.yaml"
        path.write_text(text or "\n---\n".join(json.dumps(item) for item in objects))
        options = json.dumps({"paths": [str(path)], **arguments})
        answers = tmp_path / "answers"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        variables = {"ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_HOME": str(tmp_path / "home")}
        subprocess.run(
            [ANSIBLE, "localhost", "-c", "local", "-i", "localhost,", "-t", answers]
            + ["-e", f"ansible_python_interpreter={sys.executable}", "-m", "lanewise.dra.dra_manifests", "-a", options],
            env={**kept, **variables},
            capture_output=True,
            check=False,
        )
        answer: Object = json.loads((answers / "localhost").read_text())
        return answer

    return check


def device_class(name: str, driver: str) -> Object:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def claim(name: str, device_class_name: str, **body: t.Any) -> Object:
    request = {"name": "nic", "exactly": {"deviceClassName": device_class_name, **body}}
    metadata = {"name": name, "namespace": "training"}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def _opaque(kind: str, **fields: t.Any) -> Object:
    parameters = {"apiVersion": "lanewise.dev/v1alpha1", "kind": kind, **fields}
    return {"opaque": {"driver": "lanewise.dev", "parameters": parameters}}


def test_valid_objects_are_counted(check: t.Callable[..., Object]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    answer = check({"kind": "List", "items": [claim("a", "nic"), pod]}, device_class("nic", "lanewise.dev"))
    assert "msg" not in answer and answer["problems"] == []
    assert answer["checked"] == {"ResourceClaim": 1, "DeviceClass": 1} and answer["unchecked"] == {"Pod": 1}


def test_every_error_is_reported_with_its_path(check: t.Callable[..., Object]) -> None:
    wrong = device_class("nic", "lanewise.dev")
    wrong["spec"]["selectors"][0]["cel"]["expression"] = "device.driver"
    answer = check(claim("a", "No Class"), wrong)
    assert answer["msg"].startswith("2 error(s):")
    assert "claims.yaml: ResourceClaim training/a: spec.devices.requests[0].exactly.deviceClassName" in answer["msg"]
    assert "claims.yaml: DeviceClass nic: spec.selectors[0].cel.expression" in answer["msg"]
    result = check(claim("a", "No Class"), fail=False)
    assert "msg" not in result and len(result["problems"]) == 1


def test_a_claim_with_settings_that_its_class_does_not_allow_is_an_error(check: t.Callable[..., Object]) -> None:
    """The module applies the rules of a cluster's tenancy policy, for classes that are among the objects."""
    guarded = device_class("guarded", "lanewise.dev")
    tenants = [{"namespaces": ["training"], "allow": {"mtu": {"most": 9000}}}]
    guarded["spec"]["config"] = [
        _opaque("InterfaceConfig", vf={"vlan": 100}),
        _opaque("InterfacePolicy", tenants=tenants),
    ]

    def configured(name: str, **fields: t.Any) -> Object:
        item = claim(name, "guarded")
        item["spec"]["devices"]["config"] = [_opaque("InterfaceConfig", **fields)]
        return item

    hopping, wide, right = (
        configured("hop", vf={"vlan": 101}),
        configured("wide", mtu=9001),
        configured("right", mtu=9000),
    )
    foreign = claim("foreign", "guarded")
    foreign["metadata"]["namespace"] = "other"
    answer = check(hopping, wide, right, foreign, guarded, fail=False)
    at = "spec.devices.config[0].opaque.parameters"
    assert [(problem["path"].partition(": ")[2], problem["rule"]) for problem in answer["problems"]] == [
        (f"ResourceClaim training/hop: {at}.vf", "tenancy"),
        (f"ResourceClaim training/wide: {at}.mtu", "tenancy"),
        ("ResourceClaim other/foreign: spec.devices.requests[0]", "tenancy"),
    ]
    assert "class 'guarded' sets vf" in answer["problems"][0]["message"]
    assert "limits what claims may set as mtu: at most 9000" in answer["problems"][1]["message"]
    assert "not for claims of namespace 'other'" in check(foreign, guarded)["msg"]
    # without the class among the objects, its policy is not known
    assert check(hopping, wide, foreign)["problems"] == []
    # a class without a policy does not let claims set a MAC address
    closed = configured("closed", mac="02:00:00:00:00:01")
    assert "does not let claims set mac" in check(closed, device_class("guarded", "lanewise.dev"))["msg"]


def test_bad_input_is_refused_with_a_reason(check: t.Callable[..., Object]) -> None:
    assert "Cannot read" in check(text="a: [b")["msg"]
    for nested in ("- " * 20000, "[" * 20000 + "]" * 20000):
        assert "claims.yaml: line 2 is nested deeper than 64 levels" in check(text=f"a:\n  {nested}")["msg"]
    doubling = "\n".join(["a0: &a0 x", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30))])
    assert "line 20: by its aliases, the file has more than 1000000 values" in check(text=doubling)["msg"]
    deepening = "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 70))])
    assert "is nested deeper than 64 levels" in check(text=deepening)["msg"]
    assert "line 1: the alias *a is in its own value" in check(text="&a [*a]")["msg"]
    assert "line 1: the alias *b is in its own value, or has no anchor" in check(text="- *b")["msg"]
    deep: object = "x"
    for _level in range(70):
        deep = [deep]
    assert check(definitions=[{"a": deep}])["msg"] == "definitions[0] is nested deeper than 64 levels"
    assert check(paths=["/nowhere"])["msg"] == "There is no file or folder /nowhere"
    assert "true or false, without quotes" in check(claim("a", "nic"), feature_gates={"DRAX": "false"})["msg"]
    assert "not a Kubernetes release" in check(claim("a", "nic"), kubernetes_version="new")["msg"]


@pytest.mark.parametrize("word", ["08", "7e2", "0o17", "0x1f", "y", "N", ".5", "1_000", "017"])
def test_a_label_that_kubectl_does_not_read_as_a_string_is_reported(check: t.Callable[..., Object], word: str) -> None:
    text = json.dumps(device_class("nic", "lanewise.dev"), indent=1).replace(
        '"nic"', f'"nic", "labels": {{"a": {word}}}'
    )
    assert "metadata.labels" in check(text=text)["msg"]


@pytest.mark.parametrize("word", ["52:54:00:12:34:56", "1:30", "2026-11-22", "2026-1-2", "10.0.0.1", "8a"])
def test_a_label_or_key_that_kubectl_reads_as_text_is_accepted(check: t.Callable[..., Object], word: str) -> None:
    item = device_class("nic", "lanewise.dev")
    item["metadata"]["annotations"] = {"a": "WORD", "n": "1", "08": "1"}
    text = json.dumps(item, indent=1).replace('"WORD"', word).replace('"n"', "n").replace('"08"', "08")
    assert "msg" not in check(text=text)


def test_reach_reports_taints_and_other_drivers(check: t.Callable[..., Object]) -> None:
    objects = [device_class("nic", "lanewise.dev"), claim("one", "nic"), claim("nil", "nic", count=0)]
    options: Object = {"nodes": {"h100-01": facts("hgx-h100")}, "drivers": DRIVERS}
    reach = {entry["claim"]: entry for entry in check(*objects, **options)["reach"]}
    assert reach["training/one"]["nodes"] == ["h100-01"]
    assert reach["training/nil"]["nodes"] == ["h100-01"]  # the server changes the count to one
    taint = {"key": "example.com/repair", "effect": "NoSchedule"}
    rule: Object = {"apiVersion": API, "kind": "DeviceTaintRule", "metadata": {"name": "repair"}}
    rule["spec"] = {"taint": taint, "deviceSelector": {"driver": "lanewise.dev"}}
    slices = COLLECTION / "tests" / "claims" / "slices" / "eks-p4d.json"
    by_slices = check(*objects, *json.loads(slices.read_text()), nodes_from="slices", fail=False)
    assert {entry["claim"]: entry["nodes"] for entry in by_slices["reach"]} == {
        "training/one": [],
        "training/nil": [],
    }, "another driver publishes its NICs"
    assert "lanewise.dev" in by_slices["reach"][0]["refused"]["eks-p4d"]
    tainted = {entry["claim"]: entry for entry in check(*objects, rule, **options)["reach"]}
    assert tainted["training/one"]["nodes"] == []
    assert "example.com/repair" in tainted["training/one"]["refused"]["h100-01"]
