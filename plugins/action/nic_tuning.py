# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the result of the module. The documentation is in plugins/modules/nic_tuning.py."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import Fabric
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_action import NodeAction


class ActionModule(NodeAction):
    ANSWER = Fabric
