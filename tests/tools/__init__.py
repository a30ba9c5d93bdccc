"""Tests of the tools in Python, each run from the root: python3 -m unittest tests/tools/report/trace_test.py"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
