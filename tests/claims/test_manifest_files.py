# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The folder of manifests: files of the site follow the inventory, and other files are never changed."""

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_files import ManifestFolder, manifest_path


def write(folder: pathlib.Path, files: dict[str, str], *, site: str = "a", dry: bool = False, prune: bool = True):
    target = ManifestFolder(str(folder), site, dry=dry)
    return target, target.write(files, prune=prune)


def test_a_second_run_changes_nothing_and_a_third_removes_stale_files(tmp_path):
    folder, _stale = write(tmp_path, {"cluster/x.yaml": "a: 1\n", "namespaces/n/y.yaml": "b: 2\n"})
    assert folder.written == ["cluster/x.yaml", "namespaces/n/y.yaml"]
    assert not write(tmp_path, {"cluster/x.yaml": "a: 1\n", "namespaces/n/y.yaml": "b: 2\n"})[0].changed
    folder, stale = write(tmp_path, {"cluster/x.yaml": "a: 1\n"})
    assert (folder.removed, stale) == (["namespaces/n/y.yaml"], [])
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["cluster", "namespaces", "x.yaml"]


def test_a_dry_run_reports_the_same_changes_and_writes_nothing(tmp_path):
    write(tmp_path, {"x.yaml": "old\n", "y.yaml": "gone\n"})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.yaml")}
    folder, _stale = write(tmp_path, {"x.yaml": "new\n"}, dry=True)
    assert (folder.written, folder.removed) == (["x.yaml"], ["y.yaml"])
    assert [part["after"].endswith("new\n") for part in folder.diff] == [True, False]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.yaml")} == before


def test_other_files_are_never_changed(tmp_path):
    (tmp_path / "mine.yaml").write_text("kind: Mine\n")
    write(tmp_path, {"b.yaml": "b\n"}, site="b")
    folder, _stale = write(tmp_path, {"a.yaml": "a\n"}, site="a")
    assert folder.removed == []
    for name in ("mine.yaml", "b.yaml"):
        with pytest.raises(FileExistsError, match=name):
            write(tmp_path, {"a.yaml": "changed\n", name: "x\n"}, site="a")
    assert "changed" not in (tmp_path / "a.yaml").read_text()  # refused before the first file was written


def test_files_that_are_not_utf_8_are_replaced_and_removed(tmp_path):
    files = {"x.yaml": "x\n", "y.yaml": "y\n"}
    write(tmp_path, files)
    for name in files:
        path = tmp_path / name
        path.write_bytes(path.read_bytes() + b"# \xe9\n")
    folder, _stale = write(tmp_path, {"x.yaml": "x\n"})
    assert (folder.written, folder.removed) == (["x.yaml"], ["y.yaml"])
    assert folder.diff[0]["before"].endswith("# \ufffd\n")
    assert (tmp_path / "x.yaml").read_text().endswith("\nx\n") and not (tmp_path / "y.yaml").exists()


def test_without_prune_stale_files_are_reported(tmp_path):
    write(tmp_path, {"x.yaml": "x\n", "y.yaml": "y\n"})
    folder, stale = write(tmp_path, {"x.yaml": "x\n"}, prune=False)
    assert stale == ["y.yaml"] and not folder.changed and (tmp_path / "y.yaml").exists()


SECRET = """---
apiVersion: v1
kind: Secret
metadata: {name: pull, namespace: ml}
%s
"""


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("stringData: {token: one-hidden, same: too-hidden}", "token: '***"),
        ("data: {token: two-hidden}", "token: '***"),
        ("data: [list-hidden]", "*** (after)"),
        ("data: {token: half-hidden", "*** (after)"),
        ("---\nword-hidden", "*** (after)"),
    ],
)
def test_only_the_owner_of_a_file_can_read_the_values_of_secrets(tmp_path, values, shown):
    path = "namespaces/ml/secrets.yaml"
    text = SECRET % values
    for files in ({path: text}, {path: SECRET % "data: {token: other-hidden}"}, {path: text}, {}):
        dry, _stale = write(tmp_path, files, dry=True)
        folder, _stale = write(tmp_path, files)
        assert folder.diff == dry.diff and len(folder.diff) == 1 and "hidden" not in str(folder.diff)
        assert folder.diff[0]["before"] != folder.diff[0]["after"]
        if files:
            assert (tmp_path / path).stat().st_mode & 0o777 == 0o600 and "hidden" in (tmp_path / path).read_text()
        if files.get(path) == text:
            assert shown in folder.diff[0]["after"]
    folder, _stale = write(tmp_path, {"x.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nof: {kind: Secret}\n"})
    assert "of: {kind: Secret}" in folder.diff[0]["after"] and (tmp_path / "x.yaml").stat().st_mode & 0o077


@pytest.mark.parametrize(
    ("kind", "namespace", "path"),
    [
        ("DeviceClass", None, "cluster/deviceclasses.yaml"),
        ("ValidatingAdmissionPolicy", None, "cluster/validatingadmissionpolicies.yaml"),
        ("ResourceClaim", "cluster", "namespaces/cluster/resourceclaims.yaml"),
    ],
)
def test_each_kind_and_namespace_has_its_own_file(kind, namespace, path):
    metadata = {"name": "x", **({"namespace": namespace} if namespace else {})}
    assert manifest_path({"kind": kind, "metadata": metadata}) == path
