"""
The text of a key: how it is made, recognised and hashed.

    sk-wb-  <12 public id>  <43 secret>  <6 checksum>      base62, 67 characters; `ak-wb-` for admin credentials

The id is safe to log and finds the stored hash; the secret is shown once and never stored; the checksum (CRC-32 over
everything before it) lets a typo be refused without a look-up and lets scanners tell a key from a random string.

Pure, but for the randomness of `issue`. Knows nothing of storage, roles or HTTP.
"""

import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field
from enum import StrEnum

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS = 12
SECRET_CHARS = 43  #: 62 ** 43 > 2 ** 256
CHECKSUM_CHARS = 6  #: 62 ** 6 > 2 ** 32
PREFIX_CHARS = 6
KEY_CHARS = PREFIX_CHARS + ID_CHARS + SECRET_CHARS + CHECKSUM_CHARS

_BASE62 = re.compile(f"[0-9A-Za-z]{{{KEY_CHARS - PREFIX_CHARS}}}")


class KeyKind(StrEnum):
    """What a key is for; the value is its prefix. One kind is never accepted in place of the other."""

    INFERENCE = "sk-wb-"
    ADMIN = "ak-wb-"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the one moment when its text is known. Store the other fields, show `text` once."""

    id: str
    text: str = field(repr=False)
    secret_hash: bytes = field(repr=False)
    last4: str  #: of the text, so that a person can tell which of their keys this is


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A text that has the form of a key. Whether such a key exists is not known yet."""

    id: str
    secret: str = field(repr=False)


def issue(kind: KeyKind, pepper: bytes) -> NewKey:
    """Return a new key with a random id and a uniformly random secret of 256 bits."""
    key_id = _random_base62(ID_CHARS)
    secret = _random_base62(SECRET_CHARS)
    text = kind + key_id + secret
    text += _checksum(text)
    return NewKey(key_id, text, hash_secret(pepper, secret), text[-4:])


def parse(text: str, kind: KeyKind) -> ParsedKey | None:
    """Return the parts of *text* if it has the form of a key of this *kind*: prefix, length, alphabet, checksum."""
    if len(text) != KEY_CHARS or not text.startswith(kind) or not _BASE62.fullmatch(text, PREFIX_CHARS):
        return None
    if _checksum(text[:-CHECKSUM_CHARS]) != text[-CHECKSUM_CHARS:]:
        return None
    secret_at = PREFIX_CHARS + ID_CHARS
    return ParsedKey(text[PREFIX_CHARS:secret_at], text[secret_at:-CHECKSUM_CHARS])


def hash_secret(pepper: bytes, secret: str) -> bytes:
    """
    Return what is stored of a secret: HMAC-SHA-256 under *pepper*.

    A fast hash is right here, because a uniformly random secret of 256 bits cannot be guessed; the pepper makes a
    stolen table useless without the gateway's root secret.
    """
    return hmac.digest(pepper, secret.encode(), "sha256")


def _random_base62(length: int) -> str:
    return _base62(secrets.randbelow(62**length), length)


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), CHECKSUM_CHARS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
