"""Training on admitted splits."""

import logging

# Loading it (peft does, where it is installed) must not talk about kernels that nobody asked for.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
