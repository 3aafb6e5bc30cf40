# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The program that runs `host` on a node without Ansible: at boot, and to undo changes that were not confirmed.

It is a zip file that Python can run, with the packages `host`, `topology` and `uplinks`. So boot and playbooks use the
same code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import pkgutil
import sys
import typing as t
import zipfile

from ...topology.stored import Formats, NewerFormat
from ..access.system import HostError, System
from ..engine.change import NODE, Change, State
from ..engine.node import Node
from ..engine.resource import Resource
from ..engine.settings import NicSettings, NodeSettings

PROGRAM = "/opt/lanewise/fabric/fabric.pyz"
DESIRED = "/etc/lanewise/fabric.json"
#: Files of the first release have no format number.
_FORMATS = Formats(unnumbered=1)
UNIT = "lanewise-fabric.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
#: Installed only if a setting needs the network, so that other nodes do not wait for the network at boot.
NETWORK_UNIT = "lanewise-fabric-network.service"
NETWORK_UNIT_PATH = f"/etc/systemd/system/{NETWORK_UNIT}"
_PACKAGES = ("host", "topology", "uplinks")
#: Parts of `topology` that are not needed at boot: findings, and the import of other programs' topology files.
_EXCLUDED = ("topology/diagnosis", "topology/xml_import")
_NAME = "lanewise_fabric"
#: Where a unit looks for another Python interpreter.
_OTHER_PYTHONS = "/usr/bin/python3 /usr/libexec/platform-python /usr/bin/python3.[1-9][0-9] /usr/local/bin/python3"
_VERSION_CHECK = "import sys; sys.exit(sys.version_info < (3, 9))"
_NO_PYTHON = (
    "The RDMA and SR-IOV state of this node is not restored: {python} no longer exists, and there is no other Python "
    "3.9 or later. Install one, or run lanewise.dra.fabric on this node."
)
#: The date of all files in the zip file, so that the same sources make the same file. No earlier date is possible.
_DATE = (1980, 1, 1, 0, 0, 0)

_UNIT_TEXT = """\
# Written by lanewise.dra.fabric.
[Unit]
Description=RDMA and SR-IOV state of this node (lanewise)
Documentation=file://{desired}
DefaultDependencies=no
After=local-fs.target systemd-modules-load.service systemd-sysctl.service systemd-udev-settle.service
After=rdma-load-modules@rdma.service sys-kernel-config.mount
Wants=systemd-udev-settle.service
Before=network-pre.target kubelet.service lanewise-driver.service
Wants=network-pre.target
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={start} boot
TimeoutStartSec=10min

[Install]
WantedBy=multi-user.target
"""

_NETWORK_UNIT_TEXT = """\
# Written by lanewise.dra.fabric.
[Unit]
Description=RDMA and SR-IOV state of this node that needs its network (lanewise)
Documentation=file://{desired}
After={first} network-online.target
Wants=network-online.target
Before=kubelet.service lanewise-driver.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={start} network
TimeoutStartSec=10min

[Install]
WantedBy=multi-user.target
"""


class StoredRule(t.TypedDict, total=False):
    """A rule in the file of the wanted state (see `Rule`). `name`, `select` and `settings` are always present."""

    name: str
    select: dict[str, object]
    settings: NicSettings
    count: int | None
    at_least: int | None
    fast: list[str]


def archive() -> bytes:
    """The program as a zip file, made from the sources of the imported packages.

    These are in a folder or in AnsiballZ's zip file. AnsiballZ packs only imported modules, so a module that stores the
    program imports its entry point `boot`.
    """
    base = __name__.rsplit(".", 3)[0]
    sources = {f"{_NAME}/__init__.py": "", "__main__.py": f"from {_NAME}.host.persist.boot import main\n\nmain()\n"}
    for package in _PACKAGES:
        sources.update(_sources(f"{base}.{package}", f"{_NAME}/{package}"))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            file.writestr(info, sources[name])
    return content.getvalue()


def load(system: System) -> tuple[list[StoredRule], NodeSettings]:
    """The rules of NICs and the settings of the node to apply at boot, as JSON; empty if the file does not exist.

    Raises HostError if the file is damaged, or if only a newer release can read it.
    """
    step, fix = f"read {DESIRED}", "run lanewise.dra.fabric on this node, which writes it and the program again"
    text = system.content(DESIRED)
    try:
        content = _FORMATS.read(json.loads(text or "{}"))
        nics, general = content.get("nics", []), content.get("node", {})
        if not isinstance(nics, list) or not isinstance(general, dict) or not all(map(_is_rule, nics)):
            raise ValueError("it must contain rules (nics) and settings (node)")
    except NewerFormat as error:
        raise HostError(step, f"a newer release wrote it: {error}", fix) from None
    except (ValueError, RecursionError) as error:
        raise HostError(step, f"it is damaged: {error}", fix) from None
    return nics, t.cast(NodeSettings, general)


def _is_rule(value: object) -> bool:
    types = {"name": str, "select": dict, "settings": dict}
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in types.items())


def _sources(package: str, folder: str) -> dict[str, str]:
    """The sources of a package and of its subpackages, by their path below `folder`. Raises HostError."""
    package_spec = importlib.util.find_spec(package)
    sources = {f"{folder}/__init__.py": ""}
    for module in pkgutil.iter_modules(package_spec.submodule_search_locations if package_spec else []):
        name = f"{package}.{module.name}"
        if module.ispkg:
            inner = f"{folder}/{module.name}"
            sources.update({} if inner.endswith(_EXCLUDED) else _sources(name, inner))
            continue
        spec = importlib.util.find_spec(name)
        source = spec.loader.get_source(name) if spec and spec.loader else None  # type: ignore[attr-defined]
        if source is None:
            raise HostError("write the program that runs at boot", f"the source of {name} was not found")
        sources[f"{folder}/{module.name}.py"] = source
    return sources


def unit() -> str:
    """The systemd unit, ordered before the network and kubelet."""
    return _UNIT_TEXT.format(desired=DESIRED, start=start(sys.executable))


def network_unit() -> str:
    """The unit for settings that need the network: ordered after the network and before kubelet."""
    return _NETWORK_UNIT_TEXT.format(desired=DESIRED, first=UNIT, start=start(sys.executable))


def start(python: str, program: str = PROGRAM) -> str:
    """The command with which a unit runs the program, using the interpreter `python`.

    If a system update has removed this interpreter, the command uses another one that is new enough. If there is none,
    it fails with a message in the journal.

    Quoted for systemd, which turns $$ into $ (systemd.service(5), "Command lines").
    """
    first = f'"{python}" ' if python else ""
    script = (
        f"for python in {first}{_OTHER_PYTHONS}; do "
        f'"$$python" -I -c "{_VERSION_CHECK}" 2>/dev/null && exec "$$python" -I {program} "$$@"; done; '
        f'echo "{_NO_PYTHON.format(python=python or "/usr/bin/python3")}" >&2; exit 1'
    )
    return f"/bin/sh -c '{script}' lanewise-fabric"


class Boot(Resource):
    """The files that apply the settings at boot: the program, its settings, and the units that run it.

    If `desired` is empty, nothing is applied at boot, and the files are removed. The second unit is installed if
    `desired["network"]` is true.
    """

    name = "boot"
    boot = False

    def __init__(self, system: System, desired: t.Mapping[str, object]) -> None:
        super().__init__(system)
        self._desired = desired
        self._archive = archive() if desired else b""

    def wanted(self, node: Node) -> State:
        no_network = {"network_enabled": None, "network_unit": None}
        if not self._desired:
            return {NODE: {**no_network, "enabled": None, "unit": None, "desired": None, "program": None}}
        values = {
            "program": hashlib.sha256(self._archive).hexdigest(),
            "desired": json.dumps(_FORMATS.write(dict(self._desired)), indent=2, sort_keys=True) + "\n",
            "unit": unit(),
            "enabled": True,
        }
        network_values = {"network_unit": network_unit(), "network_enabled": True}
        return {NODE: {**values, **(network_values if self._desired.get("network") else no_network)}}

    def read(self, node: Node, wanted: State) -> State:
        values: dict[str, object] = {"desired": self.system.content(DESIRED)}
        for prefix, name, path in (("", UNIT, UNIT_PATH), ("network_", NETWORK_UNIT, NETWORK_UNIT_PATH)):
            values[f"{prefix}unit"] = self.system.content(path)
            wants_link = f"{path.rpartition('/')[0]}/multi-user.target.wants/{name}"
            values[f"{prefix}enabled"] = True if self.system.exists(wants_link) else None
        data = self.system.data(PROGRAM)
        values["program"] = None if data is None else hashlib.sha256(data).hexdigest()
        return {NODE: values}

    def apply(self, node: Node, change: Change) -> None:
        step = f"write the files that run at boot ({change.setting})"
        name, path = (NETWORK_UNIT, NETWORK_UNIT_PATH) if change.setting.startswith("network_") else (UNIT, UNIT_PATH)
        if change.setting.endswith("enabled"):
            self.system.command(["systemctl", "enable" if change.after else "disable", name], step)
        elif change.setting == "program":
            # an undo cannot restore an older program, but the new one can apply the old settings
            if change.after is None or change.after == hashlib.sha256(self._archive).hexdigest():
                self.system.install(PROGRAM, self._archive if change.after else None, step)
        else:
            self.system.install(DESIRED if change.setting == "desired" else path, change.after, step)
            if change.setting != "desired":
                self.system.command(["systemctl", "daemon-reload"], step)
