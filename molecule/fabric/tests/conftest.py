# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures with the reported changes of the playbook's runs and with the node's cards. Tests read the node over SSH."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

CARDS = ("0000:23:00.0", "0000:43:00.0")


@pytest.fixture(name="reported")
def _reported(host):
    """The changes of the last check-mode run (`predicted`) and of the last other run (`done`)."""
    name = host.ansible.get_variables()["inventory_hostname"]
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])

    def changes(kind):
        listed = json.loads((folder / f"{name}-{kind}.json").read_text())
        return [(change["resource"], change["device"], change["setting"], change["after"]) for change in listed]

    return {kind: changes(kind) for kind in ("predicted", "done")}


@pytest.fixture(name="cards")
def _cards(host):
    """The interface of each card's PF, by address."""
    return {address: host.check_output("ls /sys/bus/pci/devices/%s/net", address) for address in CARDS}
