# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Operations on claims in any order, in several threads, and with the driver killed at any step: the node is
restored."""

from __future__ import annotations

import copy
import os
import threading
import time
import typing as t
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.claims_node import (
    WIRES,
    ClaimsNode,
    Sandbox,
    differences,
    host_state,
)
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import attach_with_retries
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.errors import DriverError, KernelError, Refused
from lanewise_driver.claims.records import ATTACHED, PREPARED

EXAMPLES = int(os.environ.get("LANEWISE_CLAIM_EXAMPLES", "3"))
STEPS = 14
UNKNOWN = ClaimRef("claims", "unknown", "00000000-0000-4000-8000-000000000000")


# at the same time


def test_two_drivers_with_the_same_files_handle_claims_at_the_same_time(node: ClaimsNode) -> None:
    """Threads of both drivers prepare, attach and unprepare the same claims. An operation may fail only because another
    thread has unprepared the claim."""
    services = [node.service(), node.service()]
    sandboxes = {name: Sandbox() for name in ("one", "two", "child")}
    failures: list[BaseException] = []
    end = time.monotonic() + 8

    def use_claim(number: int) -> None:
        service = services[number % 2]
        name = ("one", "two", "child")[number % 3]
        try:
            while time.monotonic() < end:
                try:
                    service.prepare(node.claims[name])
                    service.attach(node.request(name, sandboxes[name].path))
                    service.reconcile()
                except Refused as error:
                    assert "not prepared" in error.message
                service.unprepare(node.claims[name])
        except BaseException as error:  # noqa: BLE001  # the test's thread reports it
            failures.append(error)

    threads = [threading.Thread(target=use_claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for sandbox in sandboxes.values():
        sandbox.end()


# in any order, and with the driver killed at any step


class ClaimMachine(RuleBasedStateMachine):
    """Operations on claims, pods and the driver in any order. `prepared` and `attached` predict the state of the
    node."""

    node: t.ClassVar[ClaimsNode]
    before: t.ClassVar[dict[str, t.Any]]
    NAMES = ("one", "two", "child", "impossible", "failing")
    #: By claim: the interfaces of the node and their names in the pod.
    DEVICES: t.ClassVar[dict[str, dict[str, str]]] = {
        "one": {WIRES[0]: "net1"},
        "two": {WIRES[1]: WIRES[1], WIRES[2]: "rail1"},
        "child": {WIRES[3]: "mac0"},
        "impossible": {},
        "failing": {},
    }

    def __init__(self) -> None:
        super().__init__()
        self.service = self.node.service()
        self.prepared: set[str] = set()
        self.attached: set[str] = set()
        self.sandboxes: dict[str, Sandbox] = {}

    @initialize()
    def start(self) -> None:
        self.sandboxes = {name: Sandbox() for name in self.NAMES}

    names = st.sampled_from(NAMES)

    def request(self, name: str) -> AttachRequest:
        return self.node.request(name, self.sandboxes[name].path)

    @rule(name=names)
    def prepare(self, name: str) -> None:
        if name == "impossible":
            with pytest.raises(Refused, match="no-such-feature"):
                self.service.prepare(self.node.claims[name])
        else:
            assert self.service.prepare(self.node.claims[name])
            self.prepared.add(name)

    @rule(name=names)
    def attach(self, name: str) -> None:
        if name not in self.prepared:
            with pytest.raises(Refused, match="not prepared"):
                self.service.attach(self.request(name))
        elif name == "failing":
            with pytest.raises(KernelError):
                self.service.attach(self.request(name))
        else:
            self.service.attach(self.request(name))
            self.attached.add(name)

    @rule(name=names, other=names)
    def attach_to_another_pod(self, name: str, other: str) -> None:
        if name != other:
            with pytest.raises(Refused):
                attach_with_retries(self.service, self.node.request(name, self.sandboxes[other].path, pod=other))

    @rule(name=names)
    def new_sandbox(self, name: str) -> None:
        """The old sandbox ends, and only a pin keeps its namespace. The new sandbox has no devices yet."""
        self.sandboxes[name].end()
        self.sandboxes[name] = Sandbox()

    @rule(name=names)
    def unprepare(self, name: str) -> None:
        self.service.unprepare(self.node.claims[name])
        self.prepared.discard(name)
        self.attached.discard(name)

    @rule()
    def unprepare_unknown(self) -> None:
        self.service.unprepare(UNKNOWN)

    @rule()
    def restart(self) -> None:
        self.service = self.node.service()
        assert self.service.reconcile()

    @rule(
        name=names, operation=st.sampled_from(["prepare", "attach", "unprepare", "reconcile"]), step=st.integers(0, 150)
    )
    def kill(self, name: str, operation: str, step: int) -> None:
        """The driver is killed in an operation, and started again. Then kubelet repeats unprepare."""
        claim = self.node.claims[name]

        def run_operation() -> None:
            try:
                if operation == "prepare":
                    self.service.prepare(claim)
                elif operation == "attach":
                    self.service.attach(self.request(name))
                elif operation == "unprepare":
                    self.service.unprepare(claim)
                else:
                    self.service.reconcile()
            except DriverError:
                pass

        killed_at(step, run_operation)
        self.restart()
        record = self.service.store.load(claim.uid)
        self.prepared.discard(name)
        self.attached.discard(name)
        if record:
            # wherever the driver was killed, the claim is now prepared or completely attached
            assert record.phase in (PREPARED, ATTACHED)
            self.prepared.add(name)
            if record.phase == ATTACHED:
                self.attached.add(name)
        if operation == "unprepare":
            self.unprepare(name)

    @invariant()
    def interfaces_of_attached_claims_are_away_and_the_rest_is_unchanged(self) -> None:
        now, before = host_state(), copy.deepcopy(self.before)
        if "child" in self.attached:
            before["links"][WIRES[3]]["promiscuity"] = 1  # set by the kernel, as the macvlan has another address
        away = {wire for name in self.attached if name != "child" for wire in self.DEVICES[name]}
        for wire in WIRES:
            if wire in away:
                assert wire not in now["links"], wire
            else:
                assert now["links"].get(wire) == before["links"][wire], wire
        if not away:
            assert differences(before, now) == []

    @invariant()
    def pods_have_the_devices_of_attached_claims(self) -> None:
        for name, sandbox in self.sandboxes.items():
            record = self.service.store.load(self.node.claims[name].uid)
            assert (record is not None) == (name in self.prepared), name
            if record:
                assert record.phase == (ATTACHED if name in self.attached else PREPARED), name
            expected = {"lo"}
            if name in self.attached and record and record.netns and record.netns[1] == sandbox.inode():
                expected |= set(self.DEVICES[name].values())
            assert set(sandbox.links()) == expected, name

    @invariant()
    def each_claim_has_its_files(self) -> None:
        paths = self.node.paths
        files = self.node.files()
        uids = {name: self.node.claims[name].uid for name in self.NAMES}
        for name, uid in uids.items():
            assert paths.cdi_spec(uid).exists() == (name in self.prepared)
            assert (paths.metadata_dir / uid).exists() == (name in self.prepared)
            assert paths.pin(uid).exists() == (name in self.attached)
        known = {uids[name] for name in self.prepared}
        for file in files:
            if "/locks/" not in file and not file.endswith(".unfinished"):
                assert any(uid in file for uid in known), file

    def teardown(self) -> None:
        for name in self.NAMES:
            self.service.unprepare(self.node.claims[name])
        for sandbox in self.sandboxes.values():
            sandbox.end()
        for path in map(Path, self.node.files()):
            if "/locks/" in str(path) or path.name.endswith(".unfinished"):  # left by killed drivers
                path.unlink()
        assert self.node.files() == []
        assert differences(self.before, host_state()) == []


def test_operations_in_any_order_keep_node_and_pods_consistent(node: ClaimsNode) -> None:
    ClaimMachine.node = node
    ClaimMachine.before = host_state()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        ClaimMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("operation", ["prepare", "attach", "sandbox", "unprepare"])
def test_after_a_kill_at_any_step_the_next_driver_finishes_or_undoes_the_operation(
    node: ClaimsNode, operation: str
) -> None:
    """The driver is killed at every LANEWISE_KILL_STRIDEth change of the operation. `sandbox` is the attach to a new
    sandbox after the old one has ended."""
    stride = int(os.environ.get("LANEWISE_KILL_STRIDE", "250"))
    before = host_state()
    claim = node.claims["two"]
    phases = set()
    step = 0
    killed = True
    while killed:
        service = node.service()
        sandbox, old = Sandbox(), Sandbox()
        if operation != "prepare":
            service.prepare(claim)
        if operation == "sandbox":
            service.attach(node.request("two", old.path))
            old.end()
        elif operation == "unprepare":
            service.attach(node.request("two", sandbox.path))
        run_operation = partial(service.attach, node.request("two", sandbox.path))
        if operation in ("prepare", "unprepare"):
            run_operation = partial(getattr(service, operation), claim)
        killed = killed_at(step, run_operation)
        step += stride
        next_service = node.service()
        assert next_service.reconcile()
        record = next_service.store.load(claim.uid)
        phases.add(record.phase if record else "")
        if operation in ("attach", "sandbox"):
            next_service.attach(node.request("two", sandbox.path))
            assert set(sandbox.links()) == {"lo", WIRES[1], "rail1"}
        elif operation == "prepare":
            assert next_service.prepare(claim)
        next_service.unprepare(claim)
        assert differences(before, host_state()) == [], step
        left = [file for file in node.files() if "/locks/" not in file and not file.endswith(".unfinished")]
        assert left == [], step
        sandbox.end()
        old.end()
        for path in map(Path, node.files()):
            path.unlink()
    print(f"{operation} killed at {step // stride} of {step} steps; phases afterwards: {sorted(phases)}")
    assert len(phases) > 1
