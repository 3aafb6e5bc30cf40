# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Makes and releases holds on a cluster, also while other runs change the same rules.

A rule is created only if none has its name, replaced only in the version that was read, and deleted only by its UID. So
concurrent runs never overwrite each other's changes. If a hold cannot be completed, the run deletes the rules that it
created.
"""

from __future__ import annotations

import json
import traceback
import typing as t
from http import HTTPStatus

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from .cluster_lists import REQUEST_TIMEOUT_SECONDS, api_client, minor, read_all
from .dra.holds import serving
from .dra.holds.changes import Changes, Overtaken, Refused, changes_to_make, changes_to_release
from .dra.holds.hold import Hold, holds
from .dra.kube.bounded_json import loads_pruned
from .dra.kube.objects import Object, ObjectView

try:
    import kubernetes
    import urllib3

    LIBRARY_ERROR = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()

#: The work of a module: a function of a client and the server's minor release (1.37) that returns the module's result.
Work = t.Callable[["kubernetes.client.ApiClient", str], Object]

_PLURAL = "devicetaintrules"
#: How often a change is tried while other runs change the same rule.
_ATTEMPTS = 5
_BUSY = "other runs keep changing DeviceTaintRule {0}: run this again later"


class Rules:
    """The DeviceTaintRules of a cluster.

    The methods raise ApiException of the package kubernetes and urllib3's HTTPError.
    """

    def __init__(self, api: kubernetes.client.ApiClient, api_version: str) -> None:
        client = kubernetes.client
        self.api_version = api_version
        self._resource = (*api_version.split("/"), _PLURAL)
        self._api = client.CustomObjectsApi(api)
        self._error = client.ApiException
        self._options, self._preconditions = client.V1DeleteOptions, client.V1Preconditions

    def list(self) -> list[Object]:
        """All rules. Raises serving.Unsupported if the server does not serve this version."""

        def page(**query: t.Any) -> t.Any:
            return self._api.list_cluster_custom_object(*self._resource, **query)

        try:
            return read_all(page, self.api_version, serving.KIND)
        except self._error as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            raise serving.Unsupported(serving.not_served(self.api_version)) from error

    def make(self, desired: Hold, check: bool = False) -> Changes:
        """Make or change a hold, and return the changes. If a request fails, the rules that were created are deleted.

        With `check`, all requests are dry runs on the server. Raises Refused.
        """
        changes = changes_to_make(desired, self.list(), self.api_version)
        created: list[Object] = []
        try:
            for rule in changes.create:
                created.append(self._create(rule, desired, check))
            for rule in changes.replace:
                self._replace(rule, desired, check)
            for old in changes.delete:
                self.delete(old, check)
            if not check:
                self.confirm(desired)
        except BaseException:
            if not check:
                for rule in created:
                    self.delete(rule)
            raise
        return changes

    def release(self, name: str, owner: str = "", check: bool = False, may_be_swap: bool = False) -> Changes:
        """Remove a hold, and return the changes. Raises as `changes_to_release`."""
        changes = changes_to_release(name, owner, self.list(), may_be_swap)
        for rule in changes.delete:
            self.delete(rule, check)
        return changes

    def _create(self, rule: Object, desired: Hold, check: bool) -> Object:
        """Create a rule and return it. If another run has created the same rule, returns the existing rule without its
        UID.

        Raises Refused if the rule exists for another hold.
        """
        name = rule["metadata"]["name"]
        for _attempt in range(_ATTEMPTS):
            try:
                return self._request(self._api.create_cluster_custom_object, rule, **_dry(check))
            except self._error as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
            try:
                existing = self._request(self._api.get_cluster_custom_object, name)
            except self._error as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                continue  # the other run has deleted it
            changes_to_make(desired, [existing], self.api_version)  # raises Refused for a rule of another hold
            return {**existing, "metadata": {**existing["metadata"], "uid": None}}  # this run must not delete it
        raise Refused(_BUSY.format(name))

    def _replace(self, rule: Object, desired: Hold, check: bool) -> None:
        """Change a rule. After a conflict, tries again, because the controller may have written the rule's status."""
        name = rule["metadata"]["name"]
        for _attempt in range(_ATTEMPTS):
            try:
                self._request(self._api.replace_cluster_custom_object, name, rule, **_dry(check))
            except self._error as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
            else:
                return
            existing = self._request(self._api.get_cluster_custom_object, name)
            remaining = [
                changed
                for changed in changes_to_make(desired, [existing], self.api_version).replace
                if changed["metadata"]["name"] == name
            ]
            if not remaining:
                return
            rule = remaining[0]
        raise Refused(_BUSY.format(name))

    def delete(self, rule: ObjectView, check: bool = False) -> None:
        """Delete a rule. Ignores a rule that has no UID (see `_create`), no longer exists or was replaced."""
        metadata = rule["metadata"]
        if not metadata.get("uid"):
            return
        # a server that gets options in the body ignores those in the URL
        options = self._options(
            preconditions=self._preconditions(uid=metadata["uid"]), dry_run=["All"] if check else None
        )
        try:
            self._request(self._api.delete_cluster_custom_object, metadata["name"], body=options)
        except self._error as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def confirm(self, desired: Hold) -> None:
        """Raises Overtaken if a rule of the hold no longer exists, or belongs to another owner, because another run has
        changed it."""
        rules = [hold for rule in self.list() for hold in holds([rule]) if hold.name == desired.name]
        held = {device for hold in rules for device in hold.devices}
        if {*desired.devices} <= held and all(hold.owner == desired.owner for hold in rules):
            return
        if desired.devices:
            raise Overtaken(f"another run changed hold {desired.name} at the same time: run this again")

    def _request(self, method: t.Callable[..., t.Any], *arguments: t.Any, **options: t.Any) -> Object:
        answer = method(
            *self._resource, *arguments, **options, _request_timeout=REQUEST_TIMEOUT_SECONDS, _preload_content=False
        )
        found: Object = loads_pruned(answer.data)
        return found


class Failed(Exception):
    """The work on a cluster failed. The message says what failed and why."""


def call_on_cluster(kubeconfig: str | None, context: str | None, failure: str, work: Work) -> Object:
    """Connect to a cluster, and return what `work` returns for it.

    Raises Failed. If `work` fails, the message begins with `failure`.
    """
    if LIBRARY_ERROR:
        raise Failed(missing_required_lib("kubernetes"))
    failed = f"the kubeconfig {kubeconfig or 'of kubectl'} cannot be used"
    try:
        api = api_client(kubeconfig, context)
        failed = "the version of the API server cannot be read"
        version = minor(kubernetes.client.VersionApi(api).get_code())
        failed = failure
        return work(api, version)
    except kubernetes.client.ApiException as error:
        raise Failed(f"{failed}: {api_error_text(error)}") from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Failed(f"{failed}: {error}") from error


def run(module: AnsibleModule, failure: str, work: Work) -> None:
    """Exit a module with the result of `work` for the cluster of the parameters `kubeconfig` and `context`."""
    try:
        result = call_on_cluster(module.params["kubeconfig"], module.params["context"], failure, work)
    except Failed as error:
        module.fail_json(msg=str(error), **({"exception": LIBRARY_ERROR} if LIBRARY_ERROR else {}))
    module.exit_json(**result)


def _dry(check: bool) -> dict[str, str]:
    return {"dry_run": "All"} if check else {}


def api_error_text(error: t.Any) -> str:
    """The HTTP status of an ApiException, with the server's message, or without one with the HTTP reason."""
    try:
        return f"the API server returned {error.status}: {json.loads(error.body)['message']}"
    except (TypeError, ValueError, KeyError):
        return f"the API server returned {error.status} {error.reason}"
