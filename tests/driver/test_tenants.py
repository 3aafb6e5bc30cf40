# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a tenant changes on its interface, neither the next tenant nor the node has the changed setting.

The settings to change come from the netlink specifications of the kernel and from its files, not from a fixed list.
The stress test runs only with `LANEWISE_SLOW=1`. `LANEWISE_TENANTS` is its number of tenants, 1,000 by default, and
`LANEWISE_SEED` the seed of its random choices.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import tenant
from ansible_collections.lanewise.dra.tests.driver.nodes import (
    ONE,
    Pod,
    on_a_node,
    pair,
    run,
    wait_for_ipv6,
    without_dad,
)
from ansible_collections.lanewise.dra.tools import lab
from environment import Missing  # importing tools/lab.py adds its folder to sys.path
from lanewise_driver.interface import interfaces, take_back
from lanewise_driver.interface.host_state import HostState

#: How many changes each tenant makes in the test of all settings.
BATCH_SIZE = 40


@pytest.fixture(scope="module", name="specs")
def _specs() -> Path:
    try:
        return lab.specifications()
    except (Missing, lab.StepFailed) as reason:
        pytest.skip(str(reason).splitlines()[0])


def make_interface() -> HostState:
    """Create the node's interface `one`. Returns its state."""
    without_dad()
    pair("one")
    run("ip addr add 10.1.0.2/24 dev one; ip link set one alias 'rail 1'")
    wait_for_ipv6()
    return interfaces.snapshot(ONE)


class Tenants:
    """Tenants that have the interface `one` in turn, and what a tenant sees of it without changes (`expected`)."""

    def __init__(self, specs: Path) -> None:
        self.specs = specs
        self.host = make_interface()
        with Pod("first") as pod:
            interfaces.attach(ONE, self.host, {}, pod.pin)
            self.expected = tenant.view(pod, "one", specs)
            self.changes = tenant.changes(pod, "one", specs)
            assert interfaces.detach(ONE, self.host, pod.pin, {}) == []

    def run(
        self, name: str, batch: list[tenant.Change], generator: random.Random | None = None
    ) -> tuple[int, list[str]]:
        """Run a tenant that makes these changes and, with a generator, also attaches random BPF programs. Returns how
        many changes the kernel accepted, and what then differs on the node and for the next tenant."""
        with Pod(name) as pod, Pod(f"{name}-next") as follower:
            interfaces.attach(ONE, self.host, {}, pod.pin)
            accepted = sum(change.run(pod) for change in batch)
            descriptors = tenant.attach_programs(pod, "one", generator) if generator else []
            outcome = take_back.take_back(ONE, self.host, pod.pin, {})
            wrong = [reason.text for reason in outcome.reasons] + outcome.notes
            before, after = self.host, interfaces.snapshot(ONE)
            wrong += [f"{key} is {after[key]}, was {before[key]}" for key in before if after[key] != before[key]]
            interfaces.attach(ONE, self.host, {}, follower.pin)
            seen, expected = tenant.view(follower, "one", self.specs), self.expected
            wrong += [
                f"the next tenant sees {key} {seen.get(key)}, not {expected.get(key)}"
                for key in sorted({*seen, *expected})
                if seen.get(key) != expected.get(key)
            ]
            wrong += interfaces.detach(ONE, self.host, follower.pin, {})
            for descriptor in descriptors:
                os.close(descriptor)
        return accepted, wrong


@on_a_node
def test_no_setting_of_the_kernel_reaches_the_next_tenant(specs: Path) -> None:
    """Tries all attributes of all messages about a link, in batches. A failure names its batch."""
    tenants = Tenants(specs)
    changes, differences, total_accepted = tenants.changes, [], 0
    batches = [changes[start : start + BATCH_SIZE] for start in range(0, len(changes), BATCH_SIZE)]
    for number, batch in enumerate(batches):
        accepted, wrong = tenants.run(f"pod{number}", batch)
        total_accepted += accepted
        if wrong:
            differences.append(f"{wrong}: caused by one of {[change.name for change in batch]}")
    assert not differences, "\n".join(differences)
    assert total_accepted > 150, f"the kernel accepted only {total_accepted} of {len(changes)} changes"
    print(f"{len(changes)} changes tried, {total_accepted} accepted")


@pytest.mark.skipif(not os.environ.get("LANEWISE_SLOW"), reason="takes minutes: set LANEWISE_SLOW=1 to run it")
@on_a_node
def test_changes_of_a_thousand_tenants_do_not_reach_the_next_tenants(specs: Path) -> None:
    tenants = Tenants(specs)
    generator = random.Random(int(os.environ.get("LANEWISE_SEED", "19")))
    start, total_accepted, differences = time.monotonic(), 0, []
    count = int(os.environ.get("LANEWISE_TENANTS", "1000"))
    for number in range(count):
        batch = generator.sample(tenants.changes, generator.randint(1, 25))
        accepted, wrong = tenants.run(f"pod{number}", batch, generator)
        total_accepted += accepted
        if wrong:
            differences.append(f"pod {number}: {wrong} after {[change.name for change in batch]}")
    seconds = time.monotonic() - start
    print(f"{count} tenants, {total_accepted} changes accepted, {len(differences)} with differences, {seconds:.0f} s")
    assert not differences, "\n".join(differences)
