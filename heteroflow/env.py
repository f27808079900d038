"""Reads the environment once; a value may also come from a file named by NAME_FILE."""

from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured


class Environment(environ.FileAwareEnv):
    """Names the variable and its value where one has the wrong form."""

    def get_value(self, var: str, cast: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().get_value(var, cast, *args, **kwargs)
        except (ValueError, TypeError) as error:
            kind = {int: "a whole number", float: "a number"}.get(cast, "a value of its form")
            raise ImproperlyConfigured(f"{var}={self.ENVIRON.get(var)} is not {kind}.") from error

    def one_of(self, var: str, *words: str) -> str:
        """One of these words; the first is the default."""
        word = self.str(var, default=words[0])
        if word not in words:
            raise ImproperlyConfigured(f"{var}={word} is none of {', '.join(words)}.")
        return word


env = Environment()

ROOT = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("DATA_DIR", default=str(ROOT / "data"))).resolve()
