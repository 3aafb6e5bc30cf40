# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The checks of ``make test`` and ``make test-all``, one nox session each; tools/checks.py lists what runs in which.

``make test ONLY=name`` runs a single check; ``nox --list`` names them. What a session does is in tools/sessions.

A session that lacks an interpreter or a program is skipped, and the table at the end says why. tools/environment.py
provides the environments; most sessions share one with every tool, so they start fast. Unless sessions are named, they
run in parallel, one per processor but at most four. Each is a process with its own copy of the collection, and its
output is printed when it ends; ``NOX_PARALLEL=1 make test`` runs one after the other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from checks import QUICK, REST, SLOW, check, start_run
from interpreters import CONTROLLERS, TARGETS, newest_target, pythons
from sessions import kubernetes, machine, release, static

DRIVER_PYTHONS = ("3.10", "3.13")  # the oldest Python that the driver supports, and the newest that is tested
SCENARIOS = ("default", "fabric", "cluster")  # below molecule/
LISTING = bool({"-l", "--list", "--list-sessions", "-h", "--help"} & set(sys.argv))
WORKER = "--parallel-worker" in sys.argv  # this process runs one of several sessions

nox.needs_version = ">=2026.10.20"
nox.options.default_venv_backend = "none"
nox.options.reuse_existing_virtualenvs = True
nox.options.allow_parallel = True
if not {"-s", "--session", "--sessions"} & set(sys.argv):
    nox.options.parallel = min(os.cpu_count() or 1, 4)

if not LISTING:
    start_run(WORKER)
    if nox.options.parallel and not WORKER:
        pythons()  # once, for the processes of all sessions


@nox.session(tags=[REST])
@check
def programs(session: nox.Session) -> None:
    """Build Kubernetes' programs, once: the longest step of a first run, so it starts first."""
    kubernetes.programs(session)


@nox.session(tags=[QUICK])
@check
def lint(session: nox.Session) -> None:
    """Style, types, imports: ruff, mypy, import-linter, ansible-lint with yamllint, and the format of the changelog."""
    static.lint(session)


@nox.session(tags=[REST])
@nox.parametrize("controller", CONTROLLERS, ids=CONTROLLERS)
@check
def sanity(session: nox.Session, controller: str) -> None:
    """ansible-test sanity, without an ignore file. The main controller checks every target Python.

    Other controllers run it only if they have another ansible-core and ``LANEWISE_SLOW`` is set.
    """
    static.sanity(session, controller)


@nox.session(tags=[QUICK])
@check
def units(session: nox.Session) -> None:
    """Unit tests as a managed node with the newest Python runs them."""
    machine.units(session, newest_target())


@nox.session(tags=[REST])
@nox.parametrize("target", TARGETS, ids=TARGETS)
@check
def older_units(session: nox.Session, target: str) -> None:
    """Unit tests as managed nodes with the other Pythons run them; without ``LANEWISE_SLOW`` only on the oldest.

    On the oldest Python, ansible-test runs them, each in its own process, which takes twice as long.
    """
    machine.older_units(session, target)


@nox.session(tags=[QUICK])
@check
def tests(session: nox.Session) -> None:
    """The other tests: example machines, oracles, the report in a browser, the site playbook over SSH."""
    machine.other_tests(session, "not long")


@nox.session(tags=[REST])
@check
def long(session: nox.Session) -> None:
    """The slow ones of the other tests: large reports, card replacement, rollouts, oracles built from Go."""
    machine.other_tests(session, "long")


@nox.session(tags=[QUICK])
@check
def commands(session: nox.Session) -> None:
    """``make try``, the tutorial and the commands of all pages, in a fresh checkout, without root or sudo."""
    machine.commands(session)


@nox.session(tags=[QUICK])
@check
def driver(session: nox.Session) -> None:
    """The driver as its wheel installs it, in the tests' network namespaces."""
    machine.driver(session, "not control_plane and not long")


@nox.session(tags=[REST])
@check
def claims(session: nox.Session) -> None:
    """The driver's claims, in the tests' network namespaces and with a real API server."""
    machine.claims(session)


@nox.session(tags=[REST])
@nox.parametrize("target", DRIVER_PYTHONS, ids=DRIVER_PYTHONS)
@check
def lowest(session: nox.Session, target: str) -> None:
    """The driver's protocol towards kubelet, with the lowest grpcio and protobuf that its wheel allows."""
    machine.lowest(session, target)


@nox.session(tags=[QUICK])
@check
def host(session: nox.Session) -> None:
    """Host configuration, on the real kernel in the tests' namespaces, with the distributions' programs."""
    machine.host(session)


@nox.session(tags=[REST])
@check
def cluster(session: nox.Session) -> None:
    """Real API servers and schedulers of each pinned Kubernetes, on loopback; docs/cluster.md lists their cost."""
    kubernetes.cluster(session)


@nox.session(tags=[REST])
@check
def node(session: nox.Session) -> None:
    """A real kubelet and containerd with pods, in their own namespaces. Needs root; leaves nothing behind.

    All tests with the newest Kubernetes and some with the oldest, or all with the version in ``K8S``.
    """
    kubernetes.node(session)


@nox.session(allow_parallel=not SLOW, tags=[REST])
@check
def lab(session: nox.Session) -> None:
    """Virtual nodes with sockets, switches, GPUs and SR-IOV NICs, probed over SSH. No root, nothing installed."""
    kubernetes.lab(session)


@nox.session(allow_parallel=not SLOW, tags=[REST])
@check
def install(session: nox.Session) -> None:
    """The role dra_driver on a machine with systemd, kubelet and containerd: install, upgrade, roll back, remove."""
    kubernetes.install(session)


@nox.session(tags=[REST])
@nox.parametrize("controller", CONTROLLERS, ids=CONTROLLERS)
@check
def site(session: nox.Session, controller: str) -> None:
    """All of ``make try`` on each controller, in a folder whose name has a space; roles' documentation."""
    release.site(session, controller)


@nox.session(allow_parallel=not SLOW, tags=[REST])
@nox.parametrize("scenario", SCENARIOS, ids=SCENARIOS)
@check
def molecule(session: nox.Session, scenario: str) -> None:
    """Molecule scenarios: the example site; on virtual nodes, the role fabric and a site's life cycle in a cluster."""
    kubernetes.molecule(session, scenario)


@nox.session(tags=[REST])
@check
def docs(session: nox.Session) -> None:
    """ansible-doc reads every plugin and role; antsibull-docs reports no error; the site builds without a warning.

    A broken link counts as a warning, and so does a page that docs/docsite/index.md does not list.
    """
    release.docs(session)


@nox.session(tags=[REST])
@check
def package(session: nox.Session) -> None:
    """Build the artifact, install and run it, import it as Galaxy would, read its execution environment files."""
    release.package(session)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve requirements/*.in, and write the locks. Needs Python 3.9 to 3.12."""
    release.lock(session)
