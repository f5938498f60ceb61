"""faiss and usearch: the nearest of many embeddings, on one thread.

python -m benchmarks.peers.vector_search faiss|usearch entries time|recall
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.measure import Figure
from benchmarks.vectors import DIMENSION, searched

from .process import measure_plain

Search = Callable[[Any], int]


def faiss(rows: Any) -> Search:
    """A flat index: all are compared."""
    library = import_module("faiss")
    library.omp_set_num_threads(1)
    index = library.IndexFlatIP(DIMENSION)
    index.add(rows)
    return lambda query: int(index.search(query[None], 1)[1][0, 0])


def usearch(rows: Any) -> Search:
    """Its graph over bytes: with floats it is twice as slow, and takes a minute to fill."""
    index = import_module("usearch.index").Index(ndim=DIMENSION, metric="cos", dtype="i8")
    index.add(list(range(len(rows))), rows, threads=2)
    return lambda query: int(index.search(query, 1, threads=1).keys[0])


def main(who: str, many: int, what: str) -> None:
    rows, queries, nearest = searched(many)
    search = {"faiss": faiss, "usearch": usearch}[who](rows)
    if what == "time":
        measure_plain(search, list(queries))
        return
    sys.stdin.read()
    right = sum(search(query) == true for query, true in zip(queries, nearest, strict=True))
    print(json.dumps(Figure("%", 100 * right / len(nearest))))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
