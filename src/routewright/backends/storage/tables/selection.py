"""Selections of traces as SQL. All values are parameters; columns and operators are those that filters know.

Pages follow an index in the order of time: of all traces of the account, or of those with some metadata or status.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from routewright._core.trace.filter import METADATA, check_terms, policies_meant, texts_meant
from routewright.wire import Selection, Term

from .statements import Row, Statements

CREATED_AT_CHARS = len("2026-11-22T09:30:00.000Z")
_PROBED = 1_000
"""Most rows that are counted to find the rarest term."""

_OF_ALL = "trace INDEXED BY trace_by_time WHERE trace.account = ?"
_OF_ONE = "trace INDEXED BY trace_by_id WHERE trace.account = ? AND trace.id = ?"
_OF_STATUS = (
    "trace INDEXED BY trace_by_status WHERE trace.account = ? AND trace.status = ? AND trace.status <> 'completed'"
)
_TAGGED = (
    "tag CROSS JOIN trace INDEXED BY trace_by_time "
    "ON trace.account = tag.account AND trace.created_at = tag.created_at AND trace.id = tag.id "
    "WHERE tag.account = ? AND tag.key = ? AND tag.value = ?"
)
_HAS_TAG = (
    "EXISTS (SELECT 1 FROM tag AS own WHERE own.account = trace.account AND own.key = ? AND own.value IN ({}) "
    "AND own.created_at = trace.created_at AND own.id = trace.id)"
)
_HAS_NUMBER = (
    "EXISTS (SELECT 1 FROM tag AS own INDEXED BY tag_number WHERE own.account = trace.account AND own.key = ? "
    "AND own.created_at = trace.created_at AND own.id = trace.id AND own.number {} ?)"
)
_REVOKED = "SELECT 1 FROM key INDEXED BY key_revoked WHERE account = ? AND compromised_from IS NOT NULL LIMIT 1"
_COMPROMISED = (
    "(trace.compromised OR EXISTS (SELECT 1 FROM key WHERE key.account = trace.account AND key.id = trace.key_id "
    "AND key.compromised_from <= trace.created_at)) {} ?"
)
"""Only for accounts with revoked keys."""


class Clause(NamedTuple):
    """A piece of SQL and its parameters."""

    sql: str
    parameters: Row = ()


def rows_of(
    connection: Statements,
    columns: str,
    account: str,
    selection: Selection,
    limit: int,
    *,
    after: str | None = None,
    trace_id: str | None = None,
    order: Literal["ASC", "DESC"] = "DESC",
) -> list[Any]:
    """Columns of the selected rows of ``trace`` in the order of time, after the key ``after``."""
    check_terms("SqliteStorage", selection.terms)
    leading = None if trace_id is not None else _find_leading(connection, account, selection.terms)
    at = "tag" if leading is not None and leading.key != "status" else "trace"
    clauses = [_make_source(account, trace_id, leading)]
    if after is not None:
        operator = "<" if order == "DESC" else ">"
        key = after[:CREATED_AT_CHARS], after[CREATED_AT_CHARS:]
        clauses.append(Clause(f"({at}.created_at, {at}.id) {operator} (?, ?)", key))
    bounds = (f"{at}.created_at >= ?", selection.since), (f"{at}.created_at < ?", selection.until)
    for compared, value in (*bounds, ("trace.environment = ?", selection.environment)):
        if value is not None:
            clauses.append(Clause(compared, (value,)))
    clauses += [_make_clause(connection, account, term) for term in selection.terms if term is not leading]
    where = " AND ".join(clause.sql for clause in clauses)
    parameters = [value for clause in clauses for value in clause.parameters]
    sql = f"SELECT {columns} FROM {where} ORDER BY {at}.created_at {order}, {at}.id {order} LIMIT ?"
    return connection.execute(sql, (*parameters, max(0, limit))).fetchall()


def _make_source(account: str, trace_id: str | None, leading: Term | None) -> Clause:
    if trace_id is not None:
        return Clause(_OF_ONE, (account, trace_id))
    if leading is None:
        return Clause(_OF_ALL, (account,))
    if leading.key == "status":
        return Clause(_OF_STATUS, (account, leading.value))
    return Clause(_TAGGED, (account, leading.key.removeprefix(METADATA), leading.value))


def _find_leading(connection: Statements, account: str, terms: tuple[Term, ...]) -> Term | None:
    """The term whose index is used: metadata, or a status other than ``completed``. The rarest of several."""

    def frequency(term: Term) -> int:
        source, parameters = _make_source(account, None, term)
        if term.key != "status":
            source = "tag WHERE account = ? AND key = ? AND value = ?"
        counted = f"SELECT 1 FROM {source} LIMIT {_PROBED}"
        return int(connection.execute(f"SELECT count(*) FROM ({counted}) AS probed", parameters).fetchone()[0])

    indexed: list[Term] = []
    for term in terms:
        if term.op == "=" and term.key == "status" and term.value != "completed":
            indexed.append(term)
        if term.op == "=" and term.key.startswith(METADATA) and len(texts_meant(str(term.value))) == 1:
            indexed.append(term)
    return min(indexed, key=frequency) if len(indexed) > 1 else next(iter(indexed), None)


def _make_clause(connection: Statements, account: str, term: Term) -> Clause:
    if term.key == "compromised" and connection.execute(_REVOKED, (account,)).fetchone() is not None:
        return Clause(_COMPROMISED.format(term.op), (term.value,))
    if term.key == "policy_id":
        return Clause(f"trace.policy_id {'' if term.op == '=' else 'NOT '}IN (?, ?)", policies_meant(str(term.value)))
    if not term.key.startswith(METADATA):
        return Clause(f"trace.{term.key} {term.op} ?", (term.value,))
    key = term.key.removeprefix(METADATA)
    if term.op not in ("=", "!="):
        return Clause(_HAS_NUMBER.format(term.op), (key, term.value))
    values = texts_meant(str(term.value))
    exists = _HAS_TAG.format(", ".join("?" * len(values)))
    return Clause(exists if term.op == "=" else f"NOT {exists}", (key, *values))
