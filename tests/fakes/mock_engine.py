"""A small OpenAI-compatible engine whose faults are ordered by the test, one call at a time.

Answers like vLLM and llama.cpp do (framing, usage chunk, error bodies). It never generates
anything: the text is `tokens` words.
"""

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Plan:
    """What the engine does with the calls that follow. Durations in seconds."""

    tokens: int = 3
    delay_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reset_before_answer: int = 0
    cut_after: int | None = None
    hang_after: int | None = None
    abort_after: int | None = None
    error_after: int | None = None
    usage: dict | None = field(
        default_factory=lambda: {
            "prompt_tokens": 21,
            "completion_tokens": 3,
            "total_tokens": 24,
            "prompt_tokens_details": {"cached_tokens": 20},
        }
    )
    usage_on_last_chunk: bool = False
    reject_usage_option: bool = False
    line_end: str = "\n"
    chunk_bytes: int = 0
    no_done: bool = False
    piece: str = "w"
    health: int = 200
    load: tuple[int, int, float] = (0, 0, 0.0)  # running, waiting, KV use


class MockEngine:
    """`async with MockEngine() as engine:` serves on 127.0.0.1:engine.port."""

    def __init__(
        self, model: str = "engine-name", key: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        self.model = model
        self._context = context
        self.key = key
        self.plan = Plan()
        self.seen: list[dict] = []
        self.seen_headers: list[dict] = []
        self.raw: list[bytes] = []
        self.model_lists = 0
        self.health_checks = 0
        self.running = 0
        self.closed_at: list[float] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "MockEngine":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            app.router.add_post(path, self._call)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024, ssl_context=self._context)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.model_lists += 1
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        listed = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        if not self.plan.chunk_bytes:
            return web.json_response(listed)
        text, response = json.dumps(listed).encode(), web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(text), self.plan.chunk_bytes):
            await response.write(text[start : start + self.plan.chunk_bytes])
            await asyncio.sleep(self.plan.gap_s)
        return response

    async def _health(self, request: web.Request) -> web.Response:
        self.health_checks += 1
        return web.Response(status=self.plan.health)

    async def _metrics(self, request: web.Request) -> web.Response:
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        lines = [
            f'vllm:{name}{{engine="0"}} {value}' for name, value in zip(names, self.plan.load, strict=True)
        ]
        return web.Response(text="\n".join(lines))

    async def _call(self, request: web.Request) -> web.StreamResponse:
        plan = self.plan
        raw = await request.read()
        self.raw.append(raw)
        asked = json.loads(raw)
        self.seen.append(asked)
        self.seen_headers.append(dict(request.headers))
        self.running += 1
        try:
            return await self._answer(request, plan, asked)
        except (asyncio.CancelledError, ConnectionError):
            self.closed_at.append(time.monotonic())
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, plan: Plan, asked: dict) -> web.StreamResponse:
        if plan.reset_before_answer > 0:
            plan.reset_before_answer -= 1
            request.transport.abort()
            return web.Response()
        if plan.delay_s:
            await asyncio.sleep(plan.delay_s)
        if plan.status != 200:
            return web.Response(
                status=plan.status,
                body=plan.body if plan.body is not None else b'{"error":{"message":"engine says no"}}',
                headers={"Content-Type": "application/json", **plan.headers},
            )
        if plan.reject_usage_option and "stream_options" in asked:
            text = "Extra inputs are not permitted: stream_options"
            return web.json_response({"error": {"message": text, "code": 400}}, status=400)
        if asked.get("stream"):
            return await self._stream(request, plan, asked)
        return self._whole(request, plan, asked)

    def _whole(self, request: web.Request, plan: Plan, asked: dict) -> web.Response:
        if plan.body is not None:
            return web.Response(body=plan.body, content_type="application/json")
        if request.path.endswith("embeddings"):
            answer = {
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}],
            }
            usage = {"prompt_tokens": 5, "total_tokens": 5} if plan.usage is not None else None
        else:
            text = plan.piece * plan.tokens
            choice = {"index": 0, "finish_reason": "abort" if plan.abort_after is not None else "stop"}
            if request.path.endswith("chat/completions"):
                choice["message"] = {"role": "assistant", "content": text}
            else:
                choice["text"] = text
            answer = {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice]}
            usage = plan.usage
        answer["model"] = asked["model"]
        if usage is not None:
            answer["usage"] = usage
        return web.json_response(answer, headers=plan.headers)

    async def _stream(self, request: web.Request, plan: Plan, asked: dict) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", **plan.headers}
        )
        await response.prepare(request)
        end = plan.line_end
        wants = bool((asked.get("stream_options") or {}).get("include_usage"))

        def chunk(choices: list, **more: object) -> bytes:
            told = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
            text = json.dumps({**told, "choices": choices, **more}, ensure_ascii=False)
            return f"data: {text}{end}{end}".encode()

        def choice(text: str | None, finish: str | None = None) -> list:
            shape = {"delta": {"content": text} if text is not None else {}}
            if request.path == "/v1/completions":
                shape = {"text": text or ""}
            return [{"index": 0, "finish_reason": finish, **shape}]

        for number in range(plan.tokens):
            if plan.cut_after == number:
                request.transport.abort()
                return response
            if plan.hang_after == number:
                await asyncio.sleep(3600)
            if plan.abort_after == number:
                await response.write(chunk(choice(None, "abort")))
                await response.write(f"data: [DONE]{end}{end}".encode())
                return response
            if plan.error_after == number:
                error = {"error": {"message": "worker died at /srv/x.py", "code": 500}}
                await response.write(f"data: {json.dumps(error)}{end}{end}".encode())
                await response.write(f"data: [DONE]{end}{end}".encode())
                return response
            await self._write(response, chunk(choice(plan.piece)), plan)
            if plan.gap_s:
                await asyncio.sleep(plan.gap_s)
        last = {"usage": plan.usage} if wants and plan.usage_on_last_chunk and plan.usage is not None else {}
        await self._write(response, chunk(choice(None, "stop"), **last), plan)
        if wants and not last and plan.usage is not None:
            await self._write(response, chunk([], usage=plan.usage), plan)
        if not plan.no_done:
            await self._write(response, f"data: [DONE]{end}{end}".encode(), plan)
        await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes, plan: Plan) -> None:
        if not plan.chunk_bytes:
            await response.write(data)
            return
        for begin in range(0, len(data), plan.chunk_bytes):
            await response.write(data[begin : begin + plan.chunk_bytes])
