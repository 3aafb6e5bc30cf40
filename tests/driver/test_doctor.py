# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Problems of systemd units and of the API server that the doctor command of the driver reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.api_server import RESOURCE, ApiServer
from lanewise_driver import cli
from lanewise_driver.api.access import from_kubeconfig
from lanewise_driver.api.cluster import Cluster


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 1", []),
        ('test "$3" = lanewise-fabric.service', ["lanewise-fabric.service has failed: see 'journalctl --boot --unit "]),
        (None, []),
    ],
    ids=["not failed", "failed", "no systemd"],
)
def test_only_a_failed_boot_unit_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, expected: list[str]
) -> None:
    if script:
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    messages = cli._failed_units()
    assert len(messages) == len(expected)
    assert all(message.startswith(start) for message, start in zip(messages, expected))


def test_a_server_without_a_supported_api_version_is_reported(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    try:
        server.objects[RESOURCE] = {"versions": [{"groupVersion": "resource.k8s.io/v1alpha3"}]}
        access = from_kubeconfig(server.kubeconfig)
        title, problems = cli._published(Cluster(lambda: access, "lanewise.dev", "worker-1"))
    finally:
        server.close()
    assert title == "the node's ResourceSlices can be read"
    assert problems == [
        "the driver does not support the API server: no served version of resource.k8s.io has ResourceClaim; "
        "served are resource.k8s.io/v1alpha3; use Kubernetes 1.34 or newer"
    ]
