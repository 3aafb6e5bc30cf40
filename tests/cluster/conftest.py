# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Control planes and nodes for tests: started by the first test of a file that needs them, stopped after its last."""

from __future__ import annotations

import contextlib
import os
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.node import Node, in_sandbox
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing
from ansible_collections.lanewise.dra.tools.cluster import minors
from environment import Missing  # tools/cluster.py has put its folder on the path

Planes = t.Callable[[str], ControlPlane]
#: Feature gates that node tests need, by Kubernetes version. Only the newest version enables them by default.
NODE_GATES = {"1.34": {"ResourceHealthStatus": True}}
STARTED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = []
    config.addinivalue_line("markers", "each_kubernetes: a node test that also runs with the oldest Kubernetes")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # an xdist worker: the controller process prints its summary
        session.config.workeroutput["started"] = session.config.stash[STARTED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: t.Any) -> None:
    node.config.stash[STARTED] += getattr(node, "workeroutput", {}).get("started", [])


def pytest_terminal_summary(terminalreporter: t.Any, config: pytest.Config) -> None:
    if config.stash[STARTED]:
        terminalreporter.section("control planes")
        for line in config.stash[STARTED]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def planes(request: pytest.FixtureRequest) -> t.Iterator[Planes]:
    """A function that returns the shared control plane of a Kubernetes version. Skips if its programs are missing."""
    running: dict[str, ControlPlane] = {}

    def get(minor: str) -> ControlPlane:
        if minor not in running:
            try:
                running[minor] = ControlPlane(minor)
            except Missing as missing:
                pytest.skip(str(missing))
            plane = running[minor]
            request.config.stash[STARTED].append(f"Kubernetes {plane.version}: ready in {plane.seconds:.1f} s")
        return running[minor]

    yield get
    for plane in running.values():
        plane.close()


@pytest.fixture(scope="module")
def newest(planes: Planes) -> ControlPlane:
    """A control plane of the newest pinned Kubernetes."""
    return planes(minors()[0])


@pytest.fixture(scope="module")
def oldest(planes: Planes) -> ControlPlane:
    """A control plane of the oldest supported Kubernetes, the first with resource.k8s.io/v1."""
    return planes(minors()[-1])


@pytest.fixture(scope="module")
def queueing(newest: ControlPlane) -> Queueing:
    """Kueue, JobSet and kwok on the newest Kubernetes. Skips if their programs are missing."""
    try:
        return Queueing(newest)
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module", params=minors())
def control_plane(planes: Planes, request: pytest.FixtureRequest) -> ControlPlane:
    """A control plane of each pinned Kubernetes in turn."""
    return planes(request.param)


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> t.Iterator[Node]:
    """A control plane and a node with kubelet and containerd, of the newest Kubernetes or of the version in the
    variable `K8S`, such as `1.34`. Skips outside the sandbox."""
    if not in_sandbox():
        pytest.skip("needs its own namespaces: 'make test ONLY=node' runs it in tests/cluster/sandbox.py, as root")
    minor = os.environ.get("K8S") or minors()[0]
    gates = NODE_GATES.get(minor, {})
    with contextlib.ExitStack() as stack:
        try:
            plane = stack.enter_context(ControlPlane(minor, gates))
            node = stack.enter_context(Node(plane, gates=gates))
        except Missing as missing:
            pytest.skip(str(missing))
        request.config.stash[STARTED] += [
            f"Kubernetes {plane.version}: ready in {plane.seconds:.1f} s",
            f"node {node.name}: ready in {node.seconds:.1f} s",
        ]
        yield node
