# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hypothesis strategies for everything that an inventory can express: sites, most of which compile, and
configurations."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import compiler
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.inventory import FILTERS
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config, tenancy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.field_checks import (
    LimitedProblems,
    allowed_key,
    check,
    validate_scalar,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.fields import Field
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import DriverKnowledge
from hypothesis import strategies as st

Values = dict[str, t.Any]

GPU_DRIVERS = {
    "gpu.nvidia.com": ["25.3.0", "25.12.0", "0.4.0", "0.5.0", "main"],
    "gpu.amd.com": ["1.0.0", "main"],
    "gpu.intel.com": ["0.9.0", "0.10.0", "0.11.0"],
    "gaudi.intel.com": ["0.5.0", "0.7.0"],
}
NETWORK_DRIVERS = {
    "lanewise.dev": ["1.0.0", "main"],
    "dra.net": ["1.0.1", "1.4.0", "main"],
    "sriovnetwork.k8snetworkplumbingwg.io": ["0.1.0", "main"],
}
CPU_DRIVERS = {"dra.cpu": ["0.1.0", "0.2.0", "main"]}
NAMESPACES = ["training", "ml", "monitoring"]

_RATES = st.sampled_from(["1G", "100G", "400G", "800000M", "40000000000"])
_SIZES = st.sampled_from(["80Gi", "16G", "40960Mi", "1e9", "1"])
_VERSIONS = st.sampled_from(["570", "570.1", "570.124.6", "28.43.1014", "1.2.3"])
_VALUES: dict[str, st.SearchStrategy[t.Any]] = {
    "min_speed": _RATES,
    "min_memory": _SIZES,
    "link_layer": st.sampled_from(["ethernet", "infiniband"]),
    "min_firmware": _VERSIONS,
    "min_driver_version": _VERSIONS,
    "partition": st.sampled_from(["1g.10gb", "3g.40gb", "cpx"]),
    "pci_address": st.just("0000:8a:00.0"),
    "pcie_root": st.just("pci0000:80"),
    "uuid": st.just("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"),
    # quotes, backslashes and non-ASCII characters must survive the conversion to CEL
    "model": st.sampled_from(["H100", 'a "b"', "back\\slash", "ConnectX®-7", "{x}", "tab\tand\nline"]),
    "interface": st.sampled_from(["eth0", "enp1s0f0np0"]),
    "architecture": st.just("Hopper"),
    "rdma": st.booleans(),
}

#: A configuration that NVIDIA's driver accepts with all of its feature gates off.
GPU_CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def _maybe_set(draw: st.DrawFn, target: Values, key: str, strategy: st.SearchStrategy[t.Any], one_in: int = 4) -> None:
    """Set a key in one of `one_in` cases."""
    if draw(st.integers(1, one_in)) == 1:
        target[key] = draw(strategy)


@st.composite
def labels(draw: st.DrawFn) -> Values:
    keys = st.sampled_from(["team", "example.com/tier", "a-b.c_d"])
    return draw(st.dictionaries(keys, st.sampled_from(["", "x", "A.b-c_1"]), max_size=2))


@st.composite
def filters(draw: st.DrawFn, kind: str, driver: DriverKnowledge) -> Values:
    """Filters that the driver supports."""
    supported = sorted(name for name in driver.kinds[kind].filters if name in FILTERS[kind])
    chosen = draw(st.lists(st.sampled_from(supported), unique=True, max_size=4)) if supported else []
    return {name: draw(_VALUES.get(name, st.integers(1, 4))) for name in chosen}


@st.composite
def tolerations(draw: st.DrawFn) -> Values:
    found: Values = {}
    operator = draw(st.sampled_from(["Exists", "Equal", ""]))
    if operator == "Equal":
        found.update(operator="Equal", key="example.com/slow", value=draw(st.sampled_from(["yes", "x-1"])))
    elif operator == "Exists":
        found["operator"] = "Exists"
        _maybe_set(draw, found, "key", st.just("lanewise.dev/degraded"), 2)
    _maybe_set(draw, found, "effect", st.sampled_from(["NoSchedule", "NoExecute"]), 2)
    if found.get("effect") == "NoExecute":
        _maybe_set(draw, found, "toleration_seconds", st.integers(0, 3600), 2)
    return found


@st.composite
def _exact(draw: st.DrawFn, name: str, drivers: Values, modern: bool, classes: list[Values]) -> Values:
    """A device without alternatives."""
    driver_knowledge = {key: knowledge(key, options) for key, options in drivers.items()}
    pairs = [(kind, driver) for driver in driver_knowledge.values() for kind in sorted(driver.kinds)]
    device: Values = {"name": name}
    if classes and draw(st.integers(1, 4)) == 1:
        device_class = draw(st.sampled_from(classes))
        device["class"] = device_class["name"]
        return device
    if draw(st.integers(1, 12)) == 1:
        # a class that the inventory does not define
        device["class"] = "defined.elsewhere"
        _maybe_set(draw, device, "count", st.integers(1, 4))
        return device
    kind, driver = draw(st.sampled_from(pairs))
    device["kind"] = kind
    if sum(kind == other for other, _driver in pairs) > 1 or draw(st.booleans()):
        device["driver"] = driver.name
    _maybe_set(draw, device, "where", filters(kind, driver), 2)
    _maybe_set(draw, device, "cel", st.just([f'device.driver == "{driver.name}"']), 6)
    if draw(st.integers(1, 8)) == 1:
        device["all"] = True
    else:
        _maybe_set(draw, device, "count", st.integers(1, 4), 3)
    if modern:
        _maybe_set(draw, device, "tolerations", st.lists(tolerations(), min_size=1, max_size=3), 4)
        _maybe_set(draw, device, "capacity", st.just({"example.com/slots": "2", "memory": "1Gi"}), 8)
        if "bandwidth" in driver.kinds[kind].capacities:
            _maybe_set(draw, device, "bandwidth", _RATES, 3)
    if driver.name == interface_config.DRIVER and "all" not in device and "count" not in device:
        _maybe_set(draw, device, "interface", interfaces(), 2)
    elif driver.name != interface_config.DRIVER:
        parameters = GPU_CONFIG if driver.name == "gpu.nvidia.com" else {"a": [1, "é", None]}
        _maybe_set(draw, device, "config", st.just([{"driver": driver.name, "parameters": parameters}]), 6)
    return device


@st.composite
def devices(
    draw: st.DrawFn, name: str, drivers: Values, modern: bool, classes: list[Values], max_alternatives: int
) -> Values:
    """A device of a group, which may have up to `max_alternatives` alternatives."""
    if max_alternatives > 1 and draw(st.integers(1, 4)) == 1:
        count = draw(st.integers(1, max_alternatives))
        return {"name": name, "first_of": [draw(_exact(f"alt-{i}", drivers, modern, classes)) for i in range(count)]}
    return draw(_exact(name, drivers, modern, classes))


_ALIGN = [["pcie_root"], ["numa_node"], ["any"], ["pcie_root", "any"], ["pcie_root", "numa_node", "any"]]


def _min_devices(groups: list[Values]) -> int:
    """The smallest number of devices that satisfies a claim."""
    return sum(
        group.get("count", 1) * min(line.get("count", 1) for line in device.get("first_of", [device]))
        for group in groups
        for device in group["devices"]
    )


@st.composite
def claims(draw: st.DrawFn, name: str, drivers: Values, modern: bool, classes: list[Values], admin: bool) -> Values:
    """The body of a template or of a claim."""
    claim: Values = {"name": name}
    if admin:
        claim["namespace"] = "monitoring"
    elif draw(st.booleans()):
        claim["namespace"] = draw(st.sampled_from(NAMESPACES))
    else:
        claim["namespaces"] = draw(st.lists(st.sampled_from(NAMESPACES), min_size=1, unique=True))
    _maybe_set(draw, claim, "labels", labels())
    _maybe_set(draw, claim, "annotations", st.just({"example.com/note": "any text: é\n"}))
    groups = []
    for number in range(draw(st.integers(1, 3))):
        group: Values = {}
        size = draw(st.integers(1, 3))
        _maybe_set(draw, group, "count", st.integers(1, 4), 2)
        if size > 1:
            _maybe_set(draw, group, "align", st.sampled_from(_ALIGN), 2)
        max_alternatives = 8 // max(len(group.get("align", "1")), 1)
        group["devices"] = [
            draw(devices(f"d{number}-{i}", drivers, modern, classes, max_alternatives)) for i in range(size)
        ]
        if admin and "first_of" not in group["devices"][0]:
            group["devices"][0]["admin"] = True
        groups.append(group)
    # no claim gets more than 32 devices
    lines = [line for group in groups for device in group["devices"] for line in device.get("first_of", [device])]
    for entries in (lines, groups):
        if _min_devices(groups) > limits.ALLOCATION_RESULTS:
            for entry in entries:
                entry.pop("count", None)
    if len(groups) == 1 and "count" not in groups[0] and draw(st.booleans()):
        claim.update(groups[0])
    else:
        claim["groups"] = groups
        _maybe_set(draw, claim, "align", st.sampled_from(["pcie_root", "numa_node", "any", "example.com/rack"]), 5)
    if modern:
        _maybe_set(draw, claim, "distinct", st.sampled_from([["rail"], [{"by": "example.com/host"}], ["numa_node"]]), 5)
    return claim


@st.composite
def sites(draw: st.DrawFn, modern: bool = True) -> Values:
    """The variables of a site. Without `modern`, only what Kubernetes 1.34 enables."""
    drivers: Values = {}
    gpu = draw(st.sampled_from(sorted(GPU_DRIVERS)))
    chosen = {gpu: GPU_DRIVERS[gpu]}
    for name in draw(st.lists(st.sampled_from(sorted(NETWORK_DRIVERS)), unique=True, max_size=2)) or ["lanewise.dev"]:
        chosen[name] = NETWORK_DRIVERS[name]
    if draw(st.booleans()):
        chosen.update(CPU_DRIVERS)
    for name, versions in chosen.items():
        drivers[name] = {"version": draw(st.sampled_from(versions))}
    driver_knowledge = {name: knowledge(name, options) for name, options in drivers.items()}
    classes: list[Values] = []
    for number in range(draw(st.integers(0, 3))):
        driver = draw(st.sampled_from(sorted(driver_knowledge)))
        kind = draw(st.sampled_from(sorted(driver_knowledge[driver].kinds)))
        device_class: Values = {"name": f"own.class-{number}", "kind": kind, "driver": driver}
        _maybe_set(draw, device_class, "where", filters(kind, driver_knowledge[driver]), 2)
        _maybe_set(draw, device_class, "cel", st.just(["true", "device.driver.startsWith('x')"]), 4)
        _maybe_set(draw, device_class, "labels", labels())
        if driver == interface_config.DRIVER:
            _maybe_set(draw, device_class, "interface", interfaces().map(_of_whole_devices), 3)
        if modern:
            _maybe_set(draw, device_class, "extended_resource", st.just(f"example.com/res-{number}"), 3)
        classes.append(device_class)
    result: Values = {"dra_claims_drivers": drivers, "dra_claims_classes": classes}
    for variable in ("templates", "claims"):
        count = draw(st.integers(0, 3))
        bodies = [
            draw(claims(f"{variable}.{i}", drivers, modern, classes, draw(st.integers(1, 6)) == 1))
            for i in range(count)
        ]
        result[f"dra_claims_{variable}"] = bodies
    result["dra_claims_admin_namespaces"] = ["monitoring"]
    if classes:
        quota = {
            "namespace": "ml",
            "devices": {device_class["name"]: draw(st.integers(0, 64)) for device_class in classes},
        }
        _maybe_set(draw, quota, "claims", st.integers(0, 100), 2)
        result["dra_claims_quotas"] = [quota]
    if modern and draw(st.booleans()):
        taint: Values = {"name": "broken", "key": "example.com/broken", "effect": "NoSchedule"}
        _maybe_set(draw, taint, "value", st.just("x"), 2)
        taint["driver"] = gpu
        _maybe_set(draw, taint, "pool", st.just("node-1"), 2)
        _maybe_set(draw, taint, "device", st.just("gpu-0"), 2)
        result["dra_claims_taints"] = [taint]
    if modern and draw(st.booleans()):
        result["dra_claims_tiers"] = [{"name": "gold"}, {"name": "batch", "grace": draw(st.integers(0, 60))}]
        for claim in [*result["dra_claims_templates"], *result["dra_claims_claims"]]:
            _maybe_set(draw, claim, "tier", st.sampled_from(["gold", "batch"]), 2)
    result["dra_claims_policy"] = draw(st.booleans())
    _maybe_set(draw, result, "dra_claims_site", st.sampled_from(["site-1", "A"]), 3)
    return result


def compiled(values: Values, kubernetes: str = "1.37") -> compiler.Site:
    """The site, without the claims that its drivers cannot serve. Any other problem is raised."""
    try:
        return compiler.compile_site(values, None, kubernetes)
    except Problems as error:
        expected = {"no-common-attribute", "no-attribute", "contradiction", "tenancy"}
        if {problem.rule for problem in error.problems} - expected:
            raise
        wrong = {re.sub(r"(\[\d+\]).*", r"\1", problem.path) for problem in error.problems}
        kept = dict(values)
        for name in ("dra_claims_templates", "dra_claims_claims"):
            kept[name] = [item for index, item in enumerate(values[name]) if f"{name}[{index}]" not in wrong]
        return compiler.compile_site(kept, None, kubernetes)


# configurations: random values for the fields of `interface_config.FIELDS`

#: Valid values by the type of the field.
_VALID: dict[str, list[t.Any]] = {
    "ip": ["10.0.0.1", "fd00::1", "0.0.0.0", "::", "2001:DB8::A", "::1.2.3.4"],
    "address": ["10.0.0.2/24", "fd00::2/64", "10.0.0.0/8", "0.0.0.0/0", "::/0", "10.1.2.3/32"],
    "network": ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "192.168.1.1/32"],
    "bool": [True, False],
}
#: Values that are invalid for most fields.
_INVALID: list[t.Any] = [
    None,
    "",
    "x" * 300,
    "10.0.0.256",
    "10.0.0.01",
    "010.0.0.0/8",
    "10.0.0.1/08",
    "10.0.0.0/33",
    "10.0.0.0/255.0.0.0",
    "10.0.0.1/8",
    "fe80::1%eth0",
    "::ffff:10.0.0.1",
    "::ffff:10.0.0.0/104",
    "10.0.0.1 ",
    "eth0\n",
    -1,
    2**32,
    2**40,
    1.5,
    True,
    "1",
    [],
    {},
    [[]],
    {"a": 1},
    "lo",
    "00:00:00:00:00:00",
    "01:00:00:00:00:00",
    "02:00:00:00:00",
]
#: Valid and invalid texts by the pattern of the field or key.
_TEXTS = {
    interface_config.FIELDS["name"].pattern: ["net1", "rdma-0", "a.b_c", "x" * 15, "é", "a/b", "x" * 16, ".", "-a"],
    interface_config.FIELDS["share"].fields["burst"].pattern: ["25G", "2500M", "1T", "1.5G", "0G", "1k", "25 G"],
    interface_config.FIELDS["mac"].pattern or "": ["02:00:00:00:00:01", "AA:bb:0c:0D:0e:0f", "02-00-00-00-00-01"],
    "[0-9a-f]{2}(?::[0-9a-f]{2}){0,5}": ["02", "02:00:00", "aa:bb:0c:0d:0e:0f", "AA", "02:"],
    "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?": [*NAMESPACES, "team-a", "Team", "-a", "x" * 64],
    interface_config.FIELDS["sysctls"].key: [
        "net.ipv4.conf.IFNAME.rp_filter",
        "net.ipv6.conf.IFNAME.accept_ra",
        "net.ipv4.conf.IFNAME.proxy_arp",
        "net.ipv4.conf.all.rp_filter",
    ],
    interface_config.FIELDS["ethtool"].fields["features"].key: ["tx-checksum-ipv4", "tso", "Feature"],
    interface_config.FIELDS["ethtool"].fields["privateFlags"].key: ["link down", "Feature", "/"],
    r"-?[0-9]{1,10}": ["0", "-1", "2147483647", "0x1", "1 2", "12345678901"],
}
#: Keys of fields with a mapping. Each field allows some of them.
_KEYS = [
    "net.ipv4.conf.IFNAME.rp_filter",
    "net.ipv6.conf.IFNAME.accept_ra",
    "net.ipv4.neigh.IFNAME.gc_stale_time",
    "net.ipv4.conf.IFNAME.proxy_arp",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.conf.IFNAME.rp_filter\n",
    "kernel.panic",
    "tx-checksum-ipv4",
    "link down",
    "Feature",
    "",
]


@st.composite
def _value(draw: st.DrawFn, field: Field, invalid_percent: int) -> t.Any:
    if invalid_percent and draw(st.integers(0, 99)) < invalid_percent:
        return draw(st.sampled_from(_INVALID))
    if field.type in _VALID:
        return draw(st.sampled_from(_VALID[field.type]))
    if field.type == "int" or (field.type == "setting" and draw(st.booleans())):
        numbers = [
            field.minimum,
            field.maximum,
            (field.minimum + field.maximum) // 2,
            min(field.maximum, max(field.minimum, 1500)),
        ]
        return draw(st.sampled_from(numbers + ([field.minimum - 1, field.maximum + 1] if invalid_percent else [])))
    if field.choices:
        return draw(st.sampled_from(field.choices))
    if field.type in ("string", "setting"):
        valid_texts = [text for text in _TEXTS[field.pattern] if validate_scalar(field, text)]
        return draw(st.sampled_from(_TEXTS[field.pattern] if invalid_percent else valid_texts))
    if field.type == "list" and field.item:
        return draw(st.lists(_value(field.item, invalid_percent), max_size=3))
    if field.type == "map" and field.item:
        keys = [key for key in _KEYS if allowed_key(field, key)]
        chosen = draw(
            st.lists(st.sampled_from(_KEYS if invalid_percent and draw(st.integers(0, 3)) == 0 else keys), max_size=3)
        )
        return {key: draw(_value(field.item, invalid_percent)) for key in chosen}
    return draw(_object(field, invalid_percent))


@st.composite
def _object(draw: st.DrawFn, field: Field, invalid_percent: int, max_fields: int = 5) -> Values:
    optional = sorted(name for name, inner in field.fields.items() if not inner.required)
    chosen = draw(st.lists(st.sampled_from(optional), unique=True, max_size=max_fields)) if optional else []
    required = [name for name, inner in field.fields.items() if inner.required]
    if invalid_percent and required and draw(st.integers(0, 99)) < invalid_percent:
        required.pop()
    result = {name: draw(_value(field.fields[name], invalid_percent)) for name in required + chosen}
    if invalid_percent and draw(st.integers(0, 99)) < invalid_percent:
        result[draw(st.sampled_from(["hardwareAddr", "ipAddress", "Name", "", "x"]))] = 1
    return result


@st.composite
def configs(draw: st.DrawFn, invalid_percent: int = 4) -> t.Any:
    """An InterfaceConfig. About `invalid_percent` % of its values are invalid. It may break rules between fields."""
    if invalid_percent and draw(st.integers(0, 99)) < invalid_percent:
        return draw(st.sampled_from([{}, {"kind": "InterfaceConfig"}, {"apiVersion": "v1", "kind": "Pod"}]))
    return draw(_object(interface_config.CONFIG, draw(st.sampled_from([0, invalid_percent]))))


@st.composite
def shares(draw: st.DrawFn, invalid_percent: int = 0) -> t.Any:
    """The share of an InterfaceConfig, of whose values about `invalid_percent` % are invalid.

    Without invalid values, one share in eight may still break rules between fields.
    """
    field = interface_config.FIELDS["share"]
    found = draw(_value(field, invalid_percent))
    while (
        not invalid_percent
        and draw(st.integers(0, 7))
        and interface_config.validate({"share": found}, "", complete=False)
    ):
        found = draw(_value(field, 0))
    return found


@st.composite
def interfaces(draw: st.DrawFn) -> Values:
    """A valid value of `interface` in an inventory, for one device."""
    fields = interface_config.FIELDS
    names = draw(st.lists(st.sampled_from(sorted(set(fields) - {"name", "addresses", "mac"})), unique=True, max_size=4))
    found = {name: draw(_value(fields[name], 0)) for name in names}
    while interface_config.validate(found, "", complete=False):
        found.popitem()  # until no rule between fields is broken
    return found


def _of_whole_devices(interface: Values) -> Values:
    """The settings without `share`, which only a class of shares may have."""
    return {name: value for name, value in interface.items() if name != "share"}


@st.composite
def policies(draw: st.DrawFn, invalid_percent: int = 0) -> t.Any:
    """An InterfacePolicy, of whose values about `invalid_percent` % are invalid. A valid policy allows most fields."""
    if invalid_percent:
        return draw(_object(tenancy.POLICY, invalid_percent))
    tenants = []
    for _number in range(draw(st.integers(0, 3))):
        tenant: Values = {"allow": draw(_allow())}
        _maybe_set(draw, tenant, "namespaces", st.lists(st.sampled_from(NAMESPACES), unique=True, max_size=2), 2)
        if tenant not in tenants:
            tenants.append(tenant)
    return tenancy.parameters(tenants)


@st.composite
def _allow(draw: st.DrawFn) -> Values:
    allow: Values = {}
    for choice in tenancy.CHOICES:
        if draw(st.integers(0, 9)) > 1:
            holder = allow
            for name in choice.path[:-1]:
                holder = holder.setdefault(name, {})
            bound = {} if draw(st.booleans()) else draw(_value(choice.bound.field, 0))
            problems = LimitedProblems()
            check(choice.bound.field, bound, "", problems)
            holder[choice.path[-1]] = {} if problems else bound
    return allow
