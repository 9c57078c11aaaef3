"""The graders for OpenEnv. OpenEnv must find the graders, run them and use their results.

The tests run in the Python that TRAINERS names, which has OpenEnv. They call OpenEnv's own functions, because `openenv
validate` 0.10 loads only its built-in graders.
"""

import json
import subprocess
import textwrap

import pytest
from test_ors_clients import PYTHON, needs

GRADE = """
import json, sys
from pathlib import Path
from openenv.validation import GraderRegistry, Level, Subject, apply_policy, load_policy
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from openenv.validation.runtime.scheduler import execute_graders
from openenv.validation.types import Lane

root = Path(sys.argv[1])
manifest = OpenEnvYamlParser().parse(root)
registry = GraderRegistry()
registry.load_entry_points()
subject = Subject(root, manifest, None, None, root / "outputs")
results = execute_graders(registry.select(manifest, Level.SEMANTIC), subject)
verdict = apply_policy(results, load_policy("v2"), Lane.LOCAL)
print(json.dumps([verdict.value, [json.loads(each.model_dump_json()) for each in results]]))
"""
MANIFEST = """
name: {name}
validation:
  reward: {{range: [0.0, 1.0], floor_margin: 0.5}}
  resources: {{cpu: 1, memory_mb: 512, disk_mb: 512, episode_timeout_s: 60}}
  capabilities: {{verifier: {{kind: reward_channel}}}}
  types: {{tags: [{tag}]}}
"""
TOOLPACK = """
from toolpack_server import Depends, TaskEnvironment, Toolpack
from typing import Annotated

class Lamp(TaskEnvironment):
    lit: bool = False

toolpack = Toolpack("lamp", Lamp)

@toolpack.function
def light(env: Annotated[Lamp, Depends(lambda env: env)]) -> bool:
    'Light the lamp.'
    env.lit = True
    return env.lit

@toolpack.task("light", "Light the lamp.", solution=[("light", {{}})])
def done(rollout):
    return {passes}
"""


def graded(folder, tag="toolpack-server", toolpack=None):
    (folder / "packs").mkdir()
    (folder / "openenv.yaml").write_text(MANIFEST.format(name="lamp", tag=tag))
    if toolpack is not None:
        (folder / "packs" / "lamp.py").write_text(textwrap.dedent(toolpack))
    run = subprocess.run([PYTHON, "-c", GRADE, str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    verdict, results = json.loads(run.stdout.splitlines()[-1])
    return verdict, {each["check_id"].removeprefix("semantic."): each for each in results}


@pytest.fixture(autouse=True)
def _openenv():
    needs("toolpack_author, openenv.validation")


ALL = {"oracle_max", "floor_gap", "no_solution_leakage", "verifier_determinism"}


def test_sound_task_passes_each_check(tmp_path):
    verdict, results = graded(tmp_path, toolpack=TOOLPACK.format(passes="rollout.environment.lit"))
    assert (verdict, results.keys()) == ("pass", ALL)
    assert {each["status"] for each in results.values()} == {"pass"}
    assert results["floor_gap"]["measured"]["tasks"] == 1
    assert results["floor_gap"]["measured"]["attempts"] > 0


@pytest.mark.parametrize(
    ("passes", "failing", "kind"), [("True", "floor_gap", "nothing-passes"), ("False", "oracle_max", "solution-fails")]
)
def test_fault_fails_only_its_check_and_names_the_attempt(tmp_path, passes, failing, kind):
    verdict, results = graded(tmp_path, toolpack=TOOLPACK.format(passes=passes))
    assert verdict == "fail"
    assert {name for name, each in results.items() if each["status"] != "pass"} == {failing}
    assert results[failing]["evidence"][0].startswith(f"lamp/light: {kind}: ")
    assert results[failing]["remediation"]


def test_broken_toolpacks_are_errors_and_absent_ones_are_skipped(tmp_path):
    for name, toolpack, status in (("broken", "import nothing_of_this_name", "error"), ("empty", None, "skip")):
        (tmp_path / name).mkdir()
        _, results = graded(tmp_path / name, toolpack=toolpack)
        assert {each["status"] for each in results.values()} == {status}, results


def test_packages_without_toolpacks_are_not_graded(tmp_path):
    assert graded(tmp_path, tag="games") == ("pass", {})
