"""Runs a module as `python -m` does, with or without the fast event loop and HTTP parser.

    python launch.py plain|fast MODULE ARGUMENT…

The rule: uvicorn uses uvloop and httptools if they are installed, so for every contender both are either hidden
(`plain`) or required (`fast`); nothing else is changed.
"""

import importlib
import runpy
import sys

FAST = ("uvloop", "httptools")


def main():
    variant, module, *arguments = sys.argv[1:]
    for name in FAST:
        if variant == "fast":
            importlib.import_module(name)
        else:
            sys.modules[name] = None  # type: ignore[assignment] # makes its import fail
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main()
