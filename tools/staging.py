# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The copy of the collection that a session checks, the driver's wheel beside it, and how a command runs there."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path

from environment import (
    COLLECTION,
    OTHER_COLLECTIONS,
    REPOSITORY,
    WORK,
    Missing,
    ensure,
    ensure_package,
    environment,
    tracked,
)
from interpreters import primary, python, pythons

if t.TYPE_CHECKING:
    import nox

#: The tests of a file run in one process, because they share their nodes.
PARALLEL = ("--numprocesses", str(min(os.cpu_count() or 1, 4)), "--dist", "loadfile")
_PYTEST = ("python", "-m", "pytest")
_MEMORY = Path("/dev/shm")
_NOTHING_COLLECTED = 5  # an exit status of pytest
_MIN_FREE_BYTES, _MIN_FREE_INODES = 4 * 2**30, 1_000_000


@functools.lru_cache(None)
def temporary_folder() -> Path:
    """The folder for the tests' files, in memory if possible, because a machine's tree has thousands of small files."""
    roomy = False
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        free = os.statvfs(_MEMORY)
        roomy = free.f_bavail * free.f_frsize > _MIN_FREE_BYTES and free.f_favail > _MIN_FREE_INODES
    folder = Path(tempfile.mkdtemp(prefix="lanewise-dra-", dir=_MEMORY if roomy else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def session_folder(session: nox.Session) -> Path:
    """The folder for the files of a nox session; sessions that run in parallel each have their own."""
    return WORK / "in" / re.sub(r"[^a-z0-9.]+", "-", session.name).strip("-") if session.parallel else WORK


def tree(session: nox.Session) -> Path:
    """The copy of the collection that a session checks."""
    return session_folder(session) / "stage" / COLLECTION


def prepare(session: nox.Session, lock: str = "dev", name: str | None = None) -> Path:
    """Stage the collection and create the environment of a lock file. Returns the environment."""
    ensure_package("git", bool(shutil.which("git")))
    stage(tree(session))
    return ensure(lock, python(name or primary()))


def pytest(
    session: nox.Session,
    venv: Path,
    *options: str,
    on: t.Sequence[str],
    wrapper: tuple[str, ...] = (),
    **variables: str,
) -> None:
    """Run the tests of files or folders; ``wrapper`` is a command, such as a sandbox, that runs pytest's command.

    Arguments after ``--`` on nox's command line (``make test ARGS=...``) are passed to pytest, too; names of tests
    among them replace ``on``. A session fails if pytest selects no test, except with such arguments and a
    ``wrapper``, where each call has only a part of the tests.
    """
    named = [argument for argument in session.posargs if argument.startswith("tests/")]
    others = [argument for argument in session.posargs if argument not in named]
    codes = (0, _NOTHING_COLLECTED) if session.posargs and wrapper else (0,)
    run(session, venv, *wrapper, *_PYTEST, *options, *others, *(named or on), codes=codes, **variables)


def run(
    session: nox.Session,
    venv: Path,
    *command: str,
    cwd: Path | None = None,
    silent: bool = False,
    codes: tuple[int, ...] = (0,),
    **variables: str,
) -> str:
    """Run a command of an environment in the staged collection, with every interpreter's folder on PATH.

    The output of a silent command is returned. An exit status other than ``codes`` fails the session.
    """
    values = environment(venv, session_folder(session) / "stage", OTHER_COLLECTIONS)
    # python3.9 and so on must be the real interpreters; 'python3' stays that of the environment
    values["PATH"] += os.pathsep + os.pathsep.join(str(Path(path).parent) for path in pythons().values())
    first = str(venv / "bin")
    rest = [part for part in values["PATH"].split(os.pathsep) if part != first and "/shims" not in part]
    values["PATH"] = os.pathsep.join([first, *rest])
    recorded = REPOSITORY.parent / "shared" / "topologies"  # tests in the copy would not find them by a relative path
    if recorded.is_dir():
        values.setdefault("LANEWISE_TOPOLOGIES", str(recorded))
    values["TMPDIR"] = str(temporary_folder())
    # keeps the tools' caches below .cache
    values.update(ANSIBLE_HOME=str(session_folder(session) / "ansible"), PYTHONDONTWRITEBYTECODE="1", **variables)
    program = venv / "bin" / command[0]  # nox would search its own PATH
    with session.chdir(cwd or tree(session)):
        command = (str(program) if program.exists() else command[0], *command[1:])
        return str(session.run(*command, env=values, include_outer_env=False, silent=silent, success_codes=codes))


@functools.lru_cache(None)
def stage(destination: Path) -> None:
    """Copy what git tracks or would track to .../ansible_collections/lanewise/dra, where Ansible's tools expect it.

    The copy is a separate git repository, because ansible-test asks git which files to check, and git lists no file in
    a folder that this repository ignores.
    """
    names = {name for name in tracked(REPOSITORY) if (REPOSITORY / name).is_file()}
    destination.mkdir(parents=True, exist_ok=True)
    if not (destination / ".git").exists():
        subprocess.run(["git", "init", "--quiet", "."], cwd=destination, check=True)
    _remove_stale(destination, names)
    for name in names:
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, destination / name)


def _remove_stale(destination: Path, names: t.Collection[str]) -> None:
    """Remove files that only an earlier copy had, except the copy's git repository and the caches of the tests."""
    for top in destination.iterdir():
        if top.name in (".git", ".cache"):
            continue
        if top.is_file() and top.name not in names:
            top.unlink()
        for folder, _folders, files in os.walk(top, topdown=False):
            for name in files:
                if str((Path(folder) / name).relative_to(destination)) not in names:
                    (Path(folder) / name).unlink()
            if not os.listdir(folder):
                os.rmdir(folder)


def ensure_optional_package(session: nox.Session, package: str, *programs: str) -> None:
    """Install a package that provides one of the programs, if tests would otherwise be skipped.

    If it cannot be installed, the tests that need the program are skipped with the reason; in CI it is an error.
    """
    try:
        ensure_package(package, any(shutil.which(program) for program in programs))
    except Missing as missing:
        if os.environ.get("CI"):
            session.error(str(missing))
        session.warn(str(missing))


def driver_package(session: nox.Session, venv: Path) -> str:
    """A PYTHONPATH with the driver as its wheel installs it, after the collections."""
    folder = session_folder(session)
    return os.pathsep.join(str(path) for path in (folder / "stage", OTHER_COLLECTIONS, driver_site(venv, folder)))


@functools.lru_cache(None)
def driver_site(venv: Path, parent: Path) -> Path:
    """The folder with the driver as its wheel installs it, built in a session's folder."""
    folder = parent / "driver"
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"  # a copy, because a build leaves files in its source
    for name in ("driver", *(f"plugins/module_utils/{package}" for package in ("dra", "topology", "uplinks"))):
        shutil.copytree(REPOSITORY / name, source / name)
    shutil.copy(REPOSITORY / "pyproject.toml", source)
    pip = [str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True)
    wheel = str(next(folder.glob("*.whl")))
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(folder / "site"), wheel], check=True)
    return folder / "site"
