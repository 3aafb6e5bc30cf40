# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's DRA driver as a process beside a control plane, with an administrator's permissions."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.nvidia.installed import Installed
from ansible_collections.lanewise.dra.tests.nvidia.root import Root
from ansible_collections.lanewise.dra.tools.cluster import NVIDIA, programs

NAME = "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


#: The image that the driver starts its MPS daemon from.
IMAGE = "lanewise.dev/mps:1"


#: Modes of the driver: its options in a site's `dra_claims_drivers`, and the arguments of NvidiaDriver.
MODES: dict[str, tuple[Object, Object]] = {
    "plain": ({}, {}),
    "mig": ({"feature_gates": {"DynamicMIG": True}}, {"gates": {"DynamicMIG": True}}),
    "memory": ({"consumable_shares": "memory"}, {"gates": {"ConsumableShares": True}, "shares": "memory"}),
    "unlimited": ({"consumable_shares": "unlimited"}, {"gates": {"ConsumableShares": True}, "shares": "unlimited"}),
    "four": ({"consumable_shares": 4}, {"gates": {"ConsumableShares": True}, "shares": "4"}),
    "mig-memory": (
        {"feature_gates": {"DynamicMIG": True}, "consumable_shares": "memory"},
        {"gates": {"DynamicMIG": True, "ConsumableShares": True}, "shares": "memory"},
    ),
}
#: The modes that are tested with each version of the driver.
RUNS = [(mode, version) for mode in MODES for version in NVIDIA if version == "0.5.0" or mode in ("plain", "mig")]
#: The runs in which the driver changes nothing when it starts. With DynamicMIG, the driver switches MIG mode off on
#: each GPU without instances.
READING_RUNS = [(mode, version) for mode, version in RUNS if "mig" not in mode]


def arguments(node: str, kubeconfig: Path, root: Path, kubelet: Path, cdi: Path) -> list[str]:
    """The driver's command-line arguments. `root` is its driver root; for `kubelet` and `cdi` see NvidiaDriver."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--node-name={node}",
        f"--image-name={IMAGE}",
        f"--nvidia-driver-root={root}",
        f"--container-driver-root={root}",
        f"--cdi-root={cdi}",
        f"--kubelet-registrar-directory-path={kubelet / 'plugins_registry'}",
        f"--kubelet-plugins-directory-path={kubelet / 'plugins'}",
        f"--nvidia-cdi-hook-path={root / 'usr/bin/nvidia-cdi-hook'}",
        "--v=6",
    ]


class NvidiaDriver:
    """The driver of a release (`version`, such as 0.5.0) on an existing node.

    `kubelet` is kubelet's folder with plugins and their registrations, `cdi` the folder where the container runtime
    reads CDI specifications. `gates` are the driver's feature gates, `shares` its --consumable-shares. Raises
    environment.Missing if the program is missing.
    """

    def __init__(
        self,
        plane: ControlPlane,
        node: str,
        root: Root | Installed,
        version: str = "0.5.0",
        *,
        kubelet: Path = Path("/var/lib/kubelet"),
        cdi: Path = Path("/var/run/cdi"),
        gates: t.Mapping[str, bool] | None = None,
        shares: str = "",
    ) -> None:
        self.plane, self.node, self.root = plane, node, root
        name = NVIDIA[version]
        self._program = programs(plane.minor, name, build=False)[name]
        self._arguments = arguments(node, plane.kubeconfig, root.folder / "root", kubelet, cdi)
        on = ",".join(f"{gate}={str(value).lower()}" for gate, value in (gates or {}).items())
        self._arguments += [f"--feature-gates={on}"] if on else []
        self._arguments += [f"--consumable-shares={shares}"] if shares else []
        if (gates or {}).get("FabricManagerPartitioning") and not (gates or {}).get("PassthroughSupport"):
            # the driver looks for a fabric manager below this folder; a fabric manager cannot run here
            self._arguments.append("--host-root=/none")
        for folder in (kubelet / "plugins_registry", kubelet / "plugins", cdi):
            folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start the driver, without waiting until it has published slices."""
        variables = [f"{name}={value}" for name, value in self.root.variables.items()]
        self.plane.run("nvidia", ["env", *variables, *self.root.on_machine(), str(self._program), *self._arguments])

    def stop(self) -> None:
        """Kill the driver with SIGKILL."""
        self.plane.stop("nvidia")

    def log(self) -> str:
        return self.plane.log("nvidia").read_text(errors="replace")

    def wait(self, count: int = 1) -> list[Object]:
        """Wait until the pool is complete and has at least `count` slices. Returns the slices. Raises Failed with the
        driver's log."""

        def published() -> list[Object] | None:
            self.plane.check()
            listed = self.slices()
            complete = listed and len(listed) >= max(count, listed[0]["spec"]["pool"]["resourceSliceCount"])
            return listed if complete else None

        try:
            return t.cast("list[Object]", self.plane.wait_for(published, "slices of gpu.nvidia.com", 60))
        except Failed as failure:
            raise Failed(f"{failure}\n{self.log()[-6000:]}") from None

    def slices(self) -> list[Object]:
        """The slices that the driver has published for its node."""
        listed = self.plane.expect("GET", SLICES)["items"]
        return [
            entry for entry in listed if entry["spec"]["driver"] == NAME and entry["spec"].get("nodeName") == self.node
        ]
