"""How a question to the server may fail.

Owns the two kinds: no answer (ask again, nothing may be concluded) and a refusal (an answer).
"""


class ServerUnreachable(Exception):
    """No usable answer: no connection, too slow, a server error, or bytes that are no message.
    `request_id` is the one that went out with it, by which the server's log has it, if it came there."""

    request_id = ""


class ServerRefused(Exception):
    """The server answered, and said no: HTTP status 4xx with a code and a sentence. `request_id` as of
    ServerUnreachable."""

    request_id = ""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail


class Superseded(Exception):
    """A newer run of this node's agent has taken over; this one must end its engines and leave."""
