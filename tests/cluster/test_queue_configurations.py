# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random queue configurations against the real Kueue: Kueue accepts what the compiler renders, and refuses what the
compiler refuses, except for wrong sums.

The conflicts found with the configuration of a cluster are those with which Kueue does not start.

Objects are tested in a server-side dry run with Kueue's webhooks, configurations by starting Kueue with them.
LANEWISE_QUEUES is the number of configurations.
"""

from __future__ import annotations

import os
import subprocess
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.compiler import Compiled
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.configuration import conflicts, merged
from ansible_collections.lanewise.dra.tests.cluster.client import APPLY_PATCH
from ansible_collections.lanewise.dra.tests.cluster.queue_configurations import (
    CLAIMS,
    NAMESPACES,
    Configuration,
    unchecked_configuration,
    unchecked_objects,
)
from ansible_collections.lanewise.dra.tests.cluster.queue_site import (
    DIVIDED,
    DRIVERS,
    collection_of,
    compile_for,
    machine,
    path_of,
)
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

COUNT = int(os.environ.get("LANEWISE_QUEUES") or (1000 if os.environ.get("LANEWISE_SLOW") else 60))
NODES = {"pairs": machine("hgx-h100"), "shares": machine("sriov", DIVIDED)}
TOTALS = {"gpus": 8, "nics": 12, "bandwidth": 500}
#: The compiler's rules about sums. Kueue has no such rules, because it does not compare quotas with the fleet.
SUMS = ("over-fleet", "counted-twice", "other-driver", "lends-too-much", "borrows-too-much")


class Kueue:
    """The real Kueue. The methods return Kueue's error for an object or a configuration, or an empty text."""

    def __init__(self, queueing: Queueing, folder: Path) -> None:
        self.queueing, self.plane, self.folder = queueing, queueing.plane, folder

    def error_on_apply(self, item: Object) -> str:
        """The error when an object is applied as the playbook does."""
        return self._answer("PATCH", f"{path_of(item)}?fieldManager=try&force=true&dryRun=All", item, APPLY_PATCH)

    def error_on_create(self, item: Object) -> str:
        """The error when an object is created. Unlike in `error_on_apply`, the path does not contain the name, which
        may be invalid in a path."""
        return self._answer("POST", f"{collection_of(item)}?dryRun=All", item)

    def _answer(self, method: str, path: str, item: Object, kind: str | None = None) -> str:
        status, answer = self.plane.request(method, path, item, kind)
        return "" if status < 300 else f"{status} {answer['message'] if isinstance(answer, dict) else answer}"

    def error_on_start(self, part: Object, name: str, base: Object | None = None) -> str:
        """The error when Kueue starts with `part` merged into `base`. It checks that before it connects to a server."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(merged(base or {}, part)))
        command = [str(self.queueing.programs["kueue"]), f"--config={path}", "--kubeconfig=/none"]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        text = output.stdout + output.stderr
        if '"Initializing"' in text:
            return ""
        assert "Unable to" in text or "conflicting" in text, text
        return next(line for line in text.splitlines() if "nable to" in line or "conflicting" in line)


def test_kueue_and_the_compiler_accept_and_refuse_the_same_configurations(queueing: Queueing, tmp_path: Path) -> None:
    objects = compile_site({"dra_claims_drivers": DRIVERS, **CLAIMS}, t.cast(t.Any, NODES)).objects
    for namespace in NAMESPACES:
        queueing.plane.add_namespace(namespace)
    kueue = Kueue(queueing, tmp_path)
    counts = {"accepted": 0, "refused by both": 0, "wrong sum": 0, "objects": 0}
    wrong: list[str] = []

    def check(seed: int) -> None:
        configuration = Configuration(seed, TOTALS)
        try:
            compiled = compile_for(configuration.variables, objects, NODES, DRIVERS)
        except Problems as problems:
            verdict = _refused(kueue, configuration, seed, problems)
        else:
            verdict = _accepted(kueue, compiled, seed)
            counts["objects"] += len(compiled.objects)
        if verdict in counts:
            counts[verdict] += 1
        else:
            wrong.append(f"{seed} ({', '.join(configuration.wrong)}): {verdict}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, range(COUNT)))
    print(counts)
    assert not wrong, "\n".join(wrong[:20])
    assert counts["accepted"] >= COUNT / 3 and counts["refused by both"] >= COUNT / 20 and counts["wrong sum"], counts


def _mapping(name: str, device_class: str, counter: str = "") -> Object:
    mapping: Object = {"name": f"example.com/{name}", "deviceClassNames": [device_class]}
    if counter:
        selector = {"cel": {"expression": "true"}}
        mapping["sources"] = [{"counter": {"name": counter, "driver": "gpu.nvidia.com", "deviceSelector": selector}}]
    return mapping


def _resources(*mappings: Object, **fields: t.Any) -> Object:
    return {"resources": {"deviceClassMappings": list(mappings), **fields}}


_OLD = {"apiVersion": "config.kueue.x-k8s.io/v1beta1"}
_IGNORE = {"quotaCheckStrategy": "IgnoreUndeclared"}
#: Configurations of a cluster, and whether Kueue starts with each when the queues' part is merged into it.
_BASES: dict[str, tuple[Object, bool]] = {
    "no mapping": ({}, True),
    "same class": (_resources(_mapping("other", "gpu")), False),
    "class with another counter": (_resources(_mapping("other", "gpu-partition", "copy-engines")), True),
    "class with the same counter": (_resources(_mapping("other", "gpu-partition", "memory")), False),
    "class without a counter": (_resources(_mapping("other", "gpu-partition")), False),
    "16 mappings": (_resources(*(_mapping(f"other-{i}", f"class-{i}") for i in range(14))), True),
    "17 mappings": (_resources(*(_mapping(f"other-{i}", f"class-{i}") for i in range(15))), False),
    "undeclared resources ignored": (_resources(**_IGNORE), True),
    "ignored and prefixes": (_resources(**_IGNORE, excludeResourcePrefixes=["example.com/"]), False),
    "version without sources": (_OLD, False),
    "unknown version": ({"apiVersion": "config.kueue.x-k8s.io/v1alpha1"}, False),
    "enable in v1beta2": ({"fairSharing": {"enable": False}}, False),
}


@pytest.mark.parametrize("name", _BASES)
def test_conflicts_are_found_exactly_if_kueue_does_not_start(queueing: Queueing, tmp_path: Path, name: str) -> None:
    base, starts = _BASES[name]
    part = _resources(_mapping("gpus", "gpu"), _mapping("memory", "gpu-partition", "memory"))
    part["resources"]["excludeResourcePrefixes"] = ["cpu"]
    part["fairSharing"] = {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}
    error = Kueue(queueing, tmp_path).error_on_start(part, "configuration", base)
    assert (not error) is starts, error
    assert (not conflicts(part, base)) is starts


def test_fair_sharing_of_an_old_configuration_is_enabled(queueing: Queueing, tmp_path: Path) -> None:
    """In v1beta1 the strategies alone do not enable it, and whole devices need no newer version."""
    part = {**_resources(_mapping("gpus", "gpu")), "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]}}
    base = {**_OLD, "fairSharing": {"enable": False}}
    assert not Kueue(queueing, tmp_path).error_on_start(part, "configuration", base) and not conflicts(part, base)
    assert merged(base, part)["fairSharing"]["enable"] is True


def _accepted(kueue: Kueue, compiled: Compiled, seed: int) -> str:
    """`accepted`, or Kueue's error. Kueue is started only with every tenth configuration, because a start takes half a
    second."""
    for manifest in compiled.objects:
        error = kueue.error_on_apply(manifest)
        if error:
            return f"rendered, but Kueue refuses {manifest['kind']} {manifest['metadata']['name']}: {error}"
    error = kueue.error_on_start(compiled.configuration, str(seed)) if seed % 10 == 0 else ""
    return f"rendered, but Kueue refuses its configuration: {error}" if error else "accepted"


def _refused(kueue: Kueue, configuration: Configuration, seed: int, problems: Problems) -> str:
    """`wrong sum`, `refused by both`, or the problems that only the compiler reports."""
    if any(problem.rule in SUMS for problem in problems.problems):
        return "wrong sum"
    if any(kueue.error_on_create(manifest) for manifest in unchecked_objects(configuration.variables, "default")):
        return "refused by both"
    if kueue.error_on_start(unchecked_configuration(configuration.variables), str(seed)):
        return "refused by both"
    return f"refused by the compiler, but Kueue accepts it: {problems}"
