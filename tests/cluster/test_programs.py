# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of Kubernetes come from folders in environment variables, the cache, or a build. Missing programs are
reported."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tools import cluster
from environment import Missing, tracked

NEWEST = cluster.minors()[0]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in cluster.VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def built() -> dict[str, Path]:
    try:
        return cluster.programs(NEWEST, build=False)
    except Missing as missing:
        pytest.skip(str(missing))


def test_the_pins_are_read_from_the_modules() -> None:
    assert cluster.minors() == sorted(cluster.minors(), key=lambda name: int(name.split(".")[1]), reverse=True)
    for minor in cluster.minors():
        assert cluster.module("kubectl", minor).version.startswith(f"{minor}.")
        assert f"gitVersion=v{minor}." in " ".join(cluster.module("kubectl", minor).build_command("kubectl"))
    with pytest.raises(Missing, match="1.2 is not pinned"):
        cluster.programs("1.2")


def test_nothing_is_built_without_a_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "CACHE", tmp_path)
    with pytest.raises(Missing, match=r"tools/cluster.py --kubernetes .* in 9 minutes"):
        cluster.programs(NEWEST, build=False)
    assert not list(tmp_path.iterdir())


def test_a_missing_go_is_reported_with_the_variable_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="needs Go to build .* LANEWISE_KUBE_BIN"):
        cluster.programs(NEWEST)


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_a_go_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The module requires a Go version that does not exist, so the installed Go refuses the module."""
    module = cluster.module("etcd", NEWEST)
    text = (module.folder / "go.mod").read_text()
    (tmp_path / "go.mod").write_text("\n".join("go 1.999" if x.startswith("go ") else x for x in text.split("\n")))
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    with pytest.raises(Missing, match=r"requires go >= 1\.999"):
        cluster._build_environment(dataclasses.replace(module, folder=tmp_path))


@pytest.mark.parametrize("variable", cluster.VARIABLES)
def test_programs_in_the_folder_of_a_variable_are_used(
    built: dict[str, Path], variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):  # the programs of envtest
        (tmp_path / name).symlink_to(built[name])
    monkeypatch.setenv(variable, str(tmp_path))
    names = ("etcd", "kube-apiserver", "kubectl")
    assert cluster.programs(NEWEST, *names) == {name: tmp_path / name for name in names}
    with pytest.raises(Missing, match="lacks kube-scheduler, kube-controller-manager"):
        cluster.programs(NEWEST)
    for other in cluster.minors()[1:]:  # programs of another version are not used
        try:
            assert cluster.programs(other, "kubectl", build=False)["kubectl"].parent != tmp_path
        except Missing as missing:
            assert "not built" in str(missing)


def test_a_folder_without_programs_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANEWISE_KUBE_BIN", str(tmp_path))
    with pytest.raises(Missing, match="LANEWISE_KUBE_BIN names .* no kube-apiserver"):
        cluster.programs(NEWEST)


def test_built_programs_report_their_version(built: dict[str, Path]) -> None:
    version = cluster.module("kubectl", NEWEST).version
    for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager"):
        answer = subprocess.run([built[name], "--version"], capture_output=True, text=True, check=True).stdout
        assert answer.split() == ["Kubernetes", f"v{version}"]
    answer = subprocess.run(
        [built["kubectl"], "version", "--client"], capture_output=True, text=True, check=True
    ).stdout
    assert f"Client Version: v{version}" in answer


def test_listing_files_needs_a_git_clone(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="needs a git clone"):
        tracked(tmp_path)
