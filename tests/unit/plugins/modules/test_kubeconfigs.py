# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Modules with kubeconfigs that cannot be used, and with API servers that do not answer."""

from __future__ import annotations

import json
import threading
import typing as t
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("ansible", reason="needs ansible-core")

from ansible.errors import AnsibleParserError
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.inventory.slices import InventoryModule
from ansible_collections.lanewise.dra.plugins.modules import (
    dra_driver_access,
    dra_holds_info,
    dra_objects_info,
    pod_eviction,
)

#: Modules that read a kubeconfig, with their required options.
MODULES: list[tuple[ModuleType, dict[str, str]]] = [
    (dra_driver_access, {"node": "a"}),
    (dra_holds_info, {}),
    (dra_objects_info, {}),
    (pod_eviction, {"pod": "team/a", "uid": "1"}),
]


def kubeconfig(server: object = "http://127.0.0.1:9", user: object = None) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {} if user is None else user}],
        }
    )


#: Contents of kubeconfigs that cannot be used, with the reason in the message.
UNUSABLE = [
    ("a: [", "it is not valid YAML: while parsing a flow node"),
    ("a plain text", "its content is not that of a kubeconfig (TypeError"),
    ("- a\n- b\n", "its content is not that of a kubeconfig (TypeError"),
    ("clusters: 3\n", "its content is not that of a kubeconfig (TypeError"),
    (kubeconfig(user=3), "its content is not that of a kubeconfig (TypeError"),
    ("current-context: a\n", "Invalid kube-config"),
    ("", "file is empty"),
]


def failure(capsys: pytest.CaptureFixture[str], module: ModuleType, path: Path, options: dict[str, str]) -> str:
    """The message with which a module fails."""
    with patch_module_args({"kubeconfig": str(path), **options}), pytest.raises(SystemExit):
        module.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] is True
    return str(answer["msg"])


@pytest.mark.parametrize(("content", "reason"), UNUSABLE)
@pytest.mark.parametrize(("module", "options"), MODULES)
def test_a_module_says_why_a_kubeconfig_cannot_be_used(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    module: ModuleType,
    options: dict[str, str],
    content: str,
    reason: str,
) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    message = failure(capsys, module, path, options)
    assert message.startswith(f"the kubeconfig {path} cannot be used: ") and reason in message


@pytest.mark.parametrize(("content", "reason"), UNUSABLE)
def test_the_inventory_says_why_a_kubeconfig_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, reason: str
) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    inventory = InventoryModule()
    monkeypatch.setattr(inventory, "get_option", {"kubeconfig": str(path), "context": None}.get)
    with pytest.raises(AnsibleParserError) as raised:
        inventory._read_cluster()
    assert "cannot use the kubeconfig: " in str(raised.value) and reason in str(raised.value)


class Server(HTTPServer):
    """Closes each connection without a response, or redirects to the path `target`. `paths` has the requested ones."""

    def __init__(self, target: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = target
        self.paths: list[str] = []

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_unused: t.Any) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.server.target:
            self.send_response(302)
            self.send_header("Location", self.server.target)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *_args: t.Any) -> None:
        pass


@pytest.mark.parametrize(("target", "requests"), [("", 3), ("/elsewhere", 1)])
def test_a_request_for_a_nodes_access_is_repeated_twice_and_not_redirected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str, requests: int
) -> None:
    path = tmp_path / "config"
    with Server(target) as server:
        path.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}"))
        message = failure(capsys, dra_driver_access, path, {"node": "a"})
    assert message.startswith("the Node a cannot be read: ")
    assert server.paths == ["/api/v1/nodes/a"] * requests
