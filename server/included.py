"""What this server has beyond the core: its features, and the subcommands of `toolpack-server` that they add.

The rule: these are import paths, and nothing is imported here, so that the command knows quickly what there is.
"""

FEATURES = (
    "server.features.participants.feature:ParticipantsFeature",
    "server.features.replay.feature:ReplayFeature",
    "server.features.perturbations.feature:PerturbationsFeature",
    "server.features.tasks.feature:TasksFeature",
    "server.features.parts.feature:PartsFeature",
    "server.features.mcp.feature:McpFeature",
    "server.features.executors.feature:ExecutorsFeature",
    "server.features.telemetry.feature:TelemetryFeature",
)
"""Features are built on all of the core; `Feature` says what they add to a running server.

The order is that of the methods in the OpenRPC document. The parameters that they add to a method stand in the reverse
order, in which they also change requests for sessions.
"""

COMMANDS = {
    "audit": (
        "server.features.audit.command:audit",
        "Try to pass tasks without doing them, and print what that shows.",
    ),
    "bundle": (
        "server.features.replay.command:bundle",
        "Write a SESSION to standard output, as a bundle; the beginning of its id is enough.",
    ),
    "check": (
        "server.features.checking.command:check",
        "Load every toolpack, call its functions, and print every problem.",
    ),
    "conform": (
        "server.features.conformance.command:conform",
        "Ask a server, by its URL alone, whether it keeps the guarantees; exit with status 1 if it doesn't.",
    ),
    "evaluate": (
        "server.features.tasks.command:evaluate",
        "Evaluate the sessions that have a task: passed, mean reward, pass^k and pass@k.",
    ),
    "export": (
        "server.features.tasks.export:export",
        "Write the trajectory of a SESSION to standard output, as JSON; the beginning of its id is enough.",
    ),
    "mcp": ("server.features.mcp.command:mcp", "Speak MCP on standard input and output, for one client."),
    "replay": (
        "server.features.replay.command:replay",
        "Run a session again, and show the first call that comes out differently.",
    ),
}
"""What each does, in a sentence, stands here too: the list of commands imports none of them."""
