# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares of a NIC by macvlan, from prepare to unprepare, also if the driver is killed.

This file is long because all tests use the same node with a divided NIC.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import driver_changes, folders, shares_node
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox, differences, host_state, ip
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import NODE, FakeCluster
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
from ansible_collections.lanewise.dra.tests.driver.nodes import HiddenNamespace
from ansible_collections.lanewise.dra.tests.driver.plan_claims import config
from ansible_collections.lanewise.dra.tests.driver.shares_node import (
    NIC,
    RULE,
    SHARE,
    Object,
    SharesNode,
    class_rates,
    classes,
    root_qdiscs,
    without_shares,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from lanewise_driver import daemon
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Busy, KernelError, Refused
from lanewise_driver.base.settings import read
from lanewise_driver.claims import share_plan, share_report, unclean
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.ledger import Ledger
from lanewise_driver.claims.records import ATTACHED, PREPARED, DeviceRecord, Record
from lanewise_driver.claims.share_metrics import ShareMetrics
from lanewise_driver.dra.config.share_rates import EffectiveRate
from lanewise_driver.interface import identity, interfaces, take_back
from lanewise_driver.interface.identity import Identity
from lanewise_driver.kernel import htb
from lanewise_driver.publish.device import Device
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.shares import by_class, by_vf
from lanewise_driver.shares.share import ShareRecord
from lanewise_driver.topology.publish import UNCLEAN, device_name
from lanewise_driver.topology.publish_shares import MACVLAN, VFS
from prometheus_client import CollectorRegistry, generate_latest

pytestmark = pytest.mark.namespaces

#: The kernel refuses this route, because the pod does not have the source address.
REFUSED_ROUTE = {"destination": "203.0.113.0/24", "gateway": "198.51.100.1", "source": "198.51.100.77"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SharesNode:
    return SharesNode(tmp_path_factory.mktemp("node"))


@pytest.fixture
def shares(node: SharesNode) -> t.Iterator[SharesNode]:
    """The node. Fails if the test leaves anything on it."""
    before, qdiscs = host_state(), root_qdiscs()
    node.settings = node.with_rule()
    yield node
    node.cluster.claims.clear()
    assert (root_qdiscs(), classes()) == (qdiscs, {})
    # the kernel destroys the namespaces of pods some time after their last process has ended
    until(lambda: host_state() == before, why=lambda: differences(before, host_state()))
    assert node.files() == []


@pytest.fixture
def pods() -> t.Iterator[list[Sandbox]]:
    sandboxes = [Sandbox() for _each in range(2)]
    yield sandboxes
    for sandbox in sandboxes:
        sandbox.end()


def test_two_shares_are_attached_and_returned(shares: SharesNode, pods: list[Sandbox]) -> None:
    service = shares.service()
    big, small = shares.allocate("big", "700M"), shares.allocate("small", "200M", share={"burst": "500M"})
    shares.attach(service, big, pods[0])
    assert class_rates() == [(700, 1000)] and root_qdiscs()[0] == "qdisc htb 6c77: root"
    shares.attach(service, small, pods[1])
    assert class_rates() == [(200, 500), (700, 1000)]
    inside = pods[0].links()["net1"]
    assert inside["address"] in classes() and inside["linkinfo"]["info_data"]["mode"] == "private"
    assert shares.cluster.statuses == {}  # the writer of statuses is not started in this test
    (nic,) = service.shares.nics()
    assert (nic.name, nic.totals.requested, nic.totals.current) == (f"net-{NIC}", 900 * 10**6, 900 * 10**6)
    assert service.held() == [] and set(service.shares.held()) == {SHARE}
    # kubelet repeats prepare after a restart; meanwhile the settings may have changed
    shares.settings = shares.with_rule(mode="vepa", namespace="team-b")
    service.prepare(big)
    shares.settings = without_shares(shares.settings)
    service.prepare(big)
    record = service.store.load(big.uid)
    assert record and record.phase == ATTACHED and class_rates() == [(200, 500), (700, 1000)]
    service.unprepare(big)
    assert set(pods[0].links()) == {"lo"} and class_rates() == [(200, 500)]
    service.unprepare(small)


def test_a_claim_may_have_two_shares_of_a_nic(shares: SharesNode, pods: list[Sandbox]) -> None:
    service = shares.service()
    claim = claim_with_two_shares(shares, {}, {})
    shares.attach(service, claim, pods[0])
    assert class_rates() == [(200, 1000), (700, 1000)]
    assert {pods[0].links()[name]["address"] for name in ("net1", "net2")} == set(classes())
    (nic,) = service.shares.nics()
    assert nic.totals.requested == 900 * 10**6
    with pytest.raises(Busy, match="would be promised more than 1 times its"):
        service.prepare(shares.allocate("late", "200M"))
    service.prepare(claim)
    service.unprepare(claim)
    assert set(pods[0].links()) == {"lo"}


def claim_with_two_shares(shares: SharesNode, first: Object, second: Object) -> ClaimRef:
    """A claim with two shares of the NIC, net1 and net2 in the pod, with these fields in their configurations."""
    claim = shares.allocate("both", "700M")
    devices = shares.cluster.claims["both"]["status"]["allocation"]["devices"]
    (result,) = devices["results"]
    more = {"request": "more", "shareID": "share-more", "consumedCapacity": {"bandwidth": "200M"}}
    devices["results"].append({**result, **more})
    devices["config"][1:] = [config({"name": "net1", **first}, "nic"), config({"name": "net2", **second}, "more")]
    return claim


@contextlib.contextmanager
def dhcp_server(folder: Path) -> t.Iterator[Path]:
    """Run a DHCPv4 server at the other end of the NIC. Yields its log."""
    if not shutil.which("dnsmasq"):
        pytest.skip("needs dnsmasq")
    ip("address", "add", "10.8.0.1/24", "dev", "far")
    log = folder / "dnsmasq.log"
    options = "--no-daemon --port=0 --no-ping --interface=far --bind-dynamic --conf-file=/dev/null --leasefile-ro"
    command = ["dnsmasq", *options.split(), "--user=root", "--dhcp-range=10.8.0.50,10.8.0.60,2m", "--log-dhcp"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: "DHCP" in log.read_text())
        yield log
    finally:
        server.terminate()
        server.wait()
        ip("address", "del", "10.8.0.1/24", "dev", "far")


def test_a_lease_is_released_if_another_device_of_the_claim_gets_no_lease(
    shares: SharesNode, pods: list[Sandbox], tmp_path: Path
) -> None:
    service = shares.service()
    claim = claim_with_two_shares(shares, {"dhcp": ["ipv4"]}, {"dhcp": ["ipv6"]})
    with dhcp_server(tmp_path) as log:
        with pytest.raises(KernelError, match="no DHCPv6 server answered in time"):
            shares.attach(service, claim, pods[0])
        (address,) = re.findall(r"DHCPACK\(far\) (\S+)", log.read_text())
        until(lambda: f"DHCPRELEASE(far) {address}" in log.read_text())
        assert set(pods[0].links()) == {"lo"}
        service.unprepare(claim)
        assert log.read_text().count("DHCPRELEASE") == 1
    service.close()


def test_two_shares_of_a_claim_have_a_lease_each(shares: SharesNode, pods: list[Sandbox], tmp_path: Path) -> None:
    service = shares.service()
    claim = claim_with_two_shares(shares, {"dhcp": ["ipv4"]}, {"dhcp": ["ipv4"]})
    with dhcp_server(tmp_path) as log:
        shares.attach(service, claim, pods[0])
        addresses = set(re.findall(r"DHCPACK\(far\) (\S+)", log.read_text()))
        assert len(addresses) == 2
        service.unprepare(claim)
        until(lambda: set(re.findall(r"DHCPRELEASE\(far\) (\S+)", log.read_text())) == addresses, why=log.read_text)
    service.close()


def test_an_interface_that_is_down_is_reported_for_its_share_only(shares: SharesNode, pods: list[Sandbox]) -> None:
    service = shares.service()
    service.status.start()
    claim = claim_with_two_shares(shares, {}, {})
    shares.attach(service, claim, pods[0])

    def ready() -> dict[str, tuple[str, str]]:
        assert service.status.wait(20)
        conditions = {device["shareID"]: device["conditions"][0] for device in shares.cluster.statuses["both"]}
        return {share: (condition["status"], condition["message"]) for share, condition in conditions.items()}

    healthy = ("True", "the device is in the pod")
    assert ready() == {"share-both": healthy, "share-more": healthy}
    for share, name, other in (("share-both", "net1", "share-more"), ("share-more", "net2", "share-both")):
        ip("link", "set", name, "down", netns=pods[0].pid)
        assert service.check_pods()
        assert ready() == {share: ("False", f"{name} was set down in the pod"), other: healthy}
        ip("link", "set", name, "up", netns=pods[0].pid)
        assert service.check_pods() and ready() == {share: healthy, other: healthy}
    service.unprepare(claim)
    assert service.status.wait(20)
    service.status.stop()
    shares.cluster.statuses.clear()


@pytest.mark.parametrize("second_claim", ["ends", "cannot be attached", "was being attached by a killed driver"])
def test_a_pod_keeps_its_share_if_its_second_claim_ends_or_fails(
    shares: SharesNode, pods: list[Sandbox], second_claim: str
) -> None:
    service, fails = shares.service(), second_claim == "cannot be attached"
    more = {"addresses": ["198.51.100.7/24"], "routes": [REFUSED_ROUTE]} if fails else {}
    first, second = shares.allocate("first", "300M"), shares.allocate("second", "200M")
    status = shares.cluster.claims["second"]["status"]
    status["allocation"]["devices"]["config"][1:] = [config({"name": "net2", **more})]
    status["reservedFor"] = shares.cluster.claims["first"]["status"]["reservedFor"]
    shares.attach(service, first, pods[0])
    mac = pods[0].links()["net1"]["address"]
    request = replace(shares.request(first, pods[0]), uid=second.uid)

    def check_that_only_the_first_is_attached() -> None:
        links, record = pods[0].links(), service.store.load(first.uid)
        assert set(links) == {"lo", "net1"} and links["net1"]["address"] == mac, step
        assert record is not None and record.phase == ATTACHED and class_rates() == [(300, 1000)], step

    step, killed = 0, False
    while step == 0 or killed:
        service.prepare(second)
        if fails:
            with pytest.raises(KernelError, match="add the route"):
                service.attach(request)
            check_that_only_the_first_is_attached()
        elif second_claim == "ends":
            service.attach(request)
            ip("link", "add", "link", "net1", "name", "tap0", "type", "macvlan", "mode", "bridge", netns=pods[0].pid)
        else:
            killed = killed_at(step, lambda: shares.service().attach(request), driver_changes.watch)
            service = shares.service()
            assert service.recover() and "net1" in pods[0].links(), step
        service.unprepare(second)
        check_that_only_the_first_is_attached()
        step += 1
    service.unprepare(first)
    assert set(pods[0].links()) == {"lo"}


def test_rates_of_overcommitted_shares_change_with_the_other_shares_and_the_settings(
    shares: SharesNode, pods: list[Sandbox]
) -> None:
    shares.settings = shares.with_rule(factor=2)
    service = shares.service()
    soft = shares.allocate("soft", "800M")
    hard = shares.allocate("hard", "1G", share={"hard": True, "guarantee": "500M"})
    shares.attach(service, soft, pods[0])
    assert class_rates() == [(800, 1000)]
    shares.attach(service, hard, pods[1])
    assert class_rates() == [(500, 1000), (500, 1000)]
    (nic,) = service.shares.nics()
    assert (nic.totals.promised, nic.totals.debt) == (1800 * 10**6, 0)
    # a lowered factor changes no existing share
    shares.settings = shares.with_rule(factor=1)
    service.inventory.refresh()
    assert service.shares.refresh() and class_rates() == [(500, 1000), (500, 1000)]
    assert service.shares.nics()[0].totals.debt == 300 * 10**6
    # with less bandwidth for shares, the hard share keeps its rate
    shares.settings = shares.with_rule(factor=2, bandwidth="900M", ceiling="700M")
    service.inventory.refresh()
    assert service.shares.refresh() and class_rates() == [(400, 700), (500, 700)]
    service.unprepare(hard)
    assert class_rates() == [(800, 800)]
    service.unprepare(soft)


def test_a_share_may_be_larger_than_the_nic(shares: SharesNode, pods: list[Sandbox]) -> None:
    """The scheduler only compares it with the published capacity, which is the bandwidth times the factor. The share
    gets the whole NIC while no other pod has a share."""
    shares.settings = shares.with_rule(factor=2)
    service = shares.service()
    service.status.start()
    large, other = shares.allocate("large", "1500M"), shares.allocate("other", "250M")
    shares.attach(service, large, pods[0])
    assert class_rates() == [(1000, 1000)] and service.status.wait(20)
    (device,) = shares.cluster.statuses["large"]
    reported = device["data"]["share"]
    assert (reported["bandwidth"], reported["guaranteed"], reported["ceiling"]) == ("1500M", "750M", "1G")
    shares.attach(service, other, pods[1])
    assert [round(rate) for rate, _ceiling in class_rates()] == [143, 857]
    for claim in (large, other):
        service.unprepare(claim)
    service.status.stop()
    shares.cluster.statuses.clear()


def test_setting_rates_of_a_missing_interface_or_vf_does_nothing() -> None:
    by_class.set_classes(Identity(None, None, "gone0"), 10**9, {3: htb.Class("02:00:00:00:00:01", 10**6, 10**6)})
    assert by_class.sent(Identity(None, None, "gone0")) == {}
    missing = {"0000:ff:1f.7": EffectiveRate(10**6, 10**6)}
    assert by_vf.set_rates(missing) == by_vf.current_rates(missing) == {}


def test_the_claim_status_the_metrics_and_the_share_report_show_the_rates_in_force(
    shares: SharesNode, pods: list[Sandbox]
) -> None:
    shares.settings = shares.with_rule(factor=2)
    service = shares.service()
    service.status.start()
    soft = shares.allocate("soft", "800M", share={"burst": "900M"})
    hard = shares.allocate("hard", "1G", share={"hard": True, "guarantee": "500M"})

    def status(name: str) -> t.Any:
        assert service.status.wait(20)
        (device,) = shares.cluster.statuses[name]
        return device["data"]["share"]

    service.prepare(soft)
    promised = {"mechanism": "macvlan", "bandwidth": "800M", "guaranteed": "400M", "ceiling": "900M", "hard": False}
    shares.attach(service, soft, pods[0])
    assert status("soft") == {**promised, "inForce": {"bandwidth": "800M", "ceiling": "900M"}}
    shares.attach(service, hard, pods[1])
    assert status("soft") == {**promised, "inForce": {"bandwidth": "500M", "ceiling": "900M"}}
    assert status("hard")["inForce"] == {"bandwidth": "500M", "ceiling": "1G"} and status("hard")["hard"] is True
    shares.settings = shares.with_rule(factor=1)
    service.inventory.refresh()
    assert service.shares.refresh()
    assert status("hard")["debtOfNIC"] == "300M"
    registry = CollectorRegistry()
    registry.register(ShareMetrics(service.shares))
    text = generate_latest(registry).decode()
    assert f'lanewise_shared_nic_bits_per_second{{amount="debt",nic="net-{NIC}"}} 3e+08' in text
    assert 'amount="in_force",claim="soft",namespace="team-a"' in text
    assert 'lanewise_share_sent_bytes_total{claim="hard"' in text
    (nic,) = report = share_report.shares(service.ledger.records(), service.ledger.boot, service.inventory)
    assert (nic["promised"], nic["capacity"], nic["debt"]) == (1300 * 10**6, 10**9, 300 * 10**6)
    assert {share["claim"]: (share["guaranteed"], share["inForce"]) for share in nic["shares"]} == {
        "team-a/soft": (500 * 10**6, 500 * 10**6),
        "team-a/hard": (500 * 10**6, 500 * 10**6),
    }
    assert all(share["used"] is not None for share in nic["shares"])
    first, *rest = share_report.lines(report)
    assert first == f"shares of net-{NIC}: promised 1300M of 1G (1G times 1), guaranteed 1G, in force 1G, debt 300M"
    assert any(
        "team-a/soft  nic  800M soft: guaranteed 500M, in force 500M, ceiling 900M, uses" in line for line in rest
    )
    for claim in (soft, hard):
        service.unprepare(claim)
    assert service.status.wait(20) and list(shares.cluster.statuses.values()) == [[], []]
    service.status.stop()


@pytest.mark.parametrize("published", ["once", "never"])
def test_a_changed_factor_is_reported_as_an_event_of_the_soft_shares(
    shares: SharesNode, pods: list[Sandbox], published: str
) -> None:
    """Also if nothing was published between the last allocation and the change. The guarantee of a hard share does not
    depend on the factor."""
    service = shares.service()

    def events() -> list[tuple[str, str, str]]:
        claims = {soft.name, hard.name}  # events of other tests may still arrive
        return [
            (name, reason, note)
            for name, reason, note in shares.cluster.events
            if name in claims and reason == "ShareGuaranteeChanged"
        ]

    soft = shares.allocate(f"soft-{published}", "600M")
    hard = shares.allocate(f"hard-{published}", "200M", share={"hard": True, "guarantee": "200M"})
    for claim, pod in ((soft, pods[0]), (hard, pods[1])):
        shares.attach(service, claim, pod)
    if published == "once":
        assert service.shares.refresh() and events() == []
    shares.settings = shares.with_rule(factor=2)
    restarted = shares.service()  # the role restarts the driver with its new settings
    assert restarted.recover()
    restarted.inventory.refresh()
    assert restarted.shares.refresh() and restarted.shares.refresh()
    until(events)
    ((name, _reason, note),) = events()
    assert name == soft.name
    assert "is now promised 2 times its bandwidth instead of 1" in note
    assert "is guaranteed 300Mbit/s instead of 600Mbit/s" in note
    shares.cluster.events.clear()
    for claim in (soft, hard):
        restarted.unprepare(claim)


@pytest.mark.parametrize(
    "rate, shown",
    [
        (None, "0"),
        (999, "999"),
        (1000, "1k"),
        (999_499, "999k"),
        (999_700, "1M"),
        (123_456_789, "123M"),
        (10**11, "100G"),
        (10**12, "1000G"),
    ],
)
def test_measured_rates_are_rounded_to_three_digits(rate: int | None, shown: str) -> None:
    assert share_report._rounded(rate) == shown


def test_a_burst_below_the_next_step_is_the_rate_of_the_share(shares: SharesNode, pods: list[Sandbox]) -> None:
    """In steps of 10M, the scheduler allocates 580M for a request of 578M."""
    shares.settings = shares.with_rule(step="10M")
    service = shares.service()
    claim = shares.allocate("rounded", "580M", share={"burst": "578M"})
    shares.attach(service, claim, pods[0])
    assert class_rates() == [(578, 578)]
    service.unprepare(claim)
    with pytest.raises(Refused, match="burst: 570M is less than the share, 580000000 bit/s"):
        service.prepare(shares.allocate("wrong", "580M", share={"burst": "570M"}))


def test_shares_that_the_rule_or_other_claims_do_not_allow_are_refused(shares: SharesNode, pods: list[Sandbox]) -> None:
    service = shares.service()

    def check_refusal(error: type[Exception], message: str, *arguments: t.Any, **more: t.Any) -> None:
        claim = shares.allocate("bad", *arguments, **more)
        with pytest.raises(error, match=message):
            service.prepare(claim)
        assert service.store.load(claim.uid) is None

    check_refusal(Refused, "for the namespace team-a, and", "100M", namespace="team-b")
    check_refusal(Refused, "exceed the", "2G")
    check_refusal(Refused, "bandwidth: 'x' is not a quantity", "x")
    check_refusal(Refused, "is not a rate", "0")
    check_refusal(Refused, "is not a rate", "1E")
    check_refusal(Refused, "burst: 50M is less", "100M", share={"burst": "50M"})
    check_refusal(Refused, "render the claim again", "100M", share={"hard": True, "guarantee": "200M"})
    check_refusal(Refused, "child: is not allowed for shares", "100M", child={"type": "macvlan"})
    check_refusal(Refused, "has no VF", "100M", vf={"vlan": 5})
    check_refusal(Refused, "as a whole, not in shares", "", f"net-{NIC}", share={})
    claim = shares.allocate("bad", "100M")
    del shares.cluster.claims["bad"]["status"]["allocation"]["devices"]["results"][0]["shareID"]
    with pytest.raises(Refused, match="shareID: is missing"):
        service.prepare(claim)
    share = shares.allocate("share", "600M")
    shares.attach(service, share, pods[0])
    check_refusal(Busy, "would be promised more than 1 times its", "500M")
    check_refusal(Busy, f"still has a share of net-{NIC}", "", f"net-{NIC}")
    shares.settings = without_shares(shares.settings)
    service.inventory.refresh()
    check_refusal(Busy, "do not divide", "100M")
    shares.settings = shares.with_rule()
    service.inventory.refresh()
    service.unprepare(share)
    whole = shares.allocate("whole", "", f"net-{NIC}")
    service.prepare(whole)
    check_refusal(Busy, f"still has net-{NIC}", "100M")
    service.unprepare(whole)


def test_a_nic_that_cannot_be_restored_does_not_return_to_the_same_pod(
    shares: SharesNode, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to a new sandbox of the pod, whether the driver was restarted or not."""
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)
    service, claim = shares.service(), shares.allocate("whole", "", f"net-{NIC}")
    shares.attach(service, claim, pods[0])
    ip("link", "set", "net1", "mtu", "1300", netns=pods[0].pid)
    with monkeypatch.context() as patch:
        patch.setattr(take_back, "restore", lambda *_arguments: [])
        for driver in (service, shares.service()):
            assert driver is service or driver.recover()
            with pytest.raises(Busy, match=f"net-{NIC} is withheld from pods until its original state is restored: "):
                driver.attach(shares.request(claim, pods[1]))
            assert set(pods[1].links()) == {"lo"} and set(driver.unclean.all()) == {f"net-{NIC}"}
    assert driver.retry_unclean() and driver.unclean.all() == {}
    driver.attach(shares.request(claim, pods[1]))
    assert pods[1].links()["net1"]["mtu"] == 1500 and not driver.retry_unclean()
    driver.unprepare(claim)


def test_a_nic_with_an_unknown_child_after_a_share_is_withheld_as_a_whole_too(
    shares: SharesNode, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)
    service, claim, hidden = shares.service(), shares.allocate("first", "300M"), HiddenNamespace()
    shares.attach(service, claim, pods[0])
    ip("link", "add", "link", "net1", "name", "tap0", "type", "macvlan", netns=pods[0].pid)
    ip("link", "set", "tap0", "netns", hidden.path(), netns=pods[0].pid)
    service.unprepare(claim)
    assert {name: entry.word for name, entry in service.unclean.all().items()} == {f"net-{NIC}": "stacked"}
    words = {f"net-{NIC}": "stacked"}
    publication = Inventory(lambda: shares.settings, service.held, "/", lambda: words, service.shares.held).refresh()
    taints = {device["name"]: device.get("taints") for device in publication.devices}
    assert taints[f"net-{NIC}"] == taints[SHARE] == [{"key": UNCLEAN, "value": "stacked", "effect": "NoSchedule"}]
    for name, device in (("whole", f"net-{NIC}"), ("second", SHARE)):
        refused = shares.allocate(name, "300M", device)
        with pytest.raises(Busy, match=f"{device} is withheld from pods until .* is restored: {NIC}: .*tap0"):
            service.prepare(refused)
        service.unprepare(refused)
    assert not service.retry_unclean()
    hidden.run("ip link del tap0")
    assert service.retry_unclean() and service.unclean.all() == {}
    hidden.end()


def test_a_nic_is_not_restored_while_a_pod_has_a_share_of_it(
    shares: SharesNode, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, an earlier release gave away the share although the NIC was withheld."""
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)
    service, claim = shares.service(), shares.allocate("first", "300M")
    shares.attach(service, claim, pods[0])
    known = service.inventory.device(f"net-{NIC}")
    assert known
    host = interfaces.snapshot(known.identity)
    service.unclean.record_outcome(known.name, known, host, take_back.Outcome([take_back.Reason("changed", "its MTU")]))
    assert not service.retry_unclean() and "net1" in pods[0].links() and class_rates() == [(300, 1000)]
    service.unprepare(claim)
    assert service.retry_unclean() and service.unclean.all() == {}


def test_a_pf_or_vf_as_a_whole_excludes_shares_of_its_pf() -> None:
    """For example, the settings may begin to divide a PF while a pod has one of its VFs."""
    pf, name = "0000:23:00.0", "pci-0000-23-00-0"
    share = DeviceRecord(
        f"{name}-share",
        NODE,
        "nic",
        Device(f"{name}-share", {}, "0000:23:10.0", pf=pf, vf=0),
        lock=pf,
        share=ShareRecord(name, "vfs", 10**9, 10**9, 10**10, 10**10),
    )

    def whole(address: str, pf_of_vf: str | None) -> DeviceRecord:
        known = Device(device_name(address), {}, address, pf=pf_of_vf)
        return DeviceRecord(known.name, NODE, "nic", known, lock=pf_of_vf or address)

    for other, excluded in (
        (whole("0000:23:10.2", pf), True),
        (whole(pf, None), True),
        (whole("0000:23:10.1", "0000:23:00.1"), False),
        (whole("0000:43:00.0", None), False),
    ):
        assert share_plan.excludes(share, other) == share_plan.excludes(other, share) == excluded


def test_the_burst_of_a_class_limits_the_ceilings_of_its_claims(shares: SharesNode, pods: list[Sandbox]) -> None:
    service = shares.service()

    def allocate(name: str, bandwidth: str, **share: t.Any) -> ClaimRef:
        claim = shares.allocate(name, bandwidth, **({"share": share} if share else {}))
        configs = shares.cluster.claims[name]["status"]["allocation"]["devices"]["config"]
        configs.insert(0, config({"share": {"burst": "400M"}}, source="FromClass"))
        return claim

    soft = allocate("soft", "100M")
    hard = allocate("hard", "200M", hard=True, guarantee="200M", burst="300M")
    for claim, pod in ((soft, pods[0]), (hard, pods[1])):
        shares.attach(service, claim, pod)
    assert class_rates() == [(100, 400), (200, 300)]
    for more, message in (
        ({"burst": "500M"}, "can only lower the burst of 400Mbit/s"),
        ({"hard": True, "guarantee": "500M"}, "can only lower the burst of 400Mbit/s"),
        ({}, "burst: 400M is less than the share"),
    ):
        with pytest.raises(Refused, match=message):
            service.prepare(allocate("bad", "500M", **more))
    for claim in (soft, hard):
        service.unprepare(claim)


def test_a_root_qdisc_that_the_driver_did_not_add_is_not_replaced(shares: SharesNode) -> None:
    service = shares.service()
    shares_node.tc(
        "qdisc", "add", "dev", NIC, "root", "handle", "1:", "tbf", "rate", "1gbit", "burst", "9k", "latency", "1ms"
    )
    try:
        with pytest.raises(Busy, match="root qdisc tbf 1: was not configured by the driver"):
            service.prepare(shares.allocate("share", "100M"))
    finally:
        shares_node.tc("qdisc", "del", "dev", NIC, "root")


def test_setting_shares_is_retried_and_the_error_is_a_reason_for_not_being_ready(
    shares: SharesNode, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The qdisc of the driver was replaced. The claims are recovered only once, and only the shares are set again."""
    claim = shares.allocate("first", "300M")
    shares.attach(shares.service(), claim, pods[0])
    shares_node.tc(*f"qdisc replace dev {NIC} root handle 1: tbf rate 1gbit burst 9k latency 1ms".split())
    shares.paths.settings.write_text(json.dumps({"node_name": NODE, "virtual_interfaces": [NIC], "shares": [RULE]}))
    reconciled: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(daemon, "SETTLE_INTERVAL", 0.05)
        patch.setattr(daemon.logs, "setup", lambda level: None)
        patch.setattr(daemon.signal, "signal", lambda number, handler: None)
        driver = daemon.Daemon(shares.paths)
        patch.setattr(driver, "_start", lambda: setattr(driver, "_settled", driver.service.recover()))
        patch.setattr(driver, "_stop", driver.service.close)
        patch.setattr(driver.service, "reconcile", lambda: not reconciled.append(driver.service.recover()))
        running = threading.Thread(target=driver.run)
        running.start()
        try:
            until(lambda: reconciled == [True])
            driver._on_published(driver.inventory.publication)
            problem = "root qdisc tbf 1: was not configured by the driver"
            reason = f"the shares of net-{NIC} could not be set: .*{problem}.*; trying again"
            assert any(re.fullmatch(reason, found) for found in driver.not_ready_reasons())
            assert not any("operations" in found for found in driver.not_ready_reasons())
            shares_node.tc("qdisc", "del", "dev", NIC, "root")
            until(lambda: class_rates() == [(300, 1000)])
            until(lambda: not any("shares" in found for found in driver.not_ready_reasons()))
        finally:
            driver._stopping.set()
            running.join()
            if "tbf" in root_qdiscs()[0]:
                shares_node.tc("qdisc", "del", "dev", NIC, "root")
            shares.paths.settings.unlink()
            shares.service().unprepare(claim)
    assert reconciled == [True]


@pytest.mark.parametrize("operation", ["attach", "detach", "change"])
def test_a_driver_killed_before_any_change_restores_all_shares(
    shares: SharesNode, pods: list[Sandbox], operation: str
) -> None:
    """After each restart, exactly the shares of attached claims are in force, according to the current settings. After
    unprepare, no share of the claim is left."""
    staying, leaving = shares.allocate("staying", "300M"), shares.allocate("leaving", "500M")
    shares.attach(shares.service(), staying, pods[0])
    changed = shares.with_rule(ceiling="500M", bandwidth="600M", factor=2)

    def change() -> None:
        shares.settings = changed
        service = shares.service()
        service.inventory.refresh()
        assert service.shares.refresh()

    run_operation = {
        "attach": lambda: shares.attach(shares.service(), leaving, pods[1]),
        "detach": lambda: shares.service().unprepare(leaving),
        "change": change,
    }[operation]
    step, killed = 0, True
    while killed:
        shares.settings = shares.with_rule()
        if operation != "attach":
            shares.attach(shares.service(), leaving, pods[1])
        killed = killed_at(step, run_operation, driver_changes.watch)
        if operation == "change":
            shares.settings = changed
        service = shares.service()
        assert service.recover()
        assert service.shares.refresh()
        record = service.store.load(leaving.uid)
        attached = record is not None and record.phase == ATTACHED
        assert record is None or record.phase in (PREPARED, ATTACHED)
        if operation == "change":
            assert attached and class_rates() == [(225, 500), (375, 500)], step
        else:
            assert class_rates() == [(300, 1000)] + [(500, 1000)] * attached, step
        assert ("net1" in pods[1].links()) == attached, step
        shares.settings = shares.with_rule()
        shares.service().unprepare(leaving)
        assert class_rates() == [(300, 1000)] and set(pods[1].links()) == {"lo"}
        step += 1
    print(f"{operation}: killed before each of {step - 1} changes")
    assert step > 5
    shares.service().unprepare(staying)


def test_traffic_classes_without_a_claim_are_removed(shares: SharesNode, pods: list[Sandbox]) -> None:
    """For example, the record of the claim could not be read."""
    service = shares.service()
    claim = shares.allocate("lost", "300M")
    shares.attach(service, claim, pods[0])
    content = service.store.path(claim.uid).read_bytes()
    service.store.path(claim.uid).unlink()
    assert class_rates() == [(300, 1000)]
    restarted = shares.service()
    assert restarted.recover() and class_rates() == []
    restarted.store.path(claim.uid).write_bytes(content)
    restarted.unprepare(claim)
    Path(shares.paths.pin(claim.uid)).unlink(missing_ok=True)


@pytest.mark.parametrize("pci", [False, True], ids=["virtual", "PCI"])
def test_the_traffic_classes_of_a_renamed_nic_are_kept(
    shares: SharesNode, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch, pci: bool
) -> None:
    """Interfaces of PCI functions are found by their addresses: another interface, with classes without a claim, has
    the recorded name now. A renamed virtual interface is not found."""
    service = shares.service()
    claim = shares.allocate("first", "300M")
    shares.attach(service, claim, pods[0])
    record = service.store.load(claim.uid)
    assert record
    known = record.held[0].known
    if pci:  # the veth stands for the interface of a PCI function
        (link,) = json.loads(ip("-j", "link", "show", NIC))
        mac = str(link["address"])
        monkeypatch.setattr(identity, "_matches", lambda link, *_more, **_options: link.mac == mac)
        record.held[0].known = replace(known, address="0000:23:00.0")
        service.store.save(record)
    ip("link", "set", NIC, "down")
    ip("link", "set", NIC, "name", "renamed")
    ip("link", "set", "renamed", "up")
    try:
        if pci:
            ip("link", "add", NIC, "type", "veth", "peer", "name", "other")
            shares_node.tc("qdisc", "add", "dev", NIC, "root", "handle", "6c77:", "htb")
        assert shares.service().recover()
        assert "htb 6c77:" in shares_node.tc("qdisc", "show", "dev", "renamed")
        assert not pci or "htb" not in shares_node.tc("qdisc", "show", "dev", NIC)
    finally:
        if pci:
            ip("link", "del", NIC)
        ip("link", "set", "renamed", "down")
        ip("link", "set", "renamed", "name", NIC)
        ip("link", "set", NIC, "up")
        record.held[0].known = known
        service.store.save(record)
        shares.service().unprepare(claim)


@pytest.mark.parametrize("mechanism", [MACVLAN, VFS])
def test_after_a_reboot_a_record_has_the_current_device_of_its_share(tmp_path: Path, mechanism: str) -> None:
    """That is the VF of the share, or for macvlan the parent without RDMA devices. Interfaces may have new names."""
    pf = "0000:c9:00.1"
    share = f"{device_name(pf)}-share"
    rule = {"select": {"address": pf}, "mechanism": mechanism, "namespace": "team-a"}
    settings, cluster = read({"node_name": NODE, "shares": [rule]}), FakeCluster()
    inventory = Inventory(lambda: settings, lambda: [], str(build("sriov", tmp_path / "machine")))
    offer = inventory.offer(share)
    assert offer and offer.base.rdma_devices
    device_of_share = replace(offer.base, rdma_devices=()) if mechanism == MACVLAN else offer.vfs[1]
    current = replace(device_of_share, name=share, device=offer.published)
    before_reboot = replace(current, interface="old0")
    ledger = Ledger(folders.flat(tmp_path), NODE, inventory, Writer(cluster), boot="this boot")
    device = DeviceRecord(share, NODE, "nic", before_reboot, share=ShareRecord(offer.base.name, mechanism, 1, 1, 1, 1))
    ledger.store.save(Record("0000-one", "team-a", "one", None, "the boot before", [device]))
    record = ledger.load("0000-one")
    assert record and record.boot == "this boot"
    assert (record.held[0].known, record.held[0].own_name) == (current, device.own_name)
    if mechanism == VFS:  # also a VF that does not exist, for example because it is created later
        device.known = replace(before_reboot, address="0000:ff:1f.7")
        ledger.store.save(Record("0000-two", "team-a", "two", None, "the boot before", [device]))
        record = ledger.load("0000-two")
        assert record and record.held[0].known == device.known
