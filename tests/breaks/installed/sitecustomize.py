"""Lets a process of a stack kill itself at a named point of its work, as kill -9 would there.

Python imports this file at its start, before anything else, where the folder of a link to it stands in
PYTHONPATH. Which point is next stands in the file `next` beside that link; whoever passes it takes it away,
so that each kill happens once. Owns no point: they are in `tests/breaks/points.py`.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from pathlib import Path

NEXT = Path(__file__).with_name("next")
POINTS = {}
exec(Path(__file__).resolve().parent.with_name("points.py").read_text(), points := {})  # no import of `tests`
for point in points["POINTS"].values():
    POINTS.setdefault(point.module, []).append(point)


def passed(name):
    """End here if it is this point's turn."""
    try:
        if NEXT.read_text() != name:
            return
        NEXT.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(holder, point):
    whole = getattr(holder, point.function)

    def broken(*args, **kwargs):
        due = point.when(*args, **kwargs)
        if due and point.before:
            passed(point.name)
        done = whole(*args, **kwargs)
        if due and not point.before:
            passed(point.name)
        return done

    setattr(holder, point.function, broken)


class Loader(importlib.abc.Loader):
    """Puts the points into a module as soon as its code has run."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        for point in POINTS[module.__name__]:
            wrap(getattr(module, point.owner) if point.owner else module, point)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in POINTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
