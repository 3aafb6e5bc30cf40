# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Makes and releases holds on a cluster. Each request names the version of the object that it changes, so that
concurrent runs never overwrite each other's changes. If a hold cannot be completed, the run deletes what it created."""

from __future__ import annotations

import json
import traceback
import typing as t

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from .cluster_lists import SECONDS, minor, read_all
from .dra.holds import changes as steps
from .dra.holds import serving
from .dra.holds.changes import Changes, Refused
from .dra.holds.hold import Hold, holds
from .dra.kube.bounded_json import loads_pruned
from .dra.kube.objects import Object, ObjectView

try:
    import kubernetes
    import kubernetes.config
    import urllib3

    LIBRARY_ERROR = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()

#: The work of a module: it gets a client and the server's minor release (1.37), and returns the module's result.
Work = t.Callable[["kubernetes.client.ApiClient", str], Object]

_PLURAL = "devicetaintrules"
_GONE, _CONFLICT = 404, 409
#: How often a change is tried while other runs change the same rule.
_TRIES = 5
_BUSY = "other runs keep changing DeviceTaintRule {0}: run this again later"


class Rules:
    """The DeviceTaintRules of a cluster.

    The methods raise ApiException of the package kubernetes and urllib3's HTTPError.
    """

    def __init__(self, api: kubernetes.client.ApiClient, api_version: str) -> None:
        client = kubernetes.client
        self.api_version = api_version
        self._where = (*api_version.split("/"), _PLURAL)
        self._api = client.CustomObjectsApi(api)
        self._error = client.ApiException
        self._options, self._preconditions = client.V1DeleteOptions, client.V1Preconditions

    def list(self) -> list[Object]:
        """All rules. Raises serving.Unsupported if the server does not serve this version."""

        def page(**query: t.Any) -> t.Any:
            return self._api.list_cluster_custom_object(*self._where, **query)

        try:
            return read_all(page, self.api_version, serving.KIND)
        except self._error as error:
            if error.status != _GONE:
                raise
            raise serving.Unsupported(serving.not_served(self.api_version)) from error

    def make(self, wanted: Hold, check: bool = False) -> Changes:
        """Make or change a hold. If a request fails, the rules that were created are deleted again.

        With `check`, all requests are dry runs on the server. Raises Refused.
        """
        found = steps.changes_to_make(wanted, self.list(), self.api_version)
        made: list[Object] = []
        try:
            for one in found.create:
                made.append(self._create(one, wanted, check))
            for one in found.replace:
                self._replace(one, wanted, check)
            for old in found.delete:
                self.delete(old, check)
        except BaseException:
            if not check:
                for one in made:
                    self.delete(one)
            raise
        if not check:
            self._confirm(wanted)
        return found

    def release(self, name: str, owner: str = "", check: bool = False) -> Changes:
        """Remove a hold. Raises Refused if it does not belong to `owner`."""
        found = steps.changes_to_release(name, owner, self.list())
        for one in found.delete:
            self.delete(one, check)
        return found

    def _create(self, one: Object, wanted: Hold, check: bool) -> Object:
        """Create a rule. An existing rule of the same hold, which another run created, is accepted."""
        name = one["metadata"]["name"]
        for _turn in range(_TRIES):
            try:
                return self._request(self._api.create_cluster_custom_object, one, **_dry(check))
            except self._error as error:
                if error.status != _CONFLICT:
                    raise
            try:
                existing = self._request(self._api.get_cluster_custom_object, name)
            except self._error as error:
                if error.status != _GONE:
                    raise
                continue  # the other run has deleted it
            steps.changes_to_make(wanted, [existing], self.api_version)  # raises Refused for a rule of another hold
            return {**existing, "metadata": {**existing["metadata"], "uid": None}}  # this run must not delete it
        raise Refused(_BUSY.format(name))

    def _replace(self, one: Object, wanted: Hold, check: bool) -> None:
        """Change a rule. After a conflict it tries again, as the controller may have written the rule's status."""
        name = one["metadata"]["name"]
        for _turn in range(_TRIES):
            try:
                self._request(self._api.replace_cluster_custom_object, name, one, **_dry(check))
            except self._error as error:
                if error.status != _CONFLICT:
                    raise
            else:
                return
            existing = self._request(self._api.get_cluster_custom_object, name)
            again = [
                rule
                for rule in steps.changes_to_make(wanted, [existing], self.api_version).replace
                if rule["metadata"]["name"] == name
            ]
            if not again:
                return
            one = again[0]
        raise Refused(_BUSY.format(name))

    def delete(self, one: ObjectView, check: bool = False) -> None:
        """Delete a rule, unless it is gone or another rule has its name now."""
        metadata = one["metadata"]
        if not metadata.get("uid"):
            return
        # a server that gets options in the body ignores those in the URL
        options = self._options(
            preconditions=self._preconditions(uid=metadata["uid"]), dry_run=["All"] if check else None
        )
        try:
            self._request(self._api.delete_cluster_custom_object, metadata["name"], body=options)
        except self._error as error:
            if error.status not in (_GONE, _CONFLICT):
                raise

    def _confirm(self, wanted: Hold) -> None:
        """Raises Refused if another run has undone a part of the hold."""
        for one in holds(self.list()):
            if one.name == wanted.name and set(wanted.devices) <= set(one.devices):
                return
        if wanted.devices:
            raise Refused(f"another run changed hold {wanted.name} at the same time: run this again")

    def _request(self, method: t.Callable[..., t.Any], *arguments: t.Any, **more: t.Any) -> Object:
        answer = method(*self._where, *arguments, **more, _request_timeout=SECONDS, _preload_content=False)
        found: Object = loads_pruned(answer.data)
        return found


class Failed(Exception):
    """The work on a cluster failed; the message says which step, and why."""


def call_on_cluster(kubeconfig: str | None, context: str | None, failure: str, work: Work) -> Object:
    """Connect to a cluster, and return what `work` returns for it.

    Raises Failed. If the cluster was reached, `failure` is the beginning of its message.
    """
    if LIBRARY_ERROR:
        raise Failed(missing_required_lib("kubernetes"))
    failed = f"the kubeconfig {kubeconfig or 'of kubectl'} cannot be used"
    try:
        api = kubernetes.config.new_client_from_config(kubeconfig, context=context)
        failed = "the version of the API server cannot be read"
        version = minor(kubernetes.client.VersionApi(api).get_code())
        failed = failure
        return work(api, version)
    except kubernetes.client.ApiException as error:
        raise Failed(f"{failed}: {refusal(error)}") from error
    except (kubernetes.config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Failed(f"{failed}: {error}") from error


def run(module: AnsibleModule, failure: str, work: Work) -> None:
    """End a module with what `work` returns for the cluster of its parameters `kubeconfig` and `context`."""
    try:
        result = call_on_cluster(module.params["kubeconfig"], module.params["context"], failure, work)
    except Failed as error:
        module.fail_json(msg=str(error), **({"exception": LIBRARY_ERROR} if LIBRARY_ERROR else {}))
    module.exit_json(**result)


def _dry(check: bool) -> dict[str, str]:
    return {"dry_run": "All"} if check else {}


def refusal(error: t.Any) -> str:
    """The server's message in an ApiException, or its HTTP status and reason."""
    try:
        return f"the API server answers {error.status}: {json.loads(error.body)['message']}"
    except (TypeError, ValueError, KeyError):
        return f"the API server answers {error.status} {error.reason}"
