# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply manifests with kubernetes.core. The documentation is in plugins/modules/dra_apply.py."""

from __future__ import annotations

import time

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.plugin_utils import apply_set
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_action import ClusterAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

_SPEC: Spec = {
    "objects": {"type": "list", "elements": "dict", "required": True},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "create_namespaces": {"type": "bool", "default": False},
    "force_conflicts": {"type": "bool", "default": False},
    "prune": {"type": "bool", "default": False},
    "applyset": {"type": "str", "default": "lanewise-dra"},
    "applyset_namespace": {"type": "str", "default": "default"},
    "site": {"type": "str"},
}
# retries for objects that wait until a quota is updated
_RETRIES = 10
_RETRY_DELAY_SECONDS = 1.0


class ActionModule(ClusterAction):
    """Tries all objects on the server, then applies them in one call, then prunes stale objects of the site."""

    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        self._variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        self._options = options
        applyset = {"name": options["applyset"], "namespace": options["applyset_namespace"]}
        objects = options["objects"]
        for index, item in enumerate(objects):
            problem = apply_set.why_unusable(item)
            if problem:
                raise AnsibleActionFail(f"objects[{index}] cannot be applied: {problem}")

        namespaces = self._info("v1", "Namespace")
        plan = apply_set.plan(
            objects,
            [item["metadata"]["name"] for item in namespaces],
            options["create_namespaces"],
            applyset if options["prune"] else None,
        )
        if plan["missing_namespaces"]:
            raise AnsibleActionFail(
                f"Nothing was applied. These namespaces do not exist: {', '.join(plan['missing_namespaces'])}. "
                "Create them, or set create_namespaces (dra_claims_create_namespaces in the role) to true."
            )
        trial = self._apply(plan["trial"], check=True)
        replaced = [item for item in apply_set.outdated(plan["trial"], trial) if self._is_for_boards(item)]
        waiting = apply_set.waiting_for_changes(plan["trial"], trial)
        verdict = apply_set.verdict_of(plan["trial"], trial, [*waiting, *replaced])
        if verdict["problems"]:
            listed = "\n".join(verdict["problems"])
            raise AnsibleActionFail(f"Nothing was applied. The cluster refuses the rendered objects:\n{listed}")
        changes = _changes(plan, trial)
        differing = [change["after_header"] for change in changes]
        result.update(changed=bool(changes), differing=differing, applied=[], pruned=[], kept_in_use=[])
        result["replaced"] = [apply_set.title(item) for item in replaced]
        if self._task.diff:
            result["diff"] = changes

        before: list[Object] = []
        if options["prune"]:
            before = self._prepare_parent(applyset, plan["objects"])
        if result["changed"] and not self._task.check_mode:
            self._remove(replaced, "Some templates that no longer fit their boards could not be removed")
            result.update(self._applied(plan["objects"]))
            if result.get("failed"):
                return result
        if options["prune"]:
            self._prune(result, applyset, plan["objects"], before)
        return result

    def _applied(self, objects: list[Object]) -> Result:
        """Apply all objects, and retry those that wait for a quota. Returns `applied`, and a failure if any."""
        answer = self._apply(objects, check=False)
        for _retry in range(_RETRIES):
            waiting = apply_set.waiting_for_changes(objects, answer)
            if not waiting:
                break
            time.sleep(_RETRY_DELAY_SECONDS)
            answer = apply_set.completed(objects, answer, waiting, self._apply(waiting, check=False))
        verdict = apply_set.verdict_of(objects, answer)
        if not verdict["problems"]:
            return {"applied": verdict["accepted"]}
        refused, applied = "\n".join(verdict["problems"]), ", ".join(verdict["accepted"]) or "nothing"
        message = (
            f"Not everything was applied.\nRefused:\n{refused}\nApplied: {applied}\n"
            "Fix these problems, then run this again."
        )
        return {"applied": verdict["accepted"], "failed": True, "msg": message}

    def _prepare_parent(self, applyset: dict[str, str], objects: list[Object]) -> list[Object]:
        """Write the ApplySet's parent before anything is applied, so that it lists all kinds and namespaces.

        Returns the earlier parent, if any. Raises AnsibleActionFail if it belongs to another program or site.
        """
        before = self._info("v1", "ConfigMap", name=applyset["name"], namespace=applyset["namespace"])
        for parent in before:
            tooling = (parent["metadata"].get("annotations") or {}).get(apply_set.TOOLING, "an unknown program")
            if not tooling.startswith("lanewise.dra/"):
                raise AnsibleActionFail(
                    f"Nothing was applied. The ConfigMap {applyset['namespace']}/{applyset['name']} belongs to "
                    f"{tooling}. Give the set another name (dra_claims_applyset in the role)."
                )
        site = self._options["site"] or ""
        other_site = apply_set.other_site(before, objects, site)
        if other_site and objects:
            raise AnsibleActionFail(
                f"Nothing was applied. The ApplySet {applyset['namespace']}/{applyset['name']} belongs to site "
                f"{other_site!r}, whose objects site {site or apply_set.site_of(objects)!r} would remove. Give each "
                "site its own set (dra_claims_applyset in the role). If the site only has a new name, delete the "
                "ConfigMap's label lanewise.dev/site."
            )
        if not self._task.check_mode and not other_site and (objects or before):
            self._write_parent(apply_set.parent(**applyset, objects=objects, before=before, site=site))
        return before

    def _write_parent(self, parent: Object) -> None:
        answer = self._apply([parent], check=False)
        if answer.get("error"):
            raise AnsibleActionFail(f"Cannot write the ApplySet's parent: {answer['error'].get('msg')}")

    def _prune(
        self,
        result: Result,
        applyset: dict[str, str],
        objects: list[Object],
        before: list[Object],
    ) -> None:
        """Remove stale objects, and record it in `result`. `before` is the earlier parent of the ApplySet, if any."""
        site = self._options["site"] or ""
        other_site = apply_set.other_site(before, objects, site)
        full_parent = apply_set.parent(**applyset, objects=objects, before=before)
        apis = self._run("kubernetes.core.k8s_cluster_info", {})["apis"]
        searches = apply_set.searches(full_parent, apis, applyset, site, other_site)
        existing = [
            item for kinds, labels in searches for kind in kinds for item in self._info(**kind, label_selectors=labels)
        ]
        stale = apply_set.stale(existing, objects, site)
        result["kept_in_use"] = stale["in_use"]
        result["pruned"] = [apply_set.title(item) for item in stale["delete"]]
        if stale["delete"]:
            result["changed"] = True
            if not self._task.check_mode:
                self._remove(stale["delete"], "Some stale objects could not be removed")
        # while a stale claim is in use, or a kind is not served, the parent must still list the kind
        complete = not stale["in_use"] and not apply_set.unserved_kinds(full_parent, apis)
        if not self._task.check_mode and complete and not other_site and (objects or before):
            self._write_parent(apply_set.parent(**applyset, objects=objects, site=site))
        if self._task.diff and stale["delete"]:
            prepared = "".join(f"- {title}\n" for title in result["pruned"])
            result["diff"] = [*result.get("diff", []), {"prepared": prepared}]

    def _is_for_boards(self, item: Object) -> bool:
        """Whether the template on the cluster was rendered for boards."""
        metadata = item["metadata"]
        selection = {"name": metadata["name"], "namespace": metadata["namespace"]}
        existing = self._info(item["apiVersion"], item["kind"], **selection)
        return any(map(apply_set.is_for_boards, existing))

    def _remove(self, objects: list[Object], problem: str) -> None:
        """Delete objects. Raises AnsibleActionFail with `problem` and the reasons if some remain."""
        if not objects:
            return
        removal = {"state": "absent", "definition": objects, "continue_on_error": True}
        answers = apply_set.object_results(objects, self._run("kubernetes.core.k8s", removal))
        refused = [reply["error"].get("msg") for reply in answers if reply.get("error")]
        if refused:
            raise AnsibleActionFail(f"{problem}:\n" + "\n".join(map(str, refused)))

    def _apply(self, objects: list[Object], *, check: bool) -> Result:
        if not objects:
            return {"changed": False, "result": {"results": []}}
        conflicts = {"field_manager": "lanewise.dra", "force_conflicts": self._options["force_conflicts"]}
        arguments = {"definition": objects, "apply": True, "server_side_apply": conflicts, "continue_on_error": True}
        return self._run("kubernetes.core.k8s", arguments, check=check)

    def _run(self, name: str, arguments: Variables, *, check: bool = False) -> Result:
        return self._module(name, arguments, self._options, self._variables, check=check)

    def _info(self, api_version: str, kind: str, **selection: object) -> list[Object]:
        arguments = {"api_version": api_version, "kind": kind, **selection}
        return list(self._run("kubernetes.core.k8s_info", arguments).get("resources") or [])


def _changes(plan: apply_set.Plan, trial: Result) -> list[Result]:
    """The diff of each object that would change, from the server's dry run if it could try the object.

    The server updates its own metadata of some objects at each apply. That alone does not count as a change.
    """
    changes = []
    tried = {id(item): reply for item, reply in zip(plan["trial"], apply_set.object_results(plan["trial"], trial))}
    for item in plan["objects"]:
        reply = tried.get(id(item))
        if reply is None or reply.get("error"):
            reply = {"changed": True, "diff": {"after": item}}
        if reply.get("changed"):
            diff = reply.get("diff") or {}
            before, after = apply_set.diff_sides(item, diff.get("before"), diff.get("after"))
            if before != after:
                title = apply_set.title(item)
                changes.append({"before_header": title, "after_header": title, "before": before, "after": after})
    return changes
