# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    # For modules that write a page of the report, and its data, to a folder.
    DOCUMENTATION = r"""
attributes:
  diff_mode:
    support: full
    details:
      - Lists the files that change, not their content.
options:
  dest:
    description:
      - The folder, on the controller. It is created if it does not exist.
      - A relative path is relative to the playbook's folder.
    type: path
    required: true
  template_dir:
    description:
      - A folder on the controller whose templates replace those of the collection with the same name, which are in
        C(roles/alignment/templates/report) and C(roles/topology/templates/report).
      - A relative path is relative to the playbook's folder.
    type: path
"""
