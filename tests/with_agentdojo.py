"""AgentDojo, for the test files that import this module. If it isn't installed, they are skipped.

Its toolpacks import it without the clients of all model vendors.
"""

import pytest

from toolpack_server.base.errors import ToolpackUnavailable

try:
    import toolpacks.agentdojo  # noqa: F401
except ToolpackUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

HEAVY = pytest.mark.heavy
"""The mark of these files: AgentDojo's vendors take minutes to install, and seconds to import."""
