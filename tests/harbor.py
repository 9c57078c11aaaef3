"""Harbor's validator of trajectories. It runs in a separate Python, because it needs Python 3.12.

The variable HARBOR names a Python with Harbor. Without it the trajectories aren't validated, and a skipped test says
how to install Harbor.
"""

import json
import os
import subprocess

import pytest

PYTHON = os.environ.get("HARBOR")
ADVICE = "no Harbor: python3.12 -m venv X && X/bin/pip install harbor, and set HARBOR=X/bin/python"
PROGRAM = """
import json, sys
from harbor.utils.trajectory_validator import TrajectoryValidator
for line in sys.stdin:
    validator = TrajectoryValidator()
    validator.validate(json.loads(line))
    print(json.dumps(validator.errors))
"""


def errors(trajectories):
    """Return the errors that Harbor finds in trajectories, or nothing if Harbor isn't installed."""
    if PYTHON is None or not trajectories:
        return []
    lines = "".join(json.dumps(each) + "\n" for each in trajectories)
    process = subprocess.run([PYTHON, "-c", PROGRAM], input=lines, capture_output=True, text=True, check=True)
    return [error for line in process.stdout.splitlines() for error in json.loads(line)]


def required():
    if PYTHON is None:
        pytest.skip(ADVICE)
