# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests without Kubernetes: unit tests, the driver, host configuration, and all folders without their own session."""

from __future__ import annotations

import os
import shutil

import cluster as kubernetes
import nox
import tomllib
from checks import SLOW
from downloads import unpack_other_collections
from environment import REPOSITORY, Missing, ensure
from interpreters import TARGETS, newest_target, python
from staging import PARALLEL, driver_package, ensure_optional_package, prepare, pytest, run, session_folder

_SEPARATE = ("cluster", "commands", "driver", "host", "lab")  # folders of tests that have their own session


def units(session: nox.Session, target: str) -> None:
    """Run the unit tests on a Python that has only ansible.module_utils of Ansible, like a managed node."""
    venv, node = prepare(session), ensure("unit", python(target))
    node_path = session_folder(session) / "node" / target
    shutil.rmtree(node_path, ignore_errors=True)
    (node_path / "ansible").mkdir(parents=True)
    (node_path / "ansible" / "__init__.py").touch()
    source = next(venv.glob("lib/python3*/site-packages/ansible/module_utils"))
    (node_path / "ansible" / "module_utils").symlink_to(source)
    paths = os.pathsep.join(map(str, (node_path, session_folder(session) / "stage")))
    pytest(session, node, *PARALLEL, "-p", "no:cacheprovider", on=["tests/unit"], PYTHONPATH=paths)


def older_units(session: nox.Session, target: str) -> None:
    """Run the unit tests on a Python other than the newest; on the oldest, ansible-test runs them."""
    if target == newest_target():
        raise Missing("the session 'units' runs them on this Python")
    if target in TARGETS[1:-1] and not SLOW:
        raise Missing(f"takes a while; {TARGETS[0]} and {newest_target()} are tested, LANEWISE_SLOW=1 adds this one")
    if target != TARGETS[0]:
        units(session, target)
        return
    venv, node = prepare(session), ensure("unit", python(target))
    options = ("--color", "no", "--target-python", f"{target}@{node / 'bin/python'}")
    run(session, venv, "ansible-test", "units", *options)


def other_tests(session: nox.Session, which: str) -> None:
    """Run the tests that a marker expression selects, from all folders without their own session."""
    venv = prepare(session)
    unpack_other_collections()
    browsers = ("chromium", "chromium-browser", "google-chrome")
    wanted = {"hwloc-nox": ("lstopo-no-graphics", "lstopo"), "chromium": browsers}
    if os.environ.get("CI"):  # not on a developer's machine, where the package would start an SSH server
        wanted["openssh-server"] = ("/usr/sbin/sshd",)
    for name, programs in wanted.items():
        ensure_optional_package(session, name, *programs)
    folders = {str(path.parent.relative_to(REPOSITORY)) for path in REPOSITORY.glob("tests/*/test_*.py")}
    folders -= {f"tests/{name}" for name in _SEPARATE}
    pytest(session, venv, *PARALLEL, "-m", which, on=sorted(folders))


def commands(session: nox.Session) -> None:
    """Run the commands that the documentation shows."""
    venv = prepare(session)
    ensure_optional_package(session, "util-linux", "setpriv")
    pytest(session, venv, on=["tests/commands"])


def driver(session: nox.Session, which: str) -> None:
    """Run the tests of the driver that a marker expression selects."""
    venv = prepare(session)
    unpack_other_collections()
    ensure_optional_package(session, "dnsmasq-base", "dnsmasq", "/usr/sbin/dnsmasq")
    ensure_optional_package(session, "nftables", "nft", "/usr/sbin/nft")
    ensure_optional_package(session, "openmpi-bin", "mpirun")
    pytest(session, venv, *PARALLEL, "-m", which, on=["tests/driver"], PYTHONPATH=driver_package(session, venv))


def claims(session: nox.Session) -> None:
    """Run the tests of the driver that need an API server or take long."""
    kubernetes.programs(kubernetes.minors()[0])
    driver(session, "control_plane or long")


def lowest(session: nox.Session, target: str) -> None:
    """Run the driver's protocol tests on a Python with the lowest versions that pyproject.toml allows."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    bounds = {dependency.replace(">=", "==") for dependency in project["dependencies"] if ">=" in dependency}
    pins = set((REPOSITORY / "requirements/lowest.in").read_text().split())
    if not bounds or not bounds <= pins:
        session.error(f"requirements/lowest.in does not pin these bounds of pyproject.toml: {sorted(bounds - pins)}")
    tools, venv = prepare(session), ensure("lowest", python(target))
    paths, protoc = driver_package(session, tools), str(tools / "bin/python")
    files = ["tests/driver/test_protocol.py", "tests/driver/test_plugin.py"]
    pytest(session, venv, on=files, PYTHONPATH=paths, LANEWISE_PROTOC=protoc)


def host(session: nox.Session) -> None:
    """Run the tests of the host configuration."""
    venv = prepare(session)
    unpack_other_collections()
    pytest(session, venv, on=["tests/host"], PYTHONPATH=driver_package(session, venv))
