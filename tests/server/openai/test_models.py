"""The model list, and a single model."""

from __future__ import annotations

from routewright import Model
from routewright.testing import ScriptedProvider
from tests.server.uvicorn_server import Site

from .clients import ONE, raw, sdk, site_of


def test_every_callable_model_is_listed_and_can_be_called() -> None:
    with sdk(site_of(ScriptedProvider(["Hello."], models=[ONE]))) as client:
        ids = [model.id for model in client.models.list()]
        assert ids == ["auto", "auto:cost", "auto:quality", "auto:stability", "test/one"]
        answer = client.chat.completions.create(model=ids[-1], messages=[{"role": "user", "content": "Hi"}])
    assert answer.model == "test/one"


def test_a_list_of_models_has_every_field_that_clients_require() -> None:
    with raw(Site()) as client:
        body = client.get("/models").json()
    assert body["object"] == "list"
    assert {tuple(each) for each in body["data"]} == {("id", "object", "created", "owned_by", "shutdown_date")}
    assert {each["object"] for each in body["data"]} == {"model"}
    (one,) = (each for each in body["data"] if each["id"] == "openai/gpt-4.1")
    assert (one["owned_by"], one["created"]) == ("openai", 1744588800)  # 2025-04-14


def test_an_unknown_release_day_is_zero() -> None:
    models = [
        Model(id="test/month", quality=0.5, released_at="2025-04"),
        Model(id="test/never", quality=0.5),
    ]
    with raw(site_of(ScriptedProvider([], models=models))) as client:
        made = {each["id"]: each["created"] for each in client.get("/models").json()["data"]}
    assert made["test/month"] == 1743465600
    assert made["test/never"] == 0
