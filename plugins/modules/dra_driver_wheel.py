#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_driver_wheel
short_description: Build the wheel of the bundled DRA driver
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Builds the wheel of the driver C(lanewise.dev) from the collection's own files, in a temporary copy, and stores it
    in a folder. The same files give the same wheel, byte for byte, and are built once.
  - Returns the name of the release, derived from the wheel and the lock of its dependencies, and one archive with
    everything to install it.
notes:
  - Runs on the controller. Usually called by the role P(lanewise.dra.dra_driver#role).
  - The wheel is built in check mode, too, because this changes no node.
requirements:
  - pip or venv, and an index or O(wheelhouse) with the build backend of C(pyproject.toml), if a wheel is built
attributes:
  check_mode:
    support: full
    details:
      - The folder O(dest) is written in check mode, too.
  diff_mode:
    support: none
  idempotent:
    support: full
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  source:
    description: The collection's folder. It is only read.
    type: path
    required: true
  lock:
    description: The lock of the driver's dependencies, a requirements file with hashes.
    type: path
    required: true
  dest:
    description: The folder for built wheels.
    type: path
    required: true
  wheel:
    description: A wheel to use instead of building one.
    type: path
  wheelhouse:
    description:
      - A folder with the wheels of the build backend and of the driver's dependencies. Without it pip uses its index.
    type: path
seealso:
  - module: lanewise.dra.dra_driver_info
"""

EXAMPLES = r"""
- name: Build the driver's wheel
  lanewise.dra.dra_driver_wheel:
    source: "{{ playbook_dir }}/.."
    lock: "{{ playbook_dir }}/../requirements/driver.txt"
    dest: ~/.cache/lanewise-dra/driver
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
wheel:
  description: The wheel's path.
  returned: success
  type: str
sha256:
  description: The wheel's digest.
  returned: success
  type: str
version:
  description: The driver's version.
  returned: success
  type: str
  sample: 1.0.0
release:
  description: The name of the release, which differs with every change of the wheel and of the lock.
  returned: success
  type: str
  sample: 1.0.0-3f9c2d417a55
bundle:
  description:
    - The path of a tar archive with the wheel, the list of what to install (C(requirements.txt)), and the wheels of
      O(wheelhouse) in the folder C(wheelhouse).
  returned: success
  type: str
"""

import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
import typing as t
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

SOURCES = ("driver", *(f"plugins/module_utils/{name}" for name in ("dra/config", "dra/kube", "topology", "uplinks")))
#: Folders below these that are not in the wheel: the driver reads no topology files, and reports no findings.
EXCLUDED = ("plugins/module_utils/topology/diagnosis", "plugins/module_utils/topology/xml_import")
SUFFIXES = (".py", ".sh", ".yaml")
PROJECT = "pyproject.toml"
PACKAGE = "plugins/module_utils/dra/__init__.py"
NAME = "lanewise_driver"
#: The time of all files in the wheel (1980-01-01, the earliest in a zip archive), so that all builds are equal.
EPOCH = "315532800"


def read_sources(root: Path) -> dict[str, bytes]:
    """The files that the wheel is built from, by path relative to the collection."""
    sources = {name: (root / name).read_bytes() for name in (PROJECT, PACKAGE)}
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            name = str(path.relative_to(root))
            if path.suffix in SUFFIXES and path.is_file() and not name.startswith(EXCLUDED):
                sources[name] = path.read_bytes()
    return sources


def digest(parts: t.Iterable[bytes]) -> str:
    """The SHA-256 of the parts, each with its length, in hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def wheel_in(folder: Path) -> Path | None:
    """The driver's wheel in a folder; None if there is none, for example after a cache was cleaned."""
    return next(folder.glob(f"{NAME}-*.whl"), None)


def build(module: AnsibleModule, files: dict[str, bytes], dest: Path) -> None:
    """Build the wheel into the folder `dest`, which appears only once it is complete. A folder without a wheel is
    replaced."""
    with tempfile.TemporaryDirectory(dir=module.tmpdir) as folder:
        source, out = Path(folder, "source"), Path(folder, "wheel")
        for name, content in files.items():
            path = source / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o644)  # the archive keeps the mode
        command = [*pip_command(module, Path(folder)), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
        if module.params["wheelhouse"]:
            command += ["--no-index", "--find-links", module.params["wheelhouse"]]
        status, output, errors = module.run_command(
            [*command, str(source)],
            environ_update={"SOURCE_DATE_EPOCH": EPOCH, "PYTHONHASHSEED": "0"},
            cwd=folder,
            umask=0o022,  # the archive also keeps the mode of files that the backend creates
        )
        if status:
            lines = (errors or output).strip().splitlines()[-15:]
            module.fail_json(
                msg="The driver's wheel cannot be built. Let pip reach an index (pip's configuration is used), or "
                "set dra_driver_wheelhouse to a wheelhouse, or dra_driver_wheel to a wheel that was built elsewhere. "
                "Output of pip:\n" + "\n".join(lines)
            )
        dest.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".wheel-", dir=dest.parent))
        try:
            new.chmod(0o755)
            shutil.copy(next(out.glob(f"{NAME}-*.whl")), new)
            try:
                if not wheel_in(dest):
                    shutil.rmtree(dest, ignore_errors=True)  # what a cleaner of caches has left
                new.rename(dest)
            except OSError:  # another run has built the same wheel meanwhile
                if not wheel_in(dest):
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)


def create_bundle(folder: Path, release: str, wheel: Path, lock: bytes, wheelhouse: str | None) -> Path:
    """Create one archive, so that only one file is copied to each node. An archive is reused if the release is the
    same, and the names, sizes and times of the wheels."""
    dependencies = sorted(Path(wheelhouse).glob("*.whl")) if wheelhouse else []
    states = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode() for path in dependencies]
    bundle = folder / f"{release}-{digest(states)[:8]}.tar"
    if bundle.exists():
        return bundle
    content = wheel.read_bytes()
    requirement = f"lanewise-driver=={wheel.name.split('-')[1]} --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".bundle-", dir=folder)
    try:
        with open(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            parts = {"requirements.txt": lock.rstrip(b"\n") + f"\n{requirement}".encode(), wheel.name: content}
            for path, data in [
                *parts.items(),
                *((f"wheelhouse/{dependency.name}", dependency.read_bytes()) for dependency in dependencies),
            ]:
                entry = tarfile.TarInfo(path)
                entry.size, entry.mtime, entry.mode = len(data), int(EPOCH), 0o644
                archive.addfile(entry, io.BytesIO(data))
        os.rename(name, bundle)
    except BaseException:
        os.unlink(name)
        raise
    return bundle


def pip_command(module: AnsibleModule, folder: Path) -> list[str]:
    """The command for pip: this Python's, or that of a new virtual environment if this Python has none."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if not module.run_command([*command, "--version"])[0]:
        return command
    status, output, errors = module.run_command([sys.executable, "-m", "venv", str(folder / "venv")])
    if status:
        module.fail_json(
            msg=f"{sys.executable} on the controller has neither pip nor venv, so the driver's wheel cannot be built: "
            f"install one of them, or set dra_driver_wheel to a wheel. {(errors or output).strip()}"
        )
    return [str(folder / "venv/bin/python"), *command[1:]]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "lock": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "wheel": {"type": "path"},
            "wheelhouse": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params, changed = module.params, False
    wheelhouse = params["wheelhouse"]
    if wheelhouse and not any(Path(wheelhouse).glob("*.whl")):
        module.fail_json(msg=f"There is no wheel in {wheelhouse}. docs/driver-install.md says how to fill a wheelhouse")
    try:
        lock = Path(params["lock"]).read_bytes()
        if params["wheel"]:
            wheel = Path(params["wheel"])
            if not (wheel.name.startswith(f"{NAME}-") and wheel.suffix == ".whl"):
                module.fail_json(msg=f"{wheel} is not a wheel of the driver, whose name is {NAME}-VERSION-....whl")
        else:
            files = read_sources(Path(params["source"]))
            folder = Path(params["dest"]) / digest(part for name in files for part in (name.encode(), files[name]))[:16]
            if not wheel_in(folder):
                build(module, files, folder)
                changed = True
            wheel = wheel_in(folder)
            if wheel is None:
                module.fail_json(msg=f"Another process has removed the driver's wheel from {folder}: run again")
        content = wheel.read_bytes()
        version = wheel.name.split("-")[1]
        release = f"{version}-{digest([content, lock])[:12]}"
        archive = create_bundle(Path(params["dest"]), release, wheel, lock, params["wheelhouse"])
    except OSError as error:
        module.fail_json(msg=f"The driver's wheel or its archive cannot be prepared: {error}")
    module.exit_json(
        changed=changed,
        wheel=str(wheel.absolute()),
        sha256=hashlib.sha256(content).hexdigest(),
        version=version,
        release=release,
        bundle=str(archive.absolute()),
    )


if __name__ == "__main__":
    main()
