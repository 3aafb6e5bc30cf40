# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests with Kubernetes' own programs, on this machine and on virtual nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cluster as kubernetes
import lab as virtual
import nox
from checks import SLOW
from downloads import unpack_other_collections
from environment import CACHE, WORK, Missing, ensure_package
from interpreters import primary
from staging import PARALLEL, driver_package, ensure_optional_package, prepare, pytest, run

_INSTALL_TESTS = ("test_node_role.py", "test_node_kubelet.py", "test_node_site.py", "test_node_switch.py")
_CLUSTER = Path(__file__).parents[2] / "tests" / "cluster"
_NODE_TESTS = sorted({path.name for path in _CLUSTER.glob("test_node*.py")} - set(_INSTALL_TESTS))
_NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "true")


def programs(_session: nox.Session) -> None:
    """Build the programs of every pinned Kubernetes, and those of queues."""
    for minor in kubernetes.minors():
        kubernetes.programs(minor, *kubernetes.CONTROL_PLANE, *kubernetes.NODE)
    kubernetes.programs(kubernetes.minors()[0], *kubernetes.QUEUES)


def cluster(session: nox.Session) -> None:
    """Run the tests that need an API server or a scheduler, but no kubelet."""
    venv = prepare(session)
    unpack_other_collections()
    for minor in kubernetes.minors():
        kubernetes.programs(minor)
    kubernetes.programs(kubernetes.minors()[0], *kubernetes.QUEUES)
    _nvidia(session)
    options = (*PARALLEL, "--durations=20", "--ignore-glob=*/test_node*.py")
    pytest(session, venv, *options, on=["tests/cluster"], PYTHONPATH=driver_package(session, venv))


def _nvidia(session: nox.Session) -> None:
    """Build NVIDIA's driver if there is a C compiler; otherwise its tests are skipped."""
    try:
        kubernetes.programs(kubernetes.minors()[0], *kubernetes.NVIDIA.values())
    except Missing as missing:
        session.log(f"without NVIDIA's DRA driver: {missing}")


def node(session: nox.Session) -> None:
    """Run the tests that need a kubelet: all on the newest Kubernetes and some on the oldest, or all on ``K8S``.

    The tests of DRANET run if it was built before or ``LANEWISE_SLOW`` is set.
    """
    _require_root("needs root on Linux, for namespaces and containers: 'sudo make test ONLY=node'")
    if not shutil.which("unshare") or subprocess.run(_NAMESPACES, capture_output=True, check=False).returncode:
        raise Missing("cannot create namespaces here; run it on a host or in a privileged container")
    venv = prepare(session)
    unpack_other_collections()
    ensure_package("runc", bool(shutil.which("runc")))
    for name, program in {"dnsmasq-base": "dnsmasq", "iperf3": "iperf3"}.items():
        ensure_optional_package(session, name, program)
    requested = os.environ.get("K8S", "")
    newest, oldest = kubernetes.minors()[0], kubernetes.minors()[-1]
    runs: list[tuple[str, ...]] = [(requested or newest, file) for file in _NODE_TESTS]
    if not requested:
        runs.append((oldest, "test_node_driver.py", "-m", "each_kubernetes"))
    for minor in {entry[0] for entry in runs}:
        kubernetes.programs(minor, *kubernetes.CONTROL_PLANE, *kubernetes.NODE)
    _nvidia(session)
    try:
        kubernetes.programs(requested or newest, kubernetes.DRANET, build=SLOW)
    except Missing as missing:
        session.log(f"without test_node_dranet.py: {missing}")
        runs = [entry for entry in runs if "test_node_dranet.py" not in entry]
    for minor, file, *options in runs:  # each in its own sandbox
        _in_sandbox(session, venv, file, *options, K8S=minor)


def lab(session: nox.Session) -> None:
    """Run the tests that need virtual nodes."""
    if not SLOW:
        raise Missing("emulates processors for minutes: 'LANEWISE_SLOW=1 make test ONLY=lab' or 'make test-all'")
    virtual.ensure()
    venv = prepare(session)
    unpack_other_collections()
    _nvidia(session)
    pytest(session, venv, on=["tests/lab"], PYTHONPATH=driver_package(session, venv))


def install(session: nox.Session) -> None:
    """Run the tests of the role dra_driver, of site.yml and of switch_driver.yml on a machine with systemd."""
    if not SLOW:
        raise Missing("takes about half an hour: 'LANEWISE_SLOW=1 make test ONLY=install' runs it, as root")
    _require_root("needs root on Linux, for namespaces and containers")
    venv = prepare(session)
    unpack_other_collections()
    ensure_package("runc", bool(shutil.which("runc")))
    kubernetes.programs(kubernetes.minors()[0], *kubernetes.CONTROL_PLANE, *kubernetes.NODE, kubernetes.DRANET)
    _nvidia(session)
    variables = {  # there is no network in the sandbox
        "dra_driver_wheelhouse": str(CACHE / "driver-wheelhouse"),
        "dra_driver_wheelhouse_pythons": [primary()],
        "dra_driver_cache": str(WORK / "driver-wheels"),
    }
    wheelhouse = ("ansible-playbook", "-i", "localhost,", "lanewise.dra.driver_wheelhouse", "-e", json.dumps(variables))
    run(session, venv, *wheelhouse)
    for file in _INSTALL_TESTS:  # each in its own sandbox
        _in_sandbox(session, venv, file)


def molecule(session: nox.Session, scenario: str) -> None:
    """Run a scenario of molecule; all but ``default`` need virtual nodes."""
    if scenario != "default":
        if not SLOW:
            raise Missing("emulates processors for minutes: 'LANEWISE_SLOW=1 make test ONLY=molecule' runs it")
        virtual.ensure()
    if scenario == "cluster":
        kubernetes.programs(kubernetes.minors()[0], *kubernetes.CONTROL_PLANE, *kubernetes.NODE)
    venv = prepare(session)
    unpack_other_collections()  # molecule asks Galaxy for required collections that are missing
    run(session, venv, "molecule", "test", "--scenario-name", scenario, MOLECULE_GLOB="molecule/*/molecule.yml")


def _in_sandbox(session: nox.Session, venv: Path, file: str, *options: str, **variables: str) -> None:
    """Run a file of tests/cluster in its own sandbox, unless nox's arguments name other files."""
    named = {word.split("::")[0] for word in session.posargs if word.startswith("tests/")}
    if named and f"tests/cluster/{file}" not in named:
        return
    sandbox = ("python", "tests/cluster/sandbox.py")
    path = driver_package(session, venv)
    pytest(session, venv, *options, on=[f"tests/cluster/{file}"], wrapper=sandbox, PYTHONPATH=path, **variables)


def _require_root(message: str) -> None:
    if os.geteuid() or sys.platform != "linux":
        raise Missing(message)
