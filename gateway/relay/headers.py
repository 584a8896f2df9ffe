"""
Which headers go to a replica: an allow-list, built anew for each request. Nothing of the client's is copied.

Never the client's Authorization, Cookie, X-Forwarded-* or hop-by-hop headers; the request id is ours, since vLLM uses it
as a key of its own.
"""

from gateway.vocabulary import RequestId

Headers = list[tuple[bytes, bytes]]


def to_replica(request_id: RequestId, token: str | None) -> Headers:
    """
    Return the headers of one inference request.

    Raises:
        ValueError: *token* holds a character that would end the header.
    """
    headers = [
        (b"content-type", b"application/json"),
        (b"accept", b"text/event-stream, application/json"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", request_id.hex.encode()),
    ]
    if token is not None:
        if not token.isascii() or not token.isprintable():
            raise ValueError("a replica's token must be printable ASCII")
        headers.append((b"authorization", b"Bearer " + token.encode()))
    return headers
