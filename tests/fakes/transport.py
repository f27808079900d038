"""A transport without a socket: keeps what is written to it and what is asked of it."""

import asyncio


class FakeTransport(asyncio.Transport):
    """`unread`: bytes that the other side has not taken yet, which the test sets."""

    def __init__(self, peer: str = "192.0.2.7") -> None:
        super().__init__({"peername": (peer, 40_000)})
        self.written = b""
        self.gone = self.paused = self.shut = False
        self.unread = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.gone, "written after the end"
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.shut = True

    def abort(self) -> None:
        self.gone = True

    def close(self) -> None:
        self.gone = True

    def is_closing(self) -> bool:
        return self.gone

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
