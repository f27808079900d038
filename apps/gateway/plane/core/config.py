"""Every limit and duration of the gateway as one plain value.

Owns names, units and defaults only; `plane/io/config.py` fills it from the Django settings
`HETEROFLOW_GATEWAY_<NAME IN CAPITALS>`.
"""

import msgspec

MIB = 1024 * 1024


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, durations in seconds."""

    usage_dir: str = ""
    """Folder of the usage files; one per host, on a local disk, never shared between hosts."""

    # What a caller may send.
    max_body_bytes: int = 16 * MIB
    body_timeout_s: float = 60.0
    big_body_bytes: int = 256 * 1024
    """From this size on a body is parsed in a thread, since 10 MB would stop the loop for 10 ms."""
    big_bodies_at_once: int = 4
    """So many are parsed at once."""
    big_bodies_bytes: int = 256 * MIB
    """So much of big bodies is held at once, as they come and until an engine begins to answer; of one
    tenant half."""
    trusted_proxies: tuple[str, ...] = ()
    """Whose X-Forwarded-For says where a call comes from: addresses or networks, by TRUSTED_PROXIES."""
    head_timeout_s: float = 10.0
    """A caller's connection that has not sent the whole head of its request by then is closed."""
    head_bytes: int = 32 * 1024
    head_lines: int = 100
    idle_timeout_s: float = 75.0
    """How long a caller's connection is kept without a request."""
    waiting_requests: int = 16
    """How many more requests may be sent on a connection while one is answered."""
    linger_s: float = 2.0
    """How long what a refused caller still sends is read and dropped, so that it can read why."""
    client_write_timeout_s: float = 60.0
    """A caller that takes no byte for so long counts as gone, so that it can't hold a replica."""

    # What is expected of a replica.
    replica_connections: int = 512
    connect_timeout_s: float = 5.0
    peer_silent_s: float = 10.0
    """A machine whose network answers nothing at all for so long is gone, whatever was asked of it."""
    first_byte_timeout_s: float = 600.0
    gap_timeout_s: float = 120.0
    total_timeout_s: float = 3600.0
    heartbeat_s: float = 15.0
    """So long an engine may be silent in a stream before its caller gets a comment, each time; 0 = never."""
    keepalive_s: float = 4.0
    """Below the 5 s after which llama.cpp closes idle connections."""
    tail_timeout_s: float = 1.0
    """How long the end of an already answered stream may take before its connection is dropped."""
    deadline_step_s: float = 0.1
    """How often all deadlines of calls are looked at; each is met up to so much late."""
    max_answer_bytes: int = 64 * MIB
    max_event_bytes: int = 8 * MIB
    backend_tries: int = 3
    """How many backends a call may be sent to, each once, while none has answered a byte (GW-10)."""
    sideline_s: float = 5.0
    """How long a replica that refused a connection, or failed too often, is passed over while others can
    serve; twice as long after each call that tried it in vain, up to `circuit_pause_max_s` (GW-08)."""
    circuit_pause_s: float = 1.0
    circuit_pause_max_s: float = 60.0
    circuit_refusals: int = 3
    """After so many refused connections in a row it gets no call at all but one each `circuit_pause_s`, to
    try it."""
    circuit_failures: int = 5
    circuit_window: int = 20
    """So many failures among so many calls, and it is passed over."""
    probe_period_s: float = 10.0
    """How often backends of routes in use are asked whether they are well; 0 = never."""
    probe_timeout_s: float = 8.0
    probe_failures: int = 2
    probes_at_once: int = 8
    probe_used_s: float = 600.0
    """A route that nobody called for so long is not probed."""
    heat_limit_c: int = 85
    """Replicas on a card that is hotter get no new call while others can; 0 = whatever it is (GW-07)."""
    heat_release_c: int = 80
    """So cool it must be again; between the two it stays as it was."""
    heat_poll_s: float = 5.0
    engine_load_poll_s: float = 1.0
    """How often engines behind `engine_aware` routes are asked for their load (GW-04)."""
    engine_load_fresh_s: float = 5.0
    """For how long what an engine said of its load is believed."""
    model_name_ttl_s: float = 30.0
    """How long an engine's own model id is believed (GW-05)."""
    model_name_timeout_s: float = 5.0
    retry_after_s: int = 2

    # Keys and tables.
    version_poll_s: float = 1.0
    full_reload_s: float = 300.0
    table_timeout_s: float = 30.0
    key_lookups_at_once: int = 4
    key_lookup_timeout_s: float = 3.0
    key_negative_ttl_s: float = 1.0
    key_cache_size: int = 10_000
    touch_interval_s: float = 10.0

    # What is said of the calls here, for those who put replicas to sleep or take them away (SLEEP-06).
    load_say_s: float = 1.0
    """How often it is said, where it has changed."""
    load_repeat_s: float = 10.0
    """How often it is said again where nothing has: the process is still there."""
    load_keep_s: float = 3600.0
    """For how long it is told when a service was last asked for."""
    call_back_wait_s: float = 15.0
    """How long a call waits for a replica that has just left the routes to sleep and may be called back."""

    # Usage files and the end of the process.
    usage_file_bytes: int = 64 * MIB
    usage_backlog: int = 10_000
    usage_retry_s: float = 1.0
    usage_flush_s: float = 1.0
    shutdown_timeout_s: float = 30.0
