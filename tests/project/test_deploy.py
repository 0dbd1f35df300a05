"""What is kept for containers: its commands are ones that there are, its ports meet, and the image's steps work."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml

from actorserve.actors.cli import make_parser
from actorserve.actors.options.command_line import read_config
from actorserve.actors.route.settings import RouteSettings, read_settings
from tests.support.selection import SLOW_S

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "tools" / "deploy"
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def parsed(words: list[str]) -> Any:
    """As the command line reads them; it ends the test where it cannot."""
    return make_parser(words[0]).parse_args(words)


def object_of(kind: str, name: str) -> Any:
    (found,) = (one for one in KUBERNETES if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found["spec"]


def container_of(kind: str, name: str) -> Any:
    (container,) = object_of(kind, name)["template"]["spec"]["containers"]
    return container


def settings_of(words: list[str]) -> RouteSettings:
    return read_settings(parsed(words))


def test_the_router_of_kubernetes_knows_each_replica() -> None:
    replicas = object_of("StatefulSet", "actorserve-replica")
    service = replicas["serviceName"]
    port = container_of("StatefulSet", "actorserve-replica")["ports"][0]["containerPort"]
    names = [f"http://actorserve-replica-{index}.{service}:{port}" for index in range(replicas["replicas"])]
    assert settings_of(container_of("Deployment", "actorserve-router")["args"]).replicas == names
    assert object_of("Service", service)["clusterIP"] == "None"


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "actorserve-replica"), ("Deployment", "actorserve-router")])
def test_commands_and_probes_of_kubernetes_fit(kind: str, name: str) -> None:
    pod, container = object_of(kind, name)["template"]["spec"], container_of(kind, name)
    arguments = parsed(container["args"])
    port = container["ports"][0]
    assert int(arguments.port) == port["containerPort"] and arguments.host == "0.0.0.0"
    probes = [probe for field, probe in container.items() if field.endswith("Probe")]
    assert {probe["httpGet"]["path"] for probe in probes} == {"/ready", "/livez"}
    assert all(probe["httpGet"]["port"] == port["name"] for probe in probes)
    assert pod["terminationGracePeriodSeconds"] > float(arguments.shutdown_timeout) + 20
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[0] == "sleep" or parsed(hook[1:]).timeout == float(arguments.shutdown_timeout)


def test_the_server_of_kubernetes_knows_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides' options are ones that there are, they have the same secret, and names and ports meet."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes-engines.yaml").read_text()))
    specs = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in documents}
    engines, head = specs["StatefulSet", "actorserve-engine"], specs["Deployment", "actorserve-head"]
    containers = [spec["template"]["spec"]["containers"][0] for spec in (engines, head)]
    secrets = [next(one for one in container["env"] if "valueFrom" in one) for container in containers]
    assert secrets[0] == secrets[1]
    monkeypatch.setenv(secrets[0]["name"], "x" * 16)
    engine, server = (read_config(parsed(container["args"]), {}) for container in containers)
    (port,) = containers[0]["ports"]
    service = engines["serviceName"]
    names = [f"actorserve-engine-{index}.{service}:{port['containerPort']}" for index in range(engines["replicas"])]
    assert (server.remote_engines, server.local_engines) == (names, 0)
    assert engine.steward == f"0.0.0.0:{port['containerPort']}"
    assert specs["Service", service]["clusterIP"] == "None"


def test_whoever_reads_a_model_has_room_for_it() -> None:
    """Their root is read-only, and models of the hub lie in /models. The router reads none."""
    for name in ("kubernetes.yaml", "kubernetes-engines.yaml"):
        documents = list(yaml.safe_load_all((DEPLOY / name).read_text()))
        claims = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
        for spec in (one["spec"] for one in documents if "template" in one["spec"]):
            pod = spec["template"]["spec"]
            (container,) = pod["containers"]
            if container["args"][0] == "route":
                continue
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            made = {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", ())}
            made |= {
                volume["name"]
                for volume in pod["volumes"]
                if volume.get("persistentVolumeClaim", {}).get("claimName") in claims
            }
            assert mounts["/models"] in made, container["name"]


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-engines.yaml"])
def test_services_leave_no_variables_in_pods(name: str) -> None:
    """The one named actorserve would leave ACTORSERVE_PORT=tcp://…, which is an option."""
    documents = yaml.safe_load_all((DEPLOY / name).read_text())
    pods = [one["spec"]["template"]["spec"] for one in documents if "template" in one["spec"]]
    assert len(pods) == 2 and not any(pod["enableServiceLinks"] for pod in pods)


def test_shared_memory_has_room() -> None:
    """What an engine gives by itself is a quarter of what the smallest server takes."""
    pod = object_of("StatefulSet", "actorserve-replica")["template"]["spec"]
    (shm,) = (volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/dev/shm"] == "shm"
    assert all(COMPOSE["services"][name]["shm_size"] == "1gb" for name in ("replica-a", "replica-b"))


def test_compose_routes_to_its_replicas() -> None:
    services = COMPOSE["services"]
    router = settings_of(services["router"]["command"])
    replicas = [name for name in services if name != "router"]
    ports = {name: parsed(services[name]["command"]).port for name in replicas}
    assert router.replicas == [f"http://{name}:{ports[name]}" for name in replicas]
    assert services["router"]["ports"] == [f"127.0.0.1:{router.port}:{router.port}"]
    assert services["router"]["environment"]["HEALTH_URL"].endswith(f":{router.port}/livez")
    assert {services[name]["build"]["dockerfile"] for name in replicas} == {"tools/deploy/Containerfile"}


def test_the_image_is_no_roots_and_starts_the_server() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    assert (
        said["USER"] == "10001" and said["STOPSIGNAL"] == "SIGTERM" and json.loads(said["ENTRYPOINT"]) == ["actorserve"]
    )
    assert "/livez" in said["HEALTHCHECK"] and "ProxyHandler({})" in said["HEALTHCHECK"]
    assert parsed(json.loads(said["CMD"])).host == "0.0.0.0"
    variables = dict(line.removeprefix("ENV ").split("=", 1) for line in lines if line.startswith("ENV "))
    caches = [Path(variables[name]) for name in ("HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR")]
    kept = json.loads(said["VOLUME"])
    assert all(any(cache.is_relative_to(volume) for volume in kept) for cache in caches), "what is made lasts"


@pytest.mark.parametrize("command", ["exec sleep 1000", "sleep 1000 & wait"])
def test_a_server_that_says_nothing_is_not_waited_for_without_end(command: str) -> None:
    """Also where a child of it has its output, too."""
    waits = runpy.run_path(str(DEPLOY / "try"))["wait_until_ready"]
    waits.__globals__["READY_S"] = 0.1
    shell = ["sh", "-c", command]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, start_new_session=True) as silent:
        with pytest.raises(AssertionError, match="ready"):
            waits(silent)
    assert silent.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="it lays folders over others")
def test_the_images_steps_work_in_a_fresh_root() -> None:
    packages = str(Path(numpy.__file__).parents[1])
    command = [sys.executable, str(DEPLOY / "try"), "--dependencies", packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SLOW_S - 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "setpriv --reuid=10001" in done.stdout and "the image's steps work" in done.stdout
