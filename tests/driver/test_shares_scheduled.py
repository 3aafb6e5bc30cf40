# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares that a real scheduler has allocated: the rates in force on the node follow from `consumedCapacity`.

The claims come from the compiler, and the slices from the driver. With LANEWISE_SLOW, 1,000 random mixes of shares are
tested, one after the other.
"""

from __future__ import annotations

import os
import random
import typing as t
from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.client import APPLY_PATCH
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS
from ansible_collections.lanewise.dra.tests.driver.answers import attach
from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox
from ansible_collections.lanewise.dra.tests.driver.shares_world import (
    MEGA,
    NAMESPACE,
    NODE,
    SHARE,
    SharesWorld,
    class_rates,
    classes,
)
from environment import Missing
from lanewise_driver.api.access import from_kubeconfig
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.publish.publisher import Publisher

pytestmark = [pytest.mark.namespaces, pytest.mark.control_plane]

MIXES = 1000 if os.environ.get("LANEWISE_SLOW") else 40
PHYSICAL = 1000 * MEGA
MOST = 10
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PLURALS = {"DeviceClass": "deviceclasses", "ResourceClaim": f"namespaces/{NAMESPACE}/resourceclaims"}


class Scheduled:
    """A control plane, and the driver of its only node, whose NIC is divided."""

    def __init__(self, plane: ControlPlane, world: SharesWorld) -> None:
        self.plane, self.world = plane, world
        plane.add_node(NODE)
        plane.add_namespace(NAMESPACE)
        world.cluster = t.cast(t.Any, Cluster(lambda: from_kubeconfig(plane.kubeconfig), "lanewise.dev", NODE))
        self.service = world.service()
        self.publisher = Publisher(
            t.cast(Cluster, world.cluster),
            t.cast(t.Any, self.service.inventory),
            published=lambda _publication: self.refreshed.append(self.service.shares.refresh()),
        )
        self.refreshed: list[bool] = []
        self.free = [Sandbox() for _each in range(MOST)]
        self.used: dict[str, Sandbox] = {}
        self.number = 0

    def set(self, **rule: t.Any) -> None:
        """Change the node's settings, as when the driver reads them again."""
        self.world.settings = self.world.with_rule(**rule)
        self.publisher.publish("the settings have changed")
        assert self.refreshed.pop()

    def capacity(self) -> int:
        """The bandwidth of the published device."""
        for one in self.plane.expect("GET", f"{RESOURCE}/resourceslices")["items"]:
            for device in one["spec"].get("devices", ()):
                if device["name"] == SHARE:
                    return int(quantity.parse(device["capacity"]["bandwidth"]["value"]))
        raise AssertionError("there is no device for shares")

    def ask(self, device_class: Object | None = None, **share: t.Any) -> str:
        """Create a claim for a share, and a pod for it. `device_class` is a class of the site that the claim names."""
        self.number += 1
        name = f"claim-{self.number}"
        claim = {"name": name, "namespace": NAMESPACE}
        chosen_by = {"class": device_class["name"]} if device_class else {"kind": "nic"}
        device = {"name": "nic", "share": share, "interface": {"name": "net1"}, **chosen_by}
        variables = {
            "dra_claims_drivers": {"lanewise.dev": {"version": "1.0.0"}},
            "dra_claims_classes": [device_class] if device_class else [],
            "dra_claims_claims": [{**claim, "devices": [device]}],
        }
        self._create(name, compile_site(variables).objects)
        return name

    def ask_whole(self) -> str:
        """Like `ask`, for the whole NIC."""
        self.number += 1
        name = f"claim-{self.number}"
        whole = 'device.driver == "lanewise.dev" && device.attributes["lanewise.dev"].type != "share"'
        selectors = [{"cel": {"expression": whole}}]
        head = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": name}}
        devices: Object = {
            "requests": [{"name": "nic", "exactly": {"deviceClassName": name}}],
            "config": [{"opaque": {"driver": "lanewise.dev", "parameters": parameters({"name": "net1"})}}],
        }
        spec = {"selectors": selectors, "config": [OPEN_CLASS]}
        device_class = {**head, "kind": "DeviceClass", "spec": spec}
        self._create(name, [device_class, {**head, "kind": "ResourceClaim", "spec": {"devices": devices}}])
        return name

    def _create(self, name: str, objects: t.Iterable[Object]) -> None:
        for one in objects:
            path = f"/apis/{one['apiVersion']}/{PLURALS[one['kind']]}/{one['metadata']['name']}?fieldManager=lanewise"
            self.plane.expect("PATCH", path, one, APPLY_PATCH)
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "d", "resourceClaimName": name}]}
        spec["terminationGracePeriodSeconds"] = 0
        self.plane.expect("POST", PODS, {"metadata": {"name": name}, "spec": spec})

    def claim(self, name: str) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"{CLAIMS}/{name}"))

    def pod(self, name: str) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"{PODS}/{name}"))

    def bound(self, name: str) -> bool:
        return bool(self.pod(name)["spec"].get("nodeName"))

    def waits(self, name: str) -> bool:
        conditions = self.pod(name)["status"].get("conditions", ())
        return any(one["type"] == "PodScheduled" and one["reason"] == "Unschedulable" for one in conditions)

    def start(self, name: str) -> None:
        """Prepare and attach, as kubelet and the hook do for a bound pod."""
        self.plane.wait_for(lambda: self.bound(name), f"the scheduler to bind {name}")
        metadata, sandbox = self.pod(name)["metadata"], self.free.pop()
        self.used[name] = sandbox
        self.service.prepare(self.reference(name))
        about = {"uid": metadata["uid"], "name": name, "namespace": NAMESPACE}
        annotations = {f"io.kubernetes.cri.sandbox-{key}": value for key, value in about.items()}
        attach(self.service, AttachRequest(self.reference(name).uid, sandbox.path, 0, "c", annotations))

    def reference(self, name: str) -> ClaimRef:
        return ClaimRef(NAMESPACE, name, self.claim(name)["metadata"]["uid"])

    def end(self, name: str) -> None:
        """End a pod, whether it is bound or waits."""
        if name in self.used:
            self.service.unprepare(self.reference(name))
            self.free.append(self.used.pop(name))
        self.plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        self.plane.expect("DELETE", f"{CLAIMS}/{name}")

    def check(self) -> None:
        """Check that the rates in force for each pod follow from the `consumedCapacity` of all claims."""
        asked, hard, burst = {}, {}, {}
        for name in self.used:
            allocation = self.claim(name)["status"]["allocation"]["devices"]
            (result,) = allocation["results"]
            parameters = [one["opaque"]["parameters"] for one in allocation.get("config", ())]
            share: Object = next((one["share"] for one in parameters if "share" in one), {})
            asked[name] = int(quantity.parse(result["consumedCapacity"]["bandwidth"]))
            burst[name] = int(quantity.parse(share.get("burst", "1G")))
            if share.get("hard"):
                hard[name] = asked[name] = int(quantity.parse(share["guarantee"]))
        soft = sum(rate for name, rate in asked.items() if name not in hard)
        ratio = min(Fraction(1), Fraction(PHYSICAL - sum(hard.values()), soft)) if soft else Fraction(1)
        found = classes()
        assert len(found) == len(asked)
        for name, rate in asked.items():
            record = self.service.store.load(self.reference(name).uid)
            assert record and record.devices[0].share
            one = found[record.devices[0].share.mac]
            wanted = int(rate * (1 if name in hard else ratio))
            assert 0 <= wanted - one.rate < 8, (name, asked, hard)  # the kernel counts whole bytes
            assert 0 <= max(wanted, min(burst[name], PHYSICAL)) - one.ceiling < 8, (name, asked, hard)


@pytest.fixture(scope="module", name="node")
def _node(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Scheduled]:
    try:
        plane = ControlPlane()
    except Missing as missing:
        pytest.skip(str(missing))
    with plane:
        made = Scheduled(plane, SharesWorld(tmp_path_factory.mktemp("node")))
        yield made
        for one in [*made.free, *made.used.values()]:
            one.end()


@pytest.fixture(name="empty")
def _empty(node: Scheduled) -> t.Iterator[Scheduled]:
    node.set()
    yield node
    for name in list(node.used):
        node.end(name)
    assert classes() == {}


def test_a_raised_factor_binds_waiting_pods_and_a_lowered_one_evicts_nobody(empty: Scheduled) -> None:
    first = empty.ask(bandwidth="700M")
    empty.start(first)
    second = empty.ask(bandwidth="600M")
    empty.plane.wait_for(lambda: empty.waits(second), "the scheduler to refuse the second pod")
    empty.set(factor=1.5)
    empty.start(second)
    empty.check()
    empty.set(factor=1)
    assert empty.bound(first) and empty.bound(second)
    (nic,) = empty.service.shares.nics()
    assert nic.totals.debt == 300 * MEGA
    empty.check()
    third = empty.ask(bandwidth="1M")
    empty.plane.wait_for(lambda: empty.waits(third), "the scheduler to refuse the third pod")
    empty.end(second)  # the debt is gone
    empty.set(factor=1)
    empty.start(third)
    empty.check()


def test_a_nic_is_given_in_shares_or_as_a_whole(empty: Scheduled) -> None:
    share = empty.ask(bandwidth="100M")
    empty.start(share)
    whole = empty.ask_whole()
    empty.plane.wait_for(lambda: empty.waits(whole), "the scheduler to refuse a NIC with shares as a whole")
    empty.end(share)
    empty.start(whole)
    late = empty.ask(bandwidth="100M")
    empty.plane.wait_for(lambda: empty.waits(late), "the scheduler to refuse a share of a NIC that a pod has")
    empty.end(whole)
    empty.start(late)
    assert class_rates() == [(100, 1000)]


def test_a_class_caps_the_ceiling(empty: Scheduled) -> None:
    """The cap applies to soft and hard shares, below what the setting of the NIC allows. A claim may ask for less."""
    capped = {"name": "capped", "kind": "nic", "share": True, "interface": {"share": {"burst": "400M"}}}
    wanted = {
        empty.ask(capped, bandwidth="100M"): (100, 400),
        empty.ask(capped, bandwidth="200M", burst="300M"): (200, 300),
        empty.ask(capped, bandwidth="250M", hard=True, factor=1): (250, 400),
        empty.ask(bandwidth="150M"): (150, 1000),
    }
    for name in wanted:
        empty.start(name)
    assert class_rates() == sorted(wanted.values())
    config = empty.claim(next(iter(wanted)))["status"]["allocation"]["devices"]["config"]
    assert {"FromClass"} == {one["source"] for one in config if "share" in one["opaque"]["parameters"]}


def test_the_rate_follows_from_consumed_capacity(empty: Scheduled) -> None:
    seed = int(os.environ.get("LANEWISE_SEED", random.randrange(2**32)))
    print(f"LANEWISE_SEED={seed}")
    generator, factor, mixes, refused = random.Random(seed), "1", 0, 0
    while mixes < MIXES:
        if generator.random() < 0.08:
            factor = generator.choice(["1", "1.25", "1.5", "2", "4"])
            empty.set(factor=float(factor), step=generator.choice(["1M", "1M", "10M"]))
        elif empty.used and (len(empty.used) == MOST or generator.random() < 0.45):
            empty.end(generator.choice(sorted(empty.used)))
            empty.publisher.publish("a share has ended")
            empty.refreshed.clear()
        else:
            refused += not _start_random_pod(empty, generator, factor)
        empty.check()
        mixes += bool(empty.used)
    print(f"{mixes} mixes, {refused} claims that the scheduler refused as predicted")


def _start_random_pod(node: Scheduled, generator: random.Random, factor: str) -> bool:
    """Let one more pod ask for a share. Returns whether it got one, and checks that this was predicted."""
    amount = generator.choice([generator.randint(1, 100), generator.randint(1, 600)])
    share: Object = {"bandwidth": f"{amount}M"}
    if generator.random() < 0.3:
        share.update(hard=True, factor=float(factor))
    if generator.random() < 0.3:
        share["burst"] = f"{generator.randint(amount, 1000)}M"
    taken = 0
    for name in node.used:
        (result,) = node.claim(name)["status"]["allocation"]["devices"]["results"]
        taken += int(quantity.parse(result["consumedCapacity"]["bandwidth"]))
    (step,) = {one.rule.step for one in [node.service.inventory.offer(SHARE)] if one}
    least, charge = step, int(Fraction(amount) * MEGA * (Fraction(factor) if share.get("hard") else 1))
    charge = max(least, least + -(-(charge - least) // step) * step)
    name = node.ask(**share)
    if taken + charge <= node.capacity():
        node.start(name)
        return True
    node.plane.wait_for(lambda: node.waits(name), f"the scheduler to refuse {name}")
    node.end(name)
    return False
