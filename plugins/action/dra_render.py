# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compile a site's claims to manifests on the controller. The documentation is in plugins/modules/dra_render.py."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import difflib
import pathlib
import typing as t
from dataclasses import dataclass

import yaml
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.features import FEATURES, unsupported
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine, engine_for
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.nearest import BoardUse
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pairing import ADDRESS
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.reach import Reach
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.versions import (
    NAMESPACED,
    PLURALS,
    choose,
    convert,
    is_dra,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import Nodes
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_files import manifest_path
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_yaml import to_manifest
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_tables import Row, csv_bytes
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_compiler import LOADER, SPEC, SiteCompiler, plain
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Spec, Variables
from ansible_collections.lanewise.dra.plugins.plugin_utils.workloads import check_workload

_TEMPLATES = pathlib.Path(__file__).resolve().parents[2] / "roles" / "dra_claims" / "templates"
# kinds that are rendered in addition to those of resource.k8s.io
_OTHER_KINDS = ("Namespace", "ResourceQuota", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")

_AFFINITY_HEADER = """\
# Device addresses alone do not select the nodes of a board. Copy the `affinity` of an object to each pod that uses it.
---
"""

_SPEC: Spec = {
    **SPEC,
    "variables": {"type": "dict", "required": True},
    "dest": {"type": "path"},
    "template_dir": {"type": "path"},
    "prune": {"type": "bool", "default": True},
}


class ActionModule(SiteCompiler, ControllerAction):
    """Compiles the claims, renders them through templates, checks and writes the result. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        site_name = str(options["variables"].get("dra_claims_site") or "default")
        what = f"the claims of site {site_name!r}"
        rendered = self._compile(result, what, lambda: self._rendered(options, variables))
        if rendered is None:
            return result
        result.update(
            changed=False,
            objects=rendered.objects,
            kubernetes_version=rendered.kubernetes,
            reach=[dataclasses.asdict(entry) for entry in rendered.reach],
            boards=[dataclasses.asdict(entry) for entry in rendered.boards],
            summary=rendered.summary(),
        )
        if rendered.warnings:
            result["warnings"] = rendered.warnings
        if options["dest"]:
            dest = self._path(options["dest"], variables)
            folders = {"manifests": rendered.files, "workloads": rendered.workloads, "boards": rendered.tables()}
            try:
                files = {f"{folder}/{path}": text for folder, texts in folders.items() for path, text in texts.items()}
                result.update(self._write_manifests(dest, site_name, files, options["prune"]))
            except OSError as error:
                raise AnsibleActionFail(f"Cannot write the manifests: {error}") from None
        return result

    def _rendered(self, options: Variables, variables: Variables) -> _Rendered:
        """Compile the claims, render them and check the result. Raises Problems with all errors, and EngineMissing."""
        kubernetes, gates, served = options["kubernetes_version"], options["feature_gates"], None
        if options["kubeconfig"]:
            kubernetes, served = self._cluster(options, variables)
        nodes, notes = self._nodes(options, variables)
        templates = _Templates(self._templar, self._loader, variables, self._folder(options["template_dir"], variables))
        site = self._site(templates, options["variables"], nodes, kubernetes, gates)
        # without objects, the optional package for CEL is not needed
        engine = engine_for(kubernetes, gates) if site.objects else None
        compiled = _served(site.objects, served, kubernetes)
        files, rendered = self._render(templates, compiled)
        objects = [item for _path, item in rendered]
        workloads, problems = self._workloads(templates, options["variables"], objects)
        changed = _template_errors(rendered, compiled, lambda item: _object_errors(item, kubernetes, gates, engine))
        problems = [*changed, *problems]
        if problems:
            raise Problems(problems)
        checked = bool(nodes) or not any(item["kind"] in NAMESPACED for item in compiled)
        warnings = [*notes, *site.warnings, *templates.unused(objects), *_reach_warnings(site.reach, checked)]
        names = {node: _node_name(node, variables) for use in site.boards for node in use.nodes}
        return _Rendered(kubernetes, files, objects, workloads, site.reach, site.boards, warnings, names)

    def _folder(self, path: str | None, variables: Variables) -> str | None:
        """The site's folder of templates, if any. Raises AnsibleActionFail if it has no templates."""
        folder = self._path(path, variables) if path else None
        if folder and not pathlib.Path(folder).is_dir():
            raise AnsibleActionFail(f"template_dir {folder!r} is not a folder")
        if folder and not any(any(pathlib.Path(folder).glob(f"{kind}/*.j2")) for kind in ("manifests", "workloads")):
            raise AnsibleActionFail(
                f"template_dir {folder!r} has no template: they are in manifests/KIND.yaml.j2 and "
                "workloads/NAME.yaml.j2 below it"
            )
        return folder

    def _render(self, templates: _Templates, objects: list[Object]) -> tuple[dict[str, str], list[tuple[str, Object]]]:
        """The text of each file, and all objects, each with its file."""
        texts: dict[str, list[str]] = {}
        rendered: list[tuple[str, Object]] = []
        for item in objects:
            path = manifest_path(item)
            source, text = templates.manifest(item)
            texts.setdefault(path, []).append(text.strip("\n"))
            for document in _load(source, text, _name(item)):
                rendered.append((path, document))
        return {path: "---\n" + "\n---\n".join(parts) + "\n" for path, parts in texts.items()}, rendered

    def _site(
        self,
        templates: _Templates,
        variables: Variables,
        nodes: Nodes | None,
        kubernetes: str,
        gates: Variables,
    ) -> Site:
        """The compiled site. Raises Problems with all errors, including those of the workloads."""
        try:
            return _site(variables, nodes, kubernetes, gates)
        except Problems as error:
            _files, problems = self._workloads(templates, variables, None)
            raise Problems([*error.problems, *problems]) from None

    def _workloads(
        self, templates: _Templates, variables: Variables, objects: list[Object] | None
    ) -> tuple[dict[str, str], list[Problem]]:
        """The files of the workloads by name, and their errors; no files if there are no objects."""
        files: dict[str, str] = {}
        problems: list[Problem] = []
        workloads = variables.get("dra_claims_workloads") or []
        if not isinstance(workloads, (list, tuple)):
            return {}, [Problem("dra_claims_workloads", f"must be a list, not {workloads!r}", "wrong-type")]
        for index, workload in enumerate(workloads):
            path = f"dra_claims_workloads[{index}]"
            errors = check_workload(workload, path, objects, templates.workload_names())
            if not errors:
                name = f"{workload['namespace']}/{workload['name']}.yaml"
                if name in files:
                    errors = [Problem(f"{path}.name", f"{name} is already taken", "duplicate-name")]
                elif objects is None:
                    files[name] = ""
                else:
                    source, text = templates.workload(plain(workload))
                    _load(source, text, path, named=False)
                    files[name] = "---\n" + text.strip("\n") + "\n"
            problems += errors
        return files, problems


@dataclass(frozen=True)
class _Rendered:
    """The rendered claims of a site.

    `files` and `workloads` map paths to texts, and `names` maps hosts to names of Nodes.
    """

    kubernetes: str
    files: dict[str, str]
    objects: list[Object]
    workloads: dict[str, str]
    reach: list[Reach]
    boards: list[BoardUse]
    warnings: list[str]
    names: dict[str, str]

    def tables(self) -> dict[str, str]:
        """The files with the pairs of boards that claims select, and with the affinities that pods need."""
        columns = ["board", "gpu", "nic", "level", "claim", "object", "form", "nodes"]
        rows: list[Row] = [
            [board, gpu, nic, level, use.claim, use.name, use.form, " ".join(use.boards[board])]
            for use in self.boards
            for board, level, gpu, nic in use.pairs
        ]
        files = {"pairs.csv": csv_bytes(columns, sorted(rows, key=str)).decode()} if rows else {}
        affinities = {use.title: use.affinity(self.names) for use in self.boards if use.form == ADDRESS}
        if affinities:
            files["node-affinity.yaml"] = f"{_AFFINITY_HEADER}{to_manifest(dict(sorted(affinities.items())))}"
        return files

    def summary(self) -> list[str]:
        """How many objects of each kind there are, and where each claim can run, as lines."""
        kinds = collections.Counter(item["kind"] for item in self.objects)
        if self.workloads:
            kinds["workload example"] = len(self.workloads)
        lines = ["rendered " + (", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing")]
        lines += [entry.line() for entry in self.boards]
        return lines + [line for entry in self.reach for line in entry.lines()]


def _node_name(host: str, variables: Variables) -> str:
    """The name of a host's Node, as in the role dra_driver."""
    hostvars = variables.get("hostvars") or {}
    return str((hostvars[host].get("dra_driver_node_name") if host in hostvars else None) or host)


class _Templates:
    """The Jinja2 templates of manifests and workloads. The site's templates override those of the collection."""

    def __init__(self, templar: t.Any, loader: t.Any, variables: Variables, folder: str | None) -> None:
        self._folders = [pathlib.Path(path) for path in (folder, _TEMPLATES) if path]
        self._loader = loader
        self._variables = variables
        self._templar = templar.copy_with_new_env(searchpath=[str(path) for path in self._folders])
        self._sources: dict[pathlib.Path, str] = {}

    def manifest(self, item: Object) -> tuple[str, str]:
        return self._text((f"manifests/{item['kind']}.yaml.j2", "manifests/object.yaml.j2"), object=item)

    def workload(self, workload: Variables) -> tuple[str, str]:
        return self._text((f"workloads/{workload['template']}.yaml.j2",), workload=workload)

    def workload_names(self) -> list[str]:
        files = [path.name for folder in self._folders for path in folder.glob("workloads/*.yaml.j2")]
        return sorted({name.removesuffix(".yaml.j2") for name in files if not name.startswith("_")})

    def _text(self, names: tuple[str, ...], **values: object) -> tuple[str, str]:
        source = next(path for name in names for folder in self._folders if (path := folder / name).is_file())
        if source not in self._sources:
            # imported here, because an older ansible-core lacks it and must still report its version as the error
            from ansible.template import trust_as_template

            self._sources[source] = trust_as_template(self._loader.get_text_file_contents(str(source)))
        self._templar.available_variables = {**self._variables, **values}
        try:
            text = self._templar.template(self._sources[source], escape_backslashes=False)
        except AnsibleError as error:
            line = getattr(error.__cause__, "lineno", None)
            location = f"{source}, line {line}," if line else f"{source}"
            raise AnsibleActionFail(f"The template {location} failed: {error}") from None
        return str(source), str(text)

    def unused(self, objects: list[Object]) -> list[str]:
        """Warnings about templates that match no kind, because a misspelt name would silently have no effect."""
        known = {*PLURALS, *_OTHER_KINDS, *(item["kind"] for item in objects), "object"}
        warnings = []
        for path in sorted(path for folder in self._folders for path in folder.glob("manifests/*.j2")):
            kind = path.name.removesuffix(".yaml.j2")
            if kind not in known:
                near = difflib.get_close_matches(kind, sorted(known), 1)
                hint = f": did you mean {near[0]}.yaml.j2?" if near else ""
                warnings.append(f"The template {path} renders nothing, as no object has that kind{hint}")
        return warnings


def _served(objects: list[Object], versions: list[str] | None, kubernetes: str) -> list[Object]:
    """The objects in the newest version of resource.k8s.io that the cluster serves; unchanged without a cluster."""
    if versions is None:
        return objects
    return [convert(item, choose(versions, item["kind"], kubernetes)) if is_dra(item) else item for item in objects]


def _template_errors(
    rendered: list[tuple[str, Object]], compiled: list[Object], errors_of: t.Callable[[Object], list[Problem]]
) -> t.Iterator[Problem]:
    """The errors of objects that a template has changed. The compiler has checked all others."""
    by_name: dict[str, list[Object]] = collections.defaultdict(list)
    for item in compiled:
        by_name[_name(item)].append(item)
    for path, item in rendered:
        if item not in by_name[_name(item)]:
            for problem in errors_of(item):
                field = f"{path}: {_name(item)}: {problem.path}"
                yield Problem(field, problem.message, problem.rule, problem.fix)


def _reach_warnings(reach: list[Reach], checked: bool) -> t.Iterator[str]:
    """Warnings about claims that were not checked against nodes, or that no node can satisfy."""
    if not checked:
        yield (
            "No claim was checked against a node: no host of this run has been probed, and there is no report with "
            "nodes. Run lanewise.dra.probe first, or set report (dra_claims_report in the role) to its folder."
        )
    for entry in reach:
        if not entry.nodes + [*entry.unknown]:
            yield f"No probed node can satisfy {entry.claim}"


def _object_errors(item: Object, kubernetes: str, gates: dict[str, bool], engine: Engine | None) -> list[Problem]:
    """The errors that the cluster would report for an object that a template has changed."""
    if is_dra(item):
        return unsupported(item, kubernetes, gates) or validate(item, kubernetes, gates, engine)
    if item["kind"] in PLURALS:
        message = f"{item['apiVersion']!r} has no {item['kind']}"
        return [Problem("apiVersion", message, "value", "keep that of the object: {{ object.apiVersion }}")]
    return []


def _site(variables: Variables, nodes: Nodes | None, kubernetes: str, gates: Variables) -> Site:
    """The compiled variables. Raises Problems with all errors, including those of the feature gates."""
    problems = _gate_problems(gates)
    usable = {name: value for name, value in gates.items() if name in FEATURES and isinstance(value, bool)}
    try:
        site = compile_site(_with_booleans(t.cast(Json, plain(variables))), nodes, kubernetes, usable)
    except Problems as error:
        raise Problems([*problems, *error.problems]) from None
    if problems:
        raise Problems(problems)
    return site


def _gate_problems(gates: Variables) -> list[Problem]:
    """Errors in feature gates. A misspelt gate would silently have no effect."""
    problems = []
    for name, value in gates.items():
        path = f"dra_claims_feature_gates.{name}"
        if not isinstance(value, bool):
            problems.append(Problem(path, f"must be true or false, not {value!r}", "wrong-type"))
        if name not in FEATURES:
            near = difflib.get_close_matches(str(name), sorted(FEATURES), 1)
            fix = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FEATURES)}"
            problems.append(Problem(path, "is not a feature gate of dynamic resource allocation", "unknown-key", fix))
    return problems


def _load(source: str, text: str, what: str, *, named: bool = True) -> list[Object]:
    """The objects in the YAML that the template `source` rendered for `what`.

    Raises AnsibleActionFail if an object lacks a required field, such as its name if they must be `named`.
    """
    try:
        documents = [item for item in yaml.load_all(text, Loader=LOADER) if item is not None]
    except (yaml.YAMLError, ValueError) as error:  # ValueError for a date that does not exist
        raise AnsibleActionFail(f"The template {source} renders invalid YAML for {what}: {error}") from None
    for item in documents:
        missing = _missing_field(item, named)
        if missing:
            text = f"The template {source} renders no Kubernetes object for {what}: it has no {missing}"
            raise AnsibleActionFail(text)
    return documents


def _missing_field(item: object, named: bool) -> str:
    """The first required field that an object lacks or that is not text; empty if there is none."""
    fields = item if isinstance(item, dict) else {}
    metadata = fields.get("metadata")
    required = {key: fields.get(key) for key in ("kind", "apiVersion")}
    if named:
        required["metadata.name"] = metadata.get("name") if isinstance(metadata, dict) else None
    return next((key for key, value in required.items() if not isinstance(value, str) or not value), "")


def _with_booleans(variables: Variables) -> Json:
    """The variables, in which text for booleans, such as from `-e NAME=true`, is converted to booleans."""
    converted = dict(variables)
    for name in ("dra_claims_policy", "dra_claims_allow_unreachable"):
        if isinstance(converted.get(name), str):
            with contextlib.suppress(TypeError):
                converted[name] = boolean(converted[name])
    return converted


def _name(item: Object) -> str:
    """Kind, namespace and name of an object, such as `ResourceClaimTemplate/training/pair`."""
    metadata = item.get("metadata") or {}
    return "/".join(str(part) for part in (item["kind"], metadata.get("namespace"), metadata.get("name")) if part)
