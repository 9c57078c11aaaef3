"""What a feature that runs toolpacks' code elsewhere, or adds operations to what runs there, may import besides `api`.

The rule: nothing is defined here, and nothing is promised. Who imports this needs exactly this version of the server.
"""

from toolpack_server.base.unseeded import unseeded
from toolpack_server.execution.call import Outcome, call, call_steps
from toolpack_server.execution.codec import Codec, PlainCodec
from toolpack_server.execution.conditions import Conditions
from toolpack_server.execution.failure import OF_CALLS, Failure, cut_error
from toolpack_server.execution.initial import Built
from toolpack_server.execution.operations import (
    BuildEnvironment,
    ExportVolumes,
    MakeEnvironment,
    ParseEnvironment,
    PatchVolumes,
    RunCall,
)
from toolpack_server.execution.parts import toolpack_of, wanted
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.runner import Runner, RunnerOperation
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.volumes import Stored, stored_volumes
from toolpack_server.execution.world import (ExecutionContext, PromiseCheck, Snapshot, Versions)
from toolpack_server.functions.content import check_content
from toolpack_server.functions.steps import Steps, run_steps
from toolpack_server.functions.tracebacks import MAX_CHARACTERS, MAX_PLACE
from toolpack_server.packs.catalog import Catalog
from toolpack_server.volumes.volume import SLOTS, VolumeKinds, is_piece
