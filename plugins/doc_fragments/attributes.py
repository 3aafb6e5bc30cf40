# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    # Standard attributes. Each module sets its support; the descriptions are shared.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Returns details on what has changed, or would change in C(check_mode), when in diff mode.
  idempotent:
    description: A second run in a row with the same arguments, outside check mode, indicates no change.
"""

    # For modules that only read.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This action does not modify state.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
    details:
      - This action does not modify state.
"""

    # For modules that change a cluster.
    DRY_RUN = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - By server-side dry run.
  diff_mode:
    support: full
  idempotent:
    support: full
"""

    # For modules that are action plugins, which run on the controller, usually once for all hosts.
    CONTROLLER = r"""
options: {}
attributes:
  action:
    description: Has a corresponding action plugin, which runs on the controller.
    support: full
  async:
    description: Supports being used with the C(async) keyword.
    support: none
  bypass_host_loop:
    description: Forces a global task that does not execute per host. This module leaves that to C(run_once).
    support: none
"""

    # For modules that write a folder on the controller.
    FILES = r"""
options: {}
attributes:
  check_mode:
    support: full
  idempotent:
    support: full
  safe_file_operations:
    description: Uses Ansible's strict file operation functions to ensure proper permissions and avoid data corruption.
    support: partial
    details:
      - Files are replaced atomically by a rename within the folder, with the permissions of the umask.
"""

    # The group lanewise.dra.all takes module defaults for all modules of the collection.
    ACTIONGROUP_LANEWISE = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/lanewise.dra.all) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - lanewise.dra.all
"""
