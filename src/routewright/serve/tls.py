"""TLS of a server: 1.2 or higher (spec 1), HTTP/1.1, and what is wrong with its files said before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path

from routewright.errors import Problem, ValidationFailed

from .plan import Tls


def server_context(tls: Tls) -> ssl.SSLContext:
    """What a listener needs. Raises ``ValidationFailed`` naming the key of the configuration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    for key, path in (("tls.cert", tls.cert), ("tls.key", tls.key)):
        if path is not None:
            _check_readable(key, path)
    asked = False

    def password() -> str:  # else OpenSSL asks at the terminal
        nonlocal asked
        asked = True
        return tls.key_password or ""

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except (ssl.SSLError, ValueError) as error:
        raise ValidationFailed.of(_problem(tls, error, encrypted=asked)) from error
    return context


def _check_readable(key: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ValidationFailed.of(Problem(key, f"{path} cannot be read: {reason}", "name a file in PEM")) from error


def _problem(tls: Tls, error: Exception, *, encrypted: bool) -> Problem:
    key, path = ("tls.cert", tls.cert) if tls.key is None else ("tls.key", tls.key)
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return Problem(key, f"{path} holds a private key that is not the one of the certificate", "name the one it is")
    if encrypted and tls.key_password is None:
        return Problem("tls.key_password", f"is missing, and the private key in {path} is encrypted", "set it")
    if encrypted:
        return Problem("tls.key_password", f"does not open the private key in {path}", "check it")
    if "PRIVATE KEY" not in Path(path).read_text("latin-1"):
        return Problem(key, f"{path} holds no private key in PEM", "name the file that does as the key")
    return Problem("tls.cert", f"{tls.cert} holds no certificate in PEM, or {path} no usable key", "check both files")
