"""Who may call the server: loopback addresses, the Host and Origin headers, the key."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Collection
from dataclasses import dataclass, field

from lmlab.core.errors import UserError
from lmlab.serve.serving_options import KEY_VARIABLE, ServingOptions


@dataclass(frozen=True, kw_only=True)
class Access:
    """Rules for every request."""

    key: str | None = field(default=None, repr=False)
    allowed_hosts: Collection[str] = ()

    def refusal(self, host: str | None, origin: str | None) -> str | None:
        """Why a request with these headers is refused; None if it is not.

        A page of another site can make a browser call a loopback address: by DNS rebinding under
        the site's own name, which stands in Host, or across origins, which Origin names.
        """
        name = host_name(host or "")
        if name not in self.allowed_hosts and not is_address(name) and name != "localhost":
            return (
                "this server is not called by the host name of this request; use its address or "
                "localhost, or start it with --allowed-host NAME."
            )
        if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            return "requests of pages of other origins are refused."
        return None

    def has_key(self, authorization: str | None) -> bool:
        """Whether the key is right or none is needed, in a time that says nothing of the key."""
        if self.key is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self.key.encode())
        return same and scheme.lower() == "bearer"


def make_access(options: ServingOptions) -> Access:
    """The rules of these options; a UserError where a key is needed and missing."""
    key = options.api_key if options.api_key is not None else os.environ.get(KEY_VARIABLE)
    if key is not None and not key.strip():
        raise UserError(f"--api-key and {KEY_VARIABLE} must not be empty; give a key or neither.")
    if key is not None and (not key.isascii() or not key.isprintable() or key != key.strip()):
        raise UserError(
            "a key has ASCII letters, digits and signs only; give another by --api-key."
        )
    if key is None and not is_loopback(options.host):
        raise UserError(
            f"--host {options.host} can be reached from other machines, so a key is needed; give "
            f"one by {KEY_VARIABLE} or --api-key, or listen at 127.0.0.1."
        )
    names = {name.lower() for name in (options.host, *options.allowed_hosts)}
    return Access(key=key, allowed_hosts=names)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback


def is_address(name: str) -> bool:
    """Whether a host is an IP address, which no DNS server can rebind."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """The host of a Host header, without port and brackets, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
