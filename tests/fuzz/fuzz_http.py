"""Fuzz the front door of a whole llmtop with mutated requests.

python tests/fuzz/fuzz_http.py --count 20000 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from llmtop.testing.fuzz_http import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="inputs")
    parser.add_argument("--seed", type=int, default=1, help="the same seed sends the same inputs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(fuzz(Path(folder), options.seed, options.count))
    sys.stdout.write(report.text() + "\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
