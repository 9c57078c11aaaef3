"""What tools that try toolpacks import besides `api`: calls, evaluations and environments, without sessions.

The rule: nothing is defined here, and nothing is promised. Who imports this needs exactly this version of the server.
"""

from server.base.errors import (
    EvaluationError,
    Interrupted,
    SnapshotError,
    StartError,
    ToolpackServerError,
    for_author,
    shown,
)
from server.base.settings import Settings, load_settings
from server.execution.call import Outcome, call
from server.execution.codec import Codec, PlainCodec
from server.execution.failure import Failure
from server.execution.initial import Built, build
from server.execution.nested import read_nested
from server.execution.parts import environments, toolpack_of
from server.execution.promises import Promises
from server.execution.runtime import SessionRuntime
from server.execution.views import thawed, view
from server.execution.volumes import READ_ONLY, READING, Volumes
from server.execution.world import ExecutionContext, Snapshot, World
from server.features.checking.command import IN_MEMORY
from server.features.checking.findings import Finding, Tried
from server.features.checking.writes import ENVIRON, FOLDER
from server.features.executors.transport import opened
from server.features.replay.pins import Pin
from server.features.tasks.evaluation import Evidence, SeenRecord, evaluate, solve
from server.features.tasks.finding import all_tasks, find_task, tasks_of
from server.features.tasks.results import Verdict
from server.features.tasks.service import Tasks
from server.features.tasks.solutions import PlainCall, solution_calls
from server.features.tasks.task import SEPARATOR, Task
from server.functions.leftovers import Watch
from server.functions.signatures import NEEDED
from server.functions.steps import Steps
from server.functions.tracebacks import leave_out
from server.jsonio.equality import equal
from server.jsonio.strict import dumps, loads
from server.packs.catalog import Catalog
from server.packs.formats import native
from server.packs.loading import catalog_of
from server.packs.pack_function import PackFunction, is_offered
from server.packs.registration import place, qualified_name
from server.packs.toolpack import Toolpack, as_made
from server.processes.apart import run_apart
from server.processes.child import Child, follow
from server.sessions.calls import CallRequest
from server.snapshots.comparison import first_difference
from server.snapshots.graph import children, walk
from server.volumes.volume import is_piece
from server.wiring.service import Service, create_volumes
