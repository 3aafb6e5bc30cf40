# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Static checks, which run none of our code: style, types, ansible-test sanity."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import typing as t
import urllib.request
from pathlib import Path

import nox
from checks import SLOW
from downloads import download, unpack_other_collections
from environment import CACHE, WORK, Missing, lock_file, locked, version
from interpreters import primary, python
from staging import driver_package, driver_site, prepare, run, session_folder, tree

_STRICT = tuple(f"plugins/module_utils/{name}" for name in ("topology", "dra", "uplinks", "host"))  # typed strictly
_WITHOUT_STRICT_TYPES = [x for part in ("plugins", "tests") for x in ("-p", f"ansible_collections.lanewise.dra.{part}")]
_GET_PIP = "# in place of the real one, which cannot be reached; 'make clean' of lanewise.dra removes it"


def lint(session: nox.Session) -> None:
    """Run every linter, even after one has failed, so that one run shows all that has to be fixed."""
    venv = prepare(session)
    unpack_other_collections()
    site, paths = str(driver_site(venv, session_folder(session))), driver_package(session, venv)
    # ansible-lint installs the collection there, and would check an older copy first
    shutil.rmtree(session_folder(session) / "ansible" / "collections", ignore_errors=True)
    commands = (
        ("ruff", "check", "--cache-dir", str(WORK / "ruff"), "."),
        ("ruff", "format", "--check", "--cache-dir", str(WORK / "ruff"), "."),
        ("mypy", "--cache-dir", str(WORK / "mypy"), *_STRICT),
        ("mypy", "--cache-dir", str(WORK / "mypy-driver"), "-p", "lanewise_driver"),
        ("lint-imports", "--cache-dir", str(WORK / "import-linter"), "--no-logo"),
        ("ansible-lint", "--profile", "production", "--offline"),
        ("antsibull-changelog", "lint"),
    )
    options = {"MYPYPATH": site, "PYTHONPATH": paths}
    runs: list[tuple[tuple[str, ...], dict[str, t.Any]]] = [(command, options) for command in commands]
    # for mypy, the root of the collection would have a second name for each file, so it runs below the root
    loose = ("mypy", "--cache-dir", str(WORK / "mypy-tests"), "--config-file", "mypy.ini", *_WITHOUT_STRICT_TYPES)
    sources = os.pathsep.join((str(session_folder(session) / "stage"), site))
    runs.append((loose, {"MYPYPATH": sources, "PYTHONPATH": "", "cwd": tree(session) / "tests"}))
    failed = []
    for command, options in runs:
        try:
            run(session, venv, *command, **options)
        except nox.command.CommandFailed:
            failed.append(command[0])
    if failed:
        session.error(f"these linters failed, see their output above: {', '.join(failed)}")


def sanity(session: nox.Session, controller: str) -> None:
    """Run ansible-test sanity on a controller: the main one for every target Python, others for their own."""
    main = controller == primary()
    locks = {lock_file("core", version(python(name))) for name in (controller, primary())}
    if not main and len(locks) == 1:
        raise Missing(f"Python {primary()} has the same ansible-core and checks everything")
    if not main and not SLOW:
        raise Missing("takes seven minutes; LANEWISE_SLOW=1 adds this older ansible-core")
    venv = prepare(session, "dev" if main else "core", controller)
    _ansible_test_pip(venv)
    # exists once ansible-test has created its environments; sessions share some of them
    made = CACHE / f"sanity-{venv.name}.made"
    with contextlib.nullcontext() if made.exists() else locked(CACHE / "sanity"):
        run(session, venv, "ansible-test", "sanity", "--color", "no", *([] if main else ["--python", controller]))
    made.touch()


@functools.lru_cache(None)
def _ansible_test_pip(venv: Path) -> None:
    """Let ansible-test's environments install pip even if its download host cannot be reached.

    ansible-test looks for the bootstrap script in its cache first. If the host cannot be reached, this writes a script
    with the same effect there: it installs the pip version that ansible-test requires, using the pinned pip wheel.
    """
    source = next(venv.glob("lib/python3*/site-packages/ansible_test/_internal/python_requirements.py")).read_text()
    for number in sorted(set(re.findall(r"pip='([\d.]+)'", source))):
        script = Path.home() / f".ansible/test/cache/get_pip_{number.replace('.', '_')}.py"
        if script.exists() and _GET_PIP not in script.read_text():
            continue
        url = f"https://ci-files.testing.ansible.com/ansible-test/get-pip-{number}.py"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
        except OSError:
            script.parent.mkdir(parents=True, exist_ok=True)
            text = (
                f"{_GET_PIP}\nimport sys\nsys.path.insert(0, {str(download('pip'))!r})\n"
                "from pip._internal.cli.main import main\n"
                "extra = ('--no-setuptools', '--no-wheel')\n"
                "sys.exit(main(['install'] + [word for word in sys.argv[1:] if word not in extra]))\n"
            )
            if not script.exists() or script.read_text() != text:
                script.write_text(text)
