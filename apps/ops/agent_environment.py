"""Which part of the supervisor's environment the local agent and its engines get to see."""

# All that the agent and its engines get to see of our environment: no key, no database address.
AGENT_SEES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES",
)
AGENT_PREFIX = "HETEROFLOW_AGENT_"


def agent_environment(environ: dict[str, str]) -> dict[str, str]:
    """The part of our environment that the agent may see; its log has the form of ours."""
    form = environ.get("LOG_FORMAT")
    return {
        **({f"{AGENT_PREFIX}LOG_FORMAT": form} if form in ("json", "line") else {}),
        **{n: value for n, value in environ.items() if n in AGENT_SEES or n.startswith(AGENT_PREFIX)},
    }
