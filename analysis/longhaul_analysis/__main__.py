"""`python -m longhaul_analysis` is `longhaul-analysis`."""

import sys

from .cli import main

sys.exit(main())
