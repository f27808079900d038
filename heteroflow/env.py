"""Reads the environment once; a value may also come from a file named by NAME_FILE."""

from pathlib import Path

import environ

env = environ.FileAwareEnv()

ROOT = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("DATA_DIR", default=str(ROOT / "data"))).resolve()
