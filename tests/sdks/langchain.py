"""What LangChain makes of a gateway, by its package for OpenAI."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from tests.sdks.asked import Asked, Talk, broken, error_of


def talk(asked: Asked) -> Talk:
    told: Talk = {"models": {}, "errors": {}}
    for model in asked.models:
        chat = chat_of(asked, model)
        whole = chat.invoke("hi")
        told["models"][model] = {
            "whole": whole.content,
            "named": whole.response_metadata["model_name"],
            "tokens": tokens_of(whole.usage_metadata),
            "stream": streamed(chat),
            "stream with usage": streamed(chat_of(asked, model, stream_usage=True)),
            "completion": bool(OpenAI(model=model, max_tokens=16, **common(asked)).invoke("hi")),
        }
    told["embedding"] = len(vectors_of(asked, asked.vectors).embed_query("hi"))
    told["listed"] = sorted(model.id for model in chat_of(asked, "").root_client.models.list())
    told["errors"] = {
        "unknown model": error_of(lambda: chat_of(asked, "nobody's").invoke("hi")),
        "no replica": error_of(lambda: chat_of(asked, asked.away).invoke("hi")),
        "not offered": error_of(lambda: vectors_of(asked, asked.models[0]).embed_query("hi")),
        "wrong key": error_of(lambda: chat_of(asked, asked.models[0], api_key=asked.wrong_key).invoke("hi")),
    }
    return told


def leave(asked: Asked) -> str:
    """Reads the first words of a stream and leaves it; those words."""
    stream = chat_of(asked, asked.slow).stream("hi")
    text = next(str(part.content) for part in stream if part.content)
    stream.close()  # type: ignore[attr-defined]  # it is a generator, and typed as less
    return text


def break_off(asked: Asked) -> list[str]:
    """Reads a stream whose engine breaks off in the middle."""
    return broken(str(part.content) for part in chat_of(asked, asked.slow).stream("hi"))


def streamed(chat: ChatOpenAI) -> list[Any]:
    """The text, and the tokens that any part of the stream told."""
    parts = [part for part in chat.stream("hi") if isinstance(part, AIMessageChunk)]
    told = [tokens_of(part.usage_metadata) for part in parts if part.usage_metadata]
    return ["".join(str(part.content) for part in parts), *told]


def tokens_of(usage: Any) -> list[int]:
    return [usage["input_tokens"], usage["output_tokens"]]


def common(asked: Asked, **more: Any) -> Any:
    usual = {"base_url": asked.base_url, "api_key": asked.key, "max_retries": 0, "http_client": asked.http()}
    return {**usual, **more}


def chat_of(asked: Asked, model: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, max_tokens=16, **common(asked, **more))


def vectors_of(asked: Asked, model: str) -> OpenAIEmbeddings:
    # It would fetch a list of tokens from elsewhere to count them.
    return OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **common(asked))
