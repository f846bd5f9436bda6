"""Where the parts of a stage run: threads of this process by default (`lpt_data.dedup.rows.threads`), or Ray's workers.

An engine moves pure functions and arrays and knows nothing of rows; which parts a stage has is said in the stage. It
is no part of a stage's identity: survivors, decisions and digests are the same.
"""
