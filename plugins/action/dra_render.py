# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compile a site's claims to manifests on the controller. The documentation is in plugins/modules/dra_render.py."""

from __future__ import annotations

import collections
import contextlib
import difflib
import pathlib
import re
import typing as t

import yaml
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import engine_for
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.schema import NAMESPACED, PLURALS
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.versions import (
    FEATURES,
    choose,
    convert,
    is_dra,
    unsupported,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import fault
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_action import ClusterAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import facts_of, stored_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_files import ManifestFolder, place
from ansible_collections.lanewise.dra.plugins.plugin_utils.planned_vfs import rules_of, with_planned_vfs
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import set_by_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.workloads import check_workload

_TEMPLATES = pathlib.Path(__file__).resolve().parents[2] / "roles" / "dra_claims" / "templates"
# what is rendered beside the kinds of resource.k8s.io
_OTHER_KINDS = ("Namespace", "ResourceQuota", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_SPEC: dict[str, dict[str, t.Any]] = {
    "variables": {"type": "dict", "required": True},
    "dest": {"type": "path"},
    "nodes": {"type": "dict"},
    "report": {"type": "path"},
    "kubernetes_version": {"type": "str", "default": "1.37"},
    "feature_gates": {"type": "dict", "default": {}},
    "template_dir": {"type": "path"},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "prune": {"type": "bool", "default": True},
}


class ActionModule(ClusterAction, ControllerAction):
    """Compiles, renders through templates, checks what came out, and writes. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        site_name = str(options["variables"].get("dra_claims_site") or "default")
        kubernetes, gates = options["kubernetes_version"], options["feature_gates"]
        served = None
        if options["kubeconfig"]:
            kubernetes, served = self._cluster(options, variables)
        nodes = self._nodes(options, variables)
        render = _Templates(self._templar, self._loader, variables, self._folder(options["template_dir"], variables))
        try:
            site = self._site(render, options["variables"], nodes, kubernetes, gates)
            # a site without claims needs no engine
            engine = engine_for(kubernetes, gates) if site.objects else None
            made = _served(site.objects, served, kubernetes)
            files, objects = self._render(render, made)
            # the compiler has checked what it made; a template of the site can make anything of it
            known: dict[str, list[dict[str, t.Any]]] = collections.defaultdict(list)
            for item in made:
                known[_name(item)].append(item)
            wrong = [
                Problem(f"{path}: {_name(item)}: {problem.path}", problem.message, problem.rule, problem.fix)
                for path, item in objects
                if item not in known[_name(item)]
                for problem in _verdict(item, kubernetes, gates, engine)
            ]
            workloads, mistakes = self._workloads(render, options["variables"], [item for _path, item in objects])
            if wrong + mistakes:
                raise Problems(wrong + mistakes)
        except EngineMissing as error:
            raise AnsibleActionFail(f"{error}. Install it beside ansible-core: pip install cel-expr-python") from error
        except Problems as problems:
            result.update(
                failed=True,
                msg=f"{len(problems.problems)} mistake(s) in the claims of site {site_name!r}:\n{problems}",
                problems=[vars(problem) for problem in problems.problems],
            )
            return result

        result.update(
            changed=False,
            objects=[item for _path, item in objects],
            kubernetes_version=kubernetes,
            reach=[vars(entry) for entry in site.reach],
            summary=_summary(objects, workloads, site.reach),
        )
        warnings = [*site.warnings, *render.unused([item for _path, item in objects])]
        if not nodes and any(item["kind"] in NAMESPACED for item in made):
            warnings.append(
                "No claim was tried on a node: no host of this run has been probed, and there is no report with nodes. "
                "Run lanewise.dra.probe first, or name its report (dra_claims_report in the role)."
            )
        warnings += [
            f"No probed node can satisfy {item.claim}" for item in site.reach if not item.nodes + [*item.unknown]
        ]
        if warnings:
            result["warnings"] = warnings
        if options["dest"]:
            dest = self._path(options["dest"], variables)
            try:
                self._write(result, dest, site_name, {"manifests": files, "workloads": workloads}, options["prune"])
            except OSError as error:
                raise AnsibleActionFail(f"Cannot write the manifests: {error}") from None
        return result

    def _cluster(self, options: dict[str, t.Any], variables: dict[str, t.Any]) -> tuple[str, list[str]]:
        """The minor version of the cluster, and the API versions of resource.k8s.io that it serves."""
        told = self._module("kubernetes.core.k8s_cluster_info", {"invalidate_cache": True}, options, variables)
        version = told["version"]["server"]["kubernetes"]
        digits = re.match("[0-9]+", version["minor"])  # some vendors append a plus sign
        served = [api for api in told["apis"] if api.startswith("resource.k8s.io/")]
        if not digits or not served:
            raise AnsibleActionFail(
                f"The cluster (Kubernetes {version['gitVersion']}) serves no version of resource.k8s.io. Dynamic "
                "resource allocation needs Kubernetes 1.34, or the API group switched on before that."
            )
        return f"{version['major']}.{digits.group()}", served

    def _path(self, path: str, variables: dict[str, t.Any]) -> str:
        return str(self._loader.path_dwim(self._from_current_folder(path, variables)))

    def _folder(self, path: str | None, variables: dict[str, t.Any]) -> str | None:
        folder = self._path(path, variables) if path else None
        if folder and not pathlib.Path(folder).is_dir():
            raise AnsibleActionFail(f"template_dir {folder!r} is not a folder")
        if folder and not any(any(pathlib.Path(folder).glob(f"{kind}/*.j2")) for kind in ("manifests", "workloads")):
            raise AnsibleActionFail(
                f"template_dir {folder!r} has no template: they are in manifests/KIND.yaml.j2 and "
                "workloads/NAME.yaml.j2 below it"
            )
        return folder

    def _nodes(self, options: dict[str, t.Any], variables: dict[str, t.Any]) -> dict[str, t.Any] | None:
        """The probed topology by host: given, or of this run's hosts and, for the others, of the site report."""
        if options["nodes"] is not None:
            return dict(options["nodes"])
        now = {host: facts_of(variables, host) for host in variables.get("ansible_play_hosts_all") or []}
        now = {host: facts for host, facts in now.items() if isinstance(facts, dict)}
        found: dict[str, t.Any] = {}
        if options["report"]:
            report = self._path(options["report"], variables)
            try:
                for host, facts in stored_facts(report).items():
                    wrong = "" if host in now else fault(facts, dict[str, t.Any])
                    if wrong:  # as a release stored it that did not look
                        self._display.warning(f"{host}: its facts in {report} are not used: {wrong}. Probe it again.")
                    else:
                        found[host] = facts
            except FileNotFoundError:
                raise AnsibleActionFail(
                    f"There is no site report in {report!r}. Name the folder that lanewise.dra.probe wrote "
                    "(dra_claims_report in the role)."
                ) from None
            except (OSError, ValueError) as error:
                raise AnsibleActionFail(f"Cannot read the nodes of the report {report!r}: {error}") from None
        inventory = set((variables.get("groups") or {}).get("all") or [])
        # of a report that several inventories share; a run without nodes of its own means all of them
        found = {host: facts for host, facts in found.items() if host in inventory} or found
        found.update(now)
        return {host: _planned(facts, variables, host) for host, facts in found.items()} or None

    def _render(
        self, render: _Templates, objects: list[dict[str, t.Any]]
    ) -> tuple[dict[str, str], list[tuple[str, dict[str, t.Any]]]]:
        """Return the text of each file, and the objects as they stand in it, with the file."""
        texts: dict[str, list[str]] = {}
        found: list[tuple[str, dict[str, t.Any]]] = []
        for item in objects:
            path = place(item)
            source, text = render.manifest(item)
            texts.setdefault(path, []).append(text.strip("\n"))
            for document in _load(source, text, _name(item)):
                found.append((path, document))
        return {path: "---\n" + "\n---\n".join(parts) + "\n" for path, parts in texts.items()}, found

    def _site(
        self,
        render: _Templates,
        variables: dict[str, t.Any],
        nodes: dict[str, t.Any] | None,
        kubernetes: str,
        gates: dict[str, t.Any],
    ) -> Site:
        """The compiled site. Raises Problems with all mistakes, those of the workloads among them."""
        try:
            return _site(variables, nodes, kubernetes, gates)
        except Problems as error:
            _files, mistakes = self._workloads(render, variables, None)
            raise Problems([*error.problems, *mistakes]) from None

    def _workloads(
        self, render: _Templates, variables: dict[str, t.Any], objects: list[dict[str, t.Any]] | None
    ) -> tuple[dict[str, str], list[Problem]]:
        """The files of the workloads by name, and what is wrong with them; no files where there are no objects."""
        files: dict[str, str] = {}
        wrong: list[Problem] = []
        given = variables.get("dra_claims_workloads") or []
        if not isinstance(given, (list, tuple)):
            return {}, [Problem("dra_claims_workloads", f"must be a list, not {given!r}", "wrong-type")]
        for index, workload in enumerate(given):
            path = f"dra_claims_workloads[{index}]"
            mistakes = check_workload(workload, path, objects, render.workload_names())
            if not mistakes:
                name = f"{workload['namespace']}/{workload['name']}.yaml"
                if name in files:
                    mistakes = [Problem(f"{path}.name", f"{name} is already taken", "duplicate-name")]
                elif objects is None:
                    files[name] = ""
                else:
                    source, text = render.workload(_plain(workload))
                    _load(source, text, path, named=False)
                    files[name] = "---\n" + text.strip("\n") + "\n"
            wrong += mistakes
        return files, wrong

    def _write(
        self, result: dict[str, t.Any], dest: str, site: str, folders: dict[str, dict[str, str]], prune: bool
    ) -> None:
        texts = {f"{folder}/{path}": text for folder, files in folders.items() for path, text in files.items()}
        target = ManifestFolder(dest, site, dry=self._task.check_mode)
        stale = target.write(texts, prune=prune)
        result.update(
            changed=target.changed, dest=dest, files=sorted(texts), written=target.written, removed=target.removed
        )
        result["stale"] = stale
        if self._task.diff and target.diff:
            result["diff"] = target.diff


class _Templates:
    """The Jinja2 templates that give the manifests their form: the site's own before those of the collection."""

    def __init__(self, templar: t.Any, loader: t.Any, variables: dict[str, t.Any], folder: str | None) -> None:
        self._folders = [pathlib.Path(path) for path in (folder, _TEMPLATES) if path]
        self._loader = loader
        self._variables = variables
        self._templar = templar.copy_with_new_env(searchpath=[str(path) for path in self._folders])
        self._sources: dict[pathlib.Path, t.Any] = {}

    def manifest(self, item: dict[str, t.Any]) -> tuple[str, str]:
        return self._text((f"manifests/{item['kind']}.yaml.j2", "manifests/object.yaml.j2"), object=item)

    def workload(self, workload: dict[str, t.Any]) -> tuple[str, str]:
        return self._text((f"workloads/{workload['template']}.yaml.j2",), workload=workload)

    def workload_names(self) -> list[str]:
        files = [path.name for folder in self._folders for path in folder.glob("workloads/*.yaml.j2")]
        return sorted({name.removesuffix(".yaml.j2") for name in files if not name.startswith("_")})

    def _text(self, names: tuple[str, ...], **values: t.Any) -> tuple[str, str]:
        source = next(path for name in names for folder in self._folders if (path := folder / name).is_file())
        if source not in self._sources:
            from ansible.template import trust_as_template  # an older ansible-core lacks it, and is to be told so

            self._sources[source] = trust_as_template(self._loader.get_text_file_contents(str(source)))
        self._templar.available_variables = {**self._variables, **values}
        try:
            text = self._templar.template(self._sources[source], escape_backslashes=False)
        except AnsibleError as error:
            line = getattr(error.__cause__, "lineno", None)
            where = f"{source}, line {line}," if line else f"{source}"
            raise AnsibleActionFail(f"The template {where} failed: {error}") from None
        return str(source), str(text)

    def unused(self, objects: list[dict[str, t.Any]]) -> list[str]:
        """Warnings of templates of the site that stand for no kind: those of a misspelt name say nothing otherwise."""
        known = {*PLURALS, *_OTHER_KINDS, *(item["kind"] for item in objects), "object"}
        found = []
        for path in sorted(path for folder in self._folders for path in folder.glob("manifests/*.j2")):
            kind = path.name.removesuffix(".yaml.j2")
            if kind not in known:
                near = difflib.get_close_matches(kind, sorted(known), 1)
                hint = f": did you mean {near[0]}.yaml.j2?" if near else ""
                found.append(f"The template {path} renders nothing, as no object has that kind{hint}")
        return found


def _served(objects: list[dict[str, t.Any]], versions: list[str] | None, kubernetes: str) -> list[dict[str, t.Any]]:
    """The objects in the newest version of resource.k8s.io that the cluster serves; as they are where none is asked."""
    if versions is None:
        return objects
    return [convert(item, choose(versions, item["kind"], kubernetes)) if is_dra(item) else item for item in objects]


def _verdict(item: dict[str, t.Any], kubernetes: str, gates: dict[str, bool], engine: t.Any) -> list[Problem]:
    """What the cluster would say to an object that came out of a template changed."""
    if is_dra(item):
        return unsupported(item, kubernetes, gates) or validate(item, kubernetes, gates, engine)
    if item["kind"] in PLURALS:
        message = f"{item['apiVersion']!r} has no {item['kind']}"
        return [Problem("apiVersion", message, "value", "keep that of the object: {{ object.apiVersion }}")]
    return []


def _site(
    variables: dict[str, t.Any], nodes: dict[str, t.Any] | None, kubernetes: str, gates: dict[str, t.Any]
) -> Site:
    """What the compiler makes of the variables. Raises Problems with its mistakes and those of the gates."""
    wrong = _gates(gates)
    usable = {name: value for name, value in gates.items() if name in FEATURES and isinstance(value, bool)}
    try:
        site = compile_site(_switched(_plain(variables)), nodes, kubernetes, usable)
    except Problems as error:
        raise Problems([*wrong, *error.problems]) from None
    if wrong:
        raise Problems(wrong)
    return site


def _gates(gates: dict[str, t.Any]) -> list[Problem]:
    """A misspelt gate would leave the default in force without a word."""
    found = []
    for name, value in gates.items():
        path = f"dra_claims_feature_gates.{name}"
        if not isinstance(value, bool):
            found.append(Problem(path, f"must be true or false, not {value!r}", "wrong-type"))
        if name not in FEATURES:
            near = difflib.get_close_matches(str(name), sorted(FEATURES), 1)
            fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(FEATURES)}"
            found.append(Problem(path, "is no feature gate of dynamic resource allocation", "unknown-key", fix))
    return found


def _load(source: str, text: str, what: str, *, named: bool = True) -> list[dict[str, t.Any]]:
    try:
        documents = [item for item in yaml.load_all(text, Loader=_LOADER) if item is not None]
    except yaml.YAMLError as error:
        raise AnsibleActionFail(f"What the template {source} gives for {what} is not YAML: {error}") from None
    for item in documents:
        missing = _lacks(item, named)
        if missing:
            text = f"What the template {source} gives for {what} is no Kubernetes object: it has no {missing}"
            raise AnsibleActionFail(text)
    return documents


def _lacks(item: t.Any, named: bool) -> str:
    """The first of what every object must have and this one has not, or has in another form than text."""
    fields = item if isinstance(item, dict) else {}
    metadata = fields.get("metadata")
    wanted = {key: fields.get(key) for key in ("kind", "apiVersion")}
    if named:
        wanted["metadata.name"] = metadata.get("name") if isinstance(metadata, dict) else None
    return next((key for key, value in wanted.items() if not isinstance(value, str) or not value), "")


def _plain(value: t.Any) -> t.Any:
    """Values without Ansible's tags and lazy containers, which the pure code below knows nothing of."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _switched(variables: dict[str, t.Any]) -> dict[str, t.Any]:
    """The variables with the words of C(-e NAME=true), which are text to Ansible, as true and false."""
    found = dict(variables)
    for name in ("dra_claims_policy", "dra_claims_allow_unreachable"):
        if isinstance(found.get(name), str):
            with contextlib.suppress(TypeError):
                found[name] = boolean(found[name])
    return found


def _planned(facts: dict[str, t.Any], variables: dict[str, t.Any], host: str) -> dict[str, t.Any]:
    """The facts of a node with the VFs that its variables ask for."""
    hostvars = variables.get("hostvars")
    raw = hostvars.raw_get(host) if hostvars is not None and host in hostvars else None
    names = ("fabric_board", "fabric_nics", "fabric_profiles")
    if not isinstance(raw, dict) or not any(raw.get(name) for name in names[:2]) or set_by_facts(variables, host):
        return facts
    own = hostvars[host]
    return with_planned_vfs(facts, rules_of({name: _plain(own[name]) for name in names if name in raw}))


def _name(item: dict[str, t.Any]) -> str:
    metadata = item.get("metadata") or {}
    return "/".join(str(part) for part in (item["kind"], metadata.get("namespace"), metadata.get("name")) if part)


def _summary(objects: list[tuple[str, dict[str, t.Any]]], workloads: dict[str, str], reach: t.Any) -> list[str]:
    """What a person wants to see: how much of each kind, and where each claim can run."""
    kinds: dict[str, int] = {}
    for _path, item in objects:
        kinds[item["kind"]] = kinds.get(item["kind"], 0) + 1
    if workloads:
        kinds["workload example"] = len(workloads)
    lines = ["rendered " + (", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing")]
    return lines + [line for entry in reach for line in entry.lines()]
