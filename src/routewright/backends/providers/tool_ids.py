"""Replaces ids of tool calls that a vendor would refuse: too long, with other characters, or used twice. Moves results
to their calls, where a vendor wants them there."""

from __future__ import annotations

import re
from base64 import b32encode
from collections import Counter
from hashlib import blake2b

from msgspec.structs import replace

from routewright.wire import Message

COMMON_ID = re.compile(".{1,40}", re.DOTALL)
"""Error of OpenAI: "string too long. Expected a string with maximum length 40". Many hosts pass ids on to it."""


def with_ids(messages: list[Message], form: re.Pattern[str] = COMMON_ID) -> list[Message]:
    """The messages with tool-call ids of this form, different for different calls. The same list if they are so."""
    ids = [call.id for message in messages if message.tool_calls for call in message.tool_calls]
    if not ids or (len({*ids}) == len(ids) and all(map(form.fullmatch, ids))):
        return messages
    # A client sends its whole history with every turn, so an id must be replaced by the same one again, or vendors'
    # prompt caches miss. So the new id is a hash of the old one, and does not depend on later messages. Ids may repeat:
    # some models number the calls of a turn from 0, or name two parallel calls alike, and a result says no more
    # than the id. It belongs to the last call of that id, and the second of two results to the second of two calls.
    # See test_ids_of_calls_and_results_fit_together and test_a_replaced_id_stays_the_same_in_later_turns.
    used = set[str]()
    tries = Counter[str]()  # by the old id, so that many equal ones take linear time
    latest: dict[str, list[str]] = {}  # new ids of the last calls by their old one, the next to be answered first
    renamed: list[Message] = []
    for message in messages:
        if message.tool_calls:
            latest |= {call.id: [] for call in message.tool_calls}
            calls = []
            for call in message.tool_calls:
                new_id = call.id
                while new_id in used or not form.fullmatch(new_id):
                    tries[call.id] += 1
                    new_id = short_id(f"{call.id}{tries[call.id]}")
                used.add(new_id)
                latest[call.id].append(new_id)
                calls.append(replace(call, id=new_id))
            message = replace(message, tool_calls=calls)
        elif open_ids := latest.get(message.tool_call_id or ""):
            message = replace(message, tool_call_id=open_ids.pop(0) if len(open_ids) > 1 else open_ids[0])
        renamed.append(message)
    return renamed


def in_order(messages: list[Message]) -> list[Message]:
    """The messages, whose ids differ, with results directly after their calls. The same list if they are so."""
    # Clients of the Responses and Messages APIs may send two turns of calls in a row, or other messages before a
    # result, which chat completions refuses. See test_results_follow_their_calls.
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    ordered: list[Message] = []
    for message in messages:
        if message.role != "tool":
            ordered.append(message)
            ordered += (results.pop(call.id) for call in message.tool_calls or () if call.id in results)
        elif results.get(message.tool_call_id) is message:  # of no call before it
            ordered.append(results.pop(message.tool_call_id))
    return messages if ordered == messages else ordered


def short_id(text: str) -> str:
    """A hash of nine letters and digits, a form that every vendor takes."""
    return b32encode(blake2b(text.encode(errors="replace"), digest_size=6).digest()).decode()[:9]
