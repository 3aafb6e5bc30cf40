# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A person without root or sudo who has just cloned the repository, with a home folder, a checkout and a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ansible_collections.lanewise.dra.tools.environment import tracked

_NOBODY = 65534
#: Variables for access to package indexes. No other variables of this machine are passed on.
_NETWORK = re.compile(r"PIP_|SSL_|REQUESTS_|https?_proxy$|no_proxy$", re.IGNORECASE)


def _unprivileged() -> list[str]:
    """The start of a command that runs without root and cannot become root."""
    command = ["setpriv", "--no-new-privs"]
    if os.geteuid() == 0:
        command += [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        command += ["--bounding-set=-all", "--inh-caps=-all"]
    return command


def interpreter() -> str | None:
    """The path of a Python 3.11 or later with venv that the person may run; None if there is none.

    The tests' own Python may be in root's home folder, where the person cannot run it.
    """
    versions = [f"python3.{minor}" for minor in range(14, 10, -1)]
    folders = [Path(sys.executable).parent, Path("/usr/local/bin"), Path("/usr/bin")]
    check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
    for path in (folder / name for folder in folders for name in ["python3", *versions]):
        answer = subprocess.run([*_unprivileged(), str(path), "-c", check], capture_output=True, cwd="/", check=False)
        if answer.returncode == 0:
            return str(path)
    return None


class Person:
    """Runs commands in a fresh checkout as a user who cannot become another one.

    If the tests run as root, commands run as 'nobody' without capabilities and cannot get any. Otherwise commands run
    as the same user, and the kernel prevents sudo.
    """

    def __init__(self, source: Path, folder: Path, python: str) -> None:
        self.home, self.checkout = folder / "home", folder / "dra"
        self.home.mkdir(parents=True)
        for name in tracked(source):
            if (source / name).is_file():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, self.checkout / name)
        subprocess.run(["git", "init", "--quiet", "."], cwd=self.checkout, check=True)
        programs = self.home / "bin"
        programs.mkdir()
        (programs / "python3").symlink_to(python)
        self._become = [*_unprivileged(), "--"]
        if os.geteuid() == 0:
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
        self.variables = {key: value for key, value in os.environ.items() if _NETWORK.match(key)}
        self.variables |= {
            "HOME": str(self.home),
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        if os.geteuid() == 0:  # Ansible would use the home of 'nobody', which does not exist
            self.variables["ANSIBLE_REMOTE_TMP"] = f"{self.home}/.ansible/tmp"

    def write(self, path: Path, text: str) -> None:
        """Write a file that the person owns."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if os.geteuid() == 0:
            for created in (path, *path.parents[: len(path.relative_to(self.checkout).parents) - 1]):
                os.chown(created, _NOBODY, _NOBODY)

    def run(self, text: str) -> tuple[int, str]:
        """Run a command in the person's shell, in the checkout. Returns its exit status and output."""
        done = subprocess.run(
            [*self._become, "bash", "-c", text],
            cwd=self.checkout,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        # 'make setup' asks the person to run this
        printed = re.search(r"export PATH=(\S+):\$PATH", done.stdout)
        if printed:
            self.variables["PATH"] = f"{printed[1]}:{self.variables['PATH']}"
        return done.returncode, done.stdout
