"""SwiftKV: prefill-optimized inference through model rewiring and self-distillation."""

import time

STARTED = time.monotonic()  # when this process began, as near as its first import can tell
