"""Runs a module the way `python -m` does, with or without the fast event loop and HTTP parser.

    python launch.py plain|fast MODULE ARGUMENT…

The rule: uvicorn takes uvloop and httptools wherever it finds them, so both are hidden here from every contender alike,
or demanded of every contender alike; nothing else of it is changed.
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
            sys.modules[name] = None  # type: ignore[assignment] # how Python notes that a module can't be imported
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main()
