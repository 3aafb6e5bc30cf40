# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a tenant changes on its interface, neither the next tenant nor the node sees it.

The settings come from the netlink specifications of the kernel and from its files, not from a fixed list.
`LANEWISE_TENANTS` is the number of tenants in the stress test, 1,000 by default, and `LANEWISE_SEED` the seed of its
random choices. It runs only with `LANEWISE_SLOW=1`.
"""

from __future__ import annotations

import os
import random
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import tenant
from ansible_collections.lanewise.dra.tests.driver.nodes import Pod, on_a_node, pair, run, wait_for_ipv6, without_dad
from ansible_collections.lanewise.dra.tools import lab
from environment import Missing  # importing tools/lab.py adds its folder to sys.path
from lanewise_driver.interface import interfaces, take_back
from lanewise_driver.interface.interfaces import Identity

ONE = Identity(None, None, "one")
#: How many changes one tenant makes, so that a few tenants cover all of them.
AT_ONCE = 40


@pytest.fixture(scope="module", name="specs")
def _specs() -> Path:
    try:
        return lab.specifications()
    except (Missing, lab.StepFailed) as reason:
        pytest.skip(str(reason).splitlines()[0])


def node() -> dict[str, t.Any]:
    without_dad()
    pair("one")
    run("ip addr add 10.1.0.2/24 dev one; ip link set one alias 'rail 1'")
    wait_for_ipv6()
    return interfaces.snapshot(ONE)


def changes_to_try(pod: Pod, specs: Path) -> list[tenant.Change]:
    return tenant.changes(pod, "one", specs)


@on_a_node
def test_no_setting_of_the_kernel_reaches_the_next_tenant(specs: Path) -> None:
    """Tries all attributes of all messages about a link, in batches. A failure names its batch."""
    host = node()
    before, expected = interfaces.snapshot(ONE), {}
    with Pod("first") as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        expected = tenant.view(pod, "one", specs)
        every = changes_to_try(pod, specs)
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
    left, taken = [], 0
    pending = [every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE)]
    for number, batch in enumerate(pending):
        accepted, wrong = one_tenant(f"pod{number}", host, batch, before, expected, specs)
        taken += accepted
        if wrong:
            left += [f"{wrong}: caused by one of {[change.name for change in batch]}"]
    assert not left, "\n".join(left)
    assert taken > 150, f"the kernel accepted only {taken} of {len(every)} changes"
    print(f"{len(every)} changes tried, {taken} accepted")


def one_tenant(
    name: str,
    host: dict[str, t.Any],
    batch: t.Sequence[tenant.Change],
    before: dict[str, t.Any],
    expected: dict[str, str],
    specs: Path,
    generator: random.Random | None = None,
) -> tuple[int, list[str]]:
    """Run a tenant that makes these changes. Returns how many the kernel accepted, and what then differs on the node
    and for the next tenant."""
    with Pod(name) as pod, Pod(f"{name}-next") as follower:
        interfaces.attach(ONE, host, {}, pod.pin)
        accepted = sum(change.does(pod) for change in batch)
        held = tenant.attach_programs(pod, "one", generator) if generator else []
        outcome = take_back.take_back(ONE, host, pod.pin, {})
        wrong = [reason.text for reason in outcome.reasons] + outcome.notes
        now = interfaces.snapshot(ONE)
        wrong += [f"{key} is {now[key]}, was {before[key]}" for key in before if now[key] != before[key]]
        interfaces.attach(ONE, host, {}, follower.pin)
        seen = tenant.view(follower, "one", specs)
        wrong += [
            f"the next tenant sees {key} {seen.get(key)}, not {expected.get(key)}"
            for key in sorted({*seen, *expected})
            if seen.get(key) != expected.get(key)
        ]
        wrong += interfaces.detach(ONE, host, follower.pin, {})
        for descriptor in held:
            os.close(descriptor)
    return accepted, wrong


@pytest.mark.skipif(not os.environ.get("LANEWISE_SLOW"), reason="takes minutes: set LANEWISE_SLOW=1 to run it")
@on_a_node
def test_a_thousand_tenants_leave_nothing_to_the_next(specs: Path) -> None:
    host = node()
    before = interfaces.snapshot(ONE)
    with Pod("first") as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        expected = tenant.view(pod, "one", specs)
        every = changes_to_try(pod, specs)
        interfaces.detach(ONE, host, pod.pin, {})
    seed = int(os.environ.get("LANEWISE_SEED", "19"))
    generator = random.Random(seed)
    start, taken, left = time.monotonic(), 0, []
    pods = int(os.environ.get("LANEWISE_TENANTS", "1000"))
    for number in range(pods):
        batch = generator.sample(every, generator.randint(1, 25))
        accepted, wrong = one_tenant(f"pod{number}", host, batch, before, expected, specs, generator)
        taken += accepted
        left += [f"pod {number}: {wrong} after {[change.name for change in batch]}"] if wrong else []
    print(f"{pods} tenants, {taken} changes taken, {len(left)} with differences, {time.monotonic() - start:.0f} s")
    assert not left, "\n".join(left)
