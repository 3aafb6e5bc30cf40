# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Replays a stream of jobs on a cluster with simulated nodes, faster than in the trace.

Records when each job runs, and whether its GPUs and NICs are aligned.
"""

from __future__ import annotations

import threading
import time
import typing as t
from dataclasses import dataclass, field
from http import HTTPStatus

from .cluster_swaps import kubernetes_client
from .dra.kube.objects import Object, ObjectView
from .dra.replay.pairs import aligned, kinds
from .dra.replay.score import Run
from .dra.replay.trace import Job

if t.TYPE_CHECKING:
    import kubernetes

#: The annotation of a pod with its run time for kwok, such as 2.5s, and the label with the number of its job.
RUN_TIME_ANNOTATION, JOB_LABEL = "lanewise.dev/runs-for", "lanewise.dev/replayed-job"
#: The label of simulated nodes. A replay refuses a cluster with other nodes.
NODE_LABEL = "lanewise.dev/no-machine"
_ROOT = "resource.kubernetes.io/pcieRoot"
_GROUP, _VERSION = "resource.k8s.io", "v1"
#: After this many seconds a watch is requested again, from the last resource version.
WATCH_SECONDS = 30


class UnsuitableCluster(Exception):
    """The cluster is not a test cluster for replays, or there is no template for some of the jobs."""


@dataclass(frozen=True)
class SizeTemplate:
    """The claim template of jobs of one size. `held` is the number of GPUs that a claim makes unusable for others."""

    template: str
    held: float


@dataclass
class Replay:
    """One replay. The jobs of a team are submitted in the namespace and to the queue that have the team's name.

    `templates` has the template of each job size, a number of GPUs. `speed` is the number of seconds of the trace that
    pass in one second. If `priorities` is False, jobs are submitted without their priority.
    `kinds` says which drivers' devices are GPUs, and which are NICs.
    """

    api: kubernetes.client.ApiClient
    templates: t.Mapping[float, SizeTemplate]
    speed: float
    priorities: bool = True
    kinds: t.Mapping[str, str] = field(default_factory=kinds)
    runs: dict[int, Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client = kubernetes_client()
        self._core, self._batch = client.CoreV1Api(self.api), client.BatchV1Api(self.api)
        self._custom = client.CustomObjectsApi(self.api)
        self._error = client.ApiException
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._pods: dict[str, int] = {}
        self._allocated: dict[str, ObjectView] = {}
        self._roots: dict[tuple[str, str, str], str | None] = {}
        self._start = 0.0
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raises UnsuitableCluster for a cluster with a node that may be real."""
        nodes = self._core.list_node().items
        real = [node.metadata.name for node in nodes if (node.metadata.labels or {}).get(NODE_LABEL) != "true"]
        if real or not nodes:
            which = ", ".join(sorted(real)[:8]) or "the cluster has no nodes"
            raise UnsuitableCluster(f"not all nodes have the label {NODE_LABEL}=true: {which}. Nothing was changed")

    def run(self, jobs: t.Sequence[Job], window: float) -> dict[int, Run]:
        """Submit the jobs, wait until `window` seconds of the trace have passed, and delete all jobs.

        Returns the run of each submitted job by its number; times are in seconds of the trace. Raises
        UnsuitableCluster, or the error of a failed watch, because the result would be incomplete.
        """
        missing = sorted({job.gpus for job in jobs} - set(self.templates))
        if missing:
            raise UnsuitableCluster(
                f"there is no template for jobs of {missing[0]:g} GPUs: add one. Nothing was changed"
            )
        self.check()
        self._read_roots()
        watches = (self._watch_pods, self._watch_claims)
        threads = [threading.Thread(target=self._run_watch, args=(watch,), daemon=True) for watch in watches]
        self._start = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            for job in jobs:
                if self._wait_until(job.submit):
                    break
                self._submit(job)
            self._wait_until(window)
        finally:
            self._stop.set()
            self._remove(jobs)
        if self._failure is not None:
            raise self._failure
        with self._lock:
            return dict(self.runs)

    def _wait_until(self, moment: float) -> bool:
        """Wait until this second of the trace. Returns early and True if a watch has failed."""
        return self._stop.wait(max(0.0, self._start + moment / self.speed - time.monotonic()))

    def _run_watch(self, watch: t.Callable[[], None]) -> None:
        """Run a watch. An error ends the replay."""
        try:
            watch()
        except Exception as error:  # noqa: BLE001
            self._failure = error
            self._stop.set()

    def _now(self) -> float:
        """The current second of the trace."""
        return (time.monotonic() - self._start) * self.speed

    def _read_roots(self) -> None:
        answer = self._custom.list_cluster_custom_object(_GROUP, _VERSION, "resourceslices")
        for resource_slice in answer["items"]:
            spec = resource_slice["spec"]
            for device in spec.get("devices") or ():
                value = (device.get("attributes") or {}).get(_ROOT) or {}
                key = (spec["driver"], spec["pool"]["name"], device["name"])
                self._roots[key] = value.get("string") or (value.get("strings") or [None])[0]

    def _submit(self, job: Job) -> None:
        labels = {"kueue.x-k8s.io/queue-name": job.team}
        if job.priority and self.priorities:
            labels["kueue.x-k8s.io/priority-class"] = job.priority
        with self._lock:
            self.runs[job.number] = Run(self._now(), held=self.templates[job.gpus].held)
        template = {
            "metadata": {
                "labels": {JOB_LABEL: str(job.number)},
                "annotations": {RUN_TIME_ANNOTATION: f"{job.seconds / self.speed:.3f}s"},
            },
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "main",
                        "image": "none.example.com/none",
                        "resources": {"claims": [{"name": "devices"}]},
                    }
                ],
                "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": self.templates[job.gpus].template}],
            },
        }
        body = {
            "metadata": {"name": f"replay-{job.number}", "labels": {**labels, JOB_LABEL: str(job.number)}},
            "spec": {"parallelism": 1, "completions": 1, "template": template},
        }
        self._batch.create_namespaced_job(job.team, body)

    def _remove(self, jobs: t.Sequence[Job]) -> None:
        for team in {job.team for job in jobs}:
            self._batch.delete_collection_namespaced_job(
                team, label_selector=JOB_LABEL, propagation_policy="Background"
            )

    # watches

    def _watch(self, source: t.Callable[..., t.Any], *arguments: str) -> t.Iterator[tuple[str, Object]]:
        import kubernetes.watch

        watch = kubernetes.watch.Watch()
        while not self._stop.is_set():
            since = {"resource_version": watch.resource_version} if watch.resource_version else {}
            try:
                for event in watch.stream(source, *arguments, timeout_seconds=WATCH_SECONDS, **since):
                    if self._stop.is_set():
                        return
                    yield event["type"], event["raw_object"]
            except self._error as error:
                if error.status != HTTPStatus.GONE:
                    raise
                watch.resource_version = None  # the server no longer has these events: list again

    def _watch_pods(self) -> None:
        for kind, pod in self._watch(self._core.list_pod_for_all_namespaces):
            label = (pod["metadata"].get("labels") or {}).get(JOB_LABEL)
            if label is not None:
                with self._lock:
                    self._record_pod(kind, pod, int(label))

    def _record_pod(self, kind: str, pod: ObjectView, number: int) -> None:
        """Record the start or end of a pod of a job. `kind` is the type of the event."""
        run, uid = self.runs.get(number), str(pod["metadata"]["uid"])
        phase = (pod.get("status") or {}).get("phase")
        if run is None or run.done:
            return
        if phase == "Running" and kind != "DELETED" and uid not in self._pods:
            self._pods[uid] = number
            run.spans.append((self._now(), None))
            self._record_alignment(uid, run)
        ended = phase == "Succeeded" or kind == "DELETED" or pod["metadata"].get("deletionTimestamp")
        if uid in self._pods and ended and run.spans and run.spans[-1][1] is None:
            run.spans[-1] = (run.spans[-1][0], self._now())
            run.done = phase == "Succeeded"

    def _watch_claims(self) -> None:
        plural = "resourceclaims"
        for kind, claim in self._watch(self._custom.list_cluster_custom_object, _GROUP, _VERSION, plural):
            owners = claim["metadata"].get("ownerReferences") or ()
            allocation = (claim.get("status") or {}).get("allocation")
            if kind != "DELETED" and owners and allocation:
                with self._lock:
                    uid = str(owners[0]["uid"])
                    if uid not in self._allocated:
                        self._allocated[uid] = allocation
                        if uid in self._pods:
                            self._record_alignment(uid, self.runs[self._pods[uid]])

    def _record_alignment(self, uid: str, run: Run) -> None:
        """Record whether each GPU of a pod has its own NIC on its PCIe root."""
        allocation = self._allocated.get(uid)
        if allocation is None:
            return
        verdict = aligned(allocation["devices"].get("results") or (), self._roots, self.kinds)
        if verdict is not None:
            run.aligned = verdict
