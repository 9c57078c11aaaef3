"""The files for operators and contributors agree with what they are about."""

import re
from pathlib import Path

import yaml

from server.base.settings import Settings

ROOT = Path(__file__).parent.parent
RESOURCES = list(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8")))
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


def resource(kind, name):
    return next(r for r in RESOURCES if (r["kind"], r["metadata"]["name"]) == (kind, name))


POD = resource("Deployment", "toolpack-server")["spec"]["template"]["spec"]
SERVER = POD["containers"][0]


def test_the_pods_variables_are_settings():
    known = {f"TOOLPACK_{name.upper()}" for name in Settings.model_fields}
    assert {variable["name"] for variable in SERVER["env"]} <= known


def test_a_pod_has_time_to_finish_its_calls():
    pause = int(SERVER["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = next(float(v["value"]) for v in SERVER["env"] if v["name"] == "TOOLPACK_DRAIN_SECONDS")
    assert POD["terminationGracePeriodSeconds"] >= pause + drain + 3


def test_the_pod_runs_as_the_images_user():
    user = re.search(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert POD["securityContext"]["runAsUser"] == int(user[1])


def test_containers_are_confined_alike_in_both_files():
    redis = resource("StatefulSet", "redis")["spec"]["template"]["spec"]
    for name, pod in (("server", POD), ("redis", redis)):
        (container,), service = pod["containers"], COMPOSE[name]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"] == container["resources"]["limits"]["memory"].removesuffix("Gi") + "g"
    user = redis["securityContext"]
    assert COMPOSE["redis"]["user"] == f"{user['runAsUser']}:{user['runAsGroup']}"


def test_redis_keeps_what_it_is_told_in_both_files():
    args = resource("StatefulSet", "redis")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args == COMPOSE["redis"]["command"]


def test_only_what_the_policies_name_is_reached():
    server, redis = (resource("NetworkPolicy", name)["spec"] for name in ("toolpack-server", "redis"))
    assert server["podSelector"] == resource("PodDisruptionBudget", "toolpack-server")["spec"]["selector"]
    ports = {port["port"] for rule in server["egress"] for port in rule["ports"]}
    assert ports == {6379, 53}
    assert redis["ingress"][0]["from"][0]["podSelector"] == server["podSelector"]
    assert "egress" not in redis


def test_before_a_commit_the_quick_checks_of_ci_run():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    page = (ROOT / "docs/internals/develop.md").read_text(encoding="utf-8")
    commands = re.search(r"## Checks.*?```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()
    for hook in hooks:
        assert any(command.startswith(hook["entry"]) for command in commands), hook["entry"]
