"""Clients of MCP that accept handles of long calls, for tests."""

from mcp_endpoint import META, MODERN

TASKS = "io.modelcontextprotocol/tasks"
ACCEPTS = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
CALL_ID = "toolpack-server/call_id"
ENDED = {"completed", "failed", "cancelled"}


def message(method, call_id=None, **params):
    """Return the headers and the body of a request of a client that accepts handles."""
    meta = META | ACCEPTS | ({} if call_id is None else {CALL_ID: call_id})
    named = params.get("taskId", params.get("name"))
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": named}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return {name: value for name, value in headers.items() if value is not None}, body


class HandleClient:
    """A client at one address.

    Args:
        http: An HTTP client with the server's URL.
    """

    def __init__(self, http, path):
        self.http, self.path = http, path

    def post(self, method, call_id=None, /, **params):
        headers, body = message(method, call_id, **params)
        return self.http.post(self.path, json=body, headers=headers)

    def ask(self, method, call_id=None, /, **params):
        reply = self.post(method, call_id, **params)
        assert reply.status_code == 200, reply.text
        return reply.json()["result"]

    def call(self, name, call_id=None, /, **arguments):
        return self.ask("tools/call", call_id, name=name, arguments=arguments)

    def get(self, handle):
        return self.ask("tasks/get", taskId=handle["taskId"])

    def cancel(self, handle):
        return self.ask("tasks/cancel", taskId=handle["taskId"])
