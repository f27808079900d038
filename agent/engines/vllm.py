"""vLLM's OpenAI server: facts and command line (ENG-01).

Owns the flags. The entry point is always given, because images differ in theirs (`vllm serve` or
the API server module) and both take other arguments. The key goes by VLLM_API_KEY.
"""

from agent.contract.messages import PipelineStage
from agent.engines.base import EngineCall, ImageCommand, Metrics, switch, whole_number


class Vllm:
    """For NVIDIA, AMD and Hygon cards."""

    name = "vllm"
    family = "vllm"
    vendors: tuple[str, ...] = ("nvidia", "amd", "hygon")
    images: dict[str, str] = {
        "nvidia": "vllm/vllm-openai:latest",
        "amd": "rocm/vllm:latest",
    }
    min_compute_capability: str | None = "7.5"  # AGENT-11
    default_port = 8000
    health_path = "/health"
    loading_status: int | None = None
    can_sleep = True
    start_percent: int | None = 90
    spans_nodes = True  # from 0.12 on, by its own processes and without Ray
    key_variable = "VLLM_API_KEY"
    option_variables = frozenset(
        {"HETEROFLOW_MAX_MODEL_LEN", "HETEROFLOW_MAX_NUM_SEQS", "HETEROFLOW_SLEEP_MODE"}
    )
    metrics = Metrics(
        path="/metrics",
        progress_counter="vllm:generation_tokens_total",
        running_gauge="vllm:num_requests_running",
        waiting_gauge="vllm:num_requests_waiting",
        kv_gauge="vllm:kv_cache_usage_perc",
    )

    def image_command(self, call: EngineCall) -> ImageCommand:
        return ImageCommand(entrypoint=["vllm", "serve"], arguments=self._arguments(call))

    def process_arguments(self, call: EngineCall) -> list[str]:
        return ["serve", *self._arguments(call)]

    def _arguments(self, call: EngineCall) -> list[str]:
        options = call.options
        line = [call.model_path, "--served-model-name", call.served_model_name]
        line += ["--host", call.host, "--port", str(call.port)]
        if call.stage is not None:
            line += self._stage_arguments(call.stage)
        if call.tensor_parallel > 1:
            line += ["--tensor-parallel-size", str(call.tensor_parallel)]
        if call.memory_percent is not None:
            # The engine refuses to start unless this share of the card is free, so the share that
            # was promised is passed on as it is.
            line += ["--gpu-memory-utilization", f"{call.memory_percent / 100:.2f}"]
        length = whole_number(options, "HETEROFLOW_MAX_MODEL_LEN", 0, low=0, high=1 << 24)
        if length:
            line += ["--max-model-len", str(length)]
        seqs = whole_number(options, "HETEROFLOW_MAX_NUM_SEQS", 0, low=0, high=1 << 16)
        if seqs:
            line += ["--max-num-seqs", str(seqs)]
        if self._takes_sleep_mode(call):
            line += ["--enable-sleep-mode"]
        return line

    @staticmethod
    def _stage_arguments(stage: PipelineStage) -> list[str]:
        """One stage a node; all but the head are without an API."""
        line = ["--pipeline-parallel-size", str(stage.stages), "--distributed-executor-backend", "mp"]
        line += ["--nnodes", str(stage.stages), "--node-rank", str(stage.rank)]
        line += ["--master-addr", stage.master_host, "--master-port", str(stage.master_port)]
        return line if stage.rank == 0 else [*line, "--headless"]

    @staticmethod
    def _takes_sleep_mode(call: EngineCall) -> bool:
        """Without the flag the sleep call frees nothing; where the platform does not know it, it stops the
        start. CUDA has it in every version, ROCm from 0.11.1 on and by the service's own word only."""
        asked = switch(call.options, "HETEROFLOW_SLEEP_MODE")
        return call.sleep_enabled and (call.gpu_vendor == "nvidia" or (call.gpu_vendor == "amd" and asked))


ENGINE = Vllm()
