# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pages about claims match the code.

Tables of the reference are compared with the tables of the code, in both directions. Code blocks are run; the words
after `yaml` in a fence say what a block is:

- none: inventory. It compiles, with the drivers of the block before it if it names none.
- `wrong`: inventory with errors. The next `text` block shows all of them, word for word.
- `rendered`: objects, or parts of them, that the inventory block before it becomes. Where a list is shortened, `...`
  stands in a comment.
- `manifest`: Kubernetes objects in full, valid as they are.
- `other`: anything except our inventory: playbooks, pods, fragments of other objects.

A `text` block after an inventory block shows which of the example machines can satisfy its claims.

It has more than 500 lines because all tests read the same tables and blocks of the same pages.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import textwrap
import typing as t

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.features import FEATURES
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import inventory
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.field_checks import allowed_key
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.fields import Field
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import DRIVERS
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import (
    KINDS,
    DriverKnowledge,
    Filter,
    Gate,
)
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

REFERENCE = COLLECTION / "docs/claims-reference.md"
PAGES = [
    COLLECTION / "docs/claims-guide.md",
    REFERENCE,
    COLLECTION / "docs/claims-migration.md",
    COLLECTION / "docs/shares.md",
    COLLECTION / "roles/dra_claims/README.md",
]
CODE = COLLECTION / "plugins/module_utils/dra"
#: Hosts of the pages, and the example machine that each is.
HOSTS = {
    "h100-01": "hgx-h100",
    "h100-04": "degraded",
    "h100-05": "missing-nic",
    "gb200-01": "gb200",
    "azure-01": "azure-vm",
    "rdma-01": "cpu-rdma",
}


# reading the pages


class Block(t.NamedTuple):
    page: pathlib.Path
    line: int
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


@functools.lru_cache(None)
def blocks(page: pathlib.Path) -> list[Block]:
    found, fence = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r"\s*```(.*)$", line)
        if not match:
            if fence:
                fence[2].append(line)
        elif fence:
            found.append(Block(page, fence[0], fence[1], textwrap.dedent("\n".join(fence[2])) + "\n"))
            fence = None
        else:
            fence = (number, tuple(match.group(1).split()), [])
    assert fence is None, f"{page.name}:{fence and fence[0]}: the block has no end"
    return found


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the tables below a heading of the reference, by the first cell without its backticks."""
    text = REFERENCE.read_text(encoding="utf-8")
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"the reference has no section {heading!r}"
    found: dict[str, list[str]] = {}
    for line in match.group(2).splitlines():
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for name in re.findall(r"`([^`]+)`", cells[0]):
            assert name not in found, f"{heading}: {name} is there twice"
            found[name] = cells[1:]
    return found


# the keys of the language


def known(variables: dict[str, t.Any]) -> set[str]:
    """The known keys that the compiler lists in its error about an unknown key, `0_0`."""
    with pytest.raises(Problems) as caught:
        compile_site(variables)
    fixes = [problem.fix for problem in caught.value.problems if "0_0" in problem.path]
    assert len(fixes) == 1, caught.value
    words = re.fullmatch(r"known: (.*)", fixes[0])
    assert words, fixes
    return set(words.group(1).split(", "))


ODD = {"0_0": 1}
DRIVER = {"dra_claims_drivers": {"lanewise.dev": {}}}


def a_claim(**body: t.Any) -> dict[str, t.Any]:
    return {**DRIVER, "dra_claims_templates": [{"name": "a", "namespace": "b", **body}]}


def a_device(**body: t.Any) -> dict[str, t.Any]:
    return a_claim(devices=[{"name": "c", "kind": "nic", **body}])


def a_driver(**options: t.Any) -> dict[str, t.Any]:
    return {"dra_claims_drivers": {"example.com": options}}


NAMES = {"name": "a", "namespace": "b", "key": "c", "effect": "NoSchedule", "driver": "d.e"}
MAPPINGS: dict[str, dict[str, t.Any]] = {
    "Variables": ODD,
    "Drivers": {"dra_claims_drivers": {"lanewise.dev": ODD}},
    "Knowledge of a driver": a_driver(knowledge={"kinds": {"nic": {}}, **ODD}),
    "Knowledge of a kind": a_driver(knowledge={"kinds": {"nic": ODD}}),
    "Terms": a_driver(knowledge={"kinds": {"nic": {"terms": [{"name": "a", "value": 1, **ODD}]}}}),
    "Custom filters": a_driver(knowledge={"kinds": {"nic": {"filters": {"rail": {"name": "a", **ODD}}}}}),
    "Classes": {**DRIVER, "dra_claims_classes": [{"name": "a", "kind": "nic", **ODD}]},
    "Templates and claims": a_claim(devices=[{"kind": "nic"}], **ODD),
    "Groups": a_claim(groups=[{"devices": [{"kind": "nic"}], **ODD}]),
    "Devices": a_device(**ODD),
    "Distinct": a_claim(devices=[{"kind": "nic", "count": 2}], distinct=[{"by": "rail", **ODD}]),
    "Tolerations": a_device(tolerations=[{"operator": "Exists", **ODD}]),
    "Raw configuration": a_device(config=[{"driver": "lanewise.dev", "parameters": {}, **ODD}]),
    "Quotas": {"dra_claims_quotas": [{"namespace": "a", "claims": 1, **ODD}]},
    "Tiers": {"dra_claims_tiers": [{"name": "a", **ODD}]},
    "Taints": {"dra_claims_taints": [{**NAMES, **ODD}]},
}
del MAPPINGS["Taints"]["dra_claims_taints"][0]["namespace"]


@pytest.mark.parametrize("heading", MAPPINGS)
def test_the_reference_has_every_key_of_the_language_and_no_other(heading):
    names = known(MAPPINGS[heading])
    if heading == "Devices":  # an alternative has some of these keys only
        alternative = known(a_claim(devices=[{"name": "c", "first_of": [{"kind": "nic", **ODD}]}]))
        assert alternative == names - {"first_of", "admin"}
    assert set(rows(heading)) == names


def test_the_reference_has_every_filter_with_its_type():
    expected = {
        "gpu": "Filters of GPUs",
        "nic": "Filters of network devices",
        "rdma": "Filters of network devices",
        "vf": "Filters of network devices",
        "cpu": "Filters of CPUs",
    }
    assert set(expected) == set(inventory.FILTERS) == set(KINDS)
    for kind, heading in expected.items():
        written = {name: cells[0] for name, cells in rows(heading).items()}
        types = {name: form.replace("_", " ") for name, form in inventory.FILTERS[kind].items()}
        assert written == types, heading


# drivers


def _span(since: str, until: str) -> str:
    words = []
    if since:
        words.append(f"after {since[1:]}" if since.startswith(">") else f"from {since}")
    if until:
        words.append(f"before {until}")
    return " ".join(words)


def way_cell(ways: t.Sequence[Filter]) -> str:
    reported = []
    for way in ways:
        words = [f"`{way.name}`", *([] if way.compare == "equals" else [way.compare.replace("_", " ")])]
        words += [span for span in [_span(way.since, way.until)] if span]
        reported.append(" ".join(words))
    return "; ".join(reported) or "-"


def align_cell(driver: DriverKnowledge, level: str) -> str:
    reported = []
    for way in driver.align.get(level, ()):
        words = [f"`{way.name}`", *(["list"] if way.list else []), _span(way.since, way.until)]
        reported.append(" ".join(word for word in words if word))
    return "; ".join(reported) or "-"


def term_cell(driver: DriverKnowledge, kind: str) -> str:
    served = driver.kinds[kind]

    def text(terms: t.Any) -> str:
        signs = {"equals": "=", "not_equals": "≠"}
        return ", ".join(
            f"`{term.name}` {signs[term.compare]} {str(term.value).lower() if term.type == 'bool' else term.value}"
            for term in terms
        )

    reported = [text(served.terms) or "every device"]
    reported += [f"with {name}: {text(terms)}" for name, terms in served.terms_by_filter.items()]
    return "; ".join(reported)


GPU_DRIVERS = [
    *("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com"),
    *("hami-core-gpu.project-hami.io", "tpu.google.com", "npu.furiosa.ai"),
]
DRIVER_COLUMNS = {
    "Filters of GPUs": (("gpu",), GPU_DRIVERS),
    "Filters of network devices": (
        ("nic", "rdma", "vf"),
        ["lanewise.dev", "dra.net", "sriovnetwork.k8snetworkplumbingwg.io"],
    ),
    "Filters of CPUs": (("cpu",), ["dra.cpu"]),
}


@pytest.mark.parametrize("heading", DRIVER_COLUMNS)
def test_the_reference_states_how_each_driver_answers_each_filter(heading):
    kinds, drivers = DRIVER_COLUMNS[heading]
    serving = {driver.name for driver in DRIVERS.values() if set(driver.kinds) & set(kinds)}
    assert set(drivers) == serving
    for name, cells in rows(heading).items():
        for driver, cell in zip(drivers, cells[1:]):
            answers = {
                way_cell(DRIVERS[driver].kinds[k].filters.get(name, ())) for k in kinds if k in DRIVERS[driver].kinds
            }
            assert answers == {cell}, (driver, name)
        assert len(cells) == len(drivers) + 1


def test_the_reference_lists_the_drivers_and_their_versions():
    expected = {
        driver.name: [
            driver.title,
            driver.oldest or "-",
            driver.newest or "-",
            driver.kubernetes,
            ", ".join(f"`{vendor}`" for vendor in driver.vendors) or "-",
            driver.tested_versions or "-",
            driver.source,
        ]
        for driver in DRIVERS.values()
    }
    assert rows("Built-in drivers") == expected


def test_the_reference_names_the_feature_gates_of_each_driver():
    def cell(gate: Gate) -> list[str]:
        since = f"after {gate.since[1:]}" if gate.since.startswith(">") else gate.since or "-"
        return [since, "on" if gate.default else "off", ", ".join(gate.excludes) or "-", ", ".join(gate.needs) or "-"]

    expected = {
        f"{driver.name} {name}": cell(gate) for driver in DRIVERS.values() for name, gate in driver.gates.items()
    }
    assert rows("Feature gates of drivers") == expected


def test_the_reference_states_what_makes_a_device_one_of_its_kind():
    expected = {}
    for driver in DRIVERS.values():
        for kind, served in driver.kinds.items():
            capacities = ", ".join(f"{name}: `{key}`" for name, key in served.capacities.items()) or "-"
            expected[f"{driver.name} {kind}"] = [term_cell(driver, kind), capacities]
    assert rows("Kinds of each driver") == expected


def test_the_reference_states_what_carries_each_alignment_level():
    levels = ("pcie_root", "numa_node")
    assert set(inventory.LEVELS) - {inventory.ANY, inventory.NEAREST} == set(levels)
    expected = {driver.name: [align_cell(driver, level) for level in levels] for driver in DRIVERS.values()}
    assert rows("Levels of each driver") == expected


# configuration of interfaces


def fields_of(form: Field, path: str = "") -> t.Iterator[tuple[str, list[str]]]:
    for name, inner in form.fields.items():
        place = f"{path}.{name}" if path else name
        says = inner.description.replace("|", "\\|")
        yield place, [f"{says}; required" if inner.required else says]
        yield from fields_of(inner, place)
        if inner.item:
            yield from fields_of(inner.item, f"{place}[]")


def rules_of(form: Field, path: str) -> t.Iterator[str]:
    for rule in form.rules:
        yield f"{path}: {rule.description}"
    for name, inner in form.fields.items():
        place = f"{path}.{name}" if path != "interface" else name
        yield from rules_of(inner, place)
        if inner.item:
            yield from rules_of(inner.item, f"{place}[]")


def test_the_reference_has_every_field_of_an_interface_config():
    assert rows("InterfaceConfig") == dict(fields_of(interface_config.CONFIG))


def test_the_reference_has_every_rule_between_fields():
    section = REFERENCE.read_text(encoding="utf-8").partition("### Rules between fields\n")[2].partition("\n#")[0]
    written = [re.sub(r"\s+", " ", item).strip() for item in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]
    expected = [rule.partition(": ") for rule in rules_of(interface_config.CONFIG, "interface")]
    assert written == [f"`{place}`: {says}" for place, _colon, says in expected]


def test_the_reference_has_every_sysctl_that_is_allowed():
    section = REFERENCE.read_text(encoding="utf-8").partition("### Sysctls\n")[2].partition("\n#")[0]
    written = set(re.findall(r"`([^`]+)`", section))
    lists = {
        "net.ipv4.conf.IFNAME.": interface_config.IPV4_SYSCTLS,
        "net.ipv6.conf.IFNAME.": interface_config.IPV6_SYSCTLS,
        "net.ipv4.neigh.IFNAME.": interface_config.NEIGH_SYSCTLS,
        "net.ipv6.neigh.IFNAME.": interface_config.NEIGH_SYSCTLS,
    }
    assert written == set(lists) | {name for names in lists.values() for name in names}
    form = interface_config.FIELDS["sysctls"]
    for prefix, names in lists.items():
        assert all(allowed_key(form, prefix + name) for name in names)


# the role, limits, gates, rules


def test_the_reference_has_every_variable_of_the_role_with_type_and_default():
    options = yaml.safe_load((COLLECTION / "roles/dra_claims/meta/argument_specs.yml").read_text(encoding="utf-8"))
    options = options["argument_specs"]["main"]["options"]
    language = known(MAPPINGS["Variables"])
    written = {**rows("Variables"), **rows("Variables of the role")}
    assert set(written) == set(options) | language
    for name, option in options.items():
        kind = f"{option['type']} of {option['elements']}" if "elements" in option else option["type"]
        default = "-" if "default" not in option else f"`{_written(option['default'])}`"
        assert written[name][:2] == [kind, default], name


def _written(value: t.Any) -> str:
    return {"True": "true", "False": "false"}.get(str(value), str(value))


def test_the_reference_has_the_limits_of_the_api():
    values = [int(cells[0].replace(",", "")) for cells in rows("Limits").values()]
    names = list(rows("Limits"))
    assert values == [getattr(limits, name) for name in names]


def test_the_reference_names_real_feature_gates():
    for name, cells in rows("Feature gates").items():
        assert name in FEATURES
        on = [minor for minor, default in FEATURES[name].default.items() if default]
        assert cells[0] == (f"1.{min(on)}" if on else "-"), name


def test_the_reference_has_every_key_of_the_workload_templates():
    folder = COLLECTION / "roles/dra_claims/templates/workloads"
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.j2")}
    used = set(re.findall(r"workload\.(\w+)", "".join(texts.values())))
    assert set(rows("Workloads")) == used | {"template"}
    cells = " ".join(rows("Workloads")["template"])
    assert set(re.findall(r"`([^`]+)`", cells)) == {name[: -len(".yaml.j2")] for name in texts if name[0] != "_"}


def _rules(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("problem", "Problem") and len(node.args) > 2 and isinstance(node.args[2], ast.Constant):
                found.add(node.args[2].value)
    return found


def test_the_reference_has_every_rule_of_the_language():
    paths = [CODE / "kube/reader.py", CODE / "apiserver/features.py"]
    paths += [path for folder in ("config", "claims", "vendors") for path in sorted((CODE / folder).glob("*.py"))]
    paths.append(COLLECTION / "plugins/plugin_utils/workloads.py")
    used = set().union(*(_rules(path) for path in paths))
    written = set(rows("Rules"))
    assert used <= written, used - written
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    assert [name for name in written if f'"{name}"' not in text] == []


def test_the_reference_has_the_names_of_derived_classes():
    """Names that the compiler derives for a site with two drivers of a kind, and for one with a single driver."""
    device = {"kind": "gpu", "driver": "gpu.nvidia.com"}
    two = {"gpu.nvidia.com": {"version": "0.5.0"}, "gpu.amd.com": {"version": "1.0.0"}}
    for drivers, where, name in (
        (["gpu.nvidia.com"], {}, "gpu"),
        (list(two), {}, "gpu-nvidia"),
        (["gpu.nvidia.com"], {"partition": "1g.10gb"}, "gpu-partition"),
        (list(two), {"partition": "1g.10gb"}, "gpu-nvidia-partition"),
    ):
        claim = a_claim(devices=[{**device, "where": where}])
        site = compile_site({**claim, "dra_claims_drivers": {key: two[key] for key in drivers}})
        assert site.objects[0]["metadata"]["name"] == name
        assert f"`{name}`" in REFERENCE.read_text(encoding="utf-8")


# examples


def sequence(page: pathlib.Path) -> t.Iterator[tuple[Block, dict[str, t.Any] | None]]:
    """Each block with its inventory: the block itself, or the last inventory block before it."""
    variables: dict[str, t.Any] | None = None
    drivers: dict[str, t.Any] = {}
    for block in blocks(page):
        if block.words in (("yaml",), ("yaml", "wrong")):
            variables = yaml.safe_load(block.text)
            drivers = variables.get("dra_claims_drivers", drivers)
            variables = {"dra_claims_drivers": drivers, **variables}
            variables = {key: value for key, value in variables.items() if key not in ROLE_ONLY}
        yield block, variables


ROLE_ONLY = ("dra_claims_workloads",)
BLOCKS = [block for page in PAGES if page.exists() for block in sequence(page)]


def _of(*words: str) -> list[t.Any]:
    return [pytest.param(block, variables, id=str(block)) for block, variables in BLOCKS if block.words == words]


def test_every_block_states_its_kind():
    kinds = {("yaml",), ("yaml", "wrong"), ("yaml", "rendered"), ("yaml", "manifest"), ("yaml", "other"), ("text",)}
    kinds |= {("console",), ("console", "nodes"), ("console", "cluster"), ("jinja",)}
    assert [str(block) for block, _variables in BLOCKS if block.words not in kinds] == []
    assert all(page.exists() for page in PAGES)


@pytest.mark.parametrize(("block", "variables"), _of("yaml"))
def test_inventory_on_the_pages_compiles(block, variables):
    assert variables is not None
    assert all(key.startswith("dra_claims_") for key in variables)
    assert compile_site(variables).warnings == []


@pytest.mark.parametrize(("block", "variables"), _of("yaml", "rendered"))
def test_objects_on_the_pages_are_what_the_inventory_becomes(block, variables):
    site = compile_site(variables)
    shortened = bool(re.search(r"#.*\.\.\.", block.text))
    for shown in yaml.safe_load_all(block.text):
        candidates = [
            item
            for item in site.objects
            if item["kind"] == shown["kind"] and item["metadata"]["name"] == shown["metadata"]["name"]
        ]
        assert candidates, f"nothing is rendered as {shown['kind']} {shown['metadata']['name']}"
        reasons = [difference(shown, item, shortened) for item in candidates]
        assert "" in reasons, reasons


def difference(shown: t.Any, actual: t.Any, shortened: bool, path: str = "") -> str:
    """The first difference of `shown` from `actual`, or empty. A shortened block may lack keys and list entries."""
    if isinstance(shown, dict) and isinstance(actual, dict):
        for key, value in shown.items():
            if key not in actual:
                return f"{path}.{key} is not there"
            wrong = difference(value, actual[key], shortened, f"{path}.{key}")
            if wrong:
                return wrong
        missing = [key for key in actual if key not in shown]
        return "" if shortened or not missing or not path else f"{path} lacks {missing}"
    if isinstance(shown, list) and isinstance(actual, list):
        rest = list(actual)
        for index, value in enumerate(shown):
            reasons = []
            while rest:
                reasons.append(difference(value, rest.pop(0), shortened, f"{path}[{index}]"))
                if not reasons[-1] or not shortened:
                    break
            if not reasons or reasons[-1]:
                return reasons[0] if reasons else f"{path}[{index}] is not there"
        return "" if shortened or not rest else f"{path} has {len(rest)} more"
    return "" if shown == actual and type(shown) is type(actual) else f"{path} is {actual!r}, not {shown!r}"


def test_the_comparison_of_objects_can_fail():
    actual = {"a": {"b": [1, 2, {"c": 3}]}}
    assert difference({"a": {"b": [1, {"c": 3}]}}, actual, True) == ""
    assert difference({"a": {"b": [1, {"c": 3}]}}, actual, False)
    assert difference({"a": {"b": [{"c": 3}, 1]}}, actual, True)
    assert difference({"a": {"b": [1, 2, {"c": "3"}]}}, actual, True)
    assert difference({"a": {}}, actual, False) and not difference({"a": {}}, actual, True)
    assert difference({"x": 1}, actual, True)


def test_the_pages_have_blocks_of_each_kind():
    assert _of("yaml", "manifest") and _of("yaml", "rendered") and _of("yaml")


def _reported(variables: dict[str, t.Any]) -> tuple[list[str], list[str]]:
    """The lines with errors, and those about the nodes that can satisfy each claim."""
    nodes = {host: facts(machine) for host, machine in HOSTS.items()}
    try:
        site = compile_site(variables, nodes)
    except Problems as problems:
        return str(problems).splitlines(), []
    return [], [line for entry in site.reach for line in entry.lines()]


def _unwrapped(text: str) -> list[str]:
    """Lines of a block. A line that is indented by four continues the line before it."""
    return re.sub(r"\n {4,}", " ", text).strip("\n").splitlines()


def _answers() -> t.Iterator[t.Any]:
    before = None
    for block, variables in BLOCKS:
        if block.words in (("yaml",), ("yaml", "wrong")):
            before = block
        elif block.words == ("text",):
            assert before, block
            yield pytest.param(before, block, variables, id=str(block))


ANSWERS = list(_answers())


@pytest.mark.parametrize(("before", "after", "variables"), ANSWERS)
def test_answers_on_the_pages_are_the_real_ones(before, after, variables):
    errors, reach = _reported(variables)
    assert _unwrapped(after.text) == (errors if before.words == ("yaml", "wrong") else reach)


def test_every_wrong_inventory_is_followed_by_its_errors():
    wrong = [str(block) for block, _variables in BLOCKS if block.words == ("yaml", "wrong")]
    assert wrong and set(wrong) <= {str(case.values[0]) for case in ANSWERS}


@pytest.mark.parametrize(("block", "variables"), _of("yaml", "manifest"))
def test_manifests_on_the_pages_are_valid(block, variables):
    engine = Engine()
    for item in yaml.safe_load_all(block.text):
        assert [str(problem) for problem in validate(item, cel=engine)] == []


def test_links_between_the_pages_lead_to_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
