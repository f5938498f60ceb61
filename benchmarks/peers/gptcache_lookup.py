"""GPTCache: a semantic hit with SQLite and faiss, the embedding given.

python -m benchmarks.peers.gptcache_lookup entries
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.vectors import DIMENSION, searched

from .process import measure_plain


def opened(folder: Path, table: dict[str, Any], many: int) -> Any:
    """A cache that takes embeddings from a table."""
    manager = import_module("gptcache.manager")
    data = manager.get_data_manager(
        manager.CacheBase("sqlite", sql_url=f"sqlite:///{folder / 'cache.db'}"),
        manager.VectorBase("faiss", dimension=DIMENSION, index_path=str(folder / "faiss.index")),
        max_size=many + 10,
    )
    questions = [f"question {number}" for number in range(many)]
    answers = [f"answer {number} " * 100 for number in range(many)]
    data.import_data(questions, answers, [table[question] for question in questions], [None] * many)
    gptcache = import_module("gptcache")
    cache = gptcache.Cache()
    cache.init(
        pre_embedding_func=import_module("gptcache.processor.pre").get_prompt,
        embedding_func=lambda text, **_: table[text],
        data_manager=data,
        similarity_evaluation=import_module("gptcache.similarity_evaluation.distance").SearchDistanceEvaluation(),
        config=gptcache.Config(similarity_threshold=0.8),
    )
    return cache


def main(many: int) -> None:
    rows, queries, _ = searched(many)
    asked = {f"asked {number}": query for number, query in enumerate(queries)}
    table = asked | {f"question {number}": row for number, row in enumerate(rows)}
    get = import_module("gptcache.adapter.api").get
    with TemporaryDirectory() as folder:
        cache = opened(Path(folder), table, many)
        measure_plain(lambda text: get(text, cache_obj=cache), list(asked))


if __name__ == "__main__":
    main(int(sys.argv[1]))
