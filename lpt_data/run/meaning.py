"""The method `semantic` in a recipe: `semantic: {threshold: 0.92}` and `embedder: minilm` beside the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpt_data.config import DedupConfig, SemanticConfig
from lpt_data.option_values import config_of, text
from manifests.errors import UsageError

if TYPE_CHECKING:
    from lpt_data.semantic.alike import Semantics
    from manifests.catalog import Catalog


def semantic_config(options: Mapping[str, Any], methods: tuple[str, ...], where: str) -> SemanticConfig | None:
    """Return the settings of the method, None without it; UsageError for values that mean nothing."""
    from lpt_data.semantic.alike import check

    given = options.get("semantic", {})
    if "semantic" not in methods:
        if given or "embedder" in options:
            raise UsageError(
                f"{where} has settings of a method that it does not use",
                seen=", ".join(name for name in ("semantic", "embedder") if name in options),
                next="method: [exact, minhash, semantic]",
            )
        return None
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}: semantic is no mapping", seen=repr(given)[:80], next="semantic: {threshold: 0.9}")
    config = config_of(SemanticConfig, given, f"{where}: semantic", embedder="")
    check(config)
    return config


def with_semantics(
    config: DedupConfig, options: Mapping[str, Any], where: str, path: Callable[[str], str], catalog: Catalog
) -> tuple[DedupConfig, Semantics | None]:
    """Return the config with the identity of its embedder, and what meanings are compared with."""
    if config.semantic is None:
        return config, None
    semantic, semantics = semantics_of(config.semantic, options, where, path, catalog)
    return replace(config, semantic=semantic), semantics


def semantics_of(
    config: SemanticConfig, options: Mapping[str, Any], where: str, path: Callable[[str], str], catalog: Catalog
) -> tuple[SemanticConfig, Semantics]:
    """Return the settings with the identity of the embedder that is named, and what meanings are compared with."""
    from lpt_data.semantic.alike import Semantics
    from lpt_data.semantic.models import DEFAULT, find_model
    from lpt_data.semantic.vectors import source_of

    named = text(options.get("embedder", DEFAULT), f"{where}: embedder")
    model = find_model(path(named) if Path(path(named)).is_dir() else named)
    semantics = Semantics(source_of(model, catalog.directory), catalog.directory)
    return replace(config, embedder=semantics.source.digest), semantics
