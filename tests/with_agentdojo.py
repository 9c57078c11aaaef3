"""AgentDojo, for the files that import this: where it isn't installed they are skipped.

It is imported by its toolpacks, which spare the tests the clients of all model vendors.
"""

import pytest

from toolpack_server.base.errors import ToolpackUnavailable

try:
    import toolpacks.agentdojo  # noqa: F401
except ToolpackUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

HEAVY = pytest.mark.heavy
"""The mark of these files: AgentDojo's vendors take minutes to install, and seconds to import."""
