"""Get answers as values of a type: read, mended by the model where they do not fit, and typed."""

import json
from typing import Literal

from pydantic import BaseModel, Field

from routewright import Router, UpstreamCall
from routewright.errors import UpstreamFailed
from routewright.wire import ModelSpan

MAIL = "Hi, the lamp came broken. I want my money back! Ann, order 117"


class Ticket(BaseModel):
    """What a mail is about."""

    order: int = Field(description="The number of the order.")
    topic: Literal["damage", "delivery", "other"]
    angry: bool = False


def main() -> None:
    router = Router.sandbox(answers=a_model)
    answer = router.blocking.route(MAIL, output_type=Ticket, goal="quality")
    print(f"order {answer.data.order}, {answer.data.topic}, angry: {answer.data.angry}")
    for span in answer.trace.spans:
        if isinstance(span, ModelSpan):
            print(f"  {span.model}: {span.error or 'fits'}{', after a repair' if span.repair else ''}")
    topics = router.blocking.route("Which topics are there?", output_type=list[str])
    print(f"topics: {topics.data}")
    try:
        router.blocking.route("Write a poem.", output_type=Ticket, models=["openai/gpt-5.4"])
    except UpstreamFailed as error:
        print(error.detail["attempts"][-1]["message"])
    router.blocking.close()


def a_model(call: UpstreamCall) -> str:
    """Stands for models that do not always answer as they are asked."""
    asked = str(call.messages[0].content)
    if asked == MAIL:
        topic = "anger" if len(call.messages) == 1 else "damage"  # it thinks again when it is shown what is wrong
        return f"```json\n{json.dumps({'order': 117, 'topic': topic, 'angry': True})}\n```"
    return json.dumps({"value": ["damage", "delivery"]}) if asked.startswith("Which") else "Roses are red"


if __name__ == "__main__":
    main()
