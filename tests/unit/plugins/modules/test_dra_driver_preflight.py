# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.modules import dra_driver_preflight

ROOT = Path(dra_driver_preflight.__file__).absolute().parents[2]


@pytest.fixture
def find_python(monkeypatch):
    """A function that returns the chosen interpreter of a node, and the problems.

    `versions` are the installed versions, as programs such as python3.14. `names` are further programs.
    """

    def find(*versions, requested=None, newer=False, **names):
        names.update(("python" + version.rpartition(".")[0], version) for version in versions)

        def which(name, path):
            return f"/usr/bin/{name}" if name in names else None

        def run(_module, path, *_arguments):
            return 0, json.dumps([int(part) for part in names[os.path.basename(path)].split(".")])

        monkeypatch.setattr(dra_driver_preflight.shutil, "which", which)
        monkeypatch.setattr(dra_driver_preflight, "run", run)
        problems = []
        path = dra_driver_preflight.find_python(None, requested, newer, problems)
        return os.path.basename(path), problems

    return find


def test_the_newest_python_that_has_wheels_is_chosen(find_python):
    assert find_python("3.16.0", "3.15.1", "3.14.2", "3.9.18", python3="3.15.1") == ("python3.14", [])


def test_a_distribution_python_that_is_too_new_is_refused(find_python):
    name, problems = find_python(python3="3.15.1")
    assert not name and len(problems) == 1
    assert "needs Python 3.10 to 3.14 with venv" in problems[0] and "is 3.15.1, for which" in problems[0]


def test_a_python_that_is_too_old_is_refused(find_python):
    name, problems = find_python(python3="3.9.18")
    assert not name and "python3 is 3.9.18. Install one" in problems[0]


def test_a_requested_python_without_wheels_is_refused(find_python):
    name, problems = find_python("3.15.1", "3.14.2", requested="python3.15")
    assert not name and "no wheels" in problems[0]


@pytest.mark.parametrize("requested", [None, "python3.15"])
def test_a_custom_lock_allows_newer_pythons(find_python, requested):
    assert find_python("3.15.1", "3.14.2", requested=requested, newer=True) == ("python3.15", [])


def test_a_custom_lock_does_not_allow_older_pythons(find_python):
    name, problems = find_python(python3="3.9.18", newer=True)
    assert not name and "needs Python 3.10 or later with venv" in problems[0]


class Module:
    """An AnsibleModule that can only run commands."""

    @staticmethod
    def run_command(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1", "has no venv (on Debian and Ubuntu"),
        ("sleep 60", "did not end within 0.2 seconds; try again"),
        ("exit 3", "does not run (exit status 3): it printed no reason"),
        ("echo broken >&2; exit 1", "does not run (exit status 1): broken"),
    ],
)
def test_an_interpreter_that_fails_is_reported_with_its_reason(tmp_path, monkeypatch, script, message):
    """On a busy node, the message must not ask for packages that are installed."""
    program = tmp_path / "python3.13"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(dra_driver_preflight, "COMMAND_TIMEOUT_SECONDS", 0.2)
    problems = []
    assert not dra_driver_preflight.find_python(Module(), str(program), False, problems)
    assert len(problems) == 1 and message in problems[0]


@contextlib.contextmanager
def running_cat(program):
    """Run a link to or a copy of `cat`; yields its process id.

    `Popen` returns before the kernel has set the new program's name (begin_new_exec in fs/exec.c closes the pipe that
    Popen reads first). A byte that comes back shows that the program itself runs.
    """
    with subprocess.Popen([str(program), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"
        yield process.pid


def test_a_process_name_that_is_not_valid_utf8_is_no_error(tmp_path):
    # the kernel cuts names after 15 bytes, here within a letter of two bytes
    program = tmp_path / ("x" * 14 + "\N{LATIN SMALL LETTER E WITH ACUTE}")
    program.symlink_to(shutil.which("cat"))
    with running_cat(program):
        assert dra_driver_preflight.find_process("no such process") is None


def test_a_runtime_whose_file_an_upgrade_has_replaced_is_run(tmp_path):
    """The kernel then shows the path of the file with ` (deleted)` at its end."""
    program = tmp_path / "no-such-runtime"
    shutil.copy(shutil.which("cat"), program)
    with running_cat(program) as pid:
        program.unlink()
        running, arguments = dra_driver_preflight.find_process("no-such-runtime")
        assert os.readlink(f"/proc/{pid}/exe").endswith(" (deleted)")
        assert arguments[:2] == [str(program), "-"]
        status, output = dra_driver_preflight.run(Module(), running, "--version")
        assert status == 0 and "cat" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run processes of other users and with another root")
@pytest.mark.parametrize("change", ["os.setuid(65534)", "os.chroot(sys.argv[1])"])
def test_the_program_of_a_user_or_a_container_is_not_run(tmp_path, change):
    """Any process can have the name of the runtime, but root must not run its program."""
    script = "import os, sys; open('/proc/self/comm', 'w').write('no-such-runtime'); "
    command = [sys.executable, "-c", f"{script}{change}; print(1, flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout.read(1) == b"1"
        name = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8")
        assert name == "no-such-runtime\n"
        assert dra_driver_preflight.find_process("no-such-runtime") is None


def test_the_output_of_a_runtime_that_fails_is_not_its_version(tmp_path, monkeypatch):
    program = tmp_path / "crio"
    program.write_text("#!/bin/sh\necho cannot load libc-2.36.so >&2; exit 127\n")
    program.chmod(0o755)
    processes = {"crio": (str(program), [])}
    monkeypatch.setattr(dra_driver_preflight, "find_process", processes.get)
    problems = []
    assert dra_driver_preflight.check_runtime(Module(), "", problems) == "cri-o"
    assert problems == ["The version of cri-o is unknown: cannot load libc-2.36.so"]
    program.write_text("#!/bin/sh\necho crio version 1.30.2\n")
    assert dra_driver_preflight.check_runtime(Module(), "", problems) == "cri-o 1.30.2" and len(problems) == 1


@pytest.mark.parametrize(
    "path",
    [
        "docs/dependencies.md",
        "docs/driver.md",
        "docs/driver-install.md",
        "driver/Containerfile",
        "roles/dra_driver/README.md",
        "roles/dra_driver/meta/argument_specs.yml",
    ],
)
def test_documents_have_the_supported_python_versions(path):
    oldest, newest = (
        dra_driver_preflight.version_text(version)
        for version in (dra_driver_preflight.MIN_PYTHON, dra_driver_preflight.MAX_PYTHON)
    )
    assert f"ython {oldest} to {newest}" in " ".join((ROOT / path).read_text(encoding="utf-8").split())
