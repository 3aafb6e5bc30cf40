# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The checks, how long each takes, and the tables that a run prints at its start and end.

``make test`` runs the quick ones, ``make test-all`` all others. The minutes are those of a first run on two processors,
downloads and builds included; a later run takes about half as long.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import sys
import tempfile
import time
import typing as t
from pathlib import Path

from environment import Missing, say

QUICK, REST = "quick", "rest"
SLOW = bool(os.environ.get("LANEWISE_SLOW"))  # whether to run the slow checks: virtual nodes and installations
#: Minutes on one processor and what is checked, by the name of the session.
CHECKS: dict[str, dict[str, tuple[float, str]]] = {
    QUICK: {
        "lint": (2.5, "style, types, Ansible's own linters"),
        "units": (3.5, "unit tests on the newest Python"),
        "tests": (15.0, "example and recorded machines, lstopo, reports, playbooks over SSH"),
        "commands": (4.0, "make try and the commands of README and docs, without root"),
        "driver": (6.0, "the driver, in the tests' network namespaces"),
        "host": (1.5, "host configuration, on this kernel"),
    },
    REST: {
        "programs": (50.0, "build Kubernetes, etcd, containerd and Kueue"),
        "older_units": (5.0, "unit tests on the oldest Python (LANEWISE_SLOW=1: on all)"),
        "sanity": (7.0, "ansible-test sanity (LANEWISE_SLOW=1: also with older ansible-core)"),
        "long": (9.0, "large reports, card replacement, rollouts, Kubernetes' own Go packages as oracles"),
        "claims": (9.0, "the driver's claims with a real API server; the driver killed repeatedly"),
        "lowest": (2.0, "the driver's protocol with the lowest grpcio and protobuf"),
        "cluster": (18.0, "API servers and schedulers, queues"),
        "node": (16.0, "pods on a real kubelet and containerd (root)"),
        "site": (3.0, "make try on each supported ansible-core"),
        "molecule": (2.0, "the example site as a scenario"),
        "docs": (2.0, "plugin documentation and the docs site"),
        "package": (2.0, "the artifact for Galaxy"),
        "lab": (60.0, "virtual nodes with SR-IOV (LANEWISE_SLOW=1)"),
        "install": (25.0, "the driver under systemd, site.yml on a GPU node, a driver switch (LANEWISE_SLOW=1, root)"),
    },
}
#: The variable with the file in which each check records its result, for the table at the end.
_RESULTS = "LANEWISE_RESULTS"


def check(function: t.Callable[..., None]) -> t.Callable[..., None]:
    """A nox session whose result is in the table at the end. If it raises Missing, it is skipped with that reason."""

    @functools.wraps(function)
    def run(session: t.Any, **arguments: str) -> None:
        name = " ".join([function.__name__, *arguments.values()])
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)

        def record(result: str, reason: str = "") -> None:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            busy = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
            with open(os.environ[_RESULTS], "a") as table:
                table.write(json.dumps([name, result, time.monotonic() - start, busy, reason]) + "\n")
            ended = len(Path(os.environ[_RESULTS]).read_text().splitlines())
            say(f"{name}: {result} after {time.monotonic() - start:.0f} s; {ended} check(s) have ended so far")

        try:
            function(session, **arguments)
        except Missing as missing:
            record("skipped", str(missing))
            session.skip(str(missing))
        except BaseException:
            record("failed")
            raise
        record("passed")

    return run


def start_run(worker: bool) -> None:
    """Print the checks of this run, and at its end their results. Does nothing in a worker, which runs one check."""
    if worker:
        return
    handle, os.environ[_RESULTS] = tempfile.mkstemp(prefix="lanewise-dra-", suffix=".results")
    os.close(handle)
    for tier, checks in CHECKS.items():
        if tier in sys.argv:
            processors = min(os.cpu_count() or 1, 4)
            minutes = sum(minutes for minutes, _what in checks.values()) / processors
            say(
                f"{len(checks)} groups of checks, up to {processors} at a time. Each prints its output when it ends. "
                f"The first run takes about {minutes:.0f} minutes if nothing is skipped:"
            )
            for name, (minutes, what) in checks.items():
                print(f"    {name:12} {minutes:4.1f} min  {what}")
            sys.stdout.flush()
    atexit.register(_show_results)


def _show_results() -> None:
    table = Path(os.environ[_RESULTS])
    results = [json.loads(line) for line in table.read_text().splitlines()]
    table.unlink()
    if not results:
        return
    print("\n==> result, check, duration, CPU time")
    for name, result, seconds, busy, reason in results:
        print(f"{result:8} {name:16} {seconds:5.0f} s {busy:5.0f} s  {reason}".rstrip())
    outcomes = [result for _name, result, *_more in results]
    print(
        "checks: " + ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")),
        flush=True,
    )
