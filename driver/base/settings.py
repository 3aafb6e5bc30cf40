# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of a node's driver, `/etc/lanewise/driver.yml`.

    node_name: worker-1             # the node's name in Kubernetes; default: the host name
    kubeconfig: /etc/...            # default: the service account of the driver's pod
    token_file: /etc/...            # used instead of the credentials in the kubeconfig
    renew_token: true               # renew the token in token_file with TokenRequests
    log_level: info                 # debug, info, warning, error
    metrics_address: 127.0.0.1:9178 # of metrics and readiness; "" disables them
    include: [SELECTOR, ...]        # publish only these; default: all
    exclude: [SELECTOR, ...]        # never publish these
    management: [eno1, "0000:01:*"] # patterns of interfaces and PCI addresses that are reserved for the node
    default_routes: all             # default routes that reserve an interface for the node: all (tables), main, best
    virtual_interfaces: [eth*]      # patterns of interfaces without a PCI function to publish as well
    shares: [{select: SELECTOR}]    # NICs that are divided among pods (dra/config/share_settings.py)
    reset: when_changed             # rebind a function to its driver after a claim: never, when_changed, always
    rdma_management: false          # also give pods umad and issm devices, for management datagrams
    keep_ib_interfaces: false       # give pods InfiniBand RDMA devices only: their interfaces stay on the node
    pod_environment: [nccl]         # variables for libraries in pods: nccl, nccl_topology, ucx, vllm; default: none
    rails: {"0000:8a:00.0": 3, bond1: 4}
    rail_addresses: [{rail: 0, range: 10.100.4.64/26, pool: 10.100.0.0/16}, ...]   # see dra/config/rail_range.py
    aliases: {"0000:8a:00.0": storage, eth5: backup}
    locality: [{address: ..., numa_node: 1}, ...]   # as the collection's topology_locality_overrides

A SELECTOR has any of these conditions, which must all hold: address, interface, driver, model, vendor_id, device_id,
link_layer, type (pf, vf, virtual), slot, rail, numa_node (a value or a list; strings are shell patterns),
min_speed_mbps, and near_gpu (PIX, PXB, PHB or NODE: a GPU at least as near).
"""

from __future__ import annotations

import ipaddress
import socket
import typing as t
from dataclasses import dataclass, fields
from pathlib import Path

from ..dra.config.rail_range import RailRange, read_ranges
from ..dra.config.selector_settings import read_selectors
from ..dra.config.share_settings import read_shares
from ..dra.kube import limits
from ..dra.kube.problems import Problem, Problems
from ..dra.kube.reader import Reader, child
from ..topology import overrides
from ..topology.pci import ADDRESS
from ..topology.publish_shares import ShareRule
from ..topology.selector import Selector, like
from .objects import Object, ObjectView

#: The libraries for which pods can get variables (claims/environment.py).
POD_ENVIRONMENT = ("nccl", "nccl_topology", "ucx", "vllm")
LOG_LEVELS = ("debug", "info", "warning", "error")
_ALIAS_BYTES = limits.ATTRIBUTE_VALUE_BYTES
_INTERFACE_BYTES = 15  # IFNAMSIZ - 1


@dataclass(frozen=True)
class Settings:
    """All settings; the defaults are those of an empty file. `metrics_address` is a host and a port, or None."""

    node_name: str = ""
    kubeconfig: str = ""
    token_file: str = ""
    renew_token: bool = True
    log_level: str = "info"
    metrics_address: tuple[str, int] | None = ("127.0.0.1", 9178)
    include: tuple[Selector, ...] = ()
    exclude: tuple[Selector, ...] = ()
    management: tuple[str, ...] = ()
    default_routes: str = "all"
    virtual_interfaces: tuple[str, ...] = ()
    shares: tuple[ShareRule, ...] = ()
    reset: str = "when_changed"
    rdma_management: bool = False
    keep_ib_interfaces: bool = False
    pod_environment: tuple[str, ...] = ()
    rails: tuple[tuple[str, int], ...] = ()
    rail_addresses: tuple[RailRange, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    locality: tuple[ObjectView, ...] = ()

    @property
    def node(self) -> str:
        """The node's name. Like kubelet, it defaults to the host name in lower case."""
        return self.node_name or socket.gethostname().lower()

    @property
    def interface_rails(self) -> dict[str, int]:
        """The rails of interfaces without a PCI function, by interface name."""
        return {key: rail for key, rail in self.rails if not ADDRESS.match(key)}

    @property
    def locality_overrides(self) -> list[Object]:
        """The localities and rails in the form that `topology.probe` takes."""
        rails = [{"address": key, "rail": rail} for key, rail in self.rails if ADDRESS.match(key)]
        return [*map(dict, self.locality), *rails]


def read(data: object) -> Settings:
    """Settings from parsed YAML (None means all defaults). Raises `Problems` with every error."""
    reader = Reader()
    values = reader.mapping(
        {} if data is None else data, "", [field.name for field in fields(Settings)], "the settings"
    )
    settings: Object = {}
    for key, value in (values or {}).items():
        read_value = _READERS[key](reader, value, key)
        if read_value is not None:
            settings[key] = read_value
    _check_rails(reader, settings)
    if values and values.get("metrics_address") == "":
        settings["metrics_address"] = None
    if reader.problems:
        raise Problems(reader.problems)
    return Settings(**settings)


def load(path: Path) -> Settings:
    """The settings in a file; the defaults if it does not exist. Raises `Problems` and OSError."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Rejects duplicate keys; PyYAML would silently use the last one."""

    def mapping(loader: Loader, node: yaml.MappingNode) -> dict[t.Hashable, object]:
        seen: list[object] = []
        for key_node, _value in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`, which construct_mapping replaces
                continue
            key = loader.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise Problems([Problem(str(key), f"is a duplicate key, again in line {line}", "duplicate")])
            seen.append(key)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except UnicodeDecodeError:
        raise Problems([Problem(str(path), "is not UTF-8 text", "syntax")]) from None
    try:
        data = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise Problems([Problem(str(path), " ".join(str(error).split()), "syntax")]) from None
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, Problems):
            raise
        raise Problems([Problem(str(path), f"is not valid YAML: {error}", "syntax")]) from None
    return read(data)


class SettingsFile:
    """The settings of a file that may change. If the file is invalid, the previous settings stay in use.

    `current` holds the last valid settings; `problem` says what is wrong with the file now, or is empty.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises as `load`: a driver does not start with invalid settings."""
        self.path = path
        self.problem = ""
        self._seen = self._stamp()
        self.current = load(path)

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = self.path.stat()  # follows symlinks: files of a ConfigMap are symlinks
        except OSError:
            return ()
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def changed(self) -> bool:
        """Whether the file has changed since it was last read, valid or not."""
        return self._stamp() != self._seen

    def reload(self) -> bool:
        """Read the file again. Returns whether `current` has changed."""
        self._seen = self._stamp()
        try:
            new = load(self.path)
        except (Problems, OSError) as error:
            self.problem = str(error)
            return False
        self.problem = ""
        old, self.current = self.current, new
        return old != new


def _node_name(reader: Reader, value: object, path: str) -> str | None:
    return reader.name(value, path, limits.dns_subdomain)


def _boolean(reader: Reader, value: object, path: str) -> bool | None:
    return reader.boolean(value, path)


def _absolute_path(reader: Reader, value: object, path: str) -> str | None:
    text = reader.string(value, path)
    if text is not None and not text.startswith("/"):
        reader.problem(path, "must be an absolute path", "bad-path")
        return None
    return text


def _metrics_address(reader: Reader, value: object, path: str) -> tuple[str, int] | None:
    if value == "":
        return None
    text = reader.string(value, path)
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        number = 0
    if not 0 < number < 65536:
        reader.problem(path, f"{text!r} is not an IP address and a port", "bad-address", "such as 127.0.0.1:9178")
        return None
    return host.strip("[]"), number


def _choice(*known: str) -> t.Callable[[Reader, object, str], str | None]:
    return lambda reader, value, path: reader.choice(value, path, known)


def _patterns(reader: Reader, value: object, path: str) -> tuple[str, ...]:
    return tuple(reader.strings(value, path))


def _pod_environment(reader: Reader, value: object, path: str) -> tuple[str, ...]:
    libraries = tuple(dict.fromkeys(_patterns(reader, value, path)))
    for name in libraries:
        reader.choice(name, path, POD_ENVIRONMENT)
    if {"ucx", "vllm"} <= set(libraries):
        reason = "vLLM puts its NIC before those of UCX_NET_DEVICES, and UCX would use all of them"
        reader.problem(path, f"cannot have both ucx and vllm: {reason}", "conflict", "choose one of them")
    return libraries


def _rails(reader: Reader, value: object, path: str) -> tuple[tuple[str, int], ...]:
    rails = []
    for key, item in reader.any_mapping(value, path).items():
        rail = reader.integer(item, child(path, key), 0)
        if rail is not None:
            rails.append((key, rail))
    return tuple(rails)


def _check_rails(reader: Reader, settings: ObjectView) -> None:
    """Add a problem for each key of `rails` that is neither a PCI address nor an interface that `virtual_interfaces`
    publishes: such a key would have no effect."""
    for key, _rail in settings.get("rails", ()):
        if not ADDRESS.match(key) and not like(key, settings.get("virtual_interfaces", ())):
            fix = "for an interface without a PCI function, list it in virtual_interfaces"
            reader.problem(
                child("rails", key), f"{key!r} is not a PCI address such as 0000:1b:00.0", "bad-address", fix
            )


def _rail_addresses(reader: Reader, value: object, path: str) -> tuple[RailRange, ...]:
    return read_ranges(reader, value, path)


def _aliases(reader: Reader, value: object, path: str) -> tuple[tuple[str, str], ...]:
    aliases: dict[str, str] = {}
    for key, item in reader.any_mapping(value, path).items():
        item_path = child(path, key)
        text = reader.string(item, item_path)
        if not key or (not ADDRESS.match(key) and (limits.size(key) > _INTERFACE_BYTES or set(key) & set("/: "))):
            reader.problem(item_path, f"{key!r} is not a PCI address or an interface name", "bad-name")
        elif text is not None and limits.size(text) > _ALIAS_BYTES:
            reader.problem(item_path, f"must be no more than {_ALIAS_BYTES} bytes", "too-long")
        elif text in aliases.values():
            reader.problem(item_path, f"the alias {text!r} is used for another device too", "duplicate")
        elif text is not None:
            aliases[key] = text
    return tuple(aliases.items())


def _locality(reader: Reader, value: object, path: str) -> tuple[ObjectView, ...]:
    overridden = []
    for item, item_path in reader.items(value, path):
        problems_before = len(reader.problems)
        item = reader.any_mapping(item, item_path)
        if len(reader.problems) > problems_before:
            continue
        try:
            overrides.check_overrides([item])
        except overrides.OverrideError as error:
            error_path, _colon, message = str(error).partition(": ")
            reader.problem(error_path.replace("locality_overrides[0]", item_path), message, "bad-override")
        else:
            overridden.append(item)
    return tuple(overridden)


_READERS: dict[str, t.Callable[[Reader, object, str], object]] = {
    "node_name": _node_name,
    "kubeconfig": _absolute_path,
    "token_file": _absolute_path,
    "renew_token": _boolean,
    "log_level": _choice(*LOG_LEVELS),
    "metrics_address": _metrics_address,
    "include": read_selectors,
    "exclude": read_selectors,
    "management": _patterns,
    "default_routes": _choice("all", "main", "best"),
    "virtual_interfaces": _patterns,
    "shares": read_shares,
    "reset": _choice("never", "when_changed", "always"),
    "rdma_management": _boolean,
    "keep_ib_interfaces": _boolean,
    "pod_environment": _pod_environment,
    "rails": _rails,
    "rail_addresses": _rail_addresses,
    "aliases": _aliases,
    "locality": _locality,
}
