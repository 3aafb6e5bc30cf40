# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fields that a DeviceClass allows claims to set: the admission policies on a real API server, and the driver, must
decide in the same way.

LANEWISE_TENANCY_PAIRS is the number of pairs of class and claim that are tested on each release, and
LANEWISE_TENANCY_SEED the random seed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import interface_policy, tenancy_policy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config, tenancy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.dry_run import path_of, rejection
from ansible_collections.lanewise.dra.tests.driver.plan_claims import VF, claim, device, planned, result
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from lanewise_driver.base.errors import Refused
from lanewise_driver.publish.offer import Offer
from lanewise_driver.topology.publish_shares import ShareRule, share_name
from lanewise_driver.topology.selector import Selector

#: How many pairs are tested on the newest and on the oldest release.
PAIRS = {"1.37": 300, "1.34": 100}
if "LANEWISE_TENANCY_PAIRS" in os.environ:
    PAIRS = dict.fromkeys(PAIRS, int(os.environ["LANEWISE_TENANCY_PAIRS"]))
#: The number of classes that are written together before their claims are tested.
BATCH = 24
#: The number of claims that are tested with each two classes.
CLAIMS = 4
SEED = int(os.environ.get("LANEWISE_TENANCY_SEED", "20261124"))
MERGE = "application/merge-patch+json"
SHARE = '"share": {'
DRIVER = interface_config.DRIVER
SECOND = "pci-0000-8a-06-0"
KNOWN = {name: device(name, f"eth{name[12:14]}", pf="0000:8a:00.0", vf=0) for name in (VF, SECOND)}
#: Two divided NICs, each with a VF for a share, and more bandwidth than any claim requests.
CARDS = ("pci-0000-8b-00-0", "pci-0000-8c-00-0")
PHYSICAL = 10**14
OFFERS = {
    share_name(card): Offer(
        device(card, "eth8"),
        {"name": share_name(card), "allowMultipleAllocations": True},
        ShareRule(Selector()),
        PHYSICAL,
        (device(card.replace("00-0", "01-0"), f"eth9{number}", pf=f"0000:{card[9:11]}:00.0", vf=0),),
    )
    for number, card in enumerate(CARDS)
}
KNOWN.update({name: replace(offer.base, name=name, device=offer.published) for name, offer in OFFERS.items()})
SHARED = tuple(OFFERS)

RATE = re.compile(interface_config.FIELDS["share"].fields["guarantee"].pattern or "")


class Pair(t.NamedTuple):
    """Two classes and a claim for them. `classes` are the configurations of the classes, `requests` are the indexes of
    the classes in each of the claim's requests, `configs` are the claim's configurations."""

    classes: list[list[Object]]
    requests: list[list[int]]
    configs: list[Object]
    namespace: str
    template: bool


@st.composite
def class_settings(draw: st.DrawFn, bad: int, several: bool) -> Object:
    """An InterfaceConfig. If the claim has several devices, the configuration has no name and no VRF. These must be
    consistent between the interfaces of a pod, which only the driver checks."""
    config = draw(claims_strategies.configs(bad))
    excluded = ("vrf", "name") if several else ()
    return {name: value for name, value in config.items() if name not in excluded}


def with_share(draw: st.DrawFn, config: Object, bad: int) -> Object:
    """The configuration with a share, usually a valid one, and without the fields that a share excludes."""
    share = draw(claims_strategies.shares(bad))
    return {**{name: value for name, value in config.items() if name not in ("child", "vf")}, "share": share}


@st.composite
def pairs(draw: st.DrawFn) -> list[Pair]:
    """Two classes, paired with each of several claims."""
    classes: list[list[Object]] = []
    shared = not draw(st.integers(0, 2))  # otherwise class and claim would rarely both have a share
    requests = draw(st.sampled_from([[[0]], [[0]], [[0], [1]], [[0, 1]], [[0, 1], [0]]]))
    several = len(requests) > 1
    for _number in range(2):
        configs = [draw(class_settings(0, several)) for _count in range(draw(st.sampled_from([0, 0, 1, 1, 2])))]
        configs = [with_share(draw, config, 0) if shared and draw(st.booleans()) else config for config in configs]
        configs = [config for config in configs if not interface_config.validate(config, "")]
        if draw(st.integers(0, 3)):
            configs.append(draw(claims_strategies.policies()))
        classes.append(configs)
    return [draw(with_claim(classes, requests, shared)) for _number in range(CLAIMS)]


@st.composite
def with_claim(draw: st.DrawFn, classes: list[list[Object]], requests: list[list[int]], shared: bool) -> Pair:
    configs = []
    several = len(requests) > 1
    for _count in range(draw(st.sampled_from([1, 1, 2]))):
        bad = draw(st.sampled_from([0, 0, 0, 2]))
        fields = draw(class_settings(bad, several))
        if shared and draw(st.booleans()):
            fields = with_share(draw, fields, bad)
        if draw(st.booleans()):  # with the same values as the class
            known = tenancy.class_settings(classes[0])
            fields = {**fields, **{name: value for name, value in known.items() if draw(st.booleans())}}
        names = ["r0", "r1", "r0/a0", "r0/a1"] if len(requests) > 1 else ["r0"]
        chosen = draw(st.sampled_from([[], *([name] for name in names)])) if len(requests) == 1 else [names[0]]
        configs.append({"requests": chosen, "opaque": {"driver": DRIVER, "parameters": fields}})
    return Pair(classes, requests, configs, draw(st.sampled_from(claims_strategies.NAMESPACES)), draw(st.booleans()))


def class_of(name: str, configs: list[Object]) -> Object:
    entries = [{"opaque": {"driver": DRIVER, "parameters": config}} for config in configs]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"config": entries},
    }


def claim_of(pair: Pair, names: t.Sequence[str]) -> Object:
    """The pair's claim or template, with these class names."""
    requests: list[Object] = []
    for number, chosen in enumerate(pair.requests):
        if len(chosen) == 1:
            requests.append({"name": f"r{number}", "exactly": {"deviceClassName": names[chosen[0]]}})
        else:
            subs = [{"name": f"a{sub}", "deviceClassName": names[choice]} for sub, choice in enumerate(chosen)]
            requests.append({"name": f"r{number}", "firstAvailable": subs})
    spec: Object = {"devices": {"requests": requests, "config": pair.configs}}
    kind = "ResourceClaimTemplate" if pair.template else "ResourceClaim"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "tried", "namespace": pair.namespace},
        "spec": {"spec": spec} if pair.template else spec,
    }


def allocated(request: str, number: int, configs: t.Sequence[Object]) -> Object:
    """The scheduler's allocation for a request with these configurations: a whole VF, or the requested share of a
    divided NIC if they have a share. Only the driver checks whether a class selects shares, how much of the NIC is free
    and which namespaces may use it: configurations do not contain these facts, so the policy does not know them."""
    valid = [config for config in configs if isinstance(config, dict)]
    share = interface_config.merge_configs(
        {"share": entry["share"]} for entry in valid if isinstance(entry.get("share"), dict)
    )
    if not any("share" in entry for entry in valid):
        return result(request, (VF, SECOND)[number])
    guarantee = share.get("share", {}).get("guarantee")
    consumed = guarantee if isinstance(guarantee, str) and RATE.fullmatch(guarantee) else "1G"
    return result(request, SHARED[number], shareID=f"s-{number}", consumedCapacity={"bandwidth": consumed})


def driver_refusal(pair: Pair) -> str:
    """The driver's error for a claim, if the driver refuses any of the alternatives that the scheduler could allocate;
    otherwise empty."""
    for picks in itertools.product(*(range(len(chosen)) for chosen in pair.requests)):
        results, configs = [], []
        for number, pick in enumerate(picks):
            single = len(pair.requests[number]) == 1
            request = f"r{number}" if single else f"r{number}/a{pick}"
            class_configs = pair.classes[pair.requests[number][pick]]
            claim_configs = [
                entry
                for entry in pair.configs
                if not entry["requests"] or {request, f"r{number}"} & set(entry["requests"])
            ]
            set_by_class = [class_config for class_config in class_configs if not tenancy.is_policy(class_config)]
            both = [*set_by_class, *(claim_config["opaque"]["parameters"] for claim_config in claim_configs)]
            results.append(allocated(request, number, both))
            for parameters in class_configs:
                opaque = {"driver": DRIVER, "parameters": parameters}
                configs.append({"source": "FromClass", "requests": [request], "opaque": opaque})
        configs += [{"source": "FromClaim", **config} for config in pair.configs]
        try:
            planned(claim(results, configs, namespace=pair.namespace), known=KNOWN, offers=OFFERS)
        except Refused as error:
            return error.message
    return ""


class Classes:
    """Two classes for each pair of a batch, and one more, which shows whether the server has read all others."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.number = 1000
        self.created: set[str] = set()

    def write(self, classes: t.Mapping[str, list[Object]]) -> None:
        """Write the classes, and wait until the policy knows them. The server reads changes in their order."""
        for name, configs in classes.items():
            self._put(class_of(name, configs))
        self.number += 1
        exact = {"least": self.number, "most": self.number}
        self._put(class_of("sentinel", [tenancy.parameters([{"allow": {"mtu": exact}}])]))
        head = interface_config.parameters({"mtu": self.number})
        config = {"opaque": {"driver": DRIVER, "parameters": head}}
        seen = claim_of(Pair([], [[0]], [config], "ml", False), ["sentinel"])
        self.plane.wait_for(lambda: not rejection(self.plane, seen), "the policy to know the classes")

    def _put(self, item: Object) -> None:
        name = item["metadata"]["name"]
        if name in self.created:
            self.plane.expect("PATCH", f"{path_of(item)}/{name}", {"spec": item["spec"]}, MERGE)
        else:
            self.plane.expect("POST", path_of(item), item)
            self.created.add(name)

    def remove(self) -> None:
        for name in self.created:
            self.plane.expect("DELETE", f"/apis/resource.k8s.io/v1/deviceclasses/{name}")


@pytest.fixture(scope="module", params=list(PAIRS))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def guarded(planes: t.Callable[[str], ControlPlane], version: str) -> ControlPlane:
    """A control plane with both policies."""
    plane = planes(version)
    for name in claims_strategies.NAMESPACES:
        labels = {"resource.kubernetes.io/admin-access": "true"} if name == "monitoring" else None
        with contextlib.suppress(Exception):  # an earlier test may have created it
            plane.add_namespace(name, labels)
    for item in interface_policy.objects({}) + tenancy_policy.objects({}):
        plane.expect("POST", path_of(item), item)
    return plane


@pytest.fixture
def classes(guarded: ControlPlane) -> t.Iterator[Classes]:
    result = Classes(guarded)
    wrong = claim_of(Pair([], [[0]], [_setting(vf={"trust": True})], "ml", False), ["sentinel"])
    result.write({})
    guarded.wait_for(lambda: tenancy_policy.NAME in rejection(guarded, wrong), "the policy to be in force")
    yield result
    result.remove()


def _setting(*requests: str, **fields: t.Any) -> Object:
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": interface_config.parameters(fields)}}


def test_the_server_accepts_the_policy_without_a_warning(guarded: ControlPlane) -> None:
    item = tenancy_policy.objects({})[0]
    path = f"{path_of(item)}/{tenancy_policy.NAME}"
    guarded.wait_for(
        lambda: "typeChecking" in guarded.expect("GET", path).get("status", {}), "the type check of the policy"
    )
    assert not guarded.expect("GET", path)["status"]["typeChecking"].get("expressionWarnings")


def test_the_policy_and_the_driver_agree(guarded: ControlPlane, classes: Classes, version: str) -> None:
    verdicts = {"accepted": 0, "form": 0, "class": 0, "share accepted": 0, "share refused by its class": 0}
    waiting: list[list[Pair]] = []

    def compare(pool: ThreadPoolExecutor) -> None:
        names = [[f"pair-{number}-{entry}" for entry in (0, 1)] for number in range(len(waiting))]
        named = [(pair, class_names) for together, class_names in zip(waiting, names) for pair in together]
        classes.write(
            {name: pair.classes[entry] for pair, class_names in named for entry, name in enumerate(class_names)}
        )
        answers = pool.map(lambda item: rejection(guarded, claim_of(*item)), named)
        for (pair, _names), reported in zip(named, answers):
            driver_error = driver_refusal(pair)
            details = f"server: {reported}\ndriver: {driver_error}\n{json.dumps(pair, indent=1)}"
            assert bool(reported) == bool(driver_error), details
            kind = "class" if tenancy_policy.NAME in reported else "form" if reported else "accepted"
            assert kind != "form" or interface_policy.NAME in reported, reported
            verdicts[kind] += 1
            if SHARE in json.dumps([pair.classes, pair.configs]) and kind != "form":
                verdicts["share accepted" if kind == "accepted" else "share refused by its class"] += 1
        waiting.clear()

    with ThreadPoolExecutor(4) as pool:

        @seed(SEED)
        @settings(
            max_examples=PAIRS[version] // CLAIMS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(pairs())
        def collect(together: list[Pair]) -> None:
            waiting.append(together)
            if len(waiting) == BATCH // 2:
                compare(pool)

        collect()
        if waiting:
            compare(pool)
    print(version, SEED, verdicts)
    total = verdicts["accepted"] + verdicts["form"] + verdicts["class"]
    # every verdict must be common: otherwise the comparison would prove little
    assert total >= PAIRS[version] * 9 // 10, verdicts
    assert verdicts["accepted"] > total // 10 and verdicts["class"] > total // 5, verdicts
    assert verdicts["share accepted"] > total // 40 and verdicts["share refused by its class"] > total // 20, verdicts


def test_admin_access_needs_no_permission_of_a_class(guarded: ControlPlane, classes: Classes) -> None:
    classes.write({"closed": [tenancy.parameters([])]})
    item = claim_of(Pair([], [[0]], [], "monitoring", False), ["closed"])
    assert "is not for claims of this namespace" in rejection(guarded, item)
    item["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    assert not rejection(guarded, item)


def test_the_message_names_the_refused_field_and_the_class(guarded: ControlPlane, classes: Classes) -> None:
    class_config = interface_config.parameters({"vf": {"vlan": 100}})
    allowed = tenancy.parameters([{"namespaces": ["ml"], "allow": {"addresses": {"within": ["10.1.0.0/16"]}}}])
    classes.write({"tenant": [class_config, allowed]})

    def refusal(namespace: str = "ml", **fields: t.Any) -> str:
        pair = Pair([], [[0]], [_setting(**fields)], namespace, False)
        return rejection(guarded, claim_of(pair, ["tenant"]))

    assert not refusal(addresses=["10.1.2.3/24"], vf={"vlan": 100})
    assert "DeviceClass tenant sets vf" in refusal(vf={"vlan": 101})
    assert "DeviceClass tenant does not let claims set addresses" in refusal(addresses=["10.2.2.3/24"])
    assert "DeviceClass tenant does not let claims set mtu" in refusal(mtu=9000)
    assert "DeviceClass tenant is not for claims of this namespace" in refusal("training", addresses=["10.1.2.3/24"])


#: Shares of claims, and whether a class that sets only a burst of 25G accepts them.
SHARES: list[tuple[Object, bool]] = [
    ({"burst": "25G"}, True),
    ({"burst": "2500M"}, True),
    ({"burst": "26G"}, False),
    ({"burst": "1T"}, False),
    ({"hard": True, "guarantee": "25000M"}, True),
    ({"hard": True, "guarantee": "30G"}, False),
    ({"hard": True, "guarantee": "10G", "burst": "26G"}, False),
]


def test_a_class_limits_the_burst_of_shares(guarded: ControlPlane, classes: Classes) -> None:
    hard = {"hard": True, "guarantee": "10G"}
    class_configs = {
        "capped": [interface_config.parameters({"share": {"burst": "25G"}})],
        "closed": [interface_config.parameters({"share": {"burst": "25G"}}), tenancy.parameters([{"allow": {}}])],
        "fixed": [interface_config.parameters({"share": hard})],
    }
    classes.write(class_configs)
    cases = [("capped", share, accepted) for share, accepted in SHARES]
    cases += [("closed", share, share == {"burst": "25G"}) for share, _accepted in SHARES]
    cases += [("fixed", hard, True), ("fixed", {"burst": "20G"}, True), ("fixed", {**hard, "guarantee": "9G"}, False)]
    for name, share, accepted in cases:
        reported = rejection(guarded, claim_of(Pair([], [[0]], [_setting(share=share)], "ml", False), [name]))
        assert bool(reported) != accepted, (name, share, reported)
        policies = [class_config for class_config in class_configs[name] if tenancy.is_policy(class_config)]
        allow = tenancy.allowed_settings(policies[0] if policies else None, "ml")
        assert allow is not None
        parameters = interface_config.parameters({"share": share})
        driver_error = tenancy.refused_fields(allow, tenancy.class_settings(class_configs[name]), parameters)
        assert bool(driver_error) != accepted, (name, share, driver_error)


def test_server_and_validator_refuse_the_same_policies(guarded: ControlPlane, version: str) -> None:
    verdicts: list[bool] = []

    @seed(SEED)
    @settings(
        max_examples=min(PAIRS[version], 300),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(claims_strategies.policies(invalid_percent=2))
    def agree(policy: Object) -> None:
        policy = {**policy, "kind": tenancy.POLICY_KIND}  # with another kind, it would be an InterfaceConfig
        problems = tenancy.validate(policy, "policy")
        reported = rejection(guarded, class_of("tried", [policy]))
        assert bool(reported) == bool(problems), f"server: {reported}\nours: {problems}\n{json.dumps(policy, indent=1)}"
        verdicts.append(not problems)

    agree()
    assert len(verdicts) // 8 < sum(verdicts) < len(verdicts) * 7 // 8, (sum(verdicts), len(verdicts))
    two = class_of("tried", [tenancy.parameters([]), tenancy.parameters([{"allow": {}}])])
    assert "only one" in rejection(guarded, two)
    item = claim_of(Pair([], [[0]], [], "ml", False), ["any"])
    item["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": tenancy.parameters([])}}]
    assert interface_policy.NAME in rejection(guarded, item)
