"""A page may open a socket here only if this address, port included, served it."""

import pytest

from heteroflow.origins import is_own_page


@pytest.fixture(autouse=True)
def hosts(settings):
    settings.ALLOWED_HOSTS = ["127.0.0.1", "hf.example", "[::1]"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://portal.example"]


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:3333", "127.0.0.1:3333"),
        ("http://hf.example", "hf.example"),
        ("https://hf.example", "hf.example:443"),
        ("https://HF.example", "hf.EXAMPLE"),
        ("http://[::1]:3333", "[::1]:3333"),
        ("https://portal.example", "127.0.0.1:3333"),  # trusted by setting
    ],
)
def test_own_pages(origin: str, host: str) -> None:
    assert is_own_page(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:20000", "127.0.0.1:3333"),  # a container's page on the same machine
        ("http://127.0.0.1", "127.0.0.1:3333"),
        ("http://hf.example", "127.0.0.1:3333"),
        ("http://evil.example", "evil.example"),  # rebound name
        ("http://hf.example.evil", "hf.example"),
        ("http://portal.example", "127.0.0.1:3333"),
        ("null", "hf.example"),
        ("", "hf.example"),
        ("http://hf.example:x", "hf.example"),
        ("http://hf.example:99999999", "hf.example"),
        ("file://hf.example", "hf.example"),
        ("http://hf.example", ""),
    ],
)
def test_other_pages(origin: str, host: str) -> None:
    assert not is_own_page(origin, host)
