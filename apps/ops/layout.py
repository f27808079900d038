"""Where things lie in the data directory of the embedded profile."""

from dataclasses import dataclass
from pathlib import Path

# Engines' ports: 400 a start, chosen by the web port so that two starts beside each other differ.
# Below 32768, where Linux begins to hand out ports for outgoing connections.
FIRST_ENGINE_PORT, PORTS_A_START, STARTS = 20000, 400, 30


@dataclass(frozen=True)
class Layout:
    """Paths under DATA_DIR."""

    root: Path

    @property
    def models(self) -> Path:
        """Model files that local services may use."""
        return self.root / "models"

    @property
    def agent_state(self) -> Path:
        return self.root / "agent" / "state"

    @property
    def agent_config(self) -> Path:
        return self.root / "agent" / "agent.toml"

    @property
    def join_token(self) -> Path:
        return self.root / "agent" / "join-token"


def engine_ports(web_port: int) -> tuple[int, int]:
    """First and last port that the local agent may give to engines."""
    first = FIRST_ENGINE_PORT + PORTS_A_START * (web_port % STARTS)
    return first, first + PORTS_A_START - 1
