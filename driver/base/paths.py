# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the driver stores its files. All paths come from one `Paths`, so that a test or a second kubelet can use
others."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..dra.config.interface_config import DRIVER
from .errors import DriverError

#: Maximum bytes of sun_path in an AF_UNIX address, without the trailing NUL. Kubernetes' helper assumes 108, and its
#: bind then fails at exactly 108 bytes.
LONGEST_SOCKET = 107


@dataclass(frozen=True)
class Paths:
    """All paths; the properties below derive from the fields.

    `hook_python` is the interpreter that runs the hook: a path that survives upgrades, because hooks of running pods
    refer to it. The hook program is copied to `hook_program` at start, beside kubelet's sockets, so that its path is
    the same for every release and for a driver that runs in a pod.
    """

    plugin_dir: Path = Path("/var/lib/kubelet/plugins") / DRIVER
    registry_dir: Path = Path("/var/lib/kubelet/plugins_registry")
    run_dir: Path = Path("/run/lanewise")
    cdi_dir: Path = Path("/var/run/cdi")
    settings: Path = Path("/etc/lanewise/driver.yml")
    hook_python: Path = Path("/opt/lanewise/current/bin/python")

    @property
    def state_dir(self) -> Path:
        """One record per claim (records.py)."""
        return self.plugin_dir / "state"

    @property
    def pending_status_dir(self) -> Path:
        """Records of claims that were taken back, until their status in the cluster is cleared."""
        return self.plugin_dir / "untold"  # never renamed, so that every release finds these files

    @property
    def unclean_dir(self) -> Path:
        """One file per device whose original state could not be restored (unclean.py)."""
        return self.plugin_dir / "unclean"

    @property
    def metadata_dir(self) -> Path:
        """The files that containers see as device metadata (metadata.py), one folder per claim."""
        return self.plugin_dir / "metadata"

    @property
    def nccl_topology(self) -> Path:
        """The topology file for NCCL, the same for all pods of the node."""
        return self.plugin_dir / "nccl-topology.xml"

    @property
    def rail_addresses(self) -> Path:
        """Which claim has which address of a rail (rail_addresses.py)."""
        return self.plugin_dir / "rail-addresses.json"

    @property
    def hook_program(self) -> Path:
        """The copy of hook.py."""
        return self.plugin_dir / "hook.py"

    @property
    def hook_script(self) -> Path:
        """The copy of hook.sh, which CDI specs name and which runs `hook_program` if needed."""
        return self.plugin_dir / "hook.sh"

    @property
    def hook_socket(self) -> Path:
        """The socket on which hooks request attach; root only."""
        return self.run_dir / "hook.sock"

    @property
    def netns_dir(self) -> Path:
        """Pinned network namespaces, one per claim."""
        return self.run_dir / "netns"

    @property
    def attached_dir(self) -> Path:
        """One empty file per claim whose devices are configured in its pinned namespace. Hooks check it (hook.py)."""
        return self.run_dir / "attached"

    @property
    def early_dir(self) -> Path:
        """One file per claim that was attached before a container started (early.py): empty until one has started."""
        return self.run_dir / "early"

    @property
    def share_factors(self) -> Path:
        """The factors of NICs that are divided, as of the last report (share_factors.py)."""
        return self.run_dir / "share-factors.json"

    @property
    def serialize_lock(self) -> Path:
        """Held during each operation on claims while two instances may run."""
        return self.plugin_dir / "serialize.lock"

    def cdi_spec(self, uid: str) -> Path:
        """The CDI spec of a claim."""
        return self.cdi_dir / f"k8s.{DRIVER}-claim-{uid}.json"

    def pod_map(self, uid: str) -> Path:
        """The map of a claim for its pod, beside the metadata of its requests, whose names have no dots."""
        return self.metadata_dir / uid / "map.json"

    def pod_facts(self, uid: str) -> Path:
        """The data for a claim's map that is not in its record."""
        return self.metadata_dir / uid / "facts.json"

    def pin(self, uid: str) -> Path:
        """The pinned network namespace of a claim's pod."""
        return self.netns_dir / uid

    def attached(self, uid: str) -> Path:
        """The file that marks a claim's devices as being in its pinned namespace."""
        return self.attached_dir / uid

    def early(self, uid: str) -> Path:
        """The file that marks a claim as attached early; it is empty until a container has started."""
        return self.early_dir / uid

    def service_socket(self, instance: str | None = None) -> Path:
        """The socket on which kubelet calls the driver. `instance` is the pod's UID if two instances may run side by
        side.

        Raises DriverError if no name fits into a socket address.
        """
        if instance is None:
            return _fitting(self.plugin_dir, ["dra.sock"])
        return _fitting(self.plugin_dir, [f"dra-{instance}.sock", f"dra-{_short(instance)}.sock"])

    def registration_socket(self, instance: str | None = None) -> Path:
        """The socket by which kubelet finds the driver, with the same name as in Kubernetes' own helper
        (k8s.io/dynamic-resource-allocation/kubeletplugin, RollingUpdateRegistrarSocketFile; its third form is for
        longer driver names than this one).

        Raises DriverError if no name fits into a socket address.
        """
        if instance is None:
            return _fitting(self.registry_dir, [f"{DRIVER}-reg.sock"])
        return _fitting(self.registry_dir, [f"{DRIVER}-{instance}-reg.sock", f"{DRIVER}-{_short(instance)}-reg.sock"])

    def make(self) -> None:
        """Create the driver's folders, accessible to root only. Folders of kubelet and CDI are created only if they are
        missing, with the modes that their owners use."""
        for folder in (
            self.plugin_dir,
            self.state_dir,
            self.pending_status_dir,
            self.unclean_dir,
            self.run_dir,
            self.netns_dir,
            self.attached_dir,
            self.early_dir,
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.registry_dir, self.cdi_dir, self.metadata_dir):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)


def _short(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:8]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _fitting(folder: Path, names: list[str]) -> Path:
    for name in names:
        path = folder / name
        if len(str(path).encode()) <= LONGEST_SOCKET:
            return path
    raise DriverError(f"{folder}/{names[-1]} is too long for a Unix socket: the limit is {LONGEST_SOCKET} bytes")
