# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

PACKAGE = Path(__file__).resolve().parents[4] / "plugins" / "module_utils"
PREFIX = "ansible_collections/lanewise/dra/plugins/module_utils"

#: Prints how often each module of the archive was compiled, and its file and package.
PROGRAM = """
import collections, json, sys
compiled = collections.Counter()
sys.addaudithook(lambda event, arguments: event == "compile" and compiled.update([str(arguments[1])]))
sys.path.insert(0, sys.argv[1])
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once
compiled_once.begin()
import ansible_collections.lanewise.dra.plugins.module_utils.topology.probe
modules = {name: module for name, module in sys.modules.items() if ".module_utils." in name}
print(json.dumps([
    {name: compiled[module.__file__] for name, module in modules.items()},
    {name: [module.__file__, module.__package__] for name, module in modules.items()},
]))
"""


@pytest.fixture
def archive(tmp_path):
    """A zip archive of modules, as Ansible sends it to a node."""
    path = tmp_path / "payload.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        folders = PREFIX.split("/")
        for depth in range(1, len(folders) + 1):
            file.writestr("/".join([*folders[:depth], "__init__.py"]), "")
        file.write(PACKAGE / "compiled_once.py", f"{PREFIX}/compiled_once.py")
        for source in (PACKAGE / "topology").glob("*.py"):
            file.write(source, f"{PREFIX}/topology/{source.name}")
    return path


def run(program, *arguments):
    """Run a Python program. Returns the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *arguments], check=True, capture_output=True, text=True, timeout=60
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(zipimporter, "exec_module"), reason="the finder needs Python 3.10")
def test_modules_of_an_archive_are_compiled_once_and_have_their_file_and_package(archive):
    counts, locations = run(PROGRAM, str(archive))
    package = PREFIX.replace("/", ".")
    others = {name: count for name, count in counts.items() if name != f"{package}.compiled_once"}
    assert len(others) > 10
    assert set(others.values()) == {1}
    assert locations[f"{package}.topology"] == [f"{archive}/{PREFIX}/topology/__init__.py", f"{package}.topology"]
    assert locations[f"{package}.topology.probe"] == [f"{archive}/{PREFIX}/topology/probe.py", f"{package}.topology"]


@pytest.mark.skipif(not hasattr(zipimporter, "exec_module"), reason="the finder needs Python 3.10")
def test_loaded_objects_are_excluded_from_garbage_collection(archive):
    program = """
import gc, json, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once
before = gc.get_freeze_count()
compiled_once.begin()
print(json.dumps(gc.get_freeze_count() - before))
"""
    assert run(program, str(archive)) > 1000


def test_a_module_missing_in_the_archive_is_an_ordinary_import_error(archive):
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once
compiled_once.begin()
try:
    import ansible_collections.lanewise.dra.plugins.module_utils.nothing
except ModuleNotFoundError as error:
    print(json.dumps(error.name))
"""
    assert run(program, str(archive)) == PREFIX.replace("/", ".") + ".nothing"


def test_outside_an_archive_no_finder_is_installed():
    from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

    compiled_once.begin()
    assert compiled_once.Finder not in sys.meta_path
