#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_manifests
short_description: Check Kubernetes DRA manifests without a cluster
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Checks DeviceClasses, ResourceClaims, ResourceClaimTemplates, ResourceSlices and DeviceTaintRules as the API server
    would, against every limit of the API and the type checker and cost limit of CEL.
  - With O(nodes), or with ResourceSlices by O(nodes_from), returns which nodes can satisfy each claim, and why the
    others cannot.
  - Checks configurations of C(lanewise.dev) in these objects. If a claim's class is among the objects, also checks that
    the claim only sets what the class lets it set.
  - Objects of other API groups than C(resource.k8s.io) are only counted.
  - Never changes anything.
requirements:
  - PyYAML, if O(paths) is used
  - cel-expr-python >= 0.1.3, unless O(cel=false)
notes:
  - Run it where its libraries are, usually with C(delegate_to=localhost).
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  paths:
    description:
      - Files with manifests in YAML or JSON, of one or several documents, and folders of such files (C(.yaml), C(.yml),
        C(.json), at any depth).
      - A file that is nested deeper than 64 levels is refused.
      - Give this or O(definitions) or both.
    type: list
    elements: path
    default: []
  definitions:
    description: The objects, as dictionaries.
    type: list
    elements: dict
    default: []
  kubernetes_version:
    description: The minor version of Kubernetes. Fields that it would drop are errors.
    type: str
    default: "1.37"
  feature_gates:
    description: Feature gates of the cluster that differ from the default of its version, by name.
    type: dict
    default: {}
  cel:
    description: Whether to parse, type and cost CEL expressions.
    type: bool
    default: true
  nodes:
    description: Facts of nodes, a dictionary from host name to RV(lanewise.dra.topology_info#module:topology).
    type: dict
  nodes_from:
    description:
      - Where the nodes come from.
      - V(facts) are those of O(nodes).
      - V(slices) are the nodes whose devices the ResourceSlices among O(paths) and O(definitions) publish. A device
        that a pod may have counts as free, but attributes that a driver omits while a device is in use are unknown. If
        the cluster's allocated ResourceClaims are included, this only applies to devices that they have.
    type: str
    choices: [facts, slices]
    default: facts
  drivers:
    description:
      - The DRA drivers that the nodes run, by name, each with its C(version), as in the variable C(dra_claims_drivers)
        of the role P(lanewise.dra.dra_claims#role). Needed for O(nodes).
    type: dict
    default: {}
  fail:
    description: Whether errors fail the task. If not, they are only returned.
    type: bool
    default: true
seealso:
  - module: lanewise.dra.dra_render
"""

EXAMPLES = r"""
- name: Check the manifests of other teams
  lanewise.dra.dra_manifests:
    paths:
      - kubernetes/claims
  delegate_to: localhost
  run_once: true

- name: Find nodes that can satisfy the claims of a file
  lanewise.dra.dra_manifests:
    paths: [claims.yaml]
    nodes: "{{ {'h100-01': hostvars['h100-01'].topology_facts} }}"
    drivers:
      gpu.nvidia.com: {version: 0.5.0}
      lanewise.dev: {version: 1.0.0}
  register: checked
  delegate_to: localhost
  run_once: true

- name: Find nodes that can satisfy the claims of a file, by what their drivers publish
  # kubectl get resourceslices,resourceclaims --all-namespaces -o json > published.json
  lanewise.dra.dra_manifests:
    paths: [claims.yaml, published.json]
    nodes_from: slices
  register: checked
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
checked:
  description: How many objects were checked, by kind.
  returned: always
  type: dict
  sample: {DeviceClass: 3, ResourceClaimTemplate: 12}
unchecked:
  description: How many objects of other kinds were found, by kind.
  returned: always
  type: dict
  sample: {Pod: 1}
problems:
  description: The errors, as in RV(lanewise.dra.dra_render#module:problems). C(path) has file, object and field.
  returned: always
  type: list
  elements: dict
notes:
  description:
    - What could not be checked here, such as CEL functions that only the server knows.
    - With O(nodes_from=slices) also devices that are ignored, such as those of an incomplete pool.
  returned: always
  type: list
  elements: str
reach:
  description: Which nodes can satisfy each claim, in the form of RV(lanewise.dra.dra_render#module:reach).
  returned: O(nodes) is given, or O(nodes_from) is V(slices)
  type: list
  elements: dict
"""

import dataclasses
import pathlib
import re
import traceback
import typing as t

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ..module_utils.dra.apiserver.features import check_gates, unsupported
from ..module_utils.dra.apiserver.go_scalars import FIRST, NUMBER, number
from ..module_utils.dra.apiserver.validate import validate
from ..module_utils.dra.cel.engine import Engine, engine_for
from ..module_utils.dra.cel.errors import EngineMissing
from ..module_utils.dra.claims import class_policy
from ..module_utils.dra.claims.reach import reach_of
from ..module_utils.dra.kube import bounded_json
from ..module_utils.dra.kube.problems import Problem, Problems
from ..module_utils.dra.kube.versions import is_dra
from ..module_utils.dra.scheduler.published import nodes_from_slices

try:
    import yaml

    YAML_ERROR = None
except ImportError:
    YAML_ERROR = traceback.format_exc()

if not YAML_ERROR:
    _TAG = "tag:yaml.org,2002:"

    class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        """Reads plain scalars as kubectl does: dates are text, `08` is a number, `y` is true."""

        yaml_implicit_resolvers = {
            first: [(tag, form) for tag, form in known if tag[len(_TAG) :] not in ("int", "timestamp")]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
            return {_key(key): value for key, value in super().construct_mapping(node, deep).items()}

        def construct_number(self, node: yaml.ScalarNode) -> object:
            return number(node.value)

    # before the resolver for floats of PyYAML, which then only matches infinity and NaN
    for _first in FIRST:
        _Loader.yaml_implicit_resolvers[_first].insert(0, ("!number", re.compile(rf"(?:{NUMBER})\Z")))
    _Loader.add_constructor("!number", _Loader.construct_number)
    _Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"[yYnN]\Z"), list("yYnN"))


def _key(key: object) -> object:
    """A key as text, because manifests become JSON, in which all keys are text."""
    if isinstance(key, bool):
        return str(key).lower()
    return str(key) if isinstance(key, (int, float)) else key


#: The maximum number of values in a file, those of repeated aliases included.
_MAX_VALUES = 1_000_000
_SUFFIXES = (".yaml", ".yml", ".json")


def files_of(module: AnsibleModule) -> list[pathlib.Path]:
    """The files with manifests, including those of the folders among the paths."""
    files: list[pathlib.Path] = []
    for name in module.params["paths"]:
        path = pathlib.Path(name)
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
            if not inside:
                module.fail_json(msg=f"The folder {name} has no file that ends in {', '.join(_SUFFIXES)}")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            module.fail_json(msg=f"There is no file or folder {name}")
    return files


def check_nesting(text: str) -> None:
    """Raise ValueError if a text in YAML is nested so deeply, or its aliases repeat so much, that reading or checking
    it could exhaust the stack or the memory."""
    sizes: dict[str | None, tuple[int, int]] = {}  # depth and number of values, by anchor; None: the last one without
    opened: list[list[int]] = []  # the same of the lists and mappings that have not ended
    anchors: list[str | None] = []  # theirs
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append([1, 1])
            anchors.append(event.anchor)
            inside = (0, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth, values = opened.pop()
            inside = sizes[anchors.pop()] = (depth, values)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"line {line}: the alias *{event.anchor} is in its own value, or has no anchor")
            inside = sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            inside = sizes[event.anchor] = (0, 1)
        else:
            continue
        if opened and not isinstance(event, yaml.CollectionStartEvent):
            opened[-1] = [max(opened[-1][0], inside[0] + 1), opened[-1][1] + inside[1]]
        if len(opened) + inside[0] > bounded_json.DEPTH:
            raise ValueError(f"line {line} is nested deeper than {bounded_json.DEPTH} levels")
        if inside[1] > _MAX_VALUES:
            raise ValueError(f"line {line}: by its aliases, the file has more than {_MAX_VALUES} values")


def objects_of(module: AnsibleModule) -> list[tuple[str, object]]:
    """The objects, each with its source. Lists (kind: List) are split into their items."""
    items = [(f"definitions[{index}]", item) for index, item in enumerate(module.params["definitions"])]
    if module.params["paths"] and YAML_ERROR:
        module.fail_json(msg=missing_required_lib("PyYAML"), exception=YAML_ERROR)
    for source, item in items:
        if bounded_json.is_nested_deeper(item):
            module.fail_json(msg=f"{source} is nested deeper than {bounded_json.DEPTH} levels")
    for path in files_of(module):
        try:
            text = path.read_text(encoding="utf-8")
            check_nesting(text)
            documents = list(yaml.load_all(text, Loader=_Loader))
        except (OSError, ValueError, yaml.YAMLError) as error:
            module.fail_json(msg=f"Cannot read {path}: {error}")
        items += [(str(path), item) for item in documents if item is not None]
    flat = []
    for source, item in items:
        if isinstance(item, dict) and item.get("kind") == "List" and isinstance(item.get("items"), list):
            flat += [(source, inner) for inner in item["items"]]
        else:
            flat.append((source, item))
    return flat


def unchecked_of(item: object, engine: Engine) -> list[tuple[str, str]]:
    """The CEL expressions in an object that only a server can check, each with the reason."""
    if isinstance(item, dict):
        text = item.get("expression")
        pairs = [(text, why) for why in engine.judge(text).unchecked] if isinstance(text, str) else []
        return pairs + [pair for value in item.values() for pair in unchecked_of(value, engine)]
    if isinstance(item, list):
        return [pair for value in item for pair in unchecked_of(value, engine)]
    return []


def check_reach(objects: list[dict], params: dict, engine: Engine | None) -> tuple[list[dict], list[str]]:
    """Which nodes can satisfy each claim, and which published devices are ignored. Raises Problems and ValueError."""
    nodes, notes = params["nodes"], []
    if params["nodes_from"] == "slices":
        published = nodes_from_slices(objects)
        nodes, notes = published.nodes, published.notes
    target = (params["kubernetes_version"], params["feature_gates"])
    entries = reach_of(objects, nodes, params["drivers"], engine, *target)
    return [dataclasses.asdict(entry) for entry in entries], notes


def class_policy_problems(objects: list[tuple[str, dict]]) -> list[Problem]:
    """The errors in configurations of lanewise.dev, and the settings of claims that their classes do not allow."""
    problems = class_policy.check([item for _where, item in objects])
    return [
        Problem(f"{where}: {problem.path}", problem.message, problem.rule, problem.fix)
        for (where, _item), of_object in zip(objects, problems)
        for problem in of_object
    ]


def needs_reach(module: AnsibleModule) -> bool:
    """Whether to check which nodes can satisfy the claims."""
    by_facts, by_slices = module.params["nodes"] is not None, module.params["nodes_from"] == "slices"
    if by_facts and by_slices:
        module.fail_json(msg="nodes is set, but nodes_from is slices: remove nodes, or set nodes_from to facts")
    return by_facts or by_slices


def cel_engine(module: AnsibleModule) -> Engine | None:
    """The engine for CEL expressions; None if nothing needs it."""
    params = module.params
    if not params["cel"] and not needs_reach(module):
        return None
    try:
        check_gates(params["feature_gates"])
        return engine_for(params["kubernetes_version"], params["feature_gates"])
    except (EngineMissing, ValueError) as error:
        module.fail_json(msg=str(error))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "definitions": {"type": "list", "elements": "dict", "default": []},
            "kubernetes_version": {"type": "str", "default": "1.37"},
            "feature_gates": {"type": "dict", "default": {}},
            "cel": {"type": "bool", "default": True},
            "nodes": {"type": "dict"},
            "nodes_from": {"type": "str", "choices": ["facts", "slices"], "default": "facts"},
            "drivers": {"type": "dict", "default": {}},
            "fail": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params, engine = module.params, cel_engine(module)
    result: dict[str, t.Any] = {"changed": False, "checked": {}, "unchecked": {}, "problems": [], "notes": []}
    problems, valid, notes = [], [], []
    item: t.Any
    for source, item in objects_of(module):
        kind = item.get("kind") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            problems.append(Problem(source, "is not a Kubernetes object: it has no kind", "no-kind"))
            continue
        metadata: dict[str, t.Any] = item["metadata"] if isinstance(item.get("metadata"), dict) else {}
        name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
        counts = result["checked" if is_dra(item) else "unchecked"]
        counts[kind] = counts.get(kind, 0) + 1
        if not is_dra(item):
            continue
        target = (params["kubernetes_version"], params["feature_gates"])
        errors = list(dict.fromkeys(unsupported(item, *target) + validate(item, *target, engine)))
        if params["cel"]:
            notes += [f"{source}: {kind} {name}: {text}: {why}" for text, why in unchecked_of(item, engine)]
        problems += [
            Problem(f"{source}: {kind} {name}: {error.path}", error.message, error.rule, error.fix) for error in errors
        ]
        if not errors:
            valid.append((f"{source}: {kind} {name}", item))
    problems += class_policy_problems(valid)
    valid_objects = [item for _where, item in valid]
    if needs_reach(module):
        try:
            result["reach"], reach_notes = check_reach(valid_objects, params, engine)
            notes += reach_notes
        except Problems as error:
            problems += error.problems
        except ValueError as error:
            problems.append(Problem("nodes_from", str(error), "bad-slices"))
    result["notes"] = notes
    result["problems"] = [dataclasses.asdict(problem) for problem in problems]
    if problems and params["fail"]:
        lines = "\n".join(str(problem) for problem in problems)
        module.fail_json(msg=f"{len(problems)} error(s):\n{lines}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
