# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver is killed many times, at every known step and at random moments of prepare, attach, detach, unprepare and
recovery. After each restart, every device is in the namespace that its record names, with its original or its requested
settings. After each pod nothing is left on the node, and the next pod gets the devices.

LANEWISE_KILLS is the number of kills in the long test (150 by default, 1,000 with LANEWISE_SLOW=1). LANEWISE_SEED is
the seed of its random choices. With LANEWISE_PART, such as 3/10, only that part of all these kills runs.
"""

from __future__ import annotations

import os
import random
import signal
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox
from ansible_collections.lanewise.dra.tests.driver.killed_node import (
    RAIL_ADDRESS,
    UIDS,
    DriverKilled,
    Node,
    killed_after,
    moments,
    settled_pod_view,
)
from lanewise_driver.claims.records import ATTACHED

KILLS = int(os.environ.get("LANEWISE_KILLS", "1000" if os.environ.get("LANEWISE_SLOW") else "150"))
SEED = int(os.environ.get("LANEWISE_SEED", "7"))
PART, PARTS = map(int, os.environ.get("LANEWISE_PART", "1/1").split("/"))
#: The number of kills in the quick test.
SAMPLE = 16
#: The operations in which a driver is killed. `start` is a start after a kill in attach, and `recovery` is the detach
#: that such a start begins.
OPERATIONS = ("prepare", "attach", "detach", "unprepare", "start", "recovery")


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> t.Iterator[Node]:
    started = Node(Path("/run/node"))
    yield started
    started.close()


@pytest.mark.namespaces
def test_the_driver_recovers_from_a_sample_of_kills(node: Node) -> None:
    KillRun(node).kill(SAMPLE, 1, 1)


@pytest.mark.namespaces
@pytest.mark.long
def test_the_driver_recovers_from_all_kills(node: Node) -> None:
    KillRun(node).kill(KILLS, PART, PARTS)


class KillRun:
    """Runs pods one after the other, and usually kills the driver once during each."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.generator = random.Random(SEED)
        self.kills = 0
        #: Characters of the driver's log that were already checked.
        self.checked_log = 0
        #: Changes that each operation makes, and seconds that each takes.
        self.changes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def kill(self, number: int, part: int, parts: int) -> None:
        start = time.monotonic()
        self.measure()
        counts: dict[str, int] = dict.fromkeys(OPERATIONS, 0)
        chosen = moments(number, self.changes, self.generator)
        self.generator.shuffle(chosen)
        chosen = chosen[part - 1 :: parts]
        for pod_number, (operation, step) in enumerate(chosen):
            before = self.kills
            try:
                self.run_pod(operation, step, pod_number)
            except BaseException:
                print(f"pod {pod_number}: {operation}, step {step}\n{self.node.driver.log()[-6000:]}")
                raise
            counts[operation] += self.kills - before
        self.check_unfinished_files_are_removed()
        print(f"{self.changes}; killed {self.kills} times in {time.monotonic() - start:.0f} s: {counts}")
        assert self.kills >= len(chosen) * 0.8 and (parts > 1 or all(counts.values()))

    def measure(self) -> None:
        """Run pods without kills, to measure each operation and to record what a pod shows."""
        node = self.node
        for measured in ("prepare", "attach", "detach", "unprepare"):
            sandbox = Sandbox()
            node.driver.arm(f"{measured} 1000000")
            for operation, act in (
                ("prepare", node.prepare),
                ("attach", lambda sandbox=sandbox: self.attach(sandbox, True)),
                ("unprepare", node.unprepare),
            ):
                start = time.monotonic()
                act()
                self.seconds[operation] = time.monotonic() - start
                if operation == "attach":
                    shown = settled_pod_view(sandbox)
                    node.pod_view = node.pod_view or shown
                    assert {"net1", "rail1", "mac0"} < set(shown) and node.differences_from_records(sandbox) == []
                    assert node.held_addresses() == {RAIL_ADDRESS: UIDS["child"]}
                    assert all(shown[name]["rules -4"] for name in ("net1", "mac0"))
            self.check_nothing_is_left(sandbox)
            sandbox.end()
            self.changes[measured] = self.max_changes(measured)
        node.driver.stop()
        start = time.monotonic()
        assert node.start("start 1000000")
        self.seconds["start"] = self.seconds["recovery"] = time.monotonic() - start
        node.driver.stop()
        self.changes["start"], self.changes["recovery"] = self.max_changes("start"), self.changes["detach"]
        self.seconds["detach"] = self.seconds["unprepare"]
        assert node.start()

    def max_changes(self, operation: str) -> int:
        """The largest number of changes that an operation has made for a claim, from the log of the driver."""
        lines = [line.split() for line in self.node.driver.log().splitlines()]
        return max(int(words[2]) for words in lines if words[:2] == [operation, "made"])

    def run_pod(self, operation: str, step: int, pod_number: int) -> None:
        """Run a pod, and kill the driver in ``operation``. Depending on the number of the pod, its hooks wait for the
        next driver (``patient``), the pod is deleted after a kill (``abandoned``), or its sandbox ends before unprepare
        (``ended``)."""
        node, sandbox = self.node, Sandbox()
        patient, abandoned, ended = pod_number % 2 == 0, pod_number % 4 == 1, pod_number % 3 == 0
        not_killed = self.act_with_kill("prepare", operation, step, node.prepare, sandbox)
        if not_killed or not abandoned:
            if operation in ("start", "recovery"):
                not_killed = self.killed_in_recovery(operation, step, sandbox)
            else:
                not_killed = self.act_with_kill(
                    "attach", operation, step, lambda: self.attach(sandbox, patient), sandbox
                )
            if not_killed or not abandoned:
                self.act_with_restart(lambda: self.attach(sandbox, True), sandbox)
                assert node.differences_from_records(sandbox) == []
                assert all(record.phase == ATTACHED for record in node.records().values())
        if ended:
            sandbox.end()
        self.act_with_kill("unprepare", operation, step, node.unprepare, sandbox, ended)
        self.check_nothing_is_left(sandbox, ended)
        if not ended:
            sandbox.end()

    def check_nothing_is_left(self, sandbox: Sandbox, ended: bool = False) -> None:
        """Check that nothing is left on the node, in the pod or in the status of claims."""
        end = time.monotonic() + 20
        while (leftovers := self.node.leftovers(sandbox, ended)) and time.monotonic() < end:
            time.sleep(0.01)
        assert leftovers == []

    def act_with_kill(
        self,
        name: str,
        operation: str,
        step: int,
        act: t.Callable[[], object],
        sandbox: Sandbox,
        ended: bool = False,
    ) -> bool:
        """Call ``act``, and kill the driver in it if it is ``operation`` (detach is part of unprepare). Then check the
        node against the records, and call ``act`` again. Returns whether the driver was not killed."""
        if operation != name and (operation, name) != ("detach", "unprepare"):
            self.act_with_restart(act, sandbox, ended)
            return True
        after = self.generator.uniform(0, 1.2 * self.seconds[operation]) if step < 0 else -1
        self.node.driver.arm(f"{operation} {step}" if step >= 0 else "")
        before = self.kills
        with killed_after(self.node.driver, after):
            try:
                act()
            except DriverKilled:
                pass
        self.node.driver.arm("")
        if not self.node.driver.running():
            self.restart(sandbox, ended)
        self.act_with_restart(act, sandbox, ended)
        return self.kills == before

    def act_with_restart(self, act: t.Callable[[], object], sandbox: Sandbox, ended: bool = False) -> None:
        """Call ``act``. If an earlier kill takes effect in it, restart the driver and call it again."""
        try:
            act()
        except DriverKilled:
            self.restart(sandbox, ended)
            act()

    def killed_in_recovery(self, operation: str, step: int, sandbox: Sandbox) -> bool:
        """Kill the driver in attach, and kill the next driver while it starts or detaches. Returns whether attach ended
        before it could be killed."""
        node = self.node
        node.driver.arm(f"attach {self.generator.randrange(self.changes['attach'] // 4, self.changes['attach'])}")
        try:
            self.attach(sandbox, False)
        except DriverKilled:
            self.count_kill()
            name = "detach" if operation == "recovery" else "start"
            after = self.generator.uniform(0, 1.2 * self.seconds[operation]) if step < 0 else -1
            if node.start(f"{name} {step}" if step >= 0 else "", after):
                assert node.differences_from_records(sandbox) == []
            else:
                self.count_kill()
                self.restart(sandbox)
            node.driver.arm("")
            return False
        node.driver.arm("")
        return True

    def attach(self, sandbox: Sandbox, patient: bool) -> None:
        """Run the hooks of a container, one after the other as runtimes do. If the driver is killed, a ``patient`` hook
        waits for the next driver; another hook is killed too, and DriverKilled is raised."""
        for name in UIDS:
            hook = self.node.start_hook(name, sandbox)
            while hook.poll() is None:
                if not self.node.driver.running():
                    if not patient:
                        os.killpg(hook.pid, signal.SIGKILL)
                        hook.communicate()
                        raise DriverKilled
                    self.count_kill()
                    assert self.node.start()
                time.sleep(0.002)
            errors = hook.communicate()[1]
            assert hook.returncode == 0, errors

    def count_kill(self) -> None:
        assert self.node.driver.status() == -signal.SIGKILL
        self.kills += 1

    def restart(self, sandbox: Sandbox, ended: bool = False) -> None:
        """Start the driver after a kill, and check the node against the records."""
        self.count_kill()
        assert self.node.start()
        assert self.node.differences_from_records(sandbox, ended) == []
        log = self.node.driver.log()
        assert "Traceback" not in log[self.checked_log :], log[self.checked_log :]
        self.checked_log = len(log)

    def check_unfinished_files_are_removed(self) -> None:
        node = self.node
        found = len(node.unfinished())
        node.age_unfinished()
        node.driver.stop()
        assert node.start()
        print(f"{found} unfinished files of killed writers were removed")
        assert node.unfinished() == []
