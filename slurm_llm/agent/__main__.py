"""Start of the folder as a program: make it importable under its own name, then hand over."""

import importlib
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(_FOLDER)
    sys.exit(importlib.import_module(os.path.basename(_FOLDER) + ".verbs").main(sys.argv[1:]))
