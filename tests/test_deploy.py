"""The files for operators and contributors agree with the code and the pages."""

import re
from pathlib import Path

import http_server
import httpx
import serving
import yaml

from toolpack_server.base.settings import Settings
from toolpack_server.cli.serve import serve
from toolpack_server.processes.supervisor import STOP_SECONDS
from tools import scale

ROOT = Path(__file__).parent.parent
DEVELOP = (ROOT / "docs/internals/develop.md").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


def resources(folder):
    """Return the resources that Kustomize generates from a base. The bases here only list files."""
    base = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert base.keys() == {"apiVersion", "kind", "resources"}
    for name in base["resources"]:
        path = (folder / name).resolve()
        yield from resources(path) if path.is_dir() else yaml.safe_load_all(path.read_text(encoding="utf-8"))


def by_name(folder):
    resource_list = [*resources(ROOT / "deploy" / folder)]
    resources_by_name = {(each["kind"], each["metadata"]["name"]): each for each in resource_list}
    assert len(resources_by_name) == len(resource_list), "two have one name"
    return resources_by_name


WITH_REDIS, WITH_POSTGRES = by_name("redis"), by_name("postgres")


def resource(kind, name):
    return WITH_REDIS[kind, name]


DEPLOYMENT = resource("Deployment", "toolpack-server")["spec"]
POD = DEPLOYMENT["template"]["spec"]
SERVER = POD["containers"][0]
VARIABLES = {variable["name"]: variable for variable in SERVER["env"]}


def test_every_file_is_part_of_a_base_and_is_validated():
    validated = re.search(r"kubernetes-validate --strict (.*)", DEVELOP)[1].split()
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*.yaml")}
    assert {path for path in files if not path.endswith("kustomization.yaml")} == {*validated}
    kinds = {each["kind"] for resources_by_name in (WITH_REDIS, WITH_POSTGRES) for each in resources_by_name.values()}
    assert kinds >= {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"}


def test_the_pods_variables_are_settings():
    names = {f"TOOLPACK_{name.upper()}" for name in Settings.model_fields}
    assert VARIABLES.keys() <= names
    variables = {name: variable["value"] for name, variable in VARIABLES.items() if "value" in variable}
    Settings(**{name.removeprefix("TOOLPACK_").lower(): value for name, value in variables.items()})
    flags = {argument.partition("=")[0] for argument in SERVER["args"][1:]}
    assert flags <= {option for parameter in serve.params for option in parameter.opts}


def test_the_command_of_the_page_makes_the_secret():
    page = (ROOT / "docs/operate/deploy.md").read_text(encoding="utf-8")
    name, *keys = re.search(r"^kubectl create secret generic (.*)$", page, re.MULTILINE)[1].split(" --from-literal=")
    names = {key.partition("=")[0] for key in keys}
    references = [each["valueFrom"]["secretKeyRef"] for each in VARIABLES.values() if "valueFrom" in each]
    assert {each["name"] for each in references} == {name}
    assert {each["key"] for each in references} == names
    store = next(key.partition("=")[2] for key in keys if key.startswith("store="))
    redis = resource("Service", "redis")
    assert store == f"redis://{redis['metadata']['name']}:{redis['spec']['ports'][0]['port']}/0"


def test_a_pod_has_time_to_finish_its_calls():
    pause = int(SERVER["lifecycle"]["preStop"]["exec"]["command"][1])
    leave, drain = (float(VARIABLES[f"TOOLPACK_{name}_SECONDS"]["value"]) for name in ("SHUTDOWN_DELAY", "DRAIN"))
    assert leave > 0
    assert drain >= Settings().timeout_seconds
    assert POD["terminationGracePeriodSeconds"] >= pause + leave + drain + STOP_SECONDS


def test_a_new_pod_is_ready_before_an_old_one_leaves():
    assert DEPLOYMENT["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    scaler = resource("HorizontalPodAutoscaler", "toolpack-server")["spec"]
    target = resource("Deployment", scaler["scaleTargetRef"]["name"])
    assert scaler["scaleTargetRef"] == {each: target[each] for each in ("apiVersion", "kind")} | {
        "name": target["metadata"]["name"]
    }
    assert "replicas" not in DEPLOYMENT, "each `apply` would undo the scaler's changes"


def test_a_server_answers_the_probes_and_has_the_scaling_metric():
    (port,) = (port["containerPort"] for port in SERVER["ports"])
    assert port == Settings().port
    probes = {SERVER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    (metric,) = resource("HorizontalPodAutoscaler", "toolpack-server")["spec"]["metrics"]
    with (
        http_server.running(serving.CATALOG, store="memory:", tokens="me:a-token-for-this", log_calls="off") as url,
        httpx.Client(base_url=url, headers={"Host": "10.0.0.7:8000"}) as http,
    ):
        assert {path: http.get(path).status_code for path in probes} == dict.fromkeys(probes, 200)
        served = http.get("/metrics", headers={"Authorization": "Bearer a-token-for-this"}).text
    assert re.search(rf"^# TYPE {metric['pods']['metric']['name']} gauge$", served, re.MULTILINE)


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


def test_redis_has_the_same_options_in_both_files():
    args = resource("StatefulSet", "redis")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args == COMPOSE["redis"]["command"]


def test_only_addresses_of_the_policies_are_reachable():
    redis = resource("NetworkPolicy", "redis")["spec"]
    for resources_by_name, port, to in ((WITH_REDIS, 6379, "redis"), (WITH_POSTGRES, 5432, None)):
        policies = [
            each["spec"]
            for each in resources_by_name.values()
            if each["kind"] == "NetworkPolicy" and each["spec"] != redis
        ]
        budget = resources_by_name["PodDisruptionBudget", "toolpack-server"]["spec"]
        labels = resources_by_name["Deployment", "toolpack-server"]["spec"]["template"]["metadata"]["labels"]
        assert [each["podSelector"] for each in policies] == [budget["selector"]] * 2 == [{"matchLabels": labels}] * 2
        rules = [rule for policy in policies for rule in policy["egress"]]
        assert {allowed["port"] for rule in rules for allowed in rule["ports"]} == {port, 53}
        assert [rule["to"] for rule in rules if "to" in rule] == (
            [[{"podSelector": {"matchLabels": {"app": to}}}]] if to else []
        )
        assert redis["ingress"][0]["from"][0]["podSelector"] == budget["selector"]
    assert "egress" not in redis


def test_pre_commit_hooks_are_checks_of_ci():
    ruff, local = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert {hook["id"] for hook in ruff["hooks"]} == {"ruff-check", "ruff-format"}
    commands = re.search(r"^These checks only read the code.*?```sh\n(.*?)```", DEVELOP, re.DOTALL | re.MULTILINE)[
        1
    ].splitlines()
    for hook in local["hooks"]:
        assert any(command.startswith(hook["entry"]) for command in commands), hook["entry"]


def test_the_page_on_fleets_has_the_computed_tables():
    page = (ROOT / "docs/operate/scale.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("|")] == [*scale.cost_rows(), *scale.fleet_rows()]
