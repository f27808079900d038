"""The bench puts together what it says: starts, bodies, medians (nothing is measured here)."""

import hashlib
import json
from pathlib import Path

import pytest

from bench.__main__ import BODIES, EVENTS, Run, medians, show
from bench.ours import KEY, KEYS, MODEL, Standing
from bench.peers import PEERS, Place, nginx, ours
from bench.ratios import compare

PLACE = Place(Path("/x"), 8001, 8002, (9001, 9002), KEY)


async def test_our_table_has_its_keys_and_one_model_on_all_engines() -> None:
    table = await Standing([9001, 9002]).load()
    assert len(table.keys) == KEYS + 1
    key = table.keys[hashlib.sha256(KEY.encode()).hexdigest()]
    (route,) = table.routes[key.tenant_id][MODEL]
    assert [replica.port for replica in route.replicas] == [9001, 9002]


def test_ours_is_a_process_of_this_source() -> None:
    start = ours(PLACE)
    assert start is not None
    assert start.command[1:] == ["-m", "bench.ours", "8001", "/x/usage", "9001,9002"]


def test_nginx_stands_before_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.shutil.which", lambda *a, **k: "/usr/sbin/nginx")
    start = nginx(PLACE)
    assert start is not None
    text = start.files["nginx.conf"]
    assert "server 127.0.0.1:9001;server 127.0.0.1:9002;" in text and "listen 127.0.0.1:8001 " in text
    assert text.count("{") == text.count("}")


def test_bodies_are_what_their_names_say() -> None:
    assert BODIES["stream"]["max_tokens"] + 2 == EVENTS
    assert "stream_options" not in BODIES["hidden"] and BODIES["hidden"]["stream"]
    assert len(json.dumps(BODIES["big"])) > 10_000_000
    assert set(PEERS) >= {"nginx", "ours", "vllm-router", "sglang-router", "litellm"}


def test_medians_and_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, None, pin=False)  # type: ignore[arg-type]
    window = {
        "rps": 0.0,
        "p50": 1.0,
        "p99": 2.0,
        "ttft50": 1.0,
        "cpu_per_1k": 0.1,
        "memory_mb": 9.0,
        "err": 0.0,
        "ok": 1.0,
    }
    run.windows["plain:1", "ours"] = [{**window, "rps": float(n), "bad": float(n == 3)} for n in (1, 9, 3)]
    found = medians(run)
    assert (found["plain:1"]["ours"]["rps"], found["plain:1"]["ours"]["failed"]) == (3, 1)
    run.windows["plain:1", "mute"] = [{**window, "bad": 0.0, "ok": 0.0}]
    found = medians(run)
    assert found["plain:1"]["mute"]["p50"] is None and found["plain:1"]["mute"]["rps"] == 0
    show(found)
    shown = capsys.readouterr().out
    assert "| ours | 3 |" in shown and "| mute | 0 | no reply |" in shown


def test_ratios_are_of_windows_of_the_same_round() -> None:
    def window(**figures: float) -> dict[str, float]:
        return {"ok": 10, "rps": 1.0, "cpu_per_1k": 1.0, "p50": 1.0, **figures}

    windows = {
        ("plain:450", "ours"): [window(rps=100), window(rps=10), window(rps=50)],
        ("plain:450", "vllm-router"): [window(rps=50), window(rps=5), window(ok=0, rps=0)],
        ("plain:450", "nginx"): [window(cpu_per_1k=0.2)] * 3,
        ("plain:1", "ours"): [window(p50=0.5)],
        ("plain:1", "direct"): [window(p50=0.2)],
        ("stream:50", "ours"): [window()],
        ("stream:50", "litellm"): [window(ok=0)],
    }
    found = compare(windows)
    assert found["plain:450 req/s to vllm-router"] == {"figure": 2.0, "bound": 1.0, "kept": True}
    assert found["plain:450 CPU to nginx"] == {"figure": 5.0, "bound": 4.0, "kept": False}
    assert found["plain:1 p50 ms over direct"] == {"figure": 0.3, "bound": 0.25, "kept": False}
    assert found["stream:50 req/s to litellm"]["kept"] is None
    assert "slow:450 p50 ms over direct" not in found
