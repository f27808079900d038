"""What the openai SDK for Python makes of a gateway; `openai_node.mjs` is the same program for Node."""

from __future__ import annotations

from typing import Any

import openai

from tests.sdks.asked import Asked, Talk, broken, error_of

SAY: Any = [{"role": "user", "content": "hi"}]


def talk(asked: Asked) -> Talk:
    with client_of(asked, asked.key) as sdk:
        told: Talk = {"models": {}, "errors": {}}
        for model in asked.models:
            whole = sdk.chat.completions.create(model=model, messages=SAY, max_tokens=16)
            completion = sdk.completions.create(model=model, prompt="hi", max_tokens=16)
            assert whole.usage is not None
            told["models"][model] = {
                "whole": whole.choices[0].message.content,
                "named": whole.model,
                "tokens": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
                "stream": streamed(sdk, model),
                "stream with usage": streamed(sdk, model, stream_options={"include_usage": True}),
                "completion": bool(completion.choices[0].text),
            }
        vectors = sdk.embeddings.create(model=asked.vectors, input="hi")
        told["embedding"] = len(vectors.data[0].embedding)
        told["listed"] = sorted(model.id for model in sdk.models.list())
        ask = sdk.chat.completions.create
        errors = told["errors"]
        errors["unknown model"] = error_of(lambda: ask(model="nobody's", messages=SAY))
        errors["no replica"] = error_of(lambda: ask(model=asked.away, messages=SAY))
        errors["not offered"] = error_of(lambda: sdk.embeddings.create(model=asked.models[0], input="hi"))
    with client_of(asked, asked.wrong_key) as sdk:
        errors["wrong key"] = error_of(
            lambda: sdk.chat.completions.create(model=asked.models[0], messages=SAY)
        )
    return told


def streamed(sdk: openai.OpenAI, model: str, **more: Any) -> list[Any]:
    """The text, and the tokens that any part of the stream told."""
    parts = list(sdk.chat.completions.create(model=model, messages=SAY, max_tokens=16, stream=True, **more))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    told = [[part.usage.prompt_tokens, part.usage.completion_tokens] for part in parts if part.usage]
    return [text, *told]


def leave(asked: Asked) -> str:
    """Reads the first words of a stream and leaves it; those words."""
    with (
        client_of(asked, asked.key) as sdk,
        sdk.chat.completions.create(model=asked.slow, messages=SAY, stream=True) as stream,
    ):
        return next(text for part in stream if (text := part.choices[0].delta.content))


def break_off(asked: Asked) -> list[str]:
    """Reads a stream whose engine breaks off in the middle."""
    with client_of(asked, asked.key) as sdk:
        stream = sdk.chat.completions.create(model=asked.slow, messages=SAY, stream=True)
        return broken(part.choices[0].delta.content or "" for part in stream)


def client_of(asked: Asked, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=asked.base_url, api_key=key, http_client=asked.http(), max_retries=0)
