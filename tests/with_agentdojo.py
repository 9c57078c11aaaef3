"""AgentDojo, for the test files that import this module. If it isn't installed, these files are skipped.

Like the server's toolpacks, this module imports AgentDojo without its clients of model vendors.
"""

import pytest

from toolpack_server.base.errors import ToolpackUnavailable

try:
    import toolpacks.agentdojo  # noqa: F401
except ToolpackUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

HEAVY = pytest.mark.heavy
"""The mark of these files: AgentDojo's vendors take minutes to install, and seconds to import."""
