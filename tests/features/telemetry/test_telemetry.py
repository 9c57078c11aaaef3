"""OpenTelemetry export: spans and metrics of calls under the standard's names. It is off without a receiver."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time

import mcp_clients
import otlp_receiver
import pytest
import server_process
import serving
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from toolpack_server.features.telemetry.environment import exported_signals
from toolpack_server.features.telemetry.executor_spans import MAX_SPANS, read_spans
from toolpack_server.observability.trace_context import TraceContext, trace_context
from toolpack_server.rpc.caller import Caller

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "foo=1"}
SERVER, INTERNAL = 2, 1
SECRET = "what-was-said"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture
def receiver():
    with otlp_receiver.receiving() as receiver:
        yield receiver


@pytest.fixture
def bench(receiver, monkeypatch, make_bench):
    """Return a function that makes a server in this process. The server exports to the receiver."""

    def make(**settings):
        variables = settings.pop("variables", {})
        for name, value in receiver.variables(**variables).items():
            monkeypatch.setenv(name, value)
        server = make_bench(**settings)
        stack.callback(lambda: server.service.sessions.tracer and server.service.sessions.tracer.close())
        return server

    with contextlib.ExitStack() as stack:
        yield make


def test_call_is_a_server_span_with_children(receiver, tmp_path):
    with server_process.served(tmp_path, **receiver.variables()) as server:
        session = server.rpc("create_session", toolpacks=["ledger"])
        session_id = session["session_id"]
        request = {"jsonrpc": "2.0", "id": "mine", "method": "run_function"}
        params = {"session_id": session_id, "function": "add", "kwargs": {"amount": 1}}
        server.http.post("/rpc", json={**request, "params": params}, headers=PARENT)
        message = {"name": "add", "arguments": {"amount": "x"}, "_meta": {"traceparent": f"00-{'1' * 32}-{SPAN}-01"}}
        server.http.post(
            session["mcp_path"], json={**request, "method": "tools/call", "params": message}, headers=PARENT
        )
        first, failed = receiver.wait_for("run_function add", "tools/call add")
        assert (first.kind, first.trace, first.parent, first.state, first.failed) == (
            SERVER,
            TRACE,
            SPAN,
            "foo=1",
            False,
        )
        assert first.attributes == {
            "rpc.system.name": "jsonrpc",
            "rpc.method": "run_function",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "add",
            "network.transport": "tcp",
            "mcp.session.id": session_id,
            "jsonrpc.request.id": "mine",
        }
        queue, run, commit = (
            next(span for span in receiver.spans if (span.name, span.parent) == (name, first.id))
            for name in ("queue", "run", "commit")
        )
        assert {(span.kind, span.trace) for span in (queue, run, commit)} == {(INTERNAL, TRACE)}
        times = [first.began, queue.ended, run.ended, commit.began, commit.ended, first.ended]
        assert (queue.began, run.began, times) == (first.began, queue.ended, sorted(times))
        assert (failed.trace, failed.parent, failed.failed) == ("1" * 32, SPAN, True)
        assert failed.attributes["mcp.method.name"] == "tools/call"
        assert (failed.attributes["error.type"], failed.attributes["toolpack.outcome"]) == ("tool_error", "arguments")
        assert len({span.id for span in receiver.spans}) == len(receiver.spans)
        assert failed.resource["service.name"] == "toolpack-server"
        serving.wait_until(lambda: len(receiver.metrics) > 1, "the metrics")
        (mcp,) = receiver.metrics["mcp.server.operation.duration"].histogram.data_points
        labels = otlp_receiver.plain(mcp.attributes)
        assert (mcp.count, labels["error.type"], labels["gen_ai.tool.name"]) == (1, "tool_error", "add")
        tools = receiver.metrics["gen_ai.execute_tool.duration"].histogram.data_points
        assert sorted(otlp_receiver.plain(each.attributes).get("error.type", "") for each in tools) == [
            "",
            "tool_error",
        ]
        kinds = {each.histogram.aggregation_temporality for each in receiver.metrics.values()}
        assert kinds == {AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE}
        exported_bytes = b"".join(receiver.bodies)
        for path in (session["agent_path"], session["mcp_path"]):
            assert path.rpartition("/")[2].encode() not in exported_bytes


def test_rejected_and_unknown_calls_have_error_types(receiver, bench):
    server = bench()
    session_id = server.create()
    serving.refused(-32005, server.call, session_id, "add", {"expected_version": 9}, amount=1)
    server.call(session_id, "0" * 48)
    refused, unknown = receiver.wait_for("run_function add", "run_function")
    assert refused.attributes["error.type"] == refused.attributes["rpc.response.status_code"] == "-32005"
    assert unknown.attributes["error.type"] == "not_found"
    assert "gen_ai.tool.name" not in unknown.attributes


@pytest.mark.parametrize(
    ("variable", "exported"), [({}, False), ({CONTENT: "true"}, True), ({CONTENT: "no_content"}, False)]
)
def test_content_is_exported_only_if_a_variable_enables_it(receiver, bench, variable, exported):
    server = bench(variables=variable)
    session_id = server.create()
    server.call(session_id, "echo", value=SECRET)
    server.call(session_id, "add", amount=SECRET)
    succeeded, failed = receiver.wait_for("run_function echo", "run_function add")
    if exported:
        assert json.loads(succeeded.attributes["gen_ai.tool.call.arguments"]) == {"value": SECRET}
        assert json.loads(succeeded.attributes["gen_ai.tool.call.result"]) == SECRET
        assert failed.attributes["gen_ai.tool.call.result"].startswith("ValidationError: ")
    assert (SECRET.encode() in b"".join(receiver.bodies)) == exported


def test_unsampled_trace_is_only_measured(receiver, bench):
    server = bench()
    session_id = server.create()

    async def call_within(text):
        trace_context.set(TraceContext(TRACE, SPAN, sampled=False))
        await server.service.request(Caller(), "run_function", {"session_id": session_id, "function": text})

    server._run(call_within("total"))
    serving.wait_until(lambda: "gen_ai.execute_tool.duration" in receiver.metrics, "the metrics")
    server.call(session_id, "echo", value=1)
    receiver.wait_for("run_function echo")
    assert not [span for span in receiver.spans if span.trace == TRACE]


def test_evaluation_is_a_span_with_an_event(receiver, tmp_path):
    with server_process.served(tmp_path, **receiver.variables()) as server:
        task = server.rpc("list_tasks", toolpack="bank")["tasks"][0]["task"]
        session_id = server.rpc("create_session", toolpacks=["bank"], task=task)["session_id"]
        verdict = server.rpc("evaluate_session", session_id=session_id)
        (span,) = receiver.wait_for(f"evaluate_session {task}")
        attributes = {
            "gen_ai.evaluation.name": task,
            "gen_ai.evaluation.score.value": verdict["reward"],
            "gen_ai.evaluation.score.label": "pass" if verdict["passed"] else "fail",
        }
        assert (span.kind, span.events) == (SERVER, [("gen_ai.evaluation.result", attributes)])
        assert span.attributes["mcp.session.id"] == session_id


@pytest.mark.parametrize(
    ("passed", "valid", "label"), [(True, True, "pass"), (False, True, "fail"), (True, False, "invalid")]
)
def test_evaluation_label_is_pass_fail_or_invalid(receiver, bench, passed, valid, label):
    verdict = {"reward": 1.0, "passed": passed, "valid": valid}
    bench().service.sessions.tracer.evaluated("a" * 48, "bank/any", time.time_ns(), verdict, None)
    (span,) = serving.wait_until(lambda: [*receiver.spans], "the span")
    assert span.events[0][1]["gen_ai.evaluation.score.label"] == label


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_spans_of_a_toolpack_are_children_of_its_calls(receiver, tmp_path, isolation):
    if isolation == "process" and sys.platform != "linux":
        pytest.skip("only Linux has executors")
    variables = receiver.variables(TOOLPACK_ISOLATION=isolation)
    with server_process.served(tmp_path, "--packs", "traced", **variables) as server:
        session_id = server.rpc("create_session", toolpacks=["traced"])["session_id"]
        params = {"session_id": session_id, "function": "look"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params}
        assert server.http.post("/rpc", json=body, headers=PARENT).json()["result"]["result"] == TRACE
        call, run, outer, inner = receiver.wait_for("run_function look", "run", "outer", "inner")
        assert [span.parent for span in (call, run, outer, inner)] == [SPAN, call.id, run.id, outer.id]
        assert {span.trace for span in (call, run, outer, inner)} == {TRACE}
        assert (outer.attributes, outer.events, outer.scope) == ({"depth": 1}, [("looked", {})], "a toolpack")
        for _ in range(3):  # an async function runs first on a thread, then on an event loop that calls share
            trace = server.call(session_id, "wait")["result"]
            ran, waiting = receiver.wait_for("run", "waiting", trace=trace)
            assert waiting.parent == ran.id


def test_spans_from_an_executor_are_validated():
    ids = {"span_id": "1" * 16, "parent_id": "2" * 16}
    good = {"name": "x", "scope": "s", **ids, "kind": 1, "began": 1, "ended": 2, "status": 2, "message": "no"}
    good |= {"attributes": {"a": [1], "b": 1.5, "c": 2**64}, "events": [["e", 1, {}]]}
    changes = [{"kind": 9}, {"span_id": "11"}, {"began": -1}, {"ended": 2**64}, {"events": 1}, {"attributes": []}]
    changes += [{"status": "x"}, {"parent_id": None}, {"events": [["e", "1", {}]]}]
    run = SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=otel.TraceFlags(1))

    def parse(claims):
        return [*read_spans(claims, run, Resource.get_empty())]

    (span,) = parse([{}, [], None, 7, *({**good, **change} for change in changes), {**good, "name": "\ud800"}])
    assert (span.name, span.context.trace_id, span.attributes) == (
        "?",
        run.trace_id,
        {"a": "[1]", "b": 1.5, "c": str(2**64)},
    )
    assert encode_spans([span])
    assert len(parse([good] * 1000)) == MAX_SPANS
    assert parse("not even a list") == []


@pytest.mark.filterwarnings("default")  # The client emits warnings.
def test_instrumented_mcp_client_is_the_parent_of_its_calls(receiver, tmp_path):
    client = mcp_clients.imported("mcp.client.client")
    ended = InMemorySpanExporter()
    if isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider):
        otel.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
    otel.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ended))

    async def call(url):
        async with client.Client(url, mode="2026-07-28") as connected:
            await connected.call_tool("add", {"amount": 1})

    with server_process.served(tmp_path, **receiver.variables()) as server:
        session = server.rpc("create_session", toolpacks=["ledger"])
        asyncio.run(call(server.url + session["mcp_path"]))
        (ours,) = receiver.wait_for("tools/call add")
    (theirs,) = [span for span in ended.get_finished_spans() if span.name.endswith("tools/call add")]
    assert (ours.trace, ours.parent) == (f"{theirs.context.trace_id:032x}", f"{theirs.context.span_id:016x}")
    assert ours.attributes["mcp.protocol.version"] == "2026-07-28"


# Faulty receivers


def test_receiver_that_never_answers_delays_nothing(receiver, tmp_path):
    receiver.silent = True
    with server_process.served(tmp_path, **receiver.variables()) as server:
        session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
        server.call(session_id, "add", amount=1)
        assert receiver.heard.wait(serving.PATIENCE)
        for amount in range(2, 12):
            server.call(session_id, "add", amount=amount)
        assert server.call(session_id, "total")["result"] == sum(range(12))
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0


def test_rejecting_receiver_is_logged_once(receiver, bench, caplog):
    receiver.status = 400
    server = bench(variables={"OTEL_METRICS_EXPORTER": "none"})
    session_id = server.create()
    for _ in range(3):
        server.call(session_id, "echo", value=SECRET)
        serving.wait_until(receiver.heard.is_set, "a request")
        receiver.heard.clear()
    serving.wait_until(lambda: "can't be sent" in caplog.text, "a line")
    (line,) = [each.getMessage() for each in caplog.records if "can't be sent" in each.message]
    assert line.startswith("Telemetry can't be sent: 127.0.0.1 answers with status 400; ")


def test_unreachable_receiver_is_logged_without_its_url(bench, caplog):
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1/?key=secret", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1"}
    server = bench(variables=endpoint)
    server.call(server.create(), "total")
    serving.wait_until(lambda: "Telemetry can't be sent: 127.0.0.1: ConnectionError; " in caplog.text, "a line")
    assert "secret" not in caplog.text


def test_spans_are_sent_again_after_retry_after(receiver, bench):
    receiver.status, receiver.replies = 503, {"Retry-After": "0"}
    server = bench(variables={"OTEL_METRICS_EXPORTER": "none"})
    server.call(server.create(), "total")
    assert receiver.heard.wait(serving.PATIENCE)
    receiver.status = 200
    receiver.wait_for("run_function total")
    assert len(receiver.bodies) == 1


@pytest.mark.parametrize("status", [301, 308])
def test_headers_are_not_sent_to_a_redirect_target(receiver, bench, caplog, status):
    with otlp_receiver.receiving() as stranger:
        receiver.status, receiver.replies = status, {"Location": f"http://127.0.0.1:{stranger.port}/"}
        variables = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret", "OTEL_METRICS_EXPORTER": "none"}
        server = bench(variables=variables)
        server.call(server.create(), "total")
        serving.wait_until(lambda: f"status {status}" in caplog.text, "a line")
        assert {each["authorization"] for each in receiver.headers} == {"secret"}
        assert stranger.headers == []


def test_every_lost_span_is_counted(receiver, bench, caplog):
    receiver.silent = True
    sizes = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
    server = bench(variables={**sizes, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.3", "OTEL_METRICS_EXPORTER": "none"})
    session_id = server.create()
    for _ in range(10):
        server.call(session_id, "total")
    server.service.sessions.tracer.close()
    assert re.findall(r"; (\d+) spans were lost", caplog.text)[-1] == "40"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_process_exports_nothing(receiver, bench):
    server = bench()
    child = os.fork()
    if child == 0:
        server.service.sessions.tracer.provider.get_tracer("a child").start_span("of a child").end()
        server.service.sessions.tracer.provider.force_flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    server.call(server.create(), "total")
    receiver.wait_for("run_function total")
    assert "of a child" not in {span.name for span in receiver.spans}


def test_headers_and_gzip_are_sent(receiver, bench):
    variables = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b,x-other=c", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    server = bench(variables=variables)
    server.call(server.create(), "total")
    receiver.wait_for("run_function total")
    headers = {name.lower(): value for name, value in receiver.headers[0].items()}
    assert (headers["x-key"], headers["x-other"], headers["content-encoding"]) == ("a b", "c", "gzip")


# The standard environment variables


def test_variables_select_the_exported_signals():
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318/"}
    assert exported_signals({}) == set()
    assert exported_signals(base) == {"TRACES", "METRICS"}
    assert exported_signals({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b"}) == {"TRACES"}
    assert exported_signals({**base, "OTEL_TRACES_EXPORTER": "none"}) == {"METRICS"}
    assert exported_signals({**base, "OTEL_SDK_DISABLED": "true"}) == set()
    for wrong in ({**base, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "a:4318"}):
        with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL|http://"):
            exported_signals(wrong)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", "max_export_batch_size"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "9" * 30, ""),
    ],
)
def test_invalid_variables_are_logged_and_calls_continue(bench, caplog, name, value, why):
    server = bench(variables={name: value})
    assert server.service.sessions.tracer is None
    assert f"There is no telemetry: {why}" in caplog.text
    assert server.result(server.create(), "total") == 0


def test_opentelemetry_is_not_imported_when_it_is_off():
    program = (
        "import sys; from toolpack_server.wiring.service import Service; "
        "from toolpack_server.base.settings import Settings; "
        "from toolpack_server.packs.catalog import Catalog; "
        "service = Service(Settings(store='memory:', log_calls='off'), Catalog({})); "
        "print(service.sessions.tracer, [m for m in sys.modules if m.startswith(('opentelemetry', 'google.protobuf'))])"
    )
    environment = {name: value for name, value in server_process.environment().items() if not name.startswith("OTEL_")}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout == "None []\n"
