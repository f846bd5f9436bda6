"""The stable views of `lpt sql`, as SQL over the two tables of the index. Their columns are documented in docs/sql.md.

A column is added when it is needed and never renamed or removed. `VERSION` changes with any text here, and an index
made by another version is made again. `v_decision` is not stored: it reads Parquet files, whose folder is known
only when asked.
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


def _text(path: str, name: str | None = None, source: str = "body") -> str:
    return f"{source}->>'$.{path}' AS {name or path}"


def _typed(kind: str, path: str, name: str | None = None, source: str = "body") -> str:
    return f"TRY_CAST({source}->>'$.{path}' AS {kind}) AS {name or path}"


def _created() -> str:
    return "TRY_CAST(body->>'$.created' AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS created"


def _select(columns: list[str], source: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {source}"


def _of(kind: str) -> str:
    return f"object o WHERE type LIKE 'lpt.{kind}/%'"


def _sum(path: str, name: str) -> str:
    total = f"list_sum(list_transform(json_extract(body, '$.{path}'), lambda x: TRY_CAST(x AS BIGINT)))"
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
    "object o, json_each(o.body, '$.splits') s WHERE o.type LIKE 'lpt.admission/%'",
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
        "body->'$.removed' AS removed_by_reason",
        "body->'$.quarantine' AS quarantined_by_reason",
        _text("output"),
        _text("content_root"),
        "body->'$.config' AS config",
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
    "object o, json_each(o.body, '$.checks') c WHERE o.type LIKE 'lpt.admission/%'",
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
        "body->'$.config' AS config",
        "body->'$.proof' AS proof",
        "body->'$.failures' AS failures",
    ],
    _of("run"),
)

_METRIC = _select(
    [
        _text("run_id"),
        _text("algorithm"),
        "m.key AS metric",
        "TRY_CAST(m.value->>'$[0]' AS DOUBLE) AS first",
        "TRY_CAST(m.value->>'$[1]' AS DOUBLE) AS last",
    ],
    "object o, json_each(o.body, '$.metrics') m WHERE o.type LIKE 'lpt.run/%'",
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
        f"{_of('run')} AND body->>'$.checkpoint.path' IS NOT NULL",
    )
)

_ROLLOUT = _select(
    [
        _text("run_id"),
        _typed("BIGINT", "step"),
        _text("record_id"),
        _typed("BIGINT", "sample"),
        _text("completion"),
        _typed("DOUBLE", "reward"),
        _text("failure"),
    ],
    _of("rollout"),
)


def _files(kind: str, made: str, path: str) -> str:
    columns = [
        f"'{made}' AS kind",
        _text("path", source="f.value"),
        _typed("BIGINT", "bytes", source="f.value"),
        _text("sha256", source="f.value"),
        _typed("BIGINT", "rows", source="f.value"),
        "o.id AS made_by",
        _created(),
    ]
    return _select(columns, f"object o, json_each(o.body, '{path}') f WHERE o.type LIKE 'lpt.{kind}/%'")


_ARTIFACT = " UNION ALL ".join(
    [
        _files("stage", "stage output", "$.outputs"),
        _select(
            [
                "'split' AS kind",
                "f->>'$.path' AS path",
                "TRY_CAST(f->>'$.bytes' AS BIGINT) AS bytes",
                "f->>'$.sha256' AS sha256",
                "TRY_CAST(f->>'$.rows' AS BIGINT) AS rows",
                "made_by",
                "created",
            ],
            "(SELECT unnest(json_extract(body, '$.splits.*.files[*]')) AS f, o.id AS made_by, "
            f"{_created()} FROM {_of('admission')})",
        ),
        _select(
            [
                "'checkpoint' AS kind",
                "path",
                "NULL::BIGINT AS bytes",
                "sha256",
                "NULL::BIGINT AS rows",
                "object_id AS made_by",
                "created",
            ],
            "v_checkpoint",
        ),
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
  SELECT o.id AS child, p.value->>'$' AS parent FROM object o, json_each(o.body, '$.parents') p
  UNION SELECT o.id, p.value->>'$' FROM object o, json_each(o.body, '$.stages') p WHERE o.type LIKE 'lpt.admission/%'
  UNION SELECT id, body->>'$.manifest' FROM object WHERE type LIKE 'lpt.run/%' AND body->>'$.manifest' IS NOT NULL
), labelled AS (
  SELECT id, type, CASE WHEN type LIKE 'lpt.admission/%' THEN concat(body->>'$.name', '@', body->>'$.version')
    ELSE COALESCE(body->>'$.run_id', body->>'$.stage_id', left(id, 16)) END AS label FROM object
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
    "v_checkpoint": _CHECKPOINT,
    "v_rollout": _ROLLOUT,
    "v_artifact": _ARTIFACT,
    "v_gate": _GATE,
    "v_waiver": _WAIVER,
    "v_lineage": _LINEAGE,
}
VERSION = hashlib.sha256("\n".join(f"{name}={sql}" for name, sql in STORED.items()).encode()).hexdigest()[:16]
