"""Files in, batches out; nothing here knows what a row means."""

from lpt_data.io.sources import SourceFile, expand

__all__ = ["SourceFile", "expand"]
