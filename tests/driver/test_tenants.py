# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a tenant changes of its interface, neither the next tenant nor the node sees it.

What there is to change comes from the kernel's specifications of netlink and from its files, not from a list of ours.
`LANEWISE_TENANTS` is the number of pods in the stress form, 1,000 by default; it runs with `LANEWISE_SLOW=1` alone.
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
from environment import Missing  # tools/lab.py has put its folder on the path
from lanewise_driver.interface import interfaces, take_back
from lanewise_driver.interface.interfaces import Identity

ONE = Identity(None, None, "one")
#: How many changes one tenant makes, so that few tenants try all.
AT_ONCE = 40


@pytest.fixture(scope="module", name="specs")
def _specs() -> Path:
    try:
        return lab.specifications()
    except (Missing, lab.Broken) as reason:
        pytest.skip(str(reason).splitlines()[0])


def node() -> dict[str, t.Any]:
    without_dad()
    pair("one")
    run("ip addr add 10.1.0.2/24 dev one; ip link set one alias 'rail 1'")
    wait_for_ipv6()
    return interfaces.snapshot(ONE)


def tried(pod: Pod, specs: Path) -> list[tenant.Change]:
    return tenant.changes(pod, "one", specs)


@on_a_node
def test_every_setting_that_the_kernel_has(specs: Path) -> None:
    """All attributes of all messages about a link, some at a time; the ones that leave something are named."""
    host = node()
    before, expected = interfaces.snapshot(ONE), {}
    with Pod("first") as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        expected = tenant.view(pod, "one", specs)
        every = tried(pod, specs)
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
    left, taken = [], 0
    pending = [every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE)]
    for number, some in enumerate(pending):
        accepted, wrong = one_tenant(f"pod{number}", host, some, before, expected, specs)
        taken += accepted
        if wrong:
            left += [f"{wrong}: one of {[change.name for change in some]}"]
    assert not left, "\n".join(left)
    assert taken > 150, f"of {len(every)} changes the kernel took {taken}"
    print(f"{len(every)} changes tried, {taken} taken")


def one_tenant(
    name: str,
    host: dict[str, t.Any],
    some: t.Sequence[tenant.Change],
    before: dict[str, t.Any],
    expected: dict[str, str],
    specs: Path,
    programs: random.Random | None = None,
) -> tuple[int, list[str]]:
    """A tenant makes these changes and goes; how many the kernel took, and what the node or the next tenant sees."""
    with Pod(name) as pod, Pod(f"{name}-next") as follower:
        interfaces.attach(ONE, host, {}, pod.pin)
        accepted = sum(change.does(pod) for change in some)
        held = tenant.attach_programs(pod, "one", programs) if programs else []
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


@pytest.mark.skipif(not os.environ.get("LANEWISE_SLOW"), reason="takes some minutes: LANEWISE_SLOW=1")
@on_a_node
def test_a_thousand_tenants(specs: Path) -> None:
    host = node()
    before = interfaces.snapshot(ONE)
    with Pod("first") as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        expected = tenant.view(pod, "one", specs)
        every = tried(pod, specs)
        interfaces.detach(ONE, host, pod.pin, {})
    seed = int(os.environ.get("LANEWISE_SEED", "19"))
    generator = random.Random(seed)
    start, taken, left = time.monotonic(), 0, []
    pods = int(os.environ.get("LANEWISE_TENANTS", "1000"))
    for number in range(pods):
        some = generator.sample(every, generator.randint(1, 25))
        accepted, wrong = one_tenant(f"pod{number}", host, some, before, expected, specs, generator)
        taken += accepted
        left += [f"pod {number}: {wrong} after {[change.name for change in some]}"] if wrong else []
    print(f"{pods} tenants, {taken} changes taken, {len(left)} with differences, {time.monotonic() - start:.0f} s")
    assert not left, "\n".join(left)
