"""Values at rest are unreadable without a key and survive rotation (OPS-08, TEN-06)."""

import re
import uuid

import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st

from apps.core import secrets

pytestmark = pytest.mark.req("OPS-08")

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(TEXTS)
def test_what_goes_in_comes_out(plain):
    stored = secrets.encrypt(plain)

    assert secrets.decrypt(stored) == plain
    assert len(plain) < 4 or plain not in stored


def test_equal_values_rest_unequal():
    assert secrets.encrypt("same") != secrets.encrypt("same")


def test_an_added_key_reads_the_old_values_and_rotation_moves_them(settings):
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    settings.ENCRYPTION_KEYS = [old]
    stored = secrets.encrypt("the secret")

    settings.ENCRYPTION_KEYS = [new, old]
    assert secrets.decrypt(stored) == "the secret"
    rotated = secrets.rotate(stored)

    settings.ENCRYPTION_KEYS = [new]
    assert secrets.decrypt(rotated) == "the secret"
    with pytest.raises(secrets.SecretUnreadable):
        secrets.decrypt(stored)


@pytest.mark.parametrize("broken", ["", "not a token", "gAAAAA" + "A" * 80])
def test_a_broken_value_says_so_without_showing_it(broken):
    with pytest.raises(secrets.SecretUnreadable) as caught:
        secrets.decrypt(broken)

    assert not broken or broken not in str(caught.value)


@pytest.mark.req("TEN-06")
def test_a_gateway_key_is_sk_and_a_random_uuid():
    keys = {secrets.new_api_key() for _ in range(100)}

    assert len(keys) == 100
    for key in keys:
        assert key.startswith("sk-")
        assert uuid.UUID(key[3:]).version == 4
        assert secrets.display_prefix(key) == key[:11]


@pytest.mark.req("TEN-06")
def test_what_is_kept_of_a_key_is_its_sha256():
    digest = secrets.sha256_hex("sk-x")

    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest != secrets.sha256_hex("sk-y")


@pytest.mark.req("AGENT-17")
def test_an_engine_key_is_the_same_each_time_and_another_for_each_attempt(settings):
    key = secrets.derive_engine_key("task-a", 1)

    assert key == secrets.derive_engine_key("task-a", 1)
    assert len({key, secrets.derive_engine_key("task-a", 2), secrets.derive_engine_key("task-b", 1)}) == 3
    settings.SECRET_KEY = "another" * 8
    assert key != secrets.derive_engine_key("task-a", 1)
