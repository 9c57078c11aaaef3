"""What a feature that runs toolpacks' code elsewhere, or adds operations to what runs there, may import besides `api`.

The rule: nothing is defined here, and nothing is promised. Who imports this needs exactly this version of the server.
"""

from server.base.unseeded import unseeded
from server.execution.call import Outcome, call, call_steps
from server.execution.codec import Codec, PlainCodec
from server.execution.conditions import Conditions
from server.execution.failure import OF_CALLS, Failure, cut_error
from server.execution.initial import Built
from server.execution.operations import (
    BuildEnvironment,
    ExportVolumes,
    MakeEnvironment,
    ParseEnvironment,
    PatchVolumes,
    RunCall,
)
from server.execution.parts import toolpack_of, wanted
from server.execution.plan import Plan
from server.execution.runner import Runner, RunnerOperation
from server.execution.runtime import SessionRuntime
from server.execution.volumes import Stored, stored_volumes
from server.execution.world import ExecutionContext, PromiseCheck, Snapshot, Versions
from server.functions.content import check_content
from server.functions.steps import Steps, run_steps
from server.functions.tracebacks import MAX_CHARACTERS, MAX_PLACE
from server.packs.catalog import Catalog
from server.volumes.volume import SLOTS, VolumeKinds, is_piece
