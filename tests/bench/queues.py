# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure how long a job waits for its devices: with a compiled claim, with a plain one, and without a queue."""

from __future__ import annotations

import random
import statistics
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.queue_site import QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

ROUNDS = 25
SEED = 20261124
TEAM = "bench"
_PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
#: A template that only names the same classes.
_PLAIN = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "plain", "namespace": TEAM},
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {"name": one["name"], "exactly": {"deviceClassName": one["kind"], "count": 1}} for one in _PAIR
                ]
            }
        }
    },
}

Figures = t.Iterator[dict[str, t.Any]]


class _Bench:
    """One node of eight pairs, and a team that is guaranteed all of them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.queueing = Queueing(plane)
        site = QueueSite(self.queueing, {"pairs": machine("hgx-h100")})
        queues = {
            "queues_resources": [{"name": "gpus", "classes": ["gpu"]}, {"name": "nics", "classes": ["rdma"]}],
            "queues_teams": [{"name": TEAM, "namespaces": [TEAM], "guaranteed": {"gpus": 8, "nics": 8}}],
        }
        pair = {"name": "pair", "namespace": TEAM, "align": "pcie_root", "devices": _PAIR}
        made = site.compile(queues, {"dra_claims_templates": [pair]})
        self.queueing.configure(made.configuration)
        site.apply_queues(made)
        site.apply(_PLAIN)
        self.number = 0

    def seconds(self, template: str, queue: str) -> float:
        """From the request that creates a Job until its pod runs with its devices."""
        self.number += 1
        name = f"job-{self.number}"
        job = self.queueing.job(name, queue, template)
        start = time.perf_counter()
        self.queueing.submit(TEAM, job)
        while not self.queueing.running(TEAM, name):
            if time.perf_counter() - start > 60:
                raise RuntimeError(f"{name} does not run after 60 s")
            time.sleep(0.005)
        took = time.perf_counter() - start
        self.queueing.remove(TEAM, name)
        return took


def queues(trees: Path) -> Figures:
    forms = {"compiled": ("pair", TEAM), "plain": ("plain", TEAM), "none": ("pair", "")}
    found: dict[str, list[float]] = {form: [] for form in forms}
    chance = random.Random(SEED)
    try:
        with ControlPlane() as plane:
            bench = _Bench(plane)
            for turn in range(ROUNDS + 1):
                for form in chance.sample(list(forms), len(forms)):
                    took = bench.seconds(*forms[form])
                    if turn:  # the first one warms up
                        found[form].append(took)
            version = plane.version
    except Missing as missing:
        print(f"queue_submit_vs_plain left out: {missing}", file=sys.stderr)
        return
    middle = {form: 1000 * statistics.median(times) for form, times in found.items()}
    method = (
        f"from the creation of a Job until its pod runs with devices, medians of {ROUNDS} rounds in turns; "
        f"Kueue 0.19.2, Kubernetes {version}; the node has no machine, so nothing prepares the devices; the team has "
        "all that it needs"
    )
    for name, form, what in (
        ("queue_submit_vs_plain", "plain", "a claim of two plain device classes in the same queue"),
        ("queue_submit_vs_no_queue", "none", "the same claim without a queue"),
    ):
        ratios = [ours / theirs for ours, theirs in zip(found["compiled"], found[form])]
        yield {
            "name": name,
            "value": round(statistics.median(ratios), 2),
            "unit": "ratio",
            "against": f"{what}, {middle[form]:.0f} ms (aligned pair in the queue {middle['compiled']:.0f} ms)",
            "method": method,
        }
