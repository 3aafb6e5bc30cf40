# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""SIGKILL for the driver, again and again, at every known step and at any moment of prepare, attach, detach, unprepare
and recovery. After each restart, every device is where the record says, as it was or as it was asked for; at the end of
each pod nothing is left, and the next one gets its devices.

LANEWISE_KILLS is how often the long test kills (150 times by default, 1,000 with LANEWISE_SLOW=1), LANEWISE_SEED the
seed of its random choices, and LANEWISE_PART, such as 3/10, the part of all these kills that it does.
"""

from __future__ import annotations

import os
import random
import signal
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox
from ansible_collections.lanewise.dra.tests.driver.killed_node import (
    RAIL_ADDRESS,
    UIDS,
    Gone,
    Node,
    killed_after,
    moments,
    whole_pod_view,
)
from lanewise_driver.claims.records import ATTACHED

KILLS = int(os.environ.get("LANEWISE_KILLS", "1000" if os.environ.get("LANEWISE_SLOW") else "150"))
SEED = int(os.environ.get("LANEWISE_SEED", "7"))
PART, PARTS = map(int, os.environ.get("LANEWISE_PART", "1/1").split("/"))
SAMPLE = 16
#: The operations in which a driver is killed. A start finds an attach that was killed; recovery is the detach with
#: which it answers.
OPERATIONS = ("prepare", "attach", "detach", "unprepare", "start", "recovery")


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> t.Iterator[Node]:
    made = Node(Path("/run/node"))
    yield made
    made.close()


@pytest.mark.namespaces
def test_a_sample_of_kills(node: Node) -> None:
    Killing(node).kill(SAMPLE, 1, 1)


@pytest.mark.namespaces
@pytest.mark.long
def test_all_kills(node: Node) -> None:
    Killing(node).kill(KILLS, PART, PARTS)


class Killing:
    """Pods come and go, and the driver is killed once for each."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.dice = random.Random(SEED)
        self.killed = 0
        self.read = 0
        #: Changes that each operation makes, and seconds that each takes.
        self.changes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def kill(self, number: int, part: int, parts: int) -> None:
        start = time.monotonic()
        self.measure()
        counts: dict[str, int] = dict.fromkeys(OPERATIONS, 0)
        chosen = moments(number, self.changes, self.dice)
        self.dice.shuffle(chosen)
        own = chosen[part - 1 :: parts]
        for place, (operation, step) in enumerate(own):
            killed = self.killed
            try:
                self.one_pod(operation, step, place)
            except BaseException:
                print(f"pod {place}: {operation}, step {step}\n{self.node.driver.log()[-6000:]}")
                raise
            counts[operation] += self.killed - killed
        self.drafts_are_swept()
        print(f"{self.changes}; killed {self.killed} times in {time.monotonic() - start:.0f} s: {counts}")
        assert self.killed >= len(own) * 0.8 and (parts > 1 or all(counts.values()))

    def measure(self) -> None:
        """Undisturbed pods: how many changes each operation makes, and what a pod shows then."""
        node = self.node
        for counted in ("prepare", "attach", "detach", "unprepare"):
            sandbox = Sandbox()
            node.driver.arm(f"{counted} 1000000")
            for operation, act in (
                ("prepare", node.prepare),
                ("attach", lambda sandbox=sandbox: self.attach(sandbox, True)),
                ("unprepare", node.unprepare),
            ):
                start = time.monotonic()
                act()
                self.seconds[operation] = time.monotonic() - start
                if operation == "attach":
                    shown = whole_pod_view(sandbox)
                    node.pod_view = node.pod_view or shown
                    assert {"net1", "rail1", "mac0"} < set(shown) and node.is_as_recorded(sandbox) == []
                    assert node.held_addresses() == {RAIL_ADDRESS: UIDS["child"]}
                    assert all(shown[name]["rules -4"] for name in ("net1", "mac0"))
            self.settled(sandbox)
            sandbox.end()
            self.changes[counted] = self.made(counted)
        node.driver.stop()
        start = time.monotonic()
        assert node.start("start 1000000")
        self.seconds["start"] = self.seconds["recovery"] = time.monotonic() - start
        node.driver.stop()
        self.changes["start"], self.changes["recovery"] = self.made("start"), self.changes["detach"]
        self.seconds["detach"] = self.seconds["unprepare"]
        assert node.start()

    def made(self, operation: str) -> int:
        """The most changes that an operation has made for a claim, by the driver's log."""
        lines = [line.split() for line in self.node.driver.log().splitlines()]
        return max(int(words[2]) for words in lines if words[:2] == [operation, "made"])

    def one_pod(self, operation: str, step: int, place: int) -> None:
        """The life of a pod, in which the driver is killed in ``operation``. By its number, its container waits for
        the driver or is made again, the pod ends before it has started, or its sandbox before unprepare."""
        node, sandbox = self.node, Sandbox()
        patient, abandoned, ended = place % 2 == 0, place % 4 == 1, place % 3 == 0
        whole = self.disturbed("prepare", operation, step, node.prepare, sandbox)
        if whole or not abandoned:
            if operation in ("start", "recovery"):
                whole = self.killed_in_recovery(operation, step, sandbox)
            else:
                whole = self.disturbed("attach", operation, step, lambda: self.attach(sandbox, patient), sandbox)
            if whole or not abandoned:
                self.again(lambda: self.attach(sandbox, True), sandbox)
                assert node.is_as_recorded(sandbox) == []
                assert all(record.phase == ATTACHED for record in node.records().values())
        if ended:
            sandbox.end()
        self.disturbed("unprepare", operation, step, node.unprepare, sandbox, ended)
        self.settled(sandbox, ended)
        if not ended:
            sandbox.end()

    def settled(self, sandbox: Sandbox, ended: bool = False) -> None:
        """Nothing is left, on the node, in the pod or in the claims' status."""
        end = time.monotonic() + 20
        while (left := self.node.leftovers(sandbox, ended)) and time.monotonic() < end:
            time.sleep(0.01)
        assert left == []

    def disturbed(
        self,
        name: str,
        operation: str,
        step: int,
        act: t.Callable[[], object],
        sandbox: Sandbox,
        ended: bool = False,
    ) -> bool:
        """Act, and kill the driver in it where this is the operation, or detach, which is part of two. Then all is
        as recorded, and the act is done again. Returns whether the driver lived."""
        if operation != name and (operation, name) != ("detach", "unprepare"):
            self.again(act, sandbox, ended)
            return True
        after = self.dice.uniform(0, 1.2 * self.seconds[operation]) if step < 0 else -1
        self.node.driver.arm(f"{operation} {step}" if step >= 0 else "")
        killed = self.killed
        with killed_after(self.node.driver, after):
            try:
                act()
            except Gone:
                pass
        self.node.driver.arm("")
        if not self.node.driver.running():
            self.revive(sandbox, ended)
        self.again(act, sandbox, ended)
        return self.killed == killed

    def again(self, act: t.Callable[[], object], sandbox: Sandbox, ended: bool = False) -> None:
        try:
            act()
        except Gone:
            self.revive(sandbox, ended)
            act()

    def killed_in_recovery(self, operation: str, step: int, sandbox: Sandbox) -> bool:
        """Kill the driver in attach, and what takes that back at the next start, too."""
        node = self.node
        node.driver.arm(f"attach {self.dice.randrange(self.changes['attach'] // 4, self.changes['attach'])}")
        try:
            self.attach(sandbox, False)
        except Gone:
            self.count()
            name = "detach" if operation == "recovery" else "start"
            after = self.dice.uniform(0, 1.2 * self.seconds[operation]) if step < 0 else -1
            if node.start(f"{name} {step}" if step >= 0 else "", after):
                assert node.is_as_recorded(sandbox) == []
            else:
                self.count()
                self.revive(sandbox)
            node.driver.arm("")
            return False
        node.driver.arm("")
        return True

    def attach(self, sandbox: Sandbox, patient: bool) -> None:
        """Run a container's hooks, one after the other as runtimes do. Where the driver is killed, a ``patient``
        one waits for the next driver; else it is killed, too, and Gone is raised."""
        for name in UIDS:
            hook = self.node.start_hook(name, sandbox)
            while hook.poll() is None:
                if not self.node.driver.running():
                    if not patient:
                        os.killpg(hook.pid, signal.SIGKILL)
                        hook.communicate()
                        raise Gone
                    self.count()
                    assert self.node.start()
                time.sleep(0.002)
            reported = hook.communicate()[1]
            assert hook.returncode == 0, reported

    def count(self) -> None:
        assert self.node.driver.status() == -signal.SIGKILL
        self.killed += 1

    def revive(self, sandbox: Sandbox, ended: bool = False) -> None:
        """Start the driver that was killed; all is as the records say then."""
        self.count()
        assert self.node.start()
        assert self.node.is_as_recorded(sandbox, ended) == []
        reported = self.node.driver.log()
        assert "Traceback" not in reported[self.read :], reported[self.read :]
        self.read = len(reported)

    def drafts_are_swept(self) -> None:
        node = self.node
        found = len(node.drafts())
        node.age_drafts()
        node.driver.stop()
        assert node.start()
        print(f"{found} drafts of killed writers are swept")
        assert node.drafts() == []
