# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure how long a job waits for its devices: for an aligned pair, for a plain claim, and without a queue."""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.queue_site import QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

from tests.bench.figures import Figures

ROUNDS = 25
SEED = 20261124
TEAM = "bench"
_PAIR = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
#: A claim template with the same device classes and no alignment.
_PLAIN = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "plain", "namespace": TEAM},
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {"name": device["name"], "exactly": {"deviceClassName": device["kind"], "count": 1}}
                    for device in _PAIR
                ]
            }
        }
    },
}


class _Bench:
    """A cluster with a node of eight pairs, and a team that is guaranteed all of them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.queueing = Queueing(plane)
        site = QueueSite(self.queueing, {"pairs": machine("hgx-h100")})
        queues = {
            "queues_resources": [{"name": "gpus", "classes": ["gpu"]}, {"name": "nics", "classes": ["rdma"]}],
            "queues_teams": [{"name": TEAM, "namespaces": [TEAM], "guaranteed": {"gpus": 8, "nics": 8}}],
        }
        pair = {"name": "pair", "namespace": TEAM, "align": "pcie_root", "devices": _PAIR}
        compiled = site.compile(queues, {"dra_claims_templates": [pair]})
        self.queueing.configure(compiled.configuration)
        site.apply_queues(compiled)
        site.apply(_PLAIN)
        self.number = 0

    def run_job(self, template: str, queue: str) -> float:
        """The seconds from the request that creates a Job until its pod runs with its devices."""
        self.number += 1
        name = f"job-{self.number}"
        job = self.queueing.job(name, queue, template)
        start = time.perf_counter()
        self.queueing.submit(TEAM, job)
        while not self.queueing.running(TEAM, name):
            if time.perf_counter() - start > 60:
                raise RuntimeError(f"{name} does not run after 60 s")
            time.sleep(0.005)
        seconds = time.perf_counter() - start
        self.queueing.remove(TEAM, name)
        return seconds


def queues(trees: Path) -> Figures:
    jobs = {"pair": ("pair", TEAM), "plain": ("plain", TEAM), "no queue": ("pair", "")}  # claim template and queue
    seconds: dict[str, list[float]] = {job: [] for job in jobs}
    rng = random.Random(SEED)
    try:
        with ControlPlane() as plane:
            bench = _Bench(plane)
            for turn in range(ROUNDS + 1):
                for job in rng.sample(list(jobs), len(jobs)):
                    job_seconds = bench.run_job(*jobs[job])
                    if turn:  # the first turn is a warm-up
                        seconds[job].append(job_seconds)
            version = plane.version
    except Missing as missing:
        print(f"queue_submit_vs_plain left out: {missing}", file=sys.stderr)
        return
    ms = {job: 1000 * statistics.median(values) for job, values in seconds.items()}
    method = (
        f"from the creation of a Job until its pod runs with devices, medians of {ROUNDS} rounds in turns; "
        f"Kueue 0.19.2, Kubernetes {version}; the node has no machine, so nothing prepares the devices; the team has "
        "all that it needs"
    )
    for name, job, description in (
        ("queue_submit_vs_plain", "plain", "a claim of two plain device classes in the same queue"),
        ("queue_submit_vs_no_queue", "no queue", "the same claim without a queue"),
    ):
        ratios = [pair / other for pair, other in zip(seconds["pair"], seconds[job])]
        yield {
            "name": name,
            "value": round(statistics.median(ratios), 2),
            "unit": "ratio",
            "against": f"{description}, {ms[job]:.0f} ms (aligned pair in the queue {ms['pair']:.0f} ms)",
            "method": method,
        }
