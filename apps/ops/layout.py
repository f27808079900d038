"""Where things lie in the data directory of the embedded profile."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Paths under DATA_DIR."""

    root: Path

    @property
    def database(self) -> Path:
        """As the embedded settings have it."""
        return self.root / "heteroflow.sqlite3"

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
