"""What tools that try toolpacks import besides `api`: calls, evaluations and environments, without sessions.

The rule: nothing is defined here, and nothing is promised. Who imports this needs exactly this version of the server.
"""

from toolpack_server.base.errors import (
    EvaluationError,
    Interrupted,
    SnapshotError,
    StartError,
    ToolpackServerError,
    for_author,
    shown,
)
from toolpack_server.base.settings import Settings, load_settings
from toolpack_server.execution.call import Outcome, call
from toolpack_server.execution.codec import Codec, PlainCodec
from toolpack_server.execution.failure import Failure
from toolpack_server.execution.initial import Built, build
from toolpack_server.execution.nested import read_nested
from toolpack_server.execution.parts import environments, toolpack_of
from toolpack_server.execution.promises import Promises
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.views import thawed, view
from toolpack_server.execution.volumes import READ_ONLY, READING, Volumes
from toolpack_server.execution.world import ExecutionContext, Snapshot, World
from toolpack_server.features.authoring.checking.command import IN_MEMORY
from toolpack_server.features.authoring.checking.findings import Finding, Tried
from toolpack_server.features.authoring.checking.writes import ENVIRON, FOLDER
from toolpack_server.features.executors.transport import opened
from toolpack_server.features.replay.pins import Pin
from toolpack_server.features.evaluation.tasks.evaluation import (Evidence, SeenRecord, evaluate, solve)
from toolpack_server.features.evaluation.tasks.finding import all_tasks, find_task, tasks_of
from toolpack_server.features.evaluation.tasks.results import Verdict
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.evaluation.tasks.solutions import PlainCall, solution_calls
from toolpack_server.features.evaluation.tasks.task import SEPARATOR, Task
from toolpack_server.functions.leftovers import Watch
from toolpack_server.functions.signatures import NEEDED
from toolpack_server.functions.steps import Steps
from toolpack_server.functions.tracebacks import leave_out
from toolpack_server.jsonio.equality import equal
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.formats import native
from toolpack_server.packs.loading import catalog_of
from toolpack_server.packs.pack_function import PackFunction, is_offered
from toolpack_server.packs.registration import place, qualified_name
from toolpack_server.packs.toolpack import Toolpack, as_made
from toolpack_server.processes.apart import run_apart
from toolpack_server.processes.child import Child, follow
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.snapshots.comparison import first_difference
from toolpack_server.snapshots.graph import children, walk
from toolpack_server.volumes.volume import is_piece
from toolpack_server.wiring.service import Service, create_volumes
