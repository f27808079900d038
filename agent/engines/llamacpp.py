"""llama.cpp's server: facts and command line (ENG-01).

Owns the flags. The image's entry point is the server binary itself, so that only arguments are
given; our own launcher (`agent/runtime/llamacpp_server.py`) takes the same flags, so that both
runtimes share one builder. Never puts the key on the command line: it reads LLAMA_API_KEY.
"""

from agent.engines.base import EngineCall, EngineOptionError, ImageCommand, Metrics, switch, whole_number

# The context is shared by the slots: 4096 over two slots leaves 2048 tokens a request.
CONTEXT_TOKENS = 4096
SLOTS = 2
ALL_LAYERS = 999
POOLINGS = ("none", "mean", "cls", "last", "rank")


class LlamaCpp:
    """Runs on any card and without one."""

    name = "llamacpp"
    family = "llamacpp"
    vendors: tuple[str, ...] = ("cpu", "nvidia", "amd", "hygon")
    images: dict[str, str] = {
        "cpu": "ghcr.io/ggml-org/llama.cpp:server",
        "nvidia": "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "amd": "ghcr.io/ggml-org/llama.cpp:server-rocm",
    }
    min_compute_capability: str | None = "5.0"
    default_port = 8080
    health_path = "/health"
    loading_status: int | None = 503
    can_sleep = False
    start_percent: int | None = None
    spans_nodes = False  # its own way, by RPC, has no ranks and no walls
    key_variable = "LLAMA_API_KEY"
    option_variables = frozenset(
        {"LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_EMBEDDINGS", "LLAMA_ARG_POOLING"}
    )
    # The decode counter moves with each step; the token counters only when a request ends.
    metrics = Metrics(
        path="/metrics",
        progress_counter="llamacpp:n_decode_total",
        running_gauge="llamacpp:requests_processing",
        waiting_gauge="llamacpp:requests_deferred",
    )

    def image_command(self, call: EngineCall) -> ImageCommand:
        return ImageCommand(arguments=self.process_arguments(call))

    def process_arguments(self, call: EngineCall) -> list[str]:
        options = call.options
        context = whole_number(options, "LLAMA_ARG_CTX_SIZE", CONTEXT_TOKENS, low=0, high=1 << 24)
        slots = whole_number(options, "LLAMA_ARG_N_PARALLEL", SLOTS, low=1, high=256)
        line = ["--model", call.model_path, "--alias", call.served_model_name]
        line += ["--host", call.host, "--port", str(call.port)]
        line += ["--ctx-size", str(context), "--parallel", str(slots)]
        if call.threads is not None:
            line += ["--threads", str(call.threads)]
        if call.gpu_count > 0:
            line += ["--n-gpu-layers", str(ALL_LAYERS)]
        if call.gpu_count > 1:
            # one proportion a card, separated by commas
            line += ["--split-mode", "layer", "--tensor-split", ",".join(["1"] * call.gpu_count)]
        if switch(options, "LLAMA_ARG_EMBEDDINGS"):
            line += ["--embeddings"]
        pooling = options.get("LLAMA_ARG_POOLING", "")
        if pooling:
            if pooling not in POOLINGS:
                raise EngineOptionError("LLAMA_ARG_POOLING", pooling, f"must be one of {', '.join(POOLINGS)}")
            line += ["--pooling", pooling]
        return [*line, "--metrics"]


ENGINE = LlamaCpp()
