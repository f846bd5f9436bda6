"""The stable views of `lpt sql`, as SQL over the tables of the index. Their columns are documented in docs/sql.md.

A column is added when it is needed and never renamed or removed. `VERSION` changes with any text here, and an index
made by another version is made again. `v_decision` and `v_rollout` are not stored: they read Parquet files, whose
folder is known only when asked.
"""

from __future__ import annotations

import hashlib

DECISION_COLUMNS = {
    "stage_id": "VARCHAR",
    "stage": "VARCHAR",
    "row": "BIGINT",
    "record_id": "VARCHAR",
    "action": "VARCHAR",
    "reason": "VARCHAR",
    "witness_row": "BIGINT",
    "witness_id": "VARCHAR",
    "score": "DOUBLE",
    "detail": "VARCHAR",
}


ROLLOUT_COLUMNS = {
    "run_id": "VARCHAR",
    "step": "BIGINT",
    "record_id": "VARCHAR",
    "sample": "BIGINT",
    "completion": "VARCHAR",
    "reward": "DOUBLE",
    "failure": "VARCHAR",
    "group_index": "BIGINT",
    "advantage": "DOUBLE",
    "finish": "VARCHAR",
    "tokens": "BIGINT",
}


def _text(path: str, name: str | None = None, source: str = "head") -> str:
    return f"{source}->>'$.{path}' AS {name or path}"


def _typed(kind: str, path: str, name: str | None = None, source: str = "head") -> str:
    return f"TRY_CAST({source}->>'$.{path}' AS {kind}) AS {name or path}"


def _created() -> str:
    return "TRY_CAST(head->>'$.created' AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS created"


def _select(columns: list[str], source: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {source}"


def _of(kind: str) -> str:
    return f"object o WHERE type LIKE 'lpt.{kind}/%'"


def _items(part: str, alias: str) -> str:
    return f"object o JOIN (FROM item WHERE part = '{part}') {alias} ON {alias}.object = o.id"


def _sum(path: str, name: str) -> str:
    total = f"list_sum(list_transform(json_extract(head, '$.{path}'), lambda x: TRY_CAST(x AS BIGINT)))"
    return f"COALESCE({total}, 0)::BIGINT AS {name}"


_MANIFEST = _select(
    [
        "o.id AS manifest_id",
        _text("name"),
        _typed("BIGINT", "version"),
        _text("contract"),
        _text("verdict"),
        _created(),
        _sum("splits.*.rows", "rows"),
        _text("policy.name", "policy"),
        _text("policy.digest", "policy_digest"),
        _text("tokenizer.name", "tokenizer"),
        _text("tokenizer.fingerprint", "tokenizer_fingerprint"),
        _typed("BIGINT", "tokenizer.max_length", "max_length"),
        _text("canon"),
    ],
    _of("admission"),
)

_SPLIT = _select(
    [
        "o.id AS manifest_id",
        _text("name"),
        _typed("BIGINT", "version"),
        "s.key AS split",
        _typed("BIGINT", "rows", source="s.value"),
        _text("content_root", source="s.value"),
        _text("order_sha256", source="s.value"),
        _text("key.normaliser", "key_normaliser", "s.value"),
        _text("key.root", "key_root", "s.value"),
        _typed("BIGINT", "key.count", "keys", "s.value"),
        "COALESCE(json_array_length(s.value, '$.files'), 0)::BIGINT AS files",
        "s.value->'$.tokenized' AS tokenized",
    ],
    f"{_items('splits', 's')} WHERE o.type LIKE 'lpt.admission/%'",
)

_STAGE = _select(
    [
        "o.id AS object_id",
        _text("stage_id"),
        _text("stage"),
        _created(),
        _typed("BIGINT", "rows_in"),
        _typed("BIGINT", "rows_out"),
        _sum("removed.*", "removed"),
        _sum("rewritten.*", "rewritten"),
        _typed("BIGINT", "quarantined"),
        _typed("BIGINT", "repeated"),
        "head->'$.removed' AS removed_by_reason",
        "head->'$.quarantine' AS quarantined_by_reason",
        _text("output"),
        _text("content_root"),
        "head->'$.config' AS config",
        _typed("DOUBLE", "seconds"),
        _typed("DOUBLE", "rows_per_second"),
        _typed("BIGINT", "peak_memory_bytes"),
        _text("decisions.path", "decisions"),
    ],
    _of("stage"),
)

_CHECK = _select(
    [
        "o.id AS manifest_id",
        _text("name"),
        _typed("BIGINT", "version"),
        _text("id", "check_id", "c.value"),
        _text("status", source="c.value"),
        _typed("DOUBLE", "value", source="c.value"),
        _text("op", source="c.value"),
        _typed("DOUBLE", "threshold", source="c.value"),
        _typed("BIGINT", "n", source="c.value"),
        _text("severity", source="c.value"),
        _typed("BOOLEAN", "required", source="c.value"),
        _text("next", source="c.value"),
        _text("detail", source="c.value"),
    ],
    f"{_items('checks', 'c')} WHERE o.type LIKE 'lpt.admission/%'",
)

_RUN = _select(
    [
        "o.id AS object_id",
        _text("run_id"),
        _text("algorithm"),
        _created(),
        _text("status"),
        _text("split"),
        _text("manifest", "manifest_id"),
        _text("verified"),
        _typed("BOOLEAN", "tainted"),
        _text("verdict"),
        _text("model.name", "model"),
        _text("model.digest", "model_digest"),
        _text("tokenized_id"),
        _typed("BIGINT", "steps"),
        _typed("BIGINT", "seed"),
        _typed("DOUBLE", "seconds"),
        _typed("DOUBLE", "tokens_per_second"),
        _typed("BIGINT", "peak_memory_bytes"),
        _text("checkpoint.path", "checkpoint"),
        _text("metrics_path"),
        "head->'$.config' AS config",
        "head->'$.proof' AS proof",
        "head->'$.failures' AS failures",
        "regexp_replace(head->>'$.metrics_path', '/metrics.jsonl$', '') AS folder",
    ],
    # A run that went on has a record for each time it ended: the newest one counts.
    f"{_of('run')} QUALIFY row_number() OVER (PARTITION BY COALESCE(head->>'$.run_id', o.id) ORDER BY seq DESC) = 1",
)

_METRIC = _select(
    [
        _text("run_id"),
        _text("algorithm"),
        "m.key AS metric",
        "TRY_CAST(m.value->>'$[0]' AS DOUBLE) AS first",
        "TRY_CAST(m.value->>'$[1]' AS DOUBLE) AS last",
    ],
    f"{_items('metrics', 'm')} WHERE o.type LIKE 'lpt.run/%' AND o.id IN (SELECT object_id FROM v_run)",
)

_QUARANTINE = _select(
    [
        _text("run_id"),
        _text("algorithm"),
        _typed("BIGINT", "step", source="q.value"),
        _text("reason", source="q.value"),
        _typed("DOUBLE", "loss", source="q.value"),
        _typed("DOUBLE", "grad_norm", source="q.value"),
        _typed("DOUBLE", "median_loss", source="q.value"),
        _typed("DOUBLE", "median_grad_norm", source="q.value"),
        _text("suspect", source="q.value"),
        _text("batch_sha256", source="q.value"),
        "q.value->'$.record_ids' AS record_ids",
    ],
    f"{_items('quarantined', 'q')} WHERE o.type LIKE 'lpt.run/%' AND o.id IN (SELECT object_id FROM v_run)",
)

_CHECKPOINT = (
    _select(
        ["o.id AS object_id", _text("run_id"), _typed("BIGINT", "step"), _text("path"), _text("sha256"), _created()],
        _of("checkpoint"),
    )
    + " UNION ALL "
    + _select(
        [
            "o.id AS object_id",
            _text("run_id"),
            _typed("BIGINT", "steps", "step"),
            _text("checkpoint.path", "path"),
            _text("checkpoint.sha256", "sha256"),
            _created(),
        ],
        f"{_of('run')} AND head->>'$.checkpoint.path' IS NOT NULL",
    )
)

_EVAL = _select(
    [
        "o.id AS object_id",
        _text("model.made_from.run_id", "run_id"),
        _text("model.name", "model"),
        _text("model.digest", "model_digest"),
        _text("split"),
        _text("manifest", "manifest_id"),
        _text("reward"),
        _typed("BIGINT", "n"),
        _typed("DOUBLE", "accuracy"),
        _typed("DOUBLE", "low"),
        _typed("DOUBLE", "high"),
        _typed("DOUBLE", "temperature"),
        _typed("BIGINT", "k"),
        _typed("BIGINT", "seed"),
        _typed("BIGINT", "unscorable"),
        _typed("DOUBLE", "truncated_share"),
        _created(),
        _text("verified"),
        _typed("BOOLEAN", "tainted"),
    ],
    _of("eval"),
)

_MEASURE = _select(
    [
        "o.id AS object_id",
        _text("model.made_from.run_id", "run_id"),
        _text("model.name", "model"),
        _text("split"),
        _text("name", "measure", "m.value"),
        _text("domain", source="m.value"),
        _typed("DOUBLE", "value", source="m.value"),
        _typed("DOUBLE", "low", source="m.value"),
        _typed("DOUBLE", "high", source="m.value"),
        _typed("BIGINT", "n", source="m.value"),
        _created(),
    ],
    f"{_items('measures', 'm')} WHERE o.type LIKE 'lpt.eval/%'",
)

_COMPARISON = _select(
    [
        "o.id AS object_id",
        _text("before", "before_id"),
        _text("after", "after_id"),
        _text("name", "measure", "m.value"),
        _typed("DOUBLE", "before", source="m.value"),
        _typed("DOUBLE", "after", source="m.value"),
        _typed("DOUBLE", "difference", source="m.value"),
        _typed("DOUBLE", "low", source="m.value"),
        _typed("DOUBLE", "high", source="m.value"),
        _typed("BIGINT", "n", source="m.value"),
        _typed("BIGINT", "gained", source="m.value"),
        _typed("BIGINT", "lost", source="m.value"),
        _typed("DOUBLE", "p_value", source="m.value"),
        _created(),
    ],
    f"{_items('paired', 'm')} WHERE o.type LIKE 'lpt.comparison/%'",
)

_MATRIX = _select(
    [
        "o.id AS object_id",
        _text("name"),
        _text("algorithm"),
        _text("metric"),
        _text("name", "variant", "m.value"),
        "COALESCE(m.value->>'$.name' = head->>'$.winner', false) AS winner",
        _text("status", source="m.value"),
        _typed("DOUBLE", "value.value", "mean", "m.value"),
        _typed("DOUBLE", "value.low", "low", "m.value"),
        _typed("DOUBLE", "value.high", "high", "m.value"),
        _typed("BIGINT", "value.n", "seeds", "m.value"),
        _typed("DOUBLE", "difference.value", "difference", "m.value"),
        _typed("DOUBLE", "difference.low", "difference_low", "m.value"),
        _typed("DOUBLE", "difference.high", "difference_high", "m.value"),
        _typed("BOOLEAN", "inside", source="m.value"),
        _typed("BOOLEAN", "passed", source="m.value"),
        _typed("BIGINT", "resources.trainable_parameters", "trainable_parameters", "m.value"),
        _typed("BIGINT", "resources.peak_memory_bytes", "peak_memory_bytes", "m.value"),
        _typed("DOUBLE", "resources.seconds", "seconds", "m.value"),
        _created(),
        _text("folder"),
    ],
    f"{_items('variants', 'm')} WHERE o.type LIKE 'lpt.matrix/%'",
)


def _files(kind: str, made: str, part: str) -> str:
    columns = [
        f"'{made}' AS kind",
        _text("path", source="f.value"),
        _typed("BIGINT", "bytes", source="f.value"),
        _text("sha256", source="f.value"),
        _typed("BIGINT", "rows", source="f.value"),
        "o.id AS made_by",
        _created(),
    ]
    return _select(columns, f"{_items(part, 'f')} WHERE o.type LIKE 'lpt.{kind}/%'")


_CHECKPOINT_FILES = _select(
    ["'checkpoint' AS kind", "path", "NULL::BIGINT AS bytes", "sha256", "NULL::BIGINT AS rows", "object_id AS made_by"]
    + ["created"],
    "v_checkpoint",
)
_ARTIFACT = " UNION ALL ".join(
    [
        _files("stage", "stage output", "outputs"),
        _files("admission", "split", "files"),
        _CHECKPOINT_FILES,
        _files("export", "export", "outputs"),
    ]
)

_GATE = _select(
    [
        "o.id AS gate_id",
        _text("artifact"),
        _text("metric"),
        _typed("DOUBLE", "value"),
        _text("op"),
        _typed("DOUBLE", "threshold"),
        _typed("BIGINT", "n"),
        _text("verdict"),
        _created(),
    ],
    _of("gate"),
)

_WAIVER = _select(
    [
        "o.id AS waiver_id",
        _text("check", "check_id"),
        _text("scope"),
        _typed("DOUBLE", "max", "max_value"),
        _text("owner"),
        _text("reason"),
        _typed("DATE", "expires"),
        _created(),
    ],
    _of("waiver"),
)

_LINEAGE = """
WITH named AS (
  SELECT DISTINCT object AS child, value->>'$' AS parent FROM item WHERE part IN ('parents', 'stages')
  UNION SELECT id, head->>'$.manifest' FROM object WHERE type LIKE 'lpt.run/%' AND head->>'$.manifest' IS NOT NULL
), labelled AS (
  SELECT id, type, CASE WHEN type LIKE 'lpt.admission/%' THEN concat(head->>'$.name', '@', head->>'$.version')
    ELSE COALESCE(head->>'$.run_id', head->>'$.stage_id', left(id, 16)) END AS label FROM object
)
SELECT child, c.type AS child_type, c.label AS child_label, parent, p.type AS parent_type, p.label AS parent_label
FROM named JOIN labelled c ON c.id = child LEFT JOIN labelled p ON p.id = parent
"""

STORED: dict[str, str] = {  # a view may use those above it
    "v_manifest": _MANIFEST,
    "v_split": _SPLIT,
    "v_stage": _STAGE,
    "v_check": _CHECK,
    "v_run": _RUN,
    "v_metric": _METRIC,
    "v_quarantine": _QUARANTINE,
    "v_checkpoint": _CHECKPOINT,
    "v_eval": _EVAL,
    "v_measure": _MEASURE,
    "v_comparison": _COMPARISON,
    "v_matrix": _MATRIX,
    "v_artifact": _ARTIFACT,
    "v_gate": _GATE,
    "v_waiver": _WAIVER,
    "v_lineage": _LINEAGE,
}
NAMES = (*STORED, "v_decision", "v_rollout")
# `head` is the body without the lists that grow with the data, `item` one row for each entry of those that views show:
# a view that opened whole bodies would hold thousands of them in memory at once.
TABLES = """
CREATE TABLE meta (key VARCHAR, value VARCHAR);
CREATE TABLE event (seq BIGINT, recorded TIMESTAMP, type VARCHAR, object VARCHAR, hash VARCHAR, prev VARCHAR);
CREATE TABLE object (id VARCHAR, type VARCHAR, seq BIGINT, head JSON, body JSON);
CREATE TABLE item (object VARCHAR, part VARCHAR, position BIGINT, key VARCHAR, value JSON);
"""
HEAVY = ("checks", "metrics", "sources", "not_checked", "next", "items")
ITEMS = (
    "checks", "metrics", "splits", "outputs", "parents", "quarantined", "stages", "measures", "paired", "variants",
)  # fmt: skip
VERSION = hashlib.sha256(repr((TABLES, HEAVY, ITEMS, STORED)).encode()).hexdigest()[:16]
