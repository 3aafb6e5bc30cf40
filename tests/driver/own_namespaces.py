# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run tests in their own network, mount and process namespaces, selected and reported like all others.

An inner pytest runs the selected tests of a file in new namespaces, so that they share the fixtures of the file. It
sends its reports through a pipe, and the outer pytest reports them as results of its tests.
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

#: Set in the environment of the inner pytest.
_INNER = "LANEWISE_TEST_NAMESPACES"
_REPORT_PIPE = "LANEWISE_TEST_REPORTS"  # the number of the descriptor that reports are written to
_SCRIPT = (
    "mount -t sysfs -o ro sysfs /sys && mount -t tmpfs tmpfs /run && ip link set lo up && "
    'exec "$0" -m pytest -p no:cacheprovider -q -o faulthandler_timeout=120 "$@"'
)
#: All processes in the namespaces end with the first of them, which ends with the outer pytest.
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def is_inner() -> bool:
    """Whether this is the pytest in the new namespaces."""
    return _INNER in os.environ


def needs_own_namespaces(item: pytest.Item) -> bool:
    """Whether a test uses the fixture ``claims_node``, or is marked ``namespaces``."""
    return "claims_node" in getattr(item, "fixturenames", ()) or item.get_closest_marker("namespaces") is not None


def send_report(config: pytest.Config, report: pytest.TestReport) -> None:
    """Send the report of a test to the outer pytest, as one line."""
    if _REPORT_PIPE not in os.environ:
        return
    line = json.dumps(config.hook.pytest_report_to_serializable(config=config, report=report), default=str)
    os.write(int(os.environ[_REPORT_PIPE]), line.encode() + b"\n")


class InnerRun:
    """An inner pytest that runs the tests of one file, in the order in which the outer pytest asks for them."""

    def __init__(self, config: pytest.Config, names: t.Sequence[str]) -> None:
        self._config = config
        self._output = tempfile.TemporaryFile("w+")
        reader, writer = os.pipe()
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *_UNSHARE, "sh", "-c", _SCRIPT, sys.executable, *names],
            cwd=config.rootpath,
            env={**os.environ, _INNER: "1", _REPORT_PIPE: str(writer)},
            pass_fds=[writer],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        os.close(writer)
        self._reports = os.fdopen(reader)

    def reports(self, item: pytest.Item) -> t.Iterator[pytest.TestReport]:
        """The reports of the setup, call and teardown of a test, as they arrive."""
        for line in self._reports:
            data = json.loads(line)
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
            if isinstance(report.longrepr, list):  # the tuple of a skipped test, a list in JSON
                report.longrepr = tuple(report.longrepr)
            if report.nodeid != item.nodeid:  # of a test that another process of a parallel run reports
                continue
            yield report
            if report.when == "teardown":
                return
        self._process.wait()
        self._output.seek(0)
        text = f"the inner pytest ended with {self._process.returncode}:\n{self._output.read()[-4000:]}"
        yield pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")

    def close(self) -> None:
        """End the inner pytest if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reports.close()
        self._output.close()


class OwnNamespaces:
    """A pytest plugin that lets inner runs execute the tests that need their own namespaces."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run: tuple[object, InnerRun] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if is_inner() or not needs_own_namespaces(item):
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
            names = [
                other.nodeid for other in item.session.items if other.path == item.path and needs_own_namespaces(other)
            ]
            self._run = item.path, InnerRun(item.config, names)
        return self._run[1].reports(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if is_inner():
            send_report(self._config, report)

    def pytest_sessionfinish(self) -> None:
        if self._run is not None:
            self._run[1].close()
            self._run = None
