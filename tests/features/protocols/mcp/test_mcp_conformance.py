"""MCP's conformance suite for both eras, and the TypeScript SDK. They need Node.js and packages from npm."""

import json
import re
import subprocess
from pathlib import Path

import mcp_clients
import mcp_endpoint
import pytest

FOLDER = Path(__file__).parent / "mcp_conformance"
REVISIONS = [path.stem for path in sorted(FOLDER.glob("*.yml"))]

# A client that connects twice, lists the tools, and calls each tool once per connection.
SCRIPT = """
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
for (const number of [1, 2]) {
    const client = new Client({ name: "script", version: "1" });
    await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
    const { tools } = await client.listTools();
    const long = await client.callTool({ name: "test_tool_with_progress", arguments: { seconds: 0.3 } });
    const result = await client.callTool({ name: "count", arguments: { number } });
    const image = await client.callTool({ name: "test_image_content", arguments: {} });
    console.log(JSON.stringify([tools.length, long.content, result.structuredContent, image.content[0].mimeType]));
    await client.close();
}
"""

# A client of the extension for tasks, which calls a tool and polls. Its host defines how requests are sent.
EXT_TASKS = """
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
const url = new URL(process.argv[2]);
const clientInfo = { name: "script", version: "1" };
const capabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };
const methods = [];
async function rawDispatch(request) {
    methods.push(request.method);
    const name = request.params.taskId ?? request.params.name;
    const headers = { "content-type": "application/json", "mcp-protocol-version": "2026-07-28" };
    Object.assign(headers, { "mcp-method": request.method, "mcp-name": name });
    const body = JSON.stringify({ jsonrpc: "2.0", id: methods.length, ...request });
    const { result, error } = await (await fetch(url, { method: "POST", headers, body })).json();
    return error ? { kind: "error", error } : { kind: "result", result };
}
const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode: "auto" } });
await client.connect(new StreamableHTTPClientTransport(url));
const v2RequestFraming = { protocolVersion: "2026-07-28", clientInfo, clientCapabilities: capabilities };
const session = createTaskSessionFromClient(client, { endpointId: "here", rawDispatch, v2RequestFraming });
const execution = await session.callTool("slow_compute", { seconds: 1.5, label: "once" });
const { outcome } = await execution.settle();
console.log(JSON.stringify([resultFromTaskOutcome(outcome).content[0].text, [...new Set(methods)]]));
await session.close();
await client.close();
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return mcp_clients.packages(tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="module")
def server():
    with mcp_endpoint.served(sign_seconds=0.15) as served:
        yield served


def run(command, folder):
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    return ended.stdout


def test_each_era_has_a_list_of_expected_failures():
    assert REVISIONS == ["2025-11-25", mcp_endpoint.MODERN]


@pytest.mark.parametrize("revision", REVISIONS)
def test_conformance_suite_passes_except_listed_failures(packages, mcp, tmp_path, revision):
    node, modules = packages
    suite = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    url = f"http://127.0.0.1:{mcp.endpoint.port}{mcp.path}"
    expected_failures = FOLDER / f"{revision}.yml"
    output = run(
        [node, suite, "server", "--url", url, "--requirements", revision, "--expected-failures", expected_failures],
        tmp_path,
    )
    passed_scenarios = re.findall(r"✓ ([\w-]+): [1-9]\d* passed, 0 failed", output)
    assert {"tools-list", "tools-call-simple-text", "tools-call-with-progress", "dns-rebinding-protection"} <= set(
        passed_scenarios
    )


def test_client_of_the_extension_for_tasks_polls_a_long_call(packages, mcp):
    node, modules = packages
    script = modules.parent / "tasks.mjs"
    script.write_text(EXT_TASKS)
    output = run([node, script, f"http://127.0.0.1:{mcp.endpoint.port}{mcp.path}"], modules.parent)
    assert json.loads(output) == ["computed once in 1.5 s", ["tools/call", "tasks/get"]]
    assert len(mcp.rpc("get_trace")) == 1


def test_typescript_sdk_keeps_its_world(packages, mcp):
    node, modules = packages
    script = modules.parent / "client.mjs"
    script.write_text(SCRIPT)
    url = f"http://127.0.0.1:{mcp.endpoint.port}{mcp.path}"
    first, second = run([node, script, url], modules.parent).splitlines()
    long = '[{"type":"text","text":"waited 0.3 s"}]'
    assert first.endswith(f',{long},{{"counts":[1,1]}},"image/png"]')
    assert second.endswith(f',{long},{{"counts":[1,1,1,2]}},"image/png"]')
