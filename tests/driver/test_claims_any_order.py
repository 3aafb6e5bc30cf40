# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims in any order, many at a time, and with the driver killed at any step: the node gets everything back."""

from __future__ import annotations

import copy
import os
import threading
import time
import typing as t
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.answers import attach
from ansible_collections.lanewise.dra.tests.driver.claims_world import WIRES, Sandbox, World, differences, host_state
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


def test_two_drivers_handle_many_claims_at_a_time(clean: World) -> None:
    """Threads of two drivers over one folder do everything with all claims; they fail only for unprepared claims."""
    services = [clean.service(), clean.service()]
    sandboxes = {name: Sandbox() for name in ("one", "two", "child")}
    failures: list[BaseException] = []
    end = time.monotonic() + 8

    def churn(number: int) -> None:
        service = services[number % 2]
        name = ("one", "two", "child")[number % 3]
        try:
            while time.monotonic() < end:
                try:
                    service.prepare(clean.claims[name])
                    service.attach(clean.request(name, sandboxes[name].path))
                    service.reconcile()
                except Refused as error:
                    assert "not prepared" in error.message
                service.unprepare(clean.claims[name])
        except BaseException as error:  # noqa: BLE001  # shown by the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for sandbox in sandboxes.values():
        sandbox.end()


# any order, and kill -9 at any step


class ClaimMachine(RuleBasedStateMachine):
    """Claims, pods and the driver act in any order, and a model predicts the visible state."""

    world: t.ClassVar[World]
    before: t.ClassVar[dict[str, t.Any]]
    NAMES = ("one", "two", "child", "impossible", "failing")
    DEVICES: t.ClassVar[dict[str, dict[str, str]]] = {
        "one": {WIRES[0]: "net1"},
        "two": {WIRES[1]: WIRES[1], WIRES[2]: "rail1"},
        "child": {WIRES[3]: "mac0"},
        "impossible": {},
        "failing": {},
    }

    def __init__(self) -> None:
        super().__init__()
        self.service = self.world.service()
        self.prepared: set[str] = set()
        self.attached: set[str] = set()
        self.sandboxes: dict[str, Sandbox] = {}

    @initialize()
    def start(self) -> None:
        self.sandboxes = {name: Sandbox() for name in self.NAMES}

    names = st.sampled_from(NAMES)

    def request(self, name: str) -> AttachRequest:
        return self.world.request(name, self.sandboxes[name].path)

    @rule(name=names)
    def prepare(self, name: str) -> None:
        if name == "impossible":
            with pytest.raises(Refused, match="no-such-feature"):
                self.service.prepare(self.world.claims[name])
        else:
            assert self.service.prepare(self.world.claims[name])
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
    def attach_of_another_pod(self, name: str, other: str) -> None:
        if name != other:
            with pytest.raises(Refused):
                attach(self.service, self.world.request(name, self.sandboxes[other].path, pod=other))

    @rule(name=names)
    def new_sandbox(self, name: str) -> None:
        """The old sandbox ends, and only a pin keeps its namespace. No hook has run for the new one."""
        self.sandboxes[name].end()
        self.sandboxes[name] = Sandbox()

    @rule(name=names)
    def unprepare(self, name: str) -> None:
        self.service.unprepare(self.world.claims[name])
        self.prepared.discard(name)
        self.attached.discard(name)

    @rule()
    def unprepare_unknown(self) -> None:
        self.service.unprepare(UNKNOWN)

    @rule()
    def restart(self) -> None:
        self.service = self.world.service()
        assert self.service.reconcile()

    @rule(name=names, act=st.sampled_from(["prepare", "attach", "unprepare", "reconcile"]), step=st.integers(0, 150))
    def killed(self, name: str, act: str, step: int) -> None:
        """The driver dies somewhere in an operation and starts again. Then kubelet or the hook repeats the call."""
        claim = self.world.claims[name]

        def operate() -> None:
            try:
                if act == "prepare":
                    self.service.prepare(claim)
                elif act == "attach":
                    self.service.attach(self.request(name))
                elif act == "unprepare":
                    self.service.unprepare(claim)
                else:
                    self.service.reconcile()
            except DriverError:
                pass

        killed_at(step, operate)
        self.restart()
        record = self.service.store.load(claim.uid)
        self.prepared.discard(name)
        self.attached.discard(name)
        if record:
            # however far the call came, the claim is prepared or completely attached
            assert record.phase in (PREPARED, ATTACHED)
            self.prepared.add(name)
            if record.phase == ATTACHED:
                self.attached.add(name)
        if act == "unprepare":
            self.unprepare(name)

    @invariant()
    def the_node_has_what_it_had(self) -> None:
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
    def pods_have_their_devices(self) -> None:
        for name, sandbox in self.sandboxes.items():
            record = self.service.store.load(self.world.claims[name].uid)
            assert (record is not None) == (name in self.prepared), name
            if record:
                assert record.phase == (ATTACHED if name in self.attached else PREPARED), name
            wanted = {"lo"}
            if name in self.attached and record and record.netns and record.netns[1] == sandbox.inode():
                wanted |= set(self.DEVICES[name].values())
            assert set(sandbox.links()) == wanted, name

    @invariant()
    def files_are_those_of_claims(self) -> None:
        paths = self.world.paths
        files = self.world.files()
        uids = {name: self.world.claims[name].uid for name in self.NAMES}
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
            self.service.unprepare(self.world.claims[name])
        for sandbox in self.sandboxes.values():
            sandbox.end()
        for path in map(Path, self.world.files()):
            if "/locks/" in str(path) or path.name.endswith(".unfinished"):  # of drivers that were killed
                path.unlink()
        assert self.world.files() == []
        assert differences(self.before, host_state()) == []


def test_operations_in_any_order_leave_the_node_as_it_was(clean: World) -> None:
    ClaimMachine.world = clean
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


@pytest.mark.parametrize("act", ["prepare", "attach", "sandbox", "unprepare"])
def test_after_a_kill_at_any_step_the_next_driver_finishes_or_undoes_the_operation(clean: World, act: str) -> None:
    """The driver is killed at changes all over the operation, and the next driver finishes or undoes the operation."""
    stride = int(os.environ.get("LANEWISE_KILL_STRIDE", "250"))
    before = host_state()
    claim = clean.claims["two"]
    ends = set()
    step = 0
    killed = True
    while killed:
        service = clean.service()
        sandbox, old = Sandbox(), Sandbox()
        if act != "prepare":
            service.prepare(claim)
        if act == "sandbox":
            service.attach(clean.request("two", old.path))
            old.end()
        elif act == "unprepare":
            service.attach(clean.request("two", sandbox.path))
        operate = partial(service.attach, clean.request("two", sandbox.path))
        if act in ("prepare", "unprepare"):
            operate = partial(getattr(service, act), claim)
        killed = killed_at(step, operate)
        step += stride
        again = clean.service()
        assert again.reconcile()
        record = again.store.load(claim.uid)
        ends.add(record.phase if record else "")
        if act in ("attach", "sandbox"):
            again.attach(clean.request("two", sandbox.path))
            assert set(sandbox.links()) == {"lo", WIRES[1], "rail1"}
        elif act == "prepare":
            assert again.prepare(claim)
        again.unprepare(claim)
        assert differences(before, host_state()) == [], step
        left = [file for file in clean.files() if "/locks/" not in file and not file.endswith(".unfinished")]
        assert left == [], step
        sandbox.end()
        old.end()
        for path in map(Path, clean.files()):
            path.unlink()
    print(act, "killed at", step // stride, "steps of", step, "; found afterwards:", sorted(ends))
    assert len(ends) > 1
