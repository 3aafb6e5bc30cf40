#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pod_eviction
short_description: Evict one pod and wait until its devices are free
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Evicts a pod through the eviction API, which respects PodDisruptionBudgets. Then waits until the pod has ended, the
    claims of the pod are deleted or no longer reserved for it, and its controller's pods have nodes again.
  - If a PodDisruptionBudget refuses the eviction for O(budget_timeout) seconds, the module succeeds with RV(blocked).
  - If the pod does not exist, or has another UID, nothing is done.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow getting and listing pods, getting
    resourceclaims and creating C(pods/eviction).
requirements:
  - kubernetes (Python client) >= 24.2.0 on the controller
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
attributes:
  check_mode:
    support: full
    details:
      - By server-side dry run.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  pod:
    description: The pod, as C(namespace/name).
    type: str
    required: true
  uid:
    description: The pod's UID. A pod of this name with another UID is not evicted.
    type: str
    required: true
  budget_timeout:
    description: How long to retry if a PodDisruptionBudget refuses the eviction, in seconds.
    type: int
    default: 60
  timeout:
    description: Seconds to wait until the pod has ended and its claims are released. Then the task fails.
    type: int
    default: 600
  settle_timeout:
    description:
      - How long to wait until as many pods of its controller as before have a node, in seconds. Then RV(replaced) is
        false.
    type: int
    default: 120
  kubeconfig:
    description: A kubeconfig file on the controller. By default that of C(kubectl).
    type: path
  context:
    description: The context of the kubeconfig, by default the current one.
    type: str
seealso:
  - module: lanewise.dra.reservation_plan
"""

EXAMPLES = r"""
- name: Evict the first pod of a plan
  lanewise.dra.pod_eviction:
    pod: "{{ plan.moves[0].pod }}"
    uid: "{{ plan.moves[0].uid }}"
  delegate_to: localhost
"""

RETURN = r"""
blocked:
  description: Why a PodDisruptionBudget refuses the eviction. Empty if the pod was evicted.
  returned: success
  type: str
replaced:
  description: Whether the pods of the pod's controller have nodes again.
  returned: success
  type: bool
"""

import time
import traceback
import typing as t
from http import HTTPStatus

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import api_error_text
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_lists import (
    REQUEST_TIMEOUT_SECONDS,
    api_client,
    read_all,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.bounded_json import loads_pruned
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object, ObjectView
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.pods import claim_names

try:
    import kubernetes
    import urllib3

    LIBRARY_ERROR = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()

RETRY_INTERVAL_SECONDS = 1.0

#: What a refusal by PodDisruptionBudgets says, by its status.
_REFUSAL_OF_BUDGETS = {
    HTTPStatus.TOO_MANY_REQUESTS: "disruption budget",
    HTTPStatus.INTERNAL_SERVER_ERROR: "more than one PodDisruptionBudget",
}

Answer = t.TypeVar("Answer")


class StillExists(Exception):
    """The pod still exists, or one of its claims is still reserved for it."""


def controller_of(pod: ObjectView) -> str:
    """The UID of a pod's controller; empty without one."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


class Pods:
    """A pod of a cluster, and the other pods of its controller. The methods raise ApiException and HTTPError."""

    def __init__(self, api: kubernetes.client.ApiClient, pod: str, uid: str) -> None:
        self.namespace, _slash, self.name = pod.partition("/")
        self.uid = uid
        self.core = kubernetes.client.CoreV1Api(api)
        self.custom = kubernetes.client.CustomObjectsApi(api)

    def read(self) -> Object | None:
        """The pod; None if it no longer exists."""
        try:
            answer: t.Any = self.core.read_namespaced_pod(
                self.name, self.namespace, _request_timeout=REQUEST_TIMEOUT_SECONDS, _preload_content=False
            )
        except kubernetes.client.ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None
        pod: Object = loads_pruned(answer.data)
        return pod if pod["metadata"].get("uid") == self.uid else None

    def evict(self, check: bool) -> str:
        """Evict the pod. Returns why a PodDisruptionBudget refuses the eviction; empty if none does.

        A budget that allows no disruption gives the status 429, and several budgets for one pod give 500
        (pkg/registry/core/pod/storage/eviction.go). Raises ApiException for other refusals, with the status 429 if the
        server has too many requests, and with 409 if another pod has the name now.
        """
        client = kubernetes.client
        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=self.uid))
        if check:
            options.dry_run = ["All"]
        body = client.V1Eviction(
            metadata=client.V1ObjectMeta(name=self.name, namespace=self.namespace), delete_options=options
        )
        try:
            self.core.create_namespaced_pod_eviction(
                self.name, self.namespace, body, _request_timeout=REQUEST_TIMEOUT_SECONDS, _preload_content=False
            )
        except client.ApiException as error:
            refusal = _REFUSAL_OF_BUDGETS.get(error.status)
            if refusal and refusal in str(error.body):
                return api_error_text(error)
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        return ""

    def reserved(self, claims: t.Iterable[str]) -> list[str]:
        """Those of the claims, by name, that are still reserved for the pod."""
        reserved = []
        for name in claims:
            try:
                answer: t.Any = self.custom.get_namespaced_custom_object(
                    "resource.k8s.io",
                    "v1",
                    self.namespace,
                    "resourceclaims",
                    name,
                    _request_timeout=REQUEST_TIMEOUT_SECONDS,
                    _preload_content=False,
                )
            except kubernetes.client.ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                continue
            claim: Object = loads_pruned(answer.data)
            users = (claim.get("status") or {}).get("reservedFor") or ()
            if any(user.get("uid") == self.uid for user in users):
                reserved.append(name)
        return reserved

    def siblings(self, controller: str) -> list[Object]:
        """The pods of a controller that are not being deleted."""

        def page(**query: t.Any) -> t.Any:
            return self.core.list_namespaced_pod(self.namespace, **query)

        return [
            pod
            for pod in read_all(page, "v1", "Pod")
            if controller_of(pod) == controller and not pod["metadata"].get("deletionTimestamp")
        ]


def evict_pod(module: AnsibleModule, pods: Pods) -> Object:
    """Evict the pod, and wait until its claims are free and its controller has replaced it. Returns the result.

    Raises StillExists, ApiException and HTTPError.
    """
    params = module.params
    pod = pods.read()
    if pod is None:
        return {"changed": False, "blocked": "", "replaced": True}
    controller = controller_of(pod)
    before = placed(pods.siblings(controller))
    end = time.monotonic() + (0 if module.check_mode else params["budget_timeout"])
    blocked = evict_patiently(pods, module.check_mode, end)
    if blocked is None:
        return {"changed": False, "blocked": "", "replaced": True}
    if blocked or module.check_mode:
        return {"changed": not blocked, "blocked": blocked, "replaced": not blocked}
    claims = [name.partition("/")[2] for name in claim_names(pod)]
    end = time.monotonic() + params["timeout"]
    while True:
        remaining = until_answered(lambda: remaining_of(pods, claims), end)
        if not remaining:
            break
        if time.monotonic() > end:
            raise StillExists(f"{remaining} {params['timeout']} s after the eviction")
        time.sleep(RETRY_INTERVAL_SECONDS)
    replaced = wait_for_siblings(pods, controller, before, params["settle_timeout"])
    return {"changed": True, "blocked": "", "replaced": replaced}


def evict_patiently(pods: Pods, check: bool, end: float) -> str | None:
    """Evict the pod, and try again until `end` while a PodDisruptionBudget refuses it, or the server has too many
    requests. Returns as `Pods.evict`; None if another pod has the name now. A request without an answer is not
    repeated, because it may have evicted the pod."""
    while True:
        blocked = ""
        try:
            blocked = pods.evict(check)
            if not blocked or time.monotonic() >= end:
                return blocked
        except kubernetes.client.ApiException as error:
            if error.status == HTTPStatus.CONFLICT and pods.read() is None:
                return None
            if error.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() >= end:
                raise
        time.sleep(RETRY_INTERVAL_SECONDS)


def remaining_of(pods: Pods, claims: t.Sequence[str]) -> str:
    """What remains of an evicted pod; empty if nothing does."""
    if pods.read():
        return "the pod still exists"
    return ", ".join(f"claim {name} is still reserved for it" for name in pods.reserved(claims))


def until_answered(request: t.Callable[[], Answer], end: float) -> Answer:
    """The result of a request. Repeats it until `end` while the API server is down, or has too many requests."""
    while True:
        try:
            return request()
        except kubernetes.client.ApiException as error:
            temporary = error.status == HTTPStatus.TOO_MANY_REQUESTS or (error.status or 0) >= 500
            if not temporary or time.monotonic() > end:
                raise
        except urllib3.exceptions.HTTPError:
            if time.monotonic() > end:
                raise
        time.sleep(RETRY_INTERVAL_SECONDS)


def placed(pods: t.Iterable[ObjectView]) -> int:
    """How many pods have nodes."""
    return sum(bool((pod.get("spec") or {}).get("nodeName")) for pod in pods)


def wait_for_siblings(pods: Pods, controller: str, before: int, seconds: int) -> bool:
    """Wait until as many pods of a controller as before have nodes. Returns whether they do."""
    end = time.monotonic() + seconds
    while controller:
        if placed(until_answered(lambda: pods.siblings(controller), end)) >= before:
            break
        if time.monotonic() > end:
            return False
        time.sleep(RETRY_INTERVAL_SECONDS)
    return True


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "pod": {"type": "str", "required": True},
            "uid": {"type": "str", "required": True},
            "budget_timeout": {"type": "int", "default": 60},
            "timeout": {"type": "int", "default": 600},
            "settle_timeout": {"type": "int", "default": 120},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
        },
        supports_check_mode=True,
    )
    if LIBRARY_ERROR:
        module.fail_json(msg=missing_required_lib("kubernetes"), exception=LIBRARY_ERROR)
    params = module.params
    failure = f"the kubeconfig {params['kubeconfig'] or 'of kubectl'} cannot be used"
    try:
        api = api_client(params["kubeconfig"], params["context"])
        failure = f"the eviction of pod {params['pod']} failed"
        result = evict_pod(module, Pods(api, params["pod"], params["uid"]))
    except kubernetes.client.ApiException as error:
        module.fail_json(msg=f"{failure}: {api_error_text(error)}")
    except (urllib3.exceptions.HTTPError, OSError, ValueError, StillExists) as error:
        module.fail_json(msg=f"{failure}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
