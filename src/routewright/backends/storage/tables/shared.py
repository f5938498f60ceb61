"""Shared by all processes of a store: versions of policies, and learned health of models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from routewright._core.attempts.statistics import added, epoch_at
from routewright._core.policy import next_label
from routewright.wire import AddLearned, LearnedModel, LearnedSince, PolicyVersion, PutPolicyVersion, Written

from .connection import Statements
from .rollups import rows_where

UNSEEN_S = 30 * 24 * 3600.0
"""Learned rows of a model are removed after this time without an attempt."""
_VERSIONS = "SELECT content, label, created_at FROM policy_version WHERE content IN ({})"
_LABELS = "SELECT label FROM policy_version WHERE name = ?"
_PUT_VERSION = "INSERT INTO policy_version (content, name, label, created_at) VALUES (?, ?, ?, ?)"
_LEARNED = "SELECT body FROM learned WHERE fleet = ? AND epoch >= ? ORDER BY model"
_OF_MODEL = "SELECT body FROM learned WHERE fleet = ? AND model = ?"
_PUT_LEARNED = """
INSERT INTO learned (fleet, model, epoch, body) VALUES (?, ?, ?, ?)
ON CONFLICT (fleet, model) DO UPDATE SET epoch = excluded.epoch, body = excluded.body
"""
_encode = msgspec.json.Encoder().encode
_learned = msgspec.json.Decoder(LearnedModel).decode


def versions(connection: Statements, contents: Sequence[str]) -> list[PolicyVersion]:
    """The versions of these contents."""
    return [PolicyVersion(*row) for row in rows_where(connection, _VERSIONS, contents)]


def put_version(connection: Statements, asked: PutPolicyVersion) -> Written:
    """Give a content a version, unless it has one."""
    if versions(connection, [asked.content]):
        return Written(created=False)
    taken = (label for (label,) in connection.execute(_LABELS, (asked.name,)).fetchall())
    label = next_label(asked.name, asked.created_at, taken)
    connection.execute(_PUT_VERSION, (asked.content, asked.name, label, asked.created_at))
    return Written(created=True)


def learned(connection: Statements, asked: LearnedSince) -> list[LearnedModel]:
    """Learned rows that were changed since an epoch."""
    return [_learned(body) for (body,) in connection.execute(_LEARNED, (asked.fleet, asked.epoch)).fetchall()]


def add_learned(connection: Statements, write: AddLearned) -> Written:
    """Add to the learned rows of models."""
    for model, more in write.models.items():
        row = connection.execute(_OF_MODEL, (write.fleet, model)).fetchone()
        new = added(model, None if row is None else _learned(row[0]), more)
        connection.execute(_PUT_LEARNED, (write.fleet, model, new.epoch, _encode(new)))
    return Written(created=False, count=len(write.models))


def forget_unseen(now: float, connection: Statements) -> None:
    """Remove learned rows of models without an attempt in the last ``UNSEEN_S``."""
    connection.execute("DELETE FROM learned WHERE epoch < ?", (epoch_at(now - UNSEEN_S),))
