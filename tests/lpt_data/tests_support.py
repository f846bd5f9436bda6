"""Stages small enough to be known by heart."""

import numpy as np
import pyarrow as pa

from lpt_data.stage import StageResult
from manifests import decisions


def keep_all(dataset, config, progress):
    return remove_where(lambda text: False)(dataset, config, progress)


def remove_where(test):
    """A stage that removes the rows whose text passes a test; the first kept row is the witness."""

    def decide(dataset, config, progress):
        rows, texts, ids = [], [], []
        for batch in dataset.texts("text"):
            rows += batch.rows.tolist()
            texts += batch.texts.to_pylist()
            ids.append(batch.ids)
            progress(rows[-1], None, "reading")
        record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
        record_ids[rows] = np.concatenate(ids)
        gone = [row for row, text in zip(rows, texts, strict=True) if test(text)]
        kept = [row for row in rows if row not in set(gone)]
        table = decisions.table(
            {
                "row": pa.array(gone, pa.int64()),
                "record_id": record_ids[gone],
                "action": pa.array(["remove"] * len(gone), pa.string()),
                "reason": pa.array(["unwanted"] * len(gone), pa.string()),
                "witness_row": pa.array([kept[0]] * len(gone), pa.int64()),
            }
        )
        return StageResult(table, record_ids, {"looked_at": len(rows)})

    return decide
