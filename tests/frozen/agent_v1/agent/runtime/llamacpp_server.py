"""Runs llama.cpp's own HTTP server in this process, from the wheel `xllamacpp`.

Owns the translation of llama-server's flags, as far as the catalog uses them, into the wheel's
parameters; the wheel has no command of its own. Started by the process runtime as a script, so it
imports nothing of the agent. Reads its key from LLAMA_API_KEY and ends when its parent is gone.
Exit codes: 0 after SIGTERM or SIGINT, 1 when the model cannot be loaded, 3 when the parent is gone.
"""

import argparse
import os
import signal
import sys
import threading
from typing import Any

PARENT_CHECK_S = 1.0
HTTP_THREADS = 4


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the flags; a wrong one ends the process with a sentence and exit code 2."""
    p = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    p.add_argument("--model", required=True)
    p.add_argument("--alias", default="")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--ctx-size", type=int, default=0)
    p.add_argument("--parallel", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--n-gpu-layers", type=int, default=0)
    p.add_argument("--split-mode", choices=["layer"], default="layer", help="the wheel's own default")
    p.add_argument("--tensor-split", default="")
    p.add_argument("--embeddings", action="store_true")
    p.add_argument("--pooling", default="")
    p.add_argument("--metrics", action="store_true")
    return p.parse_args(argv)


def start(args: argparse.Namespace, api_key: str) -> Any:
    """Load the model (blocking) and serve from the wheel's threads. Raises RuntimeError."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = args.model
    p.model_alias = {args.alias} if args.alias else set()
    p.hostnames = [args.host]
    p.port = args.port
    p.n_ctx = args.ctx_size
    p.n_parallel = args.parallel
    p.n_gpu_layers = args.n_gpu_layers
    # ggml's threads spin at barriers: more threads than free cores make one token take a second
    p.cpuparams.n_threads = args.threads
    p.cpuparams_batch.n_threads = args.threads
    p.n_threads_http = HTTP_THREADS
    p.api_keys = [api_key] if api_key else []
    p.endpoint_metrics = args.metrics
    p.endpoint_slots = True
    p.endpoint_props = False
    p.embedding = args.embeddings
    if args.tensor_split:
        shares = [float(share) for share in args.tensor_split.split(",")]
        p.tensor_split = shares + [0.0] * (len(p.tensor_split) - len(shares))
    if args.pooling:
        name = f"LLAMA_POOLING_TYPE_{args.pooling.upper()}"
        p.pooling_type = getattr(xllamacpp.llama_pooling_type, name)
    return xllamacpp.Server(p)


def main(argv: list[str]) -> int:
    """Serve until told to end or until the parent is gone."""
    args = parse(argv)
    parent = int(os.environ.get("HETEROFLOW_AGENT_PID", "0")) or os.getppid()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    # taken out of the environment, so that nothing this process may start ever inherits it
    api_key = os.environ.pop("LLAMA_API_KEY", "")
    watch = threading.Thread(target=_leave_with_parent, args=(parent,), daemon=True)
    watch.start()
    try:
        server = start(args, api_key)
    except Exception as error:
        print(f"error: the model could not be loaded: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    done.wait()
    sys.stdout.flush()
    # The native part takes long to unload; a stop has to end inside its grace period.
    os._exit(0)


def _leave_with_parent(parent: int) -> None:
    """The kernel's parent-death signal does this already; here for a runtime that sets none."""
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(PARENT_CHECK_S)
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
