"""Launcher of a module, like `python -m`, with or without the fast event loop and HTTP parser.

    python launch.py installed|plain MODULE ARGUMENT…

Uvicorn uses uvloop and httptools if they are installed. `plain` hides both, as if they weren't installed.
"""

import runpy
import sys

FAST = ("uvloop", "httptools")


def main():
    variant, module, *arguments = sys.argv[1:]
    if variant == "plain":
        for name in FAST:
            sys.modules[name] = None  # type: ignore[assignment] # an import then fails
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main()
