"""Fuzz the front door of a whole llmtop with mutated requests, or its management API with hostile calls.

python tests/fuzz/fuzz_http.py --count 20000 --seed 7
python tests/fuzz/fuzz_http.py --management
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from llmtop.testing.fuzz_control import fuzz_control
from llmtop.testing.fuzz_http import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="inputs")
    parser.add_argument("--seed", type=int, default=1, help="the same seed sends the same inputs")
    parser.add_argument("--management", action="store_true", help="hostile calls of the management API")
    options = parser.parse_args()
    run = fuzz_control if options.management else fuzz
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run(Path(folder), options.seed, options.count))
    sys.stdout.write(report.text() + "\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
