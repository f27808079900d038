"""`python -m agent --config FILE`: reads the settings and runs the agent (AGENT-01).

Owns exit codes and the sentence that a wrong setting gets: 0 told to end, 2 settings, 3 a newer
agent has taken over, 4 the server refuses this node.
"""

import argparse
import os
import sys
from pathlib import Path

from agent import node, plainlog
from agent.config import ConfigError, LogFormat, load_settings


def main(argv: list[str]) -> int:
    """Run with these arguments; never shows a traceback for a wrong setting."""
    parser = argparse.ArgumentParser(
        prog="python -m agent", description="HeteroFlow's agent for one GPU node."
    )
    parser.add_argument("--config", type=Path, help="TOML file; each value also as HETEROFLOW_AGENT_<NAME>")
    args = parser.parse_args(argv)
    try:
        settings = load_settings(args.config, os.environ)
        try:
            plainlog.set_up(settings.log_level, as_json=settings.log_format is LogFormat.JSON)
        except ValueError as error:
            raise ConfigError(
                f"log_level = {settings.log_level!r}: must be DEBUG, INFO, WARNING or ERROR."
            ) from error
        return node.run(settings)
    except ConfigError as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
