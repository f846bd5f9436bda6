"""The fixtures of training, and its helpers, also here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
