"""The sixteen failover scenarios, and some more, with default limits on virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Answer, Catalogue, Model, Pricing, Usage
from routewright.errors import ContentRefused, UpstreamFailed
from routewright.wire import ModelSpan, OutputDelta, RouteFallback, Trace

from .matrix import ANSWER, GOOD, SPARE, Pair

pytestmark = pytest.mark.anyio
WELL = "All is well."

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])


async def ask(pair: Pair, streamed: bool, **options: Any) -> Answer:
    """The answer, however it is fetched."""
    if not streamed:
        answer: Answer = await pair.router.route("hi", goal="quality", **options)
        return answer
    async with pair.router.stream("hi", goal="quality", **options) as stream:
        async for _ in stream:
            pass
    return stream.result


async def saved_by_the_spare(pair: Pair, streamed: bool, *, calls: int, within_s: float) -> Trace:
    """The spare answers after so many calls of the good one, and nothing stays open."""
    answer = await ask(pair, streamed)
    assert (answer.output, answer.routing.selected_model) == (ANSWER, SPARE)
    assert (len(pair.good.calls), len(pair.spare.calls), pair.left_open) == (calls, 1, 0)
    assert pair.clock.monotonic() <= within_s
    return await pair.router.trace(answer.trace_id)


async def saved_by_a_second_try(pair: Pair, streamed: bool, *, within_s: float) -> None:
    """The good one answers when it is asked again."""
    answer = await ask(pair, streamed)
    assert (answer.output, answer.routing.selected_model) == (ANSWER, GOOD)
    assert (len(pair.good.calls), len(pair.spare.calls), pair.left_open) == (2, 0, 0)
    assert pair.clock.monotonic() <= within_s


# --- the sixteen


@both_ways
async def test_429_with_retry_after_is_waited_out(streamed: bool) -> None:
    pair = Pair(["rate_limited_second"])
    await saved_by_a_second_try(pair, streamed, within_s=1.0)
    assert pair.clock.monotonic() == 1.0


@both_ways
@pytest.mark.parametrize("fault", ["rate_limited", "unavailable"])
async def test_an_endless_429_or_503_is_tried_twice_and_abandoned(fault: str, streamed: bool) -> None:
    await saved_by_the_spare(Pair(fault), streamed, calls=2, within_s=0.3)


@both_ways
@pytest.mark.parametrize("fault", ["server_error", "reset_before_headers"])
async def test_a_single_500_or_reset_is_retried(fault: str, streamed: bool) -> None:
    await saved_by_a_second_try(Pair([fault]), streamed, within_s=0.3)


@both_ways
@pytest.mark.parametrize("fault", ["silent", "slow_first_token"])
async def test_a_silent_provider_is_abandoned_in_time_for_the_next(fault: str, streamed: bool) -> None:
    await saved_by_the_spare(Pair(fault), streamed, calls=1, within_s=10.0 if streamed else 45.0)


async def test_a_cut_stream_restarts_and_says_so() -> None:
    pair = Pair("reset_mid_body")
    await begins_anew_at_the_spare(pair, ["good/one", "spare/two"], "upstream_5xx")
    assert pair.clock.monotonic() <= 0.3


async def test_a_stalled_stream_restarts_after_ten_seconds() -> None:
    pair = Pair("stall_mid_answer")
    await begins_anew_at_the_spare(pair, ["spare/two"], "timeout")
    assert pair.clock.monotonic() == 10.0


@pytest.mark.parametrize("fault", ["malformed_chunk", "truncated", "no_finish_reason"])
async def test_a_malformed_chunk_and_a_missing_end_are_faults(fault: str) -> None:
    await begins_anew_at_the_spare(Pair(fault), ["good/one", "spare/two"], "upstream_5xx")


async def begins_anew_at_the_spare(pair: Pair, moves: list[str], reason: str) -> None:
    """What was read is void whenever another model, or another try, takes over."""
    valid = ""
    told = []
    async with pair.router.stream("hi", goal="quality") as stream:
        async for event in stream:
            if isinstance(event, OutputDelta):
                valid += event.data.text
            if isinstance(event, RouteFallback):
                assert event.data.restart
                assert valid.startswith("All ")
                valid = ""
                told.append((event.data.to_model, event.data.reason))
    assert valid == stream.result.output == ANSWER
    assert told == [(model, reason) for model in moves]
    assert pair.left_open == 0


@pytest.mark.parametrize("fault", ["reset_mid_body", "stall_mid_answer", "malformed_chunk", "truncated"])
async def test_a_reader_of_text_gets_an_error_on_a_cut_and_never_another_model(fault: str) -> None:
    pair, read = Pair(fault), list[str]()

    async def reading() -> None:
        async with pair.router.stream("hi", goal="quality") as stream:
            async for piece in stream.text():
                read.append(piece)

    with pytest.raises(UpstreamFailed):
        await reading()
    assert read
    assert WELL.startswith("".join(read).strip())
    assert (len(pair.good.calls), pair.spare.calls, pair.left_open) == (1, [], 0)


@both_ways
@pytest.mark.parametrize("window", [200_000, 100_000, 9_000, None])
async def test_a_prompt_too_long_for_one_model_goes_to_another_that_can_hold_it(
    streamed: bool, window: int | None
) -> None:
    models = [Model(id=id, quality=q, pricing_per_1m=Pricing(1.0, 4.0), context_window=w) for id, q, w in
              ((GOOD, 0.9, 100_000), (SPARE, 0.5, window))]  # fmt: skip
    await saved_by_the_spare(Pair("context_overflow", models=models), streamed, calls=1, within_s=0.0)


@both_ways
async def test_a_prompt_too_long_for_every_model_fails_with_a_hint(streamed: bool) -> None:
    pair = Pair("context_overflow", "context_overflow")
    with pytest.raises(UpstreamFailed, match="shorten the input"):
        await ask(pair, streamed)
    assert (len(pair.good.calls), len(pair.spare.calls)) == (1, 1)


@both_ways
@pytest.mark.parametrize("fault", ["moderation", "content_filter"])
async def test_a_refusal_by_moderation_does_not_fall_back(fault: str, streamed: bool) -> None:
    pair = Pair(fault)
    with pytest.raises(ContentRefused) as caught:
        await ask(pair, streamed)
    assert caught.value.status == 403
    assert (len(pair.good.calls), pair.spare.calls, pair.left_open) == (1, [], 0)


@both_ways
async def test_after_a_cut_the_fallback_is_asked_the_original_question(streamed: bool) -> None:
    pair = Pair("error_event")
    await saved_by_the_spare(pair, streamed, calls=2, within_s=0.3)
    first, again = pair.good.calls
    (spare,) = pair.spare.calls
    assert first.messages == again.messages == spare.messages
    assert [message.role for message in spare.messages] == ["user"]


@both_ways
async def test_a_provider_that_flaps_is_back_within_16_s_of_its_recovery(streamed: bool) -> None:
    well: list[bool] = []

    def faults() -> Any:
        while True:
            yield None if well else "unavailable"

    pair = Pair(faults())
    for _ in range(20):
        assert (await ask(pair, streamed)).output == ANSWER
        await pair.clock.sleep(1.0)
    well.append(True)
    served = []
    for _ in range(16):
        served.append((await ask(pair, streamed)).routing.selected_model)
        await pair.clock.sleep(1.0)
    assert GOOD in served
    assert pair.left_open == 0


async def test_after_a_fallback_each_attempt_costs_what_its_own_model_does() -> None:
    pair = Pair("reset_mid_body")
    trace = await saved_by_the_spare(pair, True, calls=2, within_s=0.3)
    spans = [span for span in trace.spans if isinstance(span, ModelSpan)]
    prices = {GOOD: (1.0, 4.0), SPARE: (2.0, 8.0)}
    for span in spans:
        assert span.tokens is not None
        of_input, of_output = prices[span.model]
        due = (span.tokens.input * of_input + span.tokens.output * of_output) / 1e6
        assert span.cost_usd == pytest.approx(due)
        assert span.cost_usd > 0
    assert [span.usage_estimated for span in spans] == [True, True, False]
    assert trace.cost_usd == trace.charged_usd == pytest.approx(sum(span.cost_usd for span in spans))


# --- and some more


@both_ways
@pytest.mark.parametrize("fault", ["error_in_200", "empty_choices", "empty_body", "null_content"])
async def test_a_200_with_an_error_or_nothing_is_a_fault(fault: str, streamed: bool) -> None:
    await saved_by_the_spare(Pair(fault), streamed, calls=2, within_s=0.3)


async def test_an_end_marker_without_a_finish_reason_is_a_fault() -> None:
    await saved_by_the_spare(Pair("no_finish_reason"), True, calls=2, within_s=0.3)


@both_ways
async def test_comments_without_tokens_count_as_silence(streamed: bool) -> None:
    await saved_by_the_spare(Pair("comments"), streamed, calls=1, within_s=10.0 if streamed else 45.0)


@both_ways
async def test_an_answer_that_comes_byte_by_byte_is_an_answer(streamed: bool) -> None:
    pair = Pair("byte_dribble")
    assert (await ask(pair, streamed)).output == WELL
    assert (len(pair.good.calls), pair.left_open) == (1, 0)


async def test_a_complete_stream_waits_at_most_half_a_second_for_its_connection() -> None:
    pair = Pair("stall_after_end")
    assert (await ask(pair, True)).output == WELL
    assert (pair.clock.monotonic(), pair.left_open) == (0.5, 0)


@both_ways
async def test_a_retry_after_of_a_day_is_not_waited_for(streamed: bool) -> None:
    await saved_by_the_spare(Pair("rate_limited_day"), streamed, calls=1, within_s=0.0)


@both_ways
async def test_if_everything_is_down_the_error_lists_every_attempt_at_once(streamed: bool) -> None:
    pair = Pair("unavailable", "unavailable")
    with pytest.raises(UpstreamFailed) as caught:
        await ask(pair, streamed)
    assert [entry["model"] for entry in caught.value.detail["attempts"]] == [GOOD, GOOD, SPARE, SPARE]
    assert pair.clock.monotonic() <= 0.6


async def test_a_caller_is_charged_by_the_catalogues_prices() -> None:
    pair = Pair(["reset_mid_body"])
    trace = await pair.router.trace((await ask(pair, True)).trace_id)
    models = Catalogue(pair.router.models())
    spans = [span for span in trace.spans if isinstance(span, ModelSpan) and span.tokens is not None]
    bills = [models.bill(span.model, Usage(span.tokens.input, span.tokens.output)) for span in spans if span.tokens]
    assert trace.charged_usd == pytest.approx(sum(bill.total_usd for bill in bills))
