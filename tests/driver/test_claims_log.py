# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The log of the driver while a claim is prepared, attached and unprepared. This file is separate, because gRPC does
not work in the forked processes of other tests."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import re
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.claims_node import NODE, ClaimsNode, Sandbox
from ansible_collections.lanewise.dra.tests.driver.kubelet import Kubelet
from lanewise_driver.base import logs
from lanewise_driver.base.calls import AttachRequest
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.base.settings import SettingsFile
from lanewise_driver.claims.service import Service
from lanewise_driver.hook.server import HookServer
from lanewise_driver.kubelet import protocol
from lanewise_driver.kubelet.plugin import Plugin
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.publish.publisher import Publisher

#: The packages of the driver whose lines are compared.
PARTS = ("base", "claims", "hook", "kubelet", "publish")


class Logged:
    """The log of the driver at a level, in memory."""

    def __init__(self, level: str) -> None:
        self._stream = io.StringIO()
        logs.setup(level, self._stream)

    def lines(self) -> list[dict[str, t.Any]]:
        """The decoded lines since the last call."""
        found = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        self._stream.truncate(0)
        self._stream.seek(0)
        return [line for line in found if line["part"].split(".")[0] in PARTS]


@pytest.fixture
def logged() -> t.Iterator[t.Callable[[str], Logged]]:
    """Captures the log, and restores the logging of pytest afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield Logged
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def sockets() -> t.Iterator[Path]:
    """A folder with a short path, because the path of a socket is limited and tmp_path may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def run_claim(service: Service, node: ClaimsNode, sandbox: Sandbox, sockets: Path) -> None:
    """Prepare, attach and unprepare a claim as kubelet and hooks do, with some calls twice."""
    claim = node.claims["one"]
    claims = [{"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}]
    plugin = Plugin(dataclasses.replace(node.paths, plugin_dir=sockets, registry_dir=sockets), service, Metrics())
    hooks = HookServer(node.paths, service, Metrics())
    plugin.start()
    try:
        kubelet = Kubelet(plugin.service_socket, protocol.pool)
        for _again in range(2):
            kubelet.call(protocol.DRA["v1"], "NodePrepareResources", claims=claims)
        request = node.request("one", sandbox.path)
        service.attach_early(request)
        for _container in range(2):
            assert hooks._response(*hook_message(request, sandbox)) == "done"
        for _again in range(2):
            kubelet.call(protocol.DRA["v1"], "NodeUnprepareResources", claims=claims)
    finally:
        plugin.stop()


def hook_message(request: AttachRequest, sandbox: Sandbox) -> tuple[bytes, list[int]]:
    """The message of a hook to the driver: its content, and the descriptor of the pod's network namespace."""
    state = {"pid": sandbox.pid, "id": request.container, "annotations": dict(request.annotations)}
    content = f"{request.uid} {sandbox.pid}\n{json.dumps(state)}".encode()
    return content, [os.open(sandbox.path, os.O_RDONLY)]


def test_at_level_info_the_log_has_one_line_for_each_event_of_a_claim(
    node: ClaimsNode, sandbox: Sandbox, logged: t.Callable[[str], Logged], sockets: Path
) -> None:
    log = logged("info")
    run_claim(node.service(), node, sandbox, sockets)
    lines = log.lines()
    messages = [re.sub("[0-9]+ ms", "N ms", line["message"]) for line in lines]
    assert messages == [
        "prepared net-wire0 (request nic) for pod claims/one",
        "attached net-wire0 as net1 to pod claims/one in N ms, before its containers start",
        "detached in N ms: net-wire0 (compared, in its original state)",
        "unprepared net-wire0",
    ]
    assert {line["level"] for line in lines} == {"info"}
    assert {line["claim"] for line in lines} == {node.claims["one"].uid}
    assert [line["operation"] for line in lines] == ["prepare", "attach", "unprepare", "unprepare"]


def test_at_level_debug_the_log_has_a_line_for_each_step_of_a_claim(
    node: ClaimsNode, sandbox: Sandbox, logged: t.Callable[[str], Logged], sockets: Path
) -> None:
    """A line has the claim, the duration, and the device if the step is for one device."""
    log = logged("debug")
    run_claim(node.service(), node, sandbox, sockets)
    lines = [line for line in log.lines() if line["level"] == "debug"]
    for line in lines:
        assert re.fullmatch(r"[0-9]+\.[0-9] ms: .+", line["message"]), line
        assert line["claim"] == node.claims["one"].uid, line
    steps = {
        operation: [line["step"] for line in lines if line["operation"] == operation]
        for operation in ("prepare", "attach", "unprepare")
    }
    assert {"plan", "check if the node needs the devices", "write the record, prepared"} < set(steps["prepare"])
    assert any(step.startswith("GET /apis/resource.k8s.io/") for step in steps["prepare"])
    assert {"read the interface's state", "pin the namespace", "move and configure"} < set(steps["attach"])
    assert {"take back", "unpin the namespace", "detach"} < set(steps["unprepare"])
    for operation, found in steps.items():
        assert found[0] == f"take the lock claim-{node.claims['one'].uid}"
        assert found[-1] == f"{operation}, total"
    devices = {line["step"]: line.get("device") for line in lines}
    for step in ("check the configuration", "read the interface's state", "move and configure", "take back"):
        assert devices[step] == "net-wire0"


def test_at_level_debug_the_log_has_a_line_for_each_step_of_a_publication(
    node: ClaimsNode, logged: t.Callable[[str], Logged], tmp_path: Path
) -> None:
    """There is no line at level info if nothing changes."""
    file = tmp_path / "driver.yml"
    file.write_text(json.dumps({"node_name": NODE, "virtual_interfaces": ["wire*"]}))
    settings = SettingsFile(file)
    publisher = Publisher(node.cluster, Inventory(lambda: settings.current, lambda: []), settings)
    publisher.publish("the driver starts")
    log = logged("debug")
    publisher.publish("nothing has changed")
    lines = [line for line in log.lines() if line["operation"] == "publish"]
    assert {line["level"] for line in lines} == {"debug"}
    for line in lines:
        assert re.fullmatch(r"[0-9]+\.[0-9] ms: .+", line["message"]), line
    steps = [line["step"] for line in lines]
    assert {"find the interfaces that carry the node's traffic", "compute the devices", "compute the slices"} < set(
        steps
    )
    assert any(step.startswith("GET /apis/resource.k8s.io/") for step in steps)
    assert steps[-1] == "publish, total" and len(steps) == len(set(steps))
