"""AgentDojo's suites as toolpacks: unchanged, built only when used, and available only if AgentDojo is installed."""

import subprocess
import sys

import pytest
import serving
import with_agentdojo
from agentdojo.task_suite.load_suites import get_suites
from agentdojo.task_suite.task_suite import TaskSuite

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.packs.loading import inspect_toolpacks, load_catalog
from toolpack_server.snapshots.comparison import difference

pytestmark = with_agentdojo.HEAVY

SUITES = tuple(get_suites("v1.2.2"))  # AgentDyn adds three to AgentDojo's four
NAMES = tuple(f"agentdojo-{name}" for name in SUITES)


@pytest.fixture(scope="module")
def packs():
    return load_catalog((), NAMES).toolpacks


@pytest.fixture
def builds(monkeypatch):
    """A list that records each environment that AgentDojo builds."""
    built = []
    build = TaskSuite.load_and_inject_default_environment

    def counting(suite, injections):
        built.append(suite.name)
        return build(suite, injections)

    monkeypatch.setattr(TaskSuite, "load_and_inject_default_environment", counting)
    return built


def run(code):
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return process.returncode, process.stdout, process.stderr


def check_without(module):
    """Check all toolpacks with a module missing. The other benchmarks are hidden, because checking them takes long."""
    hidden = dict.fromkeys([module, "bfcl_eval", "tau2"])
    return run(
        f"import sys; sys.modules.update({hidden}); sys.argv[1:] = ['check']; import toolpack_server.cli as c; c.main()"
    )


@pytest.mark.parametrize("name", SUITES)
def test_functions_and_environments_equal_agentdojos(packs, name):
    pack, suite = packs[f"agentdojo-{name}"], get_suites("v1.2.2")[name]
    assert pack.opt_in
    assert pack.environment_class is suite.environment_type
    assert [registered.function for registered in pack.functions.values()] == suite.tools
    assert {type(registered.function) for registered in pack.functions.values()} == {type(suite.tools[0])}
    assert difference(suite.load_and_inject_default_environment({}), pack.build({})) is None


@pytest.mark.parametrize("version", ["v1", "v1.1.2", "v1.2.2"])
@pytest.mark.parametrize("name", SUITES)
def test_options_build_the_same_environment_as_agentdojo(packs, name, version):
    suite = get_suites(version)[name]
    injections = dict.fromkeys(suite.get_injection_vector_defaults(), "INJECTED")
    options = {"benchmark_version": version, "injections": injections, "user_task": "user_task_1"}
    built = packs[f"agentdojo-{name}"].build(options)
    assert difference(suite.load_and_inject_default_environment(injections), built) is None
    assert "INJECTED" in built.model_dump_json()


def test_user_task_option_prepares_its_environment(packs, monkeypatch):
    def init_environment(environment):
        environment.bank_account.balance = 7
        return environment

    task = get_suites("v1.2.2")["banking"].user_tasks["user_task_3"]
    monkeypatch.setattr(type(task), "init_environment", staticmethod(init_environment))
    assert packs["agentdojo-banking"].build({"user_task": "user_task_3"}).bank_account.balance == 7
    assert packs["agentdojo-banking"].build({"user_task": "user_task_4"}).bank_account.balance != 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"benchmark_version": "v9"}, "benchmark_version: Input should be 'v1', 'v1.1'"),
        ({"injections": {"nowhere": "x"}}, "'nowhere' is no injection vector: choose from injection_dora_0, "),
        ({"injections": {"injection_web_0": 'a "quote"'}}, "an injection breaks the environment's YAML"),
        ({"user_task": "user_task_99"}, "'user_task_99' is no user task of v1.2.2: choose from user_task_0, "),
        ({"user_task": "injection_task_1"}, "'injection_task_1' is no user task"),
        ({"seed": 1}, "seed: Extra inputs are not permitted"),
    ],
)
def test_wrong_options_are_rejected_with_the_valid_ones(packs, options, message):
    with pytest.raises(InvalidParamsError) as refused:
        packs["agentdojo-slack"].build(options)
    assert message in str(refused.value)


def test_environment_of_the_same_options_is_built_once(builds):
    bench = serving.Bench(load_catalog((), NAMES))
    options = {"agentdojo-banking": {"injections": {"injection_bill_text": "hello"}}}
    for build_options in ({}, {}, options, options):
        bench.create("agentdojo-banking", options=build_options)
    bench.close()
    assert builds == ["banking"] * 2


def test_start_builds_no_environment_and_check_builds_all(builds):
    load_catalog((), NAMES)
    assert builds == []
    _, problems = inspect_toolpacks((), NAMES)
    assert not problems
    assert {*builds} == {*SUITES}


def test_loading_does_not_import_clients_of_model_vendors():
    status, out, err = run(
        "import sys, toolpacks.agentdojo\n"
        "print('openai' in sys.modules, 'anthropic' in sys.modules, 'google.genai' in sys.modules)\n"
        "from agentdojo.agent_pipeline.tool_execution import EMPTY_FUNCTION_NAME as constant\n"
        "from agentdojo.agent_pipeline.llms.google_llm import EMPTY_FUNCTION_NAME, GoogleLLM\n"
        "print(constant == EMPTY_FUNCTION_NAME)\n"
        "from agentdojo.agent_pipeline import OpenAILLM, GroundTruthPipeline\n"
        "import agentdojo.agent_pipeline, agentdojo.agent_pipeline.ground_truth_pipeline as g\n"
        "print('openai' in sys.modules, type(agentdojo.agent_pipeline).__name__)\n"
        "print(g.GroundTruthPipeline is GroundTruthPipeline)"
    )
    assert status == 0, err
    assert out.split() == ["False", "False", "False", "True", "True", "module", "True"]


def test_suite_added_by_a_fork_of_agentdojo_is_a_toolpack():
    status, out, err = run(
        "import copy\n"
        "from agentdojo.task_suite import load_suites\n"
        "added = copy.copy(load_suites.get_suites('v1.2.2')['banking'])\n"
        "added.name = 'shopping'\n"
        "load_suites.register_suite(added, 'v1.2.2')\n"
        "from toolpack_server.packs.loading import load_catalog\n"
        "(pack,) = load_catalog((), ('agentdojo-shopping',)).toolpacks.values()\n"
        "print(pack.name, len(pack.task_list.all()))"
    )
    assert (status, out) == (0, "agentdojo-shopping 25\n"), err


def test_without_agentdojo_check_says_how_to_install_it():
    status, out, _ = check_without("agentdojo")
    assert status == 0
    assert "pip install 'toolpack-server[agentdojo]'" in out


def test_broken_installation_of_agentdojo_is_a_problem():
    status, _, err = check_without("deepdiff")
    assert status == 1
    assert "deepdiff" in err
