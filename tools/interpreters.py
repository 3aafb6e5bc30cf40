# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Python interpreters of this machine: which one runs the checks, and which ones stand in for managed nodes."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import typing as t

from environment import Missing

CONTROLLERS = ("3.13", "3.12", "3.11")  # newest first; the first one found runs every check, the others only some
TARGETS = ("3.9", "3.10", "3.11", "3.12", "3.13")
_VARIABLE = "LANEWISE_PYTHONS"  # the environment variable with the interpreters, once they have been found
_REPORT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2], getattr(sys, '_base_executable', sys.executable))"


@functools.lru_cache(None)
def pythons() -> dict[str, str]:
    """Paths of the interpreters on this machine by version: the running one, then those on PATH, then pyenv's.

    pyenv's shims are resolved, because ansible-test cannot work with them. The result is stored in the environment for
    processes that are started later.
    """
    if _VARIABLE in os.environ:
        return t.cast(dict[str, str], json.loads(os.environ[_VARIABLE]))
    interpreters: dict[str, str] = {}
    for candidate in _candidates():
        if not shutil.which(candidate):
            continue
        answer = subprocess.run([candidate, "-c", _REPORT_VERSION], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            name, path = answer.stdout.split(maxsplit=1)
            interpreters.setdefault(name, path.strip())
    os.environ[_VARIABLE] = json.dumps(interpreters)
    return interpreters


def _candidates() -> list[str]:
    candidates = [sys.executable, *(f"python{name}" for name in TARGETS)]
    if shutil.which("pyenv"):
        names = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True).stdout
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += [f"{root}/versions/{name}/bin/python" for name in names.split() if name[0].isdigit()]
    return candidates


def python(name: str) -> str:
    """The path of the interpreter of a version such as 3.12. Raises Missing if there is none."""
    if name not in pythons():
        raise Missing(f"there is no Python {name} on this machine")
    return pythons()[name]


def primary() -> str:
    """The version of the controller Python that runs every check; the running one if no supported one is found."""
    return next((name for name in CONTROLLERS if name in pythons()), f"{sys.version_info[0]}.{sys.version_info[1]}")


def newest_target() -> str:
    """The newest Python of this machine that stands in for a managed node."""
    return next(name for name in reversed(TARGETS) if name in pythons())
