# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests that run in their own network, mount and process namespaces, and are selected and reported like any other.

A second pytest runs the selected tests of a file there, so that they share the fixtures of the file. It sends its
reports through a pipe, and they become the results of the tests in the first pytest.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import typing as t

import pytest

INSIDE = "LANEWISE_TEST_NAMESPACES"
_PIPE = "LANEWISE_TEST_REPORTS"  # the number of the descriptor that reports are written to
_SCRIPT = (
    "mount -t sysfs -o ro sysfs /sys && mount -t tmpfs tmpfs /run && ip link set lo up && "
    'exec "$0" -m pytest -p no:cacheprovider -q -o faulthandler_timeout=120 "$@"'
)
#: All processes inside end with the first one, which ends with the caller.
_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def inside() -> bool:
    return INSIDE in os.environ


def belongs_inside(item: pytest.Item) -> bool:
    """Whether a test needs its own namespaces: it uses the world, or is marked ``namespaces``."""
    return "world" in getattr(item, "fixturenames", ()) or item.get_closest_marker("namespaces") is not None


def write(config: pytest.Config, report: pytest.TestReport) -> None:
    """Send the report of a test from inside as one line."""
    if _PIPE not in os.environ:
        return
    line = json.dumps(config.hook.pytest_report_to_serializable(config=config, report=report), default=str)
    os.write(int(os.environ[_PIPE]), line.encode() + b"\n")


class Run:
    """The tests of one file, run inside in the order in which the outer pytest asks for them."""

    def __init__(self, config: pytest.Config, names: t.Sequence[str]) -> None:
        self._config = config
        self._output = tempfile.TemporaryFile("w+")
        reader, writer = os.pipe()
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *_NAMESPACES, "sh", "-c", _SCRIPT, sys.executable, *names],
            cwd=config.rootpath,
            env={**os.environ, INSIDE: "1", _PIPE: str(writer)},
            pass_fds=[writer],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        os.close(writer)
        self._reports = os.fdopen(reader)

    def reports(self, item: pytest.Item) -> t.Iterator[pytest.TestReport]:
        """The reports of the setup, call and teardown of a test, as they arrive."""
        for line in self._reports:
            given = json.loads(line)
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=given)
            if isinstance(report.longrepr, list):  # of a skipped test: a tuple, which JSON does not have
                report.longrepr = tuple(report.longrepr)
            if report.nodeid != item.nodeid:  # one that another process of a parallel run shows
                continue
            yield report
            if report.when == "teardown":
                return
        self._process.wait()
        self._output.seek(0)
        text = f"pytest ended inside with {self._process.returncode}:\n{self._output.read()[-4000:]}"
        yield pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")

    def close(self) -> None:
        """End the inner pytest if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reports.close()
        self._output.close()


class Inside:
    """A pytest plugin: hands each test that belongs inside to the run of its file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run: tuple[object, Run] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if inside() or not belongs_inside(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        item.session._setupstate.teardown_exact(nextitem)  # fixtures of earlier tests
        return True

    def _reports(self, item: pytest.Item) -> t.Iterator[pytest.TestReport]:
        if os.geteuid() != 0:
            reason = (str(item.path), item.location[1] or 0, "Skipped: only root makes network namespaces")
            return iter([pytest.TestReport(item.nodeid, item.location, {}, "skipped", reason, "setup")])
        if self._run is None or self._run[0] != item.path:
            self.pytest_sessionfinish()
            names = [one.nodeid for one in item.session.items if one.path == item.path and belongs_inside(one)]
            self._run = item.path, Run(item.config, names)
        return self._run[1].reports(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if inside():
            write(self._config, report)

    def pytest_sessionfinish(self) -> None:
        if self._run is not None:
            self._run[1].close()
            self._run = None
