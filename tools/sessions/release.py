# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of what users get: the example site on each controller, the documentation, the artifact. Writes the locks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox
from downloads import unpack_other_collections
from environment import COLLECTION, REPOSITORY, WORK, ensure
from interpreters import python
from staging import prepare, run, session_folder, stage, tree

_DIST = WORK / "dist"
_REQUIREMENTS = REPOSITORY / "requirements"
_COMPILE = "--upgrade -q --allow-unsafe --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links"
_LOCKS = {  # the oldest Python that each lock is for, on which it is resolved
    **{"unit": "3.9", "lock": "3.9", "runner": "3.11", "old-core": "3.11", "driver": "3.10", "lowest": "3.10"},
    **{"core-py311": "3.11", "dev-py311": "3.11", "setup-py311": "3.11"},
    **{"core-py312": "3.12", "dev-py312": "3.12", "setup-py312": "3.12"},
}


def site(session: nox.Session, controller: str) -> None:
    """Run ``make try`` on a controller in a folder whose name has a space, and read the roles' documentation."""
    place = session_folder(session) / "a checkout" / COLLECTION
    stage(place)
    venv = ensure("core", python(controller))
    run(session, venv, python(controller), "tools/try.py", cwd=place)
    if not (place / ".cache/report/index.html").is_file():
        session.error("'make try' has written no report to .cache/report/index.html")
    roles = [f"lanewise.dra.{path.name}" for path in sorted((REPOSITORY / "roles").iterdir())]
    command = [python(controller), "tools/environment.py", "core", "ansible-doc", "--type", "role", *roles]
    warned = subprocess.run(
        command, cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=True
    )
    if "DEPRECATION" in warned.stderr:
        session.error(f"ansible-doc warns of the roles' argument specifications:\n{warned.stderr[:2000]}")


def docs(session: nox.Session) -> None:
    """Check the plugins' documentation, and build the guides and the reference as one site."""
    venv = prepare(session)
    unpack_other_collections()  # the documentation of an option may come from one of them
    run(session, venv, "ansible-doc", "--json", "--metadata-dump", "lanewise.dra", silent=True)
    run(session, venv, "antsibull-docs", "lint-collection-docs", "--plugin-docs", "--skip-rstcheck", ".")
    source, site = WORK / "docs/source", WORK / "docs/site"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    # pages link to files of the whole collection
    shutil.copytree(tree(session), source, ignore=shutil.ignore_patterns(".git", ".cache"))
    (source / "reference").mkdir()
    layout = ["--use-current", "--squash-hierarchy", "--fail-on-error", "--dest-dir", str(source / "reference")]
    run(session, venv, "antsibull-docs", "collection", *layout, "lanewise.dra")
    for name in ("conf.py", "index.md"):
        shutil.copy(source / "docs/docsite" / name, source)
    run(session, venv, "sphinx-build", "--quiet", "--fail-on-warning", "-b", "html", str(source), str(site))
    session.log(f"docs site: {site / 'index.html'}")


def package(session: nox.Session) -> None:
    """Build the artifact, install and run it, and import it as Galaxy would."""
    venv = prepare(session)
    shutil.rmtree(_DIST, ignore_errors=True)
    run(session, venv, "ansible-galaxy", "collection", "build", "--output-path", str(_DIST))
    artifact = next(_DIST.glob("lanewise-dra-*.tar.gz"))
    driver = re.search(r'(?m)^version = "(.+?)"', (REPOSITORY / "pyproject.toml").read_text())
    if not driver or artifact.name != f"lanewise-dra-{driver[1]}.tar.gz":
        session.error(f"{artifact.name}: the driver has another version; set the same in galaxy.yml and pyproject.toml")
    place = _DIST / "installed"
    install = ("ansible-galaxy", "collection", "install", str(artifact), "--offline", "--force", "-p", str(place))
    run(session, venv, *install, cwd=_DIST)
    run(session, venv, "ansible-builder", "introspect", str(place), cwd=_DIST)
    playbook = ("ansible-playbook", "-i", "localhost,", "-c", "local", "lanewise.dra.site")
    run(session, venv, *playbook, cwd=_DIST, ANSIBLE_COLLECTIONS_PATH=str(place), PWD=str(_DIST))
    importer = ("python", "-m", "galaxy_importer.main", str(artifact))
    without = {"GALAXY_IMPORTER_RUN_ANSIBLE_LINT": "false"}  # the session 'lint' runs it
    report = run(session, venv, *importer, cwd=_DIST, silent=True, **without)
    session.log(report)
    # the importer itself does not treat these as failures
    if re.search(r"^(WARNING|ERROR)|Traceback|violation", report, re.MULTILINE):
        session.error("galaxy-importer has reported warnings or errors, see its output above")


def lock(session: nox.Session) -> None:
    """Resolve requirements/*.in, with hashes, each on the oldest Python that its lock is for."""
    for name, number in _LOCKS.items():
        venv = ensure("lock", python(number))
        command = ["pip-compile", *_COMPILE.split(), "--output-file", f"{name}.txt", f"{name}.in"]
        run(session, venv, *command, cwd=_REQUIREMENTS, CUSTOM_COMPILE_COMMAND="make lock")
    pins = (_REQUIREMENTS / "downloads.in").read_text().split()
    lines = [_hashed(pin, Path(session.create_tmp()) / pin) for pin in pins]
    (_REQUIREMENTS / "downloads.txt").write_text("".join(lines))


def _hashed(pin: str, folder: Path) -> str:
    """The line of a lock for one wheel, which is downloaded to a folder."""
    options = "--quiet --no-deps --only-binary=:all: --ignore-requires-python".split()
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), pin], check=True)
    wheel = next(folder.glob("*.whl"))
    digest = subprocess.run(
        [sys.executable, "-m", "pip", "hash", str(wheel)], check=True, capture_output=True, text=True
    ).stdout.split("--hash=")[1]
    return f"{pin} --hash={digest.strip()}\n"
