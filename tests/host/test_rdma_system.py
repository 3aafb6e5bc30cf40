# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes in other network namespaces, which prevent a change of the RDMA mode. The mode is not changed, because that
needs RDMA devices."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.rdma_system import RdmaSystem
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node


@on_a_node
def test_a_process_in_another_network_namespace_is_named():
    """The test runs in a new network namespace, so that the other processes of the machine are in another one."""
    reason = RdmaSystem(System())._other_namespace()
    assert reason.startswith("process ") and reason.endswith("is in another network namespace")
