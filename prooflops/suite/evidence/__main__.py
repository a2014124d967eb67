"""`python -m prooflops.suite.evidence`: see `prooflops.suite.evidence.command`."""

import sys

from prooflops.suite.evidence.command import main

sys.exit(main(sys.argv[1:]))
