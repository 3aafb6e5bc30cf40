# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The paths of the driver that the role removes."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from lanewise_driver.base.paths import Paths


def test_the_role_removes_all_paths_of_the_driver_below_its_run_folder() -> None:
    paths = Paths()
    variables = yaml.safe_load((COLLECTION / "roles" / "dra_driver" / "vars" / "main.yml").read_text())
    properties = [name for name, value in vars(Paths).items() if isinstance(value, property)]
    computed = [path for name in properties if isinstance(path := getattr(paths, name), Path)]
    below = {str(path) for path in computed if path.is_relative_to(paths.run_dir)}
    assert below
    assert below <= set(variables["__dra_driver_files"])
