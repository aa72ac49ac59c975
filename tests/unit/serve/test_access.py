"""Who may call a server: loopback addresses, Host, Origin, the key; limits of its options."""

from __future__ import annotations

import pytest

from lmlab.core.errors import UserError
from lmlab.serve.access import Access, host_name, is_loopback, make_access
from lmlab.serve.serving_options import KEY_VARIABLE, ServingOptions


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_addresses(host: str, loopback: bool):
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:80", "localhost"),
        ("LocalHost", "localhost"),
        ("[::1]:80", "::1"),
        ("1.2.3.4", "1.2.3.4"),
    ],
)
def test_host_name_of_a_header(header: str, name: str):
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:8000", None, True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("localhost:8000", "https://localhost:8000", True),
        ("models.example", None, True),
        ("10.0.0.1", None, True),
        ("evil.example", None, False),
        ("127.0.0.1.evil.example", None, False),
        (None, None, False),
        ("127.0.0.1:8000", "http://127.0.0.1:8001", False),
        ("127.0.0.1:8000", "null", False),
        ("127.0.0.1:8000", "http://evil.example", False),
    ],
)
def test_host_and_origin(host: str | None, origin: str | None, allowed: bool):
    access = Access(allowed_hosts=["models.example"])
    assert (access.refusal(host, origin) is None) == allowed


@pytest.mark.parametrize(
    ("header", "right"),
    [
        ("Bearer secret", True),
        ("bearer  secret", True),
        ("Bearer secre", False),
        ("Bearer secrets", False),
        ("secret", False),
        ("Basic secret", False),
        ("Bearer s\xe9cret", False),
        (None, False),
    ],
)
def test_key(header: str | None, right: bool):
    assert Access(key="secret").has_key(header) == right
    assert Access().has_key(header)
    assert "secret" not in repr(Access(key="secret"))


def test_a_key_is_demanded_for_other_addresses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert make_access(ServingOptions()).key is None
    with pytest.raises(UserError, match="so a key is needed"):
        make_access(ServingOptions(host="0.0.0.0"))
    assert make_access(ServingOptions(host="0.0.0.0", api_key="k")).key == "k"
    monkeypatch.setenv(KEY_VARIABLE, "from-outside")
    assert make_access(ServingOptions()).key == "from-outside"
    assert make_access(ServingOptions(api_key="given")).key == "given"
    for wrong in ("", " ", "a b\n", "ключ"):
        with pytest.raises(UserError, match="key"):
            make_access(ServingOptions(api_key=wrong))


def test_limits_are_checked():
    with pytest.raises(UserError, match="--max-texts must be a whole number, 1 or more, got 0"):
        ServingOptions(max_texts=0)
    with pytest.raises(UserError, match="--timeout must be"):
        ServingOptions(timeout=0)
