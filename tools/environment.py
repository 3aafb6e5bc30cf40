# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create a virtual environment from a lock file in requirements/ once, and run a command in it.

    python3 tools/environment.py LOCK COMMAND [ARGUMENT ...]

LOCK is runner, core, setup, dev, unit, lowest, old-core or lock. The environment is in the user's cache directory
under the hash of its lock, so checkouts share it and a changed lock creates a new one. Uses the standard library only,
because it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
WORK = REPOSITORY / ".cache"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanewise-dra"
COLLECTION = Path("ansible_collections/lanewise/dra")
OTHER_COLLECTIONS = CACHE / "collections"  # collections that playbooks and tests use, unpacked on first use


class Missing(Exception):
    """This machine lacks something that could not be installed. The text says what to do."""


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


@contextlib.contextmanager
def locked(path: Path) -> t.Iterator[None]:
    """Lock `path`, a part of the cache, so that only one process creates it. Prints a line if it has to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that creates {path}")
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def ensure_package(package: str, present: bool) -> None:
    """Install a Debian or Ubuntu package unless `present`, as root or with a passwordless sudo. Raises Missing."""
    if present:
        return
    if not shutil.which("apt-get"):
        raise Missing(f"needs the programs of Debian's package {package}; install them, as this machine has no apt-get")
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (
        not shutil.which("sudo") or subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode
    ):
        raise Missing(f"needs the Debian package {package}: run 'sudo apt-get install {package}'")
    say(f"installing the Debian package {package}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    apt = [*sudo, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    install = [*apt, "install", "--yes", "--no-install-recommends", package]
    if subprocess.run(install, env=environment, capture_output=True, check=False).returncode == 0:
        return
    subprocess.run([*apt, "update"], env=environment, check=False)
    if subprocess.run(install, env=environment, check=False).returncode:
        raise Missing(f"needs the Debian package {package}, which apt-get could not install (see above)")


def tracked(folder: Path) -> list[str]:
    """Files that git tracks or would track, relative to `folder`."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(listing, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode:  # for example in an unpacked release
        raise Missing(f"needs a git clone to list its files; in {folder}: {answer.stderr.strip()}")
    return answer.stdout.split("\0")[:-1]


def version(python: str) -> tuple[int, int]:
    """Major and minor number of an interpreter."""
    text = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], check=True, capture_output=True, text=True
    ).stdout.split()
    return int(text[0]), int(text[1])


def lock_file(lock: str, number: tuple[int, int]) -> Path:
    """The lock file for a Python. One named after a version also applies to later versions without their own."""
    if lock in ("core", "dev", "setup"):
        if number < (3, 11):
            raise Missing(f"needs Python 3.11 or later, this is {number[0]}.{number[1]}")
        lock += "-py311" if number == (3, 11) else "-py312"
    return REPOSITORY / "requirements" / f"{lock}.txt"


def ensure(lock: str, python: str = sys.executable) -> Path:
    """The environment of a lock, created if it does not exist. Raises Missing or subprocess.CalledProcessError."""
    number = version(python)
    source = lock_file(lock, number)
    name = f"{number[0]}.{number[1]}"
    digest = hashlib.sha256(source.read_bytes() + os.path.realpath(python).encode()).hexdigest()[:12]
    venv = CACHE / "venvs" / f"{lock}-{name}-{digest}"
    ready = venv / ".ready"
    if ready.exists():
        return venv
    with locked(venv):
        if ready.exists():
            return venv
        start = time.monotonic()
        say(f"creating the Python {name} environment '{lock}' from {source.relative_to(REPOSITORY)} (once)")
        probe = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False)
        ensure_package(f"python{name}-venv", probe.returncode == 0)
        subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(source)], check=True)
        ready.touch()
        say(f"ready in {time.monotonic() - start:.0f} s: {venv}")
    return venv


def link_collection() -> Path:
    """Link this checkout as the collection lanewise.dra, where ansible.cfg expects it. Returns that folder."""
    link = WORK / "collections" / COLLECTION
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        try:
            link.symlink_to(os.path.relpath(REPOSITORY, link.parent))
        except FileExistsError:
            if not link.is_symlink():  # if it is one, another run has created it meanwhile
                raise Missing(f"{link} is an installed copy, but must be a link to this checkout: remove it") from None
    return WORK / "collections"


def environment(venv: Path, *collections: Path) -> dict[str, str]:
    """The variables to run a command of an environment with: its programs first, UTF-8, the collections to find."""
    paths = [str(path) for path in collections]
    return dict(
        {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")},
        PATH=f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        VIRTUAL_ENV=str(venv),
        LC_ALL="C.UTF-8" if sys.platform == "linux" else "en_US.UTF-8",
        PYTHONPATH=os.pathsep.join(paths),
        ANSIBLE_COLLECTIONS_PATH=os.pathsep.join(paths),
    )


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        venv = ensure(sys.argv[1])
    except Missing as missing:
        print(f"{sys.argv[1]}: {missing}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    os.chdir(REPOSITORY)
    command = sys.argv[2:]
    try:
        collections = link_collection()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    others = [OTHER_COLLECTIONS] if OTHER_COLLECTIONS.is_dir() else []
    os.execvpe(command[0], command, environment(venv, collections, *others))


if __name__ == "__main__":
    sys.exit(main())
