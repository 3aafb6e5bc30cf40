# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Problems of systemd units and of the API server that the doctor command of the driver reports."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.api_server import RESOURCE, ApiServer
from lanewise_driver import cli
from lanewise_driver.api import cluster
from lanewise_driver.api.access import AccessError, from_kubeconfig
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


def test_readiness_that_cannot_be_checked_is_not_reported_as_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "driver.yml"
    settings.write_text('metrics_address: ""')
    folders = [f"--plugin-dir={tmp_path}", f"--run-dir={tmp_path}", f"--root={tmp_path}"]
    assert cli.main([f"--settings={settings}", *folders, "status"]) == 0
    assert capsys.readouterr().out == "readiness is not checked: metrics_address is empty in the settings\n0 claims\n"
    assert cli.main([f"--settings={settings}", *folders, "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ready"] is None
    cli.main([f"--settings={settings}", *folders, "doctor"])
    assert "the driver is ready (not checked: metrics_address is empty in the settings)\n" in capsys.readouterr().out


@pytest.mark.parametrize("published_again", [False, True])
def test_withdraw_fails_if_slices_exist_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, published_again: bool
) -> None:
    slices = [{"metadata": {"name": "worker-1-a"}}, {"metadata": {"name": "worker-1-b"}}]
    deleted: list[str] = []

    class Published:
        """The slices of a node, which a running driver may publish again."""

        def __init__(self, *_arguments: object) -> None: ...

        def slices(self) -> tuple[list[dict[str, dict[str, str]]], str]:
            return (slices[1:] if published_again else []) if deleted else slices, "1"

        def delete_slice(self, obsolete: dict[str, dict[str, str]]) -> None:
            deleted.append(obsolete["metadata"]["name"])

    monkeypatch.setattr(cluster, "Cluster", Published)
    settings = tmp_path / "driver.yml"
    settings.write_text("node_name: worker-1")
    assert cli.main([f"--settings={settings}", "withdraw"]) == int(published_again)
    assert deleted == ["worker-1-a", "worker-1-b"]
    printed = capsys.readouterr()
    if published_again:
        assert (
            "1 ResourceSlices of worker-1 exist after the deletion: worker-1-b. If the driver still runs" in printed.err
        )
    else:
        assert printed.out == "2 deleted\n"


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        ("current-context: a\n", "contexts"),
        ("current-context: a\ncontexts: [{name: b, context: {}}]\n", "context 'a'"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: []\n", "cluster 'c'"),
    ],
)
def test_the_error_about_a_kubeconfig_names_what_is_missing(tmp_path: Path, content: str, missing: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(AccessError) as caught:
        from_kubeconfig(path)
    assert caught.value.message == f"{path} is not a valid kubeconfig: it has no {missing}"


def test_commands_of_other_users_than_root_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plugin").mkdir(mode=0o700)
    (tmp_path / "plugin" / "state").mkdir()
    folders = [
        "--settings=/nonexistent",
        f"--plugin-dir={tmp_path}/plugin",
        f"--run-dir={tmp_path}",
        "--root=/nonexistent",
    ]
    refused = f"no permission to read {tmp_path}/plugin/state: run this as root\n"
    user = os.geteuid()
    pytest.importorskip("yaml")  # another user may not read root's environment
    if user == 0:
        os.seteuid(65534)
    else:
        (tmp_path / "plugin").chmod(0)
    try:
        assert [cli.main([*folders, command]) for command in ("status", "doctor")] == [1, 1]
    finally:
        os.seteuid(user)
        (tmp_path / "plugin").chmod(0o700)
    printed = capsys.readouterr()
    assert printed.err == f"lanewise-driver: {refused}"
    assert printed.out.startswith("wrong  the command runs as root\n         moving interfaces needs root: use sudo\n")
    assert printed.out.endswith(f"wrong  the other checks can be made\n         {refused}")


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ({"token": "SECRET\nTOKEN"}, "the token in .* is not valid"),
        ({"token": "SECRET\u00e9"}, "the token in .* is not valid"),
        ({"client-certificate-data": "QQ==", "client-key-data": "U0VDUkVU/w=="}, "is not ASCII text"),
    ],
)
def test_no_message_contains_credentials(tmp_path: Path, user: dict[str, str], reason: str) -> None:
    kubeconfig = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    with pytest.raises(AccessError, match=reason) as raised:
        from_kubeconfig(path)
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))


def test_certificates_of_an_authority_may_have_comments_but_must_exist(tmp_path: Path) -> None:
    certificate = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----"
    authority = tmp_path / "ca.crt"
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": str(authority)}
    kubeconfig = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": " t \n"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    authority.write_text(f"# Zertifizierungsstelle f\u00fcr Tests\n{certificate}\n")
    access = from_kubeconfig(path)
    assert access.authority == f"{certificate}\n" and access.token == "t"
    authority.write_text("")
    with pytest.raises(AccessError, match=f"{authority} contains no certificate"):
        from_kubeconfig(path)
