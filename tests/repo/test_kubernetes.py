# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes fit the published schemas, and every setting, port, path, file and number in them
is one of the code."""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

import bk_core
from bk_cli.main import bk
from bk_core.client import BookKeeper
from bookie_server.admin import endpoints as admin
from bookie_server.config import BookieConfig, load_config
from tests.kit.dockerfile import Image
from tests.repo.test_compose import parse

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
MANIFESTS: list[dict[str, Any]] = [
    each
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
BY_KIND = {(each["kind"], each["metadata"]["name"]): each for each in MANIFESTS}
SET = BY_KIND["StatefulSet", "bookie"]["spec"]
POD = SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
LABELS = SET["template"]["metadata"]["labels"]
CLIENT = BY_KIND["ConfigMap", "bookkeeper-client"]["data"]


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    path = tmp_path / "bookie.toml"
    path.write_text(BY_KIND["ConfigMap", "bookie"]["data"]["bookie.toml"], encoding="utf-8")
    return load_config(path)


def test_what_there_is() -> None:
    kinds = [
        "ServiceAccount",
        "Service",
        "ConfigMap",
        "ConfigMap",
        "StatefulSet",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ]
    assert [each["kind"] for each in MANIFESTS] == kinds
    assert all("namespace" not in each["metadata"] for each in MANIFESTS), "kubectl apply --namespace decides"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_published_schemas_take_them(version: str) -> None:
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_wrong_field_would_be_noticed() -> None:
    wrong = copy.deepcopy(BY_KIND["StatefulSet", "bookie"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_ports_are_those_of_the_configuration_everywhere(config: BookieConfig) -> None:
    ports = {
        "bookie-rpc": config.port,
        "grpc": config.grpc_port,
        "direct": config.direct_port,
        "admin": config.admin_port,
    }
    assert {each["name"]: each["containerPort"] for each in CONTAINER["ports"]} == ports
    service = BY_KIND["Service", "bookie"]["spec"]["ports"]
    assert {each["name"]: each["port"] for each in service} == ports
    assert all(each["targetPort"] == each["name"] for each in service)
    policy = BY_KIND["NetworkPolicy", "bookie"]["spec"]
    data, metrics = policy["ingress"]
    assert [each["port"] for each in data["ports"]] == [ports[name] for name in ("bookie-rpc", "grpc", "direct")]
    assert [each["port"] for each in metrics["ports"]] == [ports["admin"]]
    assert [each["port"] for each in policy["egress"][0]["ports"]] == list(ports.values())


def test_probes_ask_paths_that_there_are_as_that_port_speaks(config: BookieConfig) -> None:
    paths = set(re.findall(r'"(/[\w/]+)": lambda', Path(admin.__file__).read_text(encoding="utf-8")))
    for probe, path in (("livenessProbe", "/live"), ("readinessProbe", "/ready")):
        asked = CONTAINER[probe]["httpGet"]
        assert asked["path"] == path
        assert path in paths
        assert (asked["port"], asked["scheme"]) == ("admin", "HTTPS" if config.tls_certificate_path else "HTTP")
    assert config.admin_host == "0.0.0.0", "the kubelet asks the pod's address"


def test_every_bookie_has_a_name_and_a_volume_that_stay(config: BookieConfig, tmp_path: Path) -> None:
    given = parse([word.replace("/etc/bookkeeper/config", str(tmp_path)) for word in CONTAINER["args"]])
    assert given["advertised_address"] == f"$(POD_NAME).{SET['serviceName']}.$(POD_NAMESPACE).svc.cluster.local"
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in CONTAINER["env"]}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    service = BY_KIND["Service", "bookie"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    (claim,) = SET["volumeClaimTemplates"]
    mounts = {each["name"]: Path(each["mountPath"]) for each in CONTAINER["volumeMounts"]}
    assert config.data_dir is not None
    assert config.data_dir.parent == mounts[claim["metadata"]["name"]]
    assert SET["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    (apart,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (apart["topologyKey"], apart["labelSelector"]["matchLabels"]) == ("kubernetes.io/hostname", LABELS)


def test_every_file_that_a_setting_names_is_mounted_and_writable_is_the_volume_alone(config: BookieConfig) -> None:
    mounts = {each["mountPath"]: each for each in CONTAINER["volumeMounts"]}
    volumes = {each["name"]: each for each in POD["volumes"]}
    (settings_file,) = [word.partition("=")[2] for word in CONTAINER["args"] if word.startswith("--config=")]
    named = [config.tls_certificate_path, config.tls_key_path, config.tls_ca_path, config.grant_keys_path]
    for path in [*named, config.zookeeper_auth_path, Path(settings_file)]:
        assert path is not None
        assert mounts[str(path.parent)]["readOnly"] is True
    for path in (config.tls_key_path, config.grant_keys_path, config.zookeeper_auth_path):
        assert path is not None
        assert "secret" in volumes[mounts[str(path.parent)]["name"]], "a secret is a mounted file"
    assert Path(settings_file).name in BY_KIND["ConfigMap", volumes["config"]["configMap"]["name"]]["data"]
    assert {path for path, each in mounts.items() if not each.get("readOnly")} == {"/data", "/tmp"}


def test_the_tools_in_a_pod_are_told_what_the_bookie_is(config: BookieConfig) -> None:
    assert CLIENT["BK_METADATA_SERVICE_URI"] == config.metadata_service_uri
    assert CLIENT["BK_TLS_CA_PATH"] == str(config.tls_ca_path)
    assert CLIENT["BK_TLS_CERTIFICATE_PATH"] == str(config.tls_certificate_path)
    assert CLIENT["BK_TLS_KEY_PATH"] == str(config.tls_key_path)
    assert CLIENT["BK_ZOOKEEPER_AUTH_PATH"] == str(config.zookeeper_auth_path)
    assert (CLIENT["BK_SECURITY"], CLIENT["BK_ZOOKEEPER_ACL"]) == (config.security, config.zookeeper_acl)
    doctor = bk.get_command(click.Context(bk), "doctor")
    assert doctor is not None
    known = {each.envvar for each in doctor.params if isinstance(each, click.Option)}
    assert set(CLIENT) <= known, "a variable that bk reads"


def test_it_runs_the_image_as_the_image_wants_it() -> None:
    assert CONTAINER["image"] == f"pyspark-bookkeeper:{bk_core.__version__}"
    user = f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert user == Image("bookie").last("USER")
    assert POD["securityContext"]["fsGroup"] == 1000
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not POD["automountServiceAccountToken"]


def test_so_many_may_be_away_as_the_default_quorums_bear_and_an_ensemble_is_left() -> None:
    given = inspect.signature(BookKeeper.create_ledger).parameters
    e, qw, qa = (given[f"{name}_size"].default for name in ("ensemble", "write_quorum", "ack_quorum"))
    budget = BY_KIND["PodDisruptionBudget", "bookie"]["spec"]
    assert budget["maxUnavailable"] == min(qw - qa, qa - 1) == 1
    assert SET["replicas"] - budget["maxUnavailable"] >= e
    assert budget["selector"]["matchLabels"] == LABELS


def test_a_restart_is_over_before_copies_are_made_elsewhere(config: BookieConfig) -> None:
    assert POD["terminationGracePeriodSeconds"] >= 2 * config.stop_grace_s
    assert config.lost_bookie_delay_s > POD["terminationGracePeriodSeconds"] + 60, "a pod that moves to another node"
    selectors = [BY_KIND[kind, "bookie"]["spec"] for kind in ("Service", "NetworkPolicy")]
    assert [selectors[0]["selector"], selectors[1]["podSelector"]["matchLabels"]] == [LABELS, LABELS]
