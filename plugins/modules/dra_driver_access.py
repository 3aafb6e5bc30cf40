#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_driver_access
short_description: Give a node's DRA driver access to the API server
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Reads the Node, and returns how the node reaches the API server of a kubeconfig on the controller.
  - With O(account), requests a token of that ServiceAccount, bound to the Node (C(TokenRequest)), if the node has no
    token (O(token)), or if its token is for another Node or account or expires soon. From then on, the driver renews
    its token.
  - The token is only valid for that node, and becomes invalid when the Node object is deleted.
notes:
  - Runs on the controller, with the rights of the kubeconfig. Usually called by the role
    P(lanewise.dra.dra_driver#role).
  - Use C(no_log), because RV(token) is a secret.
requirements:
  - kubernetes (Python client) >= 24.2.0 on the controller
attributes:
  check_mode:
    support: full
    details:
      - No token is requested.
  diff_mode:
    support: none
  idempotent:
    support: full
    details:
      - As long as O(token) describes a valid token.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  kubeconfig:
    description:
      - A kubeconfig file on the controller. It needs the right to get the Node.
      - With O(account), it also needs the rights to get C(serviceaccounts) and create C(serviceaccounts/token) in
        O(namespace), and to get and patch this namespace (C(namespaces)), which is annotated with the audiences of
        the API server's tokens.
    type: path
    required: true
  context:
    description: The context of the kubeconfig, by default the current one.
    type: str
  node:
    description: The Node's name.
    type: str
    required: true
  namespace:
    description: The namespace of O(account).
    type: str
    default: lanewise-system
  account:
    description: The ServiceAccount of the token. Without it no token is requested.
    type: str
  token:
    description: The claims of the token on the node, as in RV(lanewise.dra.dra_driver_info#module:token).
    type: dict
  token_seconds:
    description: The lifetime of a new token in seconds. The server may grant less.
    type: int
    default: 604800
  least_seconds:
    description: A token that expires in fewer seconds than this is replaced.
    type: int
    default: 3600
seealso:
  - module: lanewise.dra.dra_driver_info
"""

EXAMPLES = r"""
- name: Give the node's driver a token
  lanewise.dra.dra_driver_access:
    kubeconfig: ~/.kube/config
    node: "{{ inventory_hostname }}"
    account: lanewise-driver
    token: "{{ driver.token }}"
  delegate_to: localhost
  no_log: true
  register: access
"""

RETURN = r"""
server:
  description: The API server's address.
  returned: success
  type: str
certificate_authority:
  description:
    - The certificate authorities of the server as PEM, without other content of their file. Empty if those of the
      operating system are used.
  returned: success
  type: str
node:
  description: C(uid), C(kubelet_version) and C(runtime_version) of the Node. Empty if there is no such Node.
  returned: success
  type: dict
  sample: {uid: 4a1..., kubelet_version: v1.34.1, runtime_version: "containerd://2.1.4"}
reason:
  description: Why a new token is needed. Empty if none is needed.
  returned: success
  type: str
token:
  description: The new token. A secret.
  returned: when a new token was created
  type: str
"""

import base64
import json
import re
import time
import traceback
import typing as t
from http import HTTPStatus

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_lists import api_client

try:
    import kubernetes
    import urllib3

    LIBRARY_ERROR = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()

REQUEST_TIMEOUT_SECONDS = 30
AUDIENCES_ANNOTATION = "lanewise.dev/api-audiences"
#: What the module returns, see RETURN.
Result = dict[str, t.Any]
#: A certificate with surrounding empty lines, so that a file with only certificates stays unchanged.
CERTIFICATE = re.compile(
    r"^\s*^-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.*?^-----END \1-----\s*", re.MULTILINE | re.DOTALL
)


def server_message(error: kubernetes.client.ApiException) -> str:
    """The server's message, or the HTTP reason."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)


def token_problem(token: dict[str, object], params: dict[str, object], node_uid: str, account_uid: str) -> str:
    """Why the token on the node cannot be used; empty if it can."""
    if not token:
        return "the node has no token"
    if token.get("namespace") != params["namespace"] or token.get("account") != params["account"]:
        return f"its token is for the account {token.get('namespace')}/{token.get('account')}"
    if token.get("account_uid") != account_uid:
        return "its token is for a deleted account of the same name"
    if token.get("node") != params["node"] or token.get("node_uid") != node_uid:
        return f"its token is bound to {'another Node' if token.get('node') else 'no Node'}"
    if float(token.get("expires") or 0) < time.time() + params["least_seconds"]:
        return "its token has expired or expires soon"
    return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path", "required": True},
            "context": {"type": "str"},
            "node": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": "lanewise-system"},
            "account": {"type": "str"},
            "token": {"type": "dict", "no_log": False},
            "token_seconds": {"type": "int", "default": 604800, "no_log": False},
            "least_seconds": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    if LIBRARY_ERROR:
        module.fail_json(msg=missing_required_lib("kubernetes"), exception=LIBRARY_ERROR)
    params = module.params
    result: Result = {"changed": False, "reason": "", "node": {}}
    failure = f"the kubeconfig {params['kubeconfig']} cannot be used"
    try:
        client = api_client(params["kubeconfig"], params["context"], urllib3.Retry(2, redirect=0))
        authority = client.configuration.ssl_ca_cert
        result["server"] = client.configuration.host
        result["certificate_authority"] = ""
        if authority:
            with open(authority, encoding="utf-8", errors="replace") as stream:  # comments may have any encoding
                certificates = CERTIFICATE.finditer(stream.read())
            result["certificate_authority"] = "".join(certificate.group() for certificate in certificates)
        api = kubernetes.client.CoreV1Api(client)
        failure = f"the Node {params['node']} cannot be read"
        try:
            node = api.read_node(params["node"], _request_timeout=REQUEST_TIMEOUT_SECONDS)
        except kubernetes.client.ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            if params["account"]:
                module.fail_json(msg=f"there is no Node {params['node']} to bind a token to; join the node first")
            module.exit_json(**result)
        info = node.status.node_info
        result["node"] = {
            "uid": node.metadata.uid,
            "kubelet_version": info.kubelet_version if info else "",
            "runtime_version": info.container_runtime_version if info else "",
        }
        if params["account"]:
            failure = f"no token could be requested for the account {params['namespace']}/{params['account']}"
            request_token(module, api, result)
    except kubernetes.client.ApiException as error:
        module.fail_json(msg=f"{failure}: {server_message(error)}")
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        module.fail_json(msg=f"{failure}: {error}")
    module.exit_json(**result)


def request_token(module: AnsibleModule, api: kubernetes.client.CoreV1Api, result: Result) -> None:
    """Request a new token if the node needs one."""
    params = module.params
    account_uid = ""
    try:
        account = api.read_namespaced_service_account(
            params["account"], params["namespace"], _request_timeout=REQUEST_TIMEOUT_SECONDS
        )
        account_uid = account.metadata.uid
    except kubernetes.client.ApiException as error:
        # in check mode the account may be one of the objects that were not applied
        if error.status != HTTPStatus.NOT_FOUND or not module.check_mode:
            raise
    result["reason"] = token_problem(params["token"] or {}, params, result["node"]["uid"], account_uid)
    result["changed"] = bool(result["reason"])
    if result["changed"] and not module.check_mode:
        bound = {"apiVersion": "v1", "kind": "Node", "name": params["node"], "uid": result["node"]["uid"]}
        spec = {"audiences": [], "expirationSeconds": params["token_seconds"], "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        response = api.create_namespaced_service_account_token(
            params["account"], params["namespace"], body, _request_timeout=REQUEST_TIMEOUT_SECONDS
        )
        result["token"] = response.status.token
        annotate_audiences(api, params["namespace"], response.status.token)


def annotate_audiences(api: kubernetes.client.CoreV1Api, namespace: str, token: str) -> None:
    """Annotate the driver's namespace with the audiences of the API server's tokens. An admission policy lets drivers
    request tokens only for these. See driver/manifests/32-policy-token.yaml."""
    body = token.split(".")[1]
    audiences = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["aud"]
    listed = " ".join(sorted([audiences] if isinstance(audiences, str) else audiences))
    known = api.read_namespace(namespace, _request_timeout=REQUEST_TIMEOUT_SECONDS).metadata.annotations or {}
    if known.get(AUDIENCES_ANNOTATION) != listed:
        change = {"metadata": {"annotations": {AUDIENCES_ANNOTATION: listed}}}
        api.patch_namespace(namespace, change, _request_timeout=REQUEST_TIMEOUT_SECONDS)


if __name__ == "__main__":
    main()
