# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the driver stores its files. All paths come from one `Paths` object, so that a test or a second kubelet can use
other folders."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..dra.config.interface_config import DRIVER
from .errors import DriverError

#: Maximum bytes of sun_path in an AF_UNIX address, without the trailing NUL. Kubernetes' helper assumes 108; binding a
#: path of exactly 108 bytes then fails.
MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class Paths:
    """All paths; the properties below derive from the fields.

    `hook_python` is the interpreter that runs the hook: a path that survives upgrades, because CDI specs of running
    pods contain it. At each start, the driver copies the hook's files to `hook_program` and `hook_script` in
    `plugin_dir`. So their paths are the same for every release, and for a driver that runs in a pod.
    """

    plugin_dir: Path = Path("/var/lib/kubelet/plugins") / DRIVER
    registry_dir: Path = Path("/var/lib/kubelet/plugins_registry")
    run_dir: Path = Path("/run/lanewise")
    cdi_dir: Path = Path("/var/run/cdi")
    settings: Path = Path("/etc/lanewise/driver.yml")
    hook_python: Path = Path("/opt/lanewise/current/bin/python")

    @property
    def state_dir(self) -> Path:
        """One record per claim (claims/records.py)."""
        return self.plugin_dir / "state"

    @property
    def pending_status_dir(self) -> Path:
        """Records of unprepared claims whose status in the cluster is not cleared yet."""
        return self.plugin_dir / "untold"  # never renamed, so that every release finds these files

    @property
    def unclean_dir(self) -> Path:
        """One file per device whose original state could not be restored (claims/unclean.py)."""
        return self.plugin_dir / "unclean"

    @property
    def metadata_dir(self) -> Path:
        """The files that containers see as device metadata (claims/metadata.py), one folder per claim."""
        return self.plugin_dir / "metadata"

    @property
    def nccl_topology(self) -> Path:
        """NCCL's topology file, the same for all pods of the node."""
        return self.plugin_dir / "nccl-topology.xml"

    @property
    def rail_addresses(self) -> Path:
        """Which claim has which address of a rail (claims/rail_addresses.py)."""
        return self.plugin_dir / "rail-addresses.json"

    @property
    def hook_program(self) -> Path:
        """The installed copy of hook/program.py."""
        return self.plugin_dir / "hook.py"

    @property
    def hook_script(self) -> Path:
        """The installed copy of hook/hook.sh. CDI specs name it; it runs `hook_program` if needed."""
        return self.plugin_dir / "hook.sh"

    @property
    def hook_socket(self) -> Path:
        """The socket on which hooks request the attach; only root can use it."""
        return self.run_dir / "hook.sock"

    @property
    def netns_dir(self) -> Path:
        """Pinned network namespaces of pods, one per claim (`pin`)."""
        return self.run_dir / "netns"

    @property
    def attached_dir(self) -> Path:
        """Markers of attached claims (`attached_marker`). Hooks check them (hook/program.py)."""
        return self.run_dir / "attached"

    @property
    def early_dir(self) -> Path:
        """Markers of claims that were attached early (`early_marker`)."""
        return self.run_dir / "early"

    @property
    def share_factors(self) -> Path:
        """For each share of a NIC, by share ID: how many times the NIC's bandwidth is promised, as last reported
        for the share's claim (claims/share_factors.py)."""
        return self.run_dir / "share-factors.json"

    @property
    def serialize_lock(self) -> Path:
        """Held during each operation on claims while two instances may run."""
        return self.plugin_dir / "serialize.lock"

    def cdi_spec(self, uid: str) -> Path:
        """The CDI spec of a claim."""
        return self.cdi_dir / f"k8s.{DRIVER}-claim-{uid}.json"

    def pod_map(self, uid: str) -> Path:
        """The map that the claim's pod gets of its devices: which GPU belongs to which NIC (claims/pod_map.py). It is
        beside the folders with the metadata of the claim's requests, whose names contain no dots."""
        return self.metadata_dir / uid / "map.json"

    def pod_facts(self, uid: str) -> Path:
        """What the driver needs for `pod_map` and the claim's record does not contain (ClaimFiles.write_facts)."""
        return self.metadata_dir / uid / "facts.json"

    def pin(self, uid: str) -> Path:
        """The pinned network namespace of the claim's pod: a file on which the namespace is mounted, which keeps it
        alive until the claim's devices are back on the node."""
        return self.netns_dir / uid

    def attached_marker(self, uid: str) -> Path:
        """A marker, an empty file: all of the claim's devices are configured in its pinned namespace."""
        return self.attached_dir / uid

    def early_marker(self, uid: str) -> Path:
        """A marker: the claim was attached before its first container (hook/early.py). Empty until a container has
        started."""
        return self.early_dir / uid

    def service_socket(self, instance: str | None = None) -> Path:
        """The socket on which kubelet calls the driver. `instance` is the UID of the driver's pod if two instances may
        run at once.

        Raises DriverError if the path is too long for a socket address.
        """
        if instance is None:
            return _socket_path(self.plugin_dir, ["dra.sock"])
        return _socket_path(self.plugin_dir, [f"dra-{instance}.sock", f"dra-{_digest(instance)}.sock"])

    def registration_socket(self, instance: str | None = None) -> Path:
        """The socket by which kubelet finds the driver. The name is the same as in Kubernetes' own helper
        (k8s.io/dynamic-resource-allocation/kubeletplugin, RollingUpdateRegistrarSocketFile). The helper's third form is
        for driver names that are longer than this one.

        Raises DriverError if the path is too long for a socket address.
        """
        if instance is None:
            return _socket_path(self.registry_dir, [f"{DRIVER}-reg.sock"])
        names = [f"{DRIVER}-{instance}-reg.sock", f"{DRIVER}-{_digest(instance)}-reg.sock"]
        return _socket_path(self.registry_dir, names)

    def make(self) -> None:
        """Create missing folders. Those of the driver are accessible only to root. Those of kubelet and CDI, and the
        metadata for containers, get mode 0755. Raises OSError."""
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


def _digest(text: str) -> str:
    """A digest of 11 characters that are valid in file names."""
    digest = hashlib.sha256(text.encode()).digest()[:8]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _socket_path(folder: Path, names: list[str]) -> Path:
    """The path with the first of these names that fits into a socket address. Raises DriverError if none does."""
    for name in names:
        path = folder / name
        if len(str(path).encode()) <= MAX_SOCKET_PATH_BYTES:
            return path
    raise DriverError(f"{folder}/{names[-1]} is too long for a Unix socket: the limit is {MAX_SOCKET_PATH_BYTES} bytes")
