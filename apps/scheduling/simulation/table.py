"""A report as text for people. Owns the layout; says no figure that the report does not hold."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

FEW = 10  # rows of a list; the rest is counted

Say = Callable[[str, dict[str, Any]], str]


def tables(report: dict[str, Any], say: Say) -> str:
    """The whole text. `say` makes a sentence of a reason's code and parameters."""
    return "\n\n".join(part for part in _parts(report, say) if part) + "\n"


def _parts(report: dict[str, Any], say: Say) -> Iterable[str]:
    fleet, work, tasks = report["fleet"], report["workload"], report["tasks"]
    yield (
        f"{fleet['about'] or 'Fleet'}: {fleet['nodes']:,} nodes, {fleet['cards']:,} cards\n"
        f"{work['about'] or 'Workload'}: {work['tasks']:,} tasks, seed {work['seed']}\n"
        f"{_time(report['until_s'])} replayed, {report['decisions']:,} decisions"
    )
    early = tasks["ended_early"]
    yield _table(
        "Tasks",
        (
            "arrived",
            "placed",
            "finished",
            "running",
            "asleep",
            "waiting",
            "evicted",
            "loan ended",
            "node lost",
        ),
        [
            [
                *(
                    tasks[name]
                    for name in ("arrived", "ever_placed", "finished", "running", "sleeping", "waiting")
                ),
                *early.values(),
            ]
        ],
    )
    yield _waits(report["waits"])
    yield _utilisation(report["utilisation"])
    yield _over_time(report["utilisation"]["over_time"])
    yield _refusals(report["refusals"], say)
    yield _list("Still waiting", report["waiting"], lambda one: _still(one, say))
    yield _list("Preemptions", report["preemptions"], _preemption)
    yield _list("Loans", report["loans"], _loan)
    yield _table(
        "Placements",
        ("task", "at", "waited", "node", "cards", "percent", "until", "ended"),
        [_placement(one) for one in report["placements"][:FEW]],
        more=len(report["placements"]) - FEW,
    )


def _waits(waits: dict[str, Any]) -> str:
    names = ("tasks", "p50_s", "p95_s", "most_s", "never_placed", "longest_by_now_s")
    kinds = [("all", waits["all"])]
    kinds += [(f"priority {name}", row) for name, row in waits["by_priority"].items()]
    kinds += [(f"tenant {name}", row) for name, row in waits["by_tenant"].items()]
    rows = [
        [kind, *(_time(row[name]) if name.endswith("_s") else row[name] for name in names)]
        for kind, row in kinds
    ]
    head = ("wait for the first place", "placed", "p50", "p95", "longest", "never placed", "waiting by now")
    return _table("", head, rows)


def _utilisation(use: dict[str, Any]) -> str:
    rows = [("all", use["all"])]
    rows += list(use["by_model"].items())
    rows += [(f"pool {pool}", row) for pool, row in use["by_pool"].items()]
    return _table(
        "",
        ("mean use", "cards", "cards held", "memory used"),
        [
            [name, row["cards"], _share(row["cards_percent"]), _share(row["memory_percent"])]
            for name, row in rows
        ],
    )


def _over_time(spans: Sequence[dict[str, Any]]) -> str:
    rows = []
    for span in spans:
        bar = "#" * round((span["cards_percent"] or 0) / 2.5)
        cards, memory = _share(span["cards_percent"]), _share(span["memory_percent"])
        rows.append([_time(span["from_s"]), cards, memory, f"{span['waiting']:,.1f}", bar])
    return _table("", ("from", "cards held", "memory used", "waiting", "cards held, to 100 %"), rows)


def _refusals(refusals: Sequence[dict[str, Any]], say: Say) -> str:
    return _table(
        "",
        ("refusal", "tasks", "still waiting", "the first one"),
        [
            [
                one["code"],
                one["tasks"],
                one["waiting"],
                f"{one['example']['task']} at {_time(one['example']['at_s'])}: "
                + say(one["code"], one["example"]["params"]),
            ]
            for one in refusals
        ],
    )


def _still(one: dict[str, Any], say: Say) -> str:
    why = " ".join(say(reason["code"], reason["params"]) for reason in one["reasons"])
    return f"{one['task']} since {_time(one['since_s'])}: {why or 'not looked at yet'}"


def _preemption(one: dict[str, Any]) -> str:
    victims = ", ".join(f"{victim['task']} (priority {victim['priority']})" for victim in one["victims"])
    cards = ", ".join(map(str, one["cards"]))
    return (
        f"{_time(one['at_s'])}: {one['for']} (priority {one['priority']}) on {one['node']} card {cards}, "
        f"instead of {victims}"
    )


def _loan(one: dict[str, Any]) -> str:
    ended = "lent still" if one["ended_s"] is None else f"ended {_time(one['ended_s'])}"
    return (
        f"{_time(one['at_s'])}: {one['node']} card {one['card']}, {one['lender']} to {one['borrower']} until "
        f"{_time(one['until_s'])}, {ended}"
    )


def _placement(one: dict[str, Any]) -> list[Any]:
    percent = "borrowed" if one["borrowed"] else one["percent"] or "alone"
    return [
        *(one["task"], _time(one["at_s"]), _time(one["wait_s"]), one["node"]),
        *(",".join(map(str, one["cards"])) or "-", percent, _time(one["until_s"]), one["ended"]),
    ]


def _list(title: str, rows: Sequence[dict[str, Any]], line: Callable[[dict[str, Any]], str]) -> str:
    if not rows:
        return ""
    more = [f"  and {len(rows) - FEW:,} more (--json has all)"] * (len(rows) > FEW)
    return "\n".join([f"{title}: {len(rows):,}", *(f"  {line(row)}" for row in rows[:FEW]), *more])


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], more: int = 0) -> str:
    if not rows:
        return ""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    if title:
        lines.insert(0, title)
    if more > 0:
        lines.append(f"and {more:,} more (--json has all)")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _share(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f} %"


def _time(seconds: float | None) -> str:
    """As people say it: 45s, 2m 5s, 3h 0m."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.10g}s" if seconds < 10 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"
