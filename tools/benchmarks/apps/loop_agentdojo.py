"""AgentDojo without a server, as a contender: a plain loop that copies the environment for each call.

    python -m loop_agentdojo SUITE FUNCTION ARGUMENTS

The copy makes calls atomic, as on the server: a failed call leaves the environment unchanged. Each line on standard
input is a number of seconds to run; the answer is a line of JSON.
"""

import copy
import json
import statistics
import sys
import time

from agentdojo.functions_runtime import FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites


def main():
    suite_name, function, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    suite = get_suites("v1.2.2")[suite_name]
    runtime = FunctionsRuntime(suite.tools)
    environment = suite.load_and_inject_default_environment({})
    print("ready", flush=True)
    for line in sys.stdin:
        end, cpu, began = time.monotonic() + float(line), time.process_time(), time.monotonic()
        durations, failed = [], 0
        while time.monotonic() < end:
            start = time.perf_counter()
            candidate = copy.deepcopy(environment)
            _, error = runtime.run_function(candidate, function, arguments)
            if error is None:
                environment = candidate
            else:
                failed += 1
            durations.append(time.perf_counter() - start)
        percentiles = statistics.quantiles(durations, n=100)
        figures = {
            "answered": len(durations),
            "failed": failed,
            "seconds": time.monotonic() - began,
            "p50_ms": percentiles[49] * 1000,
            "p99_ms": percentiles[98] * 1000,
            "cpu_seconds": time.process_time() - cpu,
        }
        print(json.dumps(figures), flush=True)


main()
