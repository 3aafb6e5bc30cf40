# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.modules.dra_hold import apply_hold

DEVICE = ("gpu.example.com", "node-1", "gpu-0")


class ReadOnlyRules:
    """The rules of a hold with one device. A change of them is an error, because there are no other methods."""

    def list(self) -> list[dict[str, t.Any]]:
        until = datetime.now(timezone.utc) + timedelta(hours=1)
        return [hold.rule(hold.Hold("demo", "team a", "training", until, (DEVICE,)), DEVICE, "resource.k8s.io/v1")]


def test_an_empty_list_of_devices_does_not_release_a_hold() -> None:
    params = {
        "name": "demo",
        "state": "present",
        "owner": "team a",
        "reason": "training",
        "purpose": hold.RESERVE,
        "hours": 24,
        "expires": None,
        "devices": [],
    }
    module: t.Any = SimpleNamespace(params=params, check_mode=False)
    rules: t.Any = ReadOnlyRules()
    with pytest.raises(Problems, match=r"^devices: must not be empty \(to keep no device, release the hold\)$"):
        apply_hold(module, rules)
