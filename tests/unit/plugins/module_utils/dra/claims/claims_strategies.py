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


def _maybe(draw: st.DrawFn, target: Values, key: str, strategy: st.SearchStrategy[t.Any], chance: int = 4) -> None:
    """Set a key in one of `chance` cases."""
    if draw(st.integers(1, chance)) == 1:
        target[key] = draw(strategy)


@st.composite
def labels(draw: st.DrawFn) -> Values:
    keys = st.sampled_from(["team", "example.com/tier", "a-b.c_d"])
    return draw(st.dictionaries(keys, st.sampled_from(["", "x", "A.b-c_1"]), max_size=2))


@st.composite
def filters(draw: st.DrawFn, kind: str, known: DriverKnowledge) -> Values:
    """Filters that the driver supports."""
    answered = sorted(name for name in known.kinds[kind].filters if name in FILTERS[kind])
    chosen = draw(st.lists(st.sampled_from(answered), unique=True, max_size=4)) if answered else []
    return {name: draw(_VALUES.get(name, st.integers(1, 4))) for name in chosen}


@st.composite
def tolerations(draw: st.DrawFn) -> Values:
    found: Values = {}
    operator = draw(st.sampled_from(["Exists", "Equal", ""]))
    if operator == "Equal":
        found.update(operator="Equal", key="example.com/slow", value=draw(st.sampled_from(["yes", "x-1"])))
    elif operator == "Exists":
        found["operator"] = "Exists"
        _maybe(draw, found, "key", st.just("lanewise.dev/degraded"), 2)
    _maybe(draw, found, "effect", st.sampled_from(["NoSchedule", "NoExecute"]), 2)
    if found.get("effect") == "NoExecute":
        _maybe(draw, found, "toleration_seconds", st.integers(0, 3600), 2)
    return found


@st.composite
def _exact(draw: st.DrawFn, name: str, site: Values, modern: bool, classes: list[Values]) -> Values:
    known = {key: knowledge(key, options) for key, options in site.items()}
    pairs = [(kind, driver) for driver in known.values() for kind in sorted(driver.kinds)]
    device: Values = {"name": name}
    if classes and draw(st.integers(1, 4)) == 1:
        item = draw(st.sampled_from(classes))
        device["class"] = item["name"]
        return device
    if draw(st.integers(1, 12)) == 1:
        device["class"] = "made.elsewhere"
        _maybe(draw, device, "count", st.integers(1, 4))
        return device
    kind, driver = draw(st.sampled_from(pairs))
    device["kind"] = kind
    if sum(kind == other for other, _driver in pairs) > 1 or draw(st.booleans()):
        device["driver"] = driver.name
    _maybe(draw, device, "where", filters(kind, driver), 2)
    _maybe(draw, device, "cel", st.just([f'device.driver == "{driver.name}"']), 6)
    if draw(st.integers(1, 8)) == 1:
        device["all"] = True
    else:
        _maybe(draw, device, "count", st.integers(1, 4), 3)
    if modern:
        _maybe(draw, device, "tolerations", st.lists(tolerations(), min_size=1, max_size=3), 4)
        _maybe(draw, device, "capacity", st.just({"example.com/slots": "2", "memory": "1Gi"}), 8)
        if "bandwidth" in driver.kinds[kind].capacities:
            _maybe(draw, device, "bandwidth", _RATES, 3)
    if driver.name == interface_config.DRIVER and "all" not in device and "count" not in device:
        _maybe(draw, device, "interface", interfaces(), 2)
    elif driver.name != interface_config.DRIVER:
        parameters = GPU_CONFIG if driver.name == "gpu.nvidia.com" else {"a": [1, "é", None]}
        _maybe(draw, device, "config", st.just([{"driver": driver.name, "parameters": parameters}]), 6)
    return device


@st.composite
def devices(draw: st.DrawFn, name: str, site: Values, modern: bool, classes: list[Values], most: int) -> Values:
    """A device, with up to `most` alternatives."""
    if most > 1 and draw(st.integers(1, 4)) == 1:
        number = draw(st.integers(1, most))
        return {"name": name, "first_of": [draw(_exact(f"alt-{i}", site, modern, classes)) for i in range(number)]}
    return draw(_exact(name, site, modern, classes))


_ALIGN = [["pcie_root"], ["numa_node"], ["any"], ["pcie_root", "any"], ["pcie_root", "numa_node", "any"]]


def _least(groups: list[Values]) -> int:
    """The smallest number of devices that a claim asks for."""
    return sum(
        group.get("count", 1) * min(line.get("count", 1) for line in device.get("first_of", [device]))
        for group in groups
        for device in group["devices"]
    )


@st.composite
def claims(draw: st.DrawFn, name: str, site: Values, modern: bool, classes: list[Values], admin: bool) -> Values:
    """The body of a template or of a claim."""
    claim: Values = {"name": name}
    if admin:
        claim["namespace"] = "monitoring"
    elif draw(st.booleans()):
        claim["namespace"] = draw(st.sampled_from(NAMESPACES))
    else:
        claim["namespaces"] = draw(st.lists(st.sampled_from(NAMESPACES), min_size=1, unique=True))
    _maybe(draw, claim, "labels", labels())
    _maybe(draw, claim, "annotations", st.just({"example.com/note": "any text: é\n"}))
    groups = []
    for number in range(draw(st.integers(1, 3))):
        group: Values = {}
        size = draw(st.integers(1, 3))
        _maybe(draw, group, "count", st.integers(1, 4), 2)
        if size > 1:
            _maybe(draw, group, "align", st.sampled_from(_ALIGN), 2)
        most = 8 // max(len(group.get("align", "1")), 1)
        group["devices"] = [draw(devices(f"d{number}-{i}", site, modern, classes, most)) for i in range(size)]
        if admin and "first_of" not in group["devices"][0]:
            group["devices"][0]["admin"] = True
        groups.append(group)
    # no claim gets more than 32 devices
    lines = [line for group in groups for device in group["devices"] for line in device.get("first_of", [device])]
    for counted in (lines, groups):
        if _least(groups) > limits.ALLOCATION_RESULTS:
            for one in counted:
                one.pop("count", None)
    if len(groups) == 1 and "count" not in groups[0] and draw(st.booleans()):
        claim.update(groups[0])
    else:
        claim["groups"] = groups
        _maybe(draw, claim, "align", st.sampled_from(["pcie_root", "numa_node", "any", "example.com/rack"]), 5)
    if modern:
        _maybe(draw, claim, "distinct", st.sampled_from([["rail"], [{"by": "example.com/host"}], ["numa_node"]]), 5)
    return claim


@st.composite
def sites(draw: st.DrawFn, modern: bool = True) -> Values:
    """The variables of a site. Without `modern`, only what Kubernetes 1.34 enables."""
    site: Values = {}
    gpu = draw(st.sampled_from(sorted(GPU_DRIVERS)))
    chosen = {gpu: GPU_DRIVERS[gpu]}
    for name in draw(st.lists(st.sampled_from(sorted(NETWORK_DRIVERS)), unique=True, max_size=2)) or ["lanewise.dev"]:
        chosen[name] = NETWORK_DRIVERS[name]
    if draw(st.booleans()):
        chosen.update(CPU_DRIVERS)
    for name, versions in chosen.items():
        site[name] = {"version": draw(st.sampled_from(versions))}
    known = {name: knowledge(name, options) for name, options in site.items()}
    classes: list[Values] = []
    for number in range(draw(st.integers(0, 3))):
        driver = draw(st.sampled_from(sorted(known)))
        kind = draw(st.sampled_from(sorted(known[driver].kinds)))
        item: Values = {"name": f"own.class-{number}", "kind": kind, "driver": driver}
        _maybe(draw, item, "where", filters(kind, known[driver]), 2)
        _maybe(draw, item, "cel", st.just(["true", "device.driver.startsWith('x')"]), 4)
        _maybe(draw, item, "labels", labels())
        if driver == interface_config.DRIVER:
            _maybe(draw, item, "interface", interfaces().map(_of_whole_devices), 3)
        if modern:
            _maybe(draw, item, "extended_resource", st.just(f"example.com/res-{number}"), 3)
        classes.append(item)
    result: Values = {"dra_claims_drivers": site, "dra_claims_classes": classes}
    for variable in ("templates", "claims"):
        number = draw(st.integers(0, 3))
        made = [
            draw(claims(f"{variable}.{i}", site, modern, classes, draw(st.integers(1, 6)) == 1)) for i in range(number)
        ]
        result[f"dra_claims_{variable}"] = made
    result["dra_claims_admin_namespaces"] = ["monitoring"]
    if classes:
        quota = {"namespace": "ml", "devices": {item["name"]: draw(st.integers(0, 64)) for item in classes}}
        _maybe(draw, quota, "claims", st.integers(0, 100), 2)
        result["dra_claims_quotas"] = [quota]
    if modern and draw(st.booleans()):
        taint: Values = {"name": "broken", "key": "example.com/broken", "effect": "NoSchedule"}
        _maybe(draw, taint, "value", st.just("x"), 2)
        taint["driver"] = gpu
        _maybe(draw, taint, "pool", st.just("node-1"), 2)
        _maybe(draw, taint, "device", st.just("gpu-0"), 2)
        result["dra_claims_taints"] = [taint]
    if modern and draw(st.booleans()):
        result["dra_claims_tiers"] = [{"name": "gold"}, {"name": "batch", "grace": draw(st.integers(0, 60))}]
        for item in [*result["dra_claims_templates"], *result["dra_claims_claims"]]:
            _maybe(draw, item, "tier", st.sampled_from(["gold", "batch"]), 2)
    result["dra_claims_policy"] = draw(st.booleans())
    _maybe(draw, result, "dra_claims_site", st.sampled_from(["site-1", "A"]), 3)
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


# InterfaceConfig, generated from its table: valid values, and similar invalid ones

_VALID: dict[str, list[t.Any]] = {
    "ip": ["10.0.0.1", "fd00::1", "0.0.0.0", "::", "2001:DB8::A", "::1.2.3.4"],
    "address": ["10.0.0.2/24", "fd00::2/64", "10.0.0.0/8", "0.0.0.0/0", "::/0", "10.1.2.3/32"],
    "network": ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "192.168.1.1/32"],
    "bool": [True, False],
}
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
def _value(draw: st.DrawFn, form: Field, bad: int) -> t.Any:
    if bad and draw(st.integers(0, 99)) < bad:
        return draw(st.sampled_from(_INVALID))
    if form.type in _VALID:
        return draw(st.sampled_from(_VALID[form.type]))
    if form.type == "int" or (form.type == "setting" and draw(st.booleans())):
        inside = [
            form.minimum,
            form.maximum,
            (form.minimum + form.maximum) // 2,
            min(form.maximum, max(form.minimum, 1500)),
        ]
        return draw(st.sampled_from(inside + ([form.minimum - 1, form.maximum + 1] if bad else [])))
    if form.choices:
        return draw(st.sampled_from(form.choices))
    if form.type in ("string", "setting"):
        good = [text for text in _TEXTS[form.pattern] if validate_scalar(form, text)]
        return draw(st.sampled_from(_TEXTS[form.pattern] if bad else good))
    if form.type == "list" and form.item:
        return draw(st.lists(_value(form.item, bad), max_size=3))
    if form.type == "map" and form.item:
        keys = [key for key in _KEYS if allowed_key(form, key)]
        chosen = draw(st.lists(st.sampled_from(_KEYS if bad and draw(st.integers(0, 3)) == 0 else keys), max_size=3))
        return {key: draw(_value(form.item, bad)) for key in chosen}
    return draw(_object(form, bad))


@st.composite
def _object(draw: st.DrawFn, form: Field, bad: int, most: int = 5) -> Values:
    optional = sorted(name for name, inner in form.fields.items() if not inner.required)
    chosen = draw(st.lists(st.sampled_from(optional), unique=True, max_size=most)) if optional else []
    required = [name for name, inner in form.fields.items() if inner.required]
    if bad and required and draw(st.integers(0, 99)) < bad:
        required.pop()
    result = {name: draw(_value(form.fields[name], bad)) for name in required + chosen}
    if bad and draw(st.integers(0, 99)) < bad:
        result[draw(st.sampled_from(["hardwareAddr", "ipAddress", "Name", "", "x"]))] = 1
    return result


@st.composite
def configs(draw: st.DrawFn, bad: int = 4) -> t.Any:
    """An InterfaceConfig. Each value is wrong with a chance of `bad` in 100, and rules between fields may be broken."""
    if bad and draw(st.integers(0, 99)) < bad:
        return draw(st.sampled_from([{}, {"kind": "InterfaceConfig"}, {"apiVersion": "v1", "kind": "Pod"}]))
    return draw(_object(interface_config.CONFIG, draw(st.sampled_from([0, bad]))))


@st.composite
def shares(draw: st.DrawFn, bad: int = 0) -> t.Any:
    """The share of an InterfaceConfig: wrong values only with `bad`, and one in eight breaks rules between fields."""
    form = interface_config.FIELDS["share"]
    found = draw(_value(form, bad))
    while not bad and draw(st.integers(0, 7)) and interface_config.validate({"share": found}, "", complete=False):
        found = draw(_value(form, 0))
    return found


@st.composite
def interfaces(draw: st.DrawFn) -> Values:
    """A valid value of `interface` in an inventory, for one device."""
    fields = interface_config.FIELDS
    names = draw(st.lists(st.sampled_from(sorted(set(fields) - {"name", "addresses", "mac"})), unique=True, max_size=4))
    found = {name: draw(_value(fields[name], 0)) for name in names}
    while interface_config.validate(found, "", complete=False):
        found.popitem()  # rules between fields
    return found


def _of_whole_devices(interface: Values) -> Values:
    """The settings without `share`, which only a class of shares may have."""
    return {name: value for name, value in interface.items() if name != "share"}


@st.composite
def policies(draw: st.DrawFn, bad: int = 0) -> t.Any:
    """An InterfacePolicy. Each value is wrong with a chance of `bad` in 100. A valid policy allows most fields."""
    if bad:
        return draw(_object(tenancy.POLICY, bad))
    tenants = []
    for _number in range(draw(st.integers(0, 3))):
        tenant: Values = {"allow": draw(_allow())}
        _maybe(draw, tenant, "namespaces", st.lists(st.sampled_from(NAMESPACES), unique=True, max_size=2), 2)
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
