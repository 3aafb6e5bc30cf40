# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""All resources, in the order in which they are applied. A resource is only loaded if one of its settings is used."""

from __future__ import annotations

import typing as t

from ..access.system import System
from ..engine.resource import Resource

if t.TYPE_CHECKING:
    Load = t.Callable[[], type[Resource]]


def _kernel_args() -> type[Resource]:
    from .kernel_args import KernelArgs

    return KernelArgs


def _kernel_modules() -> type[Resource]:
    from .kernel_modules import KernelModules

    return KernelModules


def _sysctl() -> type[Resource]:
    from .sysctl import Sysctl

    return Sysctl


def _memlock() -> type[Resource]:
    from .memlock import Memlock

    return Memlock


def _hugepages() -> type[Resource]:
    from .hugepages import Hugepages

    return Hugepages


def _cpu() -> type[Resource]:
    from .cpu import Cpu

    return Cpu


def _gpudirect() -> type[Resource]:
    from .gpudirect import Gpudirect

    return Gpudirect


def _acs_for_gpudirect() -> type[Resource]:
    from .pcie import AcsForGpudirect

    return AcsForGpudirect


def _rdma_system() -> type[Resource]:
    from .rdma_system import RdmaSystem

    return RdmaSystem


def _pcie() -> type[Resource]:
    from .pcie import Pcie

    return Pcie


def _sriov() -> type[Resource]:
    from .sriov import Sriov

    return Sriov


def _eswitch() -> type[Resource]:
    from .eswitch import Eswitch

    return Eswitch


def _mtu() -> type[Resource]:
    from .mtu import Mtu

    return Mtu


def _vf() -> type[Resource]:
    from .vf import Vf

    return Vf


def _vf_driver() -> type[Resource]:
    from .vf_driver import VfDriver

    return VfDriver


def _ethtool() -> type[Resource]:
    from .ethtool import Ethtool

    return Ethtool


def _dcb() -> type[Resource]:
    from .dcb import Dcb

    return Dcb


def _roce() -> type[Resource]:
    from .roce import Roce

    return Roce


def _irq() -> type[Resource]:
    from .irq import Irq

    return Irq


def _interface_sysctls() -> type[Resource]:
    from .interface_sysctls import InterfaceSysctls

    return InterfaceSysctls


def _rail_routes() -> type[Resource]:
    from .rail_routes import RailRoutes

    return RailRoutes


def _firmware() -> type[Resource]:
    from .firmware import Firmware

    return Firmware


def _runtime() -> type[Resource]:
    from .runtime import Runtime

    return Runtime


def _kubelet() -> type[Resource]:
    from .kubelet import Kubelet

    return Kubelet


#: For each resource: whether it is for NICs or the node, its settings, and the function that imports it. Kernel
#: settings come first, then settings that create devices, then settings of devices, then services that are restarted.
_ORDER: tuple[tuple[str, tuple[str, ...], Load], ...] = (
    ("node", ("kernel_args", "kernel_args_absent", "iommu"), _kernel_args),
    ("node", ("kernel_modules", "module_options"), _kernel_modules),
    ("node", ("sysctl",), _sysctl),
    ("node", ("memlock_unlimited",), _memlock),
    ("node", ("hugepages",), _hugepages),
    ("node", ("cpu_governor", "cpu_energy_preference", "cpu_idle_max_latency_us"), _cpu),
    ("node", ("gpudirect",), _gpudirect),
    ("node", ("acs",), _acs_for_gpudirect),
    ("node", ("rdma_netns_mode",), _rdma_system),
    ("nic", ("firmware",), _firmware),
    ("nic", ("num_vfs", "vfs_autoprobe"), _sriov),
    ("nic", ("eswitch_mode",), _eswitch),
    ("nic", ("max_read_request_bytes", "relaxed_ordering"), _pcie),
    ("nic", ("vf", "vfs"), _vf),
    ("nic", ("vf", "vfs"), _vf_driver),
    ("nic", ("ethtool",), _ethtool),
    ("nic", ("mtu",), _mtu),
    ("nic", ("dcb",), _dcb),
    ("nic", ("roce",), _roce),
    ("nic", ("sysctls",), _interface_sysctls),
    ("nic", ("rail_routes",), _rail_routes),
    ("nic", ("irq_affinity",), _irq),
    ("node", ("runtime_cdi", "runtime_nri"), _runtime),
    ("node", ("kubelet",), _kubelet),
)


def resources(
    system: System, nics: t.Iterable[t.Mapping[str, object]], general: t.Mapping[str, object], boot: bool = False
) -> list[Resource]:
    """The resources for the settings of NICs and the node; with `boot`, only those whose settings a reboot loses."""
    wanted = {
        "nic": {key for settings in nics for key, value in settings.items() if value is not None},
        "node": {key for key, value in general.items() if value is not None},
    }
    used = [load()(system) for scope, keys, load in _ORDER if wanted[scope].intersection(keys)]
    return [resource for resource in used if resource.boot or not boot]


def named(system: System, names: t.Iterable[str]) -> list[Resource]:
    """The resources with these names, in the order in which they are applied."""
    wanted = set(names)
    return [resource for resource in (load()(system) for _scope, _keys, load in _ORDER) if resource.name in wanted]
