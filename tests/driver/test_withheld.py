# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver logs which devices are not published, and why."""

from __future__ import annotations

import logging

import pytest
from lanewise_driver.publish.withheld import WithheldLog


def test_reasons_are_logged_only_when_they_change_and_long_lists_are_shortened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = WithheldLog()

    def log_lines(**withheld: str) -> list[str]:
        caplog.clear()
        log.report(withheld)
        return [record.getMessage() for record in caplog.records]

    assert log_lines() == []
    assert log_lines(eth0="default route", eth1="default route", eth2="excluded") == [
        "not published: eth0, eth1: default route",
        "not published: eth2: excluded",
    ]
    assert log_lines(eth0="default route", eth1="default route", eth2="excluded") == []
    assert log_lines(eth0="SSH session", eth2="excluded") == [
        "not published: eth0: SSH session",
        "no longer withheld: eth1",
    ]
    (line,) = log_lines(eth0="SSH session", eth2="excluded", **{f"vf{number}": "excluded" for number in range(256)})
    assert line.endswith("vf19 and 236 more: excluded") and len(line) < 200
