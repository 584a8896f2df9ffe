"""
Run Lua scripts in Redis: what becomes ready in one turn of the event loop shares one round trip.

Knows nothing of limits. Every call is bounded in time, also while it waits for its turn; Redis down, slow, loading or
out of memory is `StoreUnavailable`. A Redis that has forgotten the scripts is sent them again, unnoticed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from gateway.errors import StoreUnavailable
from gateway.shield import start

UNAVAILABLE: Final = "The gateway cannot check limits at the moment. Send the request again in a moment."
LARGEST_BATCH: Final = 128  #: calls; Redis serves nobody else meanwhile (about 20 µs a call)
BATCHES_AT_ONCE: Final = 4  #: and so connections


class Script:
    """A Lua script beside this module: its files, joined."""

    def __init__(self, *names: str) -> None:
        folder = files(__package__)
        self.text = "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
        self.sha1 = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True, eq=False)
class _Call:
    script: Script
    keys: Sequence[str]
    arguments: Sequence[str | int]
    answer: asyncio.Future[Any]
    is_wanted: bool = True
    is_sent: bool = False

    def operands(self) -> tuple[str | int, ...]:
        return *self.keys, *self.arguments


class ScriptRunner:
    """Runs scripts on one Redis, for one process."""

    def __init__(self, redis: Redis, timeout_seconds: float) -> None:
        self._redis = redis
        self._timeout_seconds = timeout_seconds
        self._waiting: list[_Call] = []
        self._free = BATCHES_AT_ONCE
        self._is_scheduled = False

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[str | int],
        undo: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """
        Return the answer of *script*.

        If the caller is cancelled, or gives up waiting, after the call was sent, *undo* is run once Redis is done with
        the call, whatever came of it. A client library may send a call twice: scripts must be written for that.

        Raises:
            StoreUnavailable: Redis does not answer in time, or refuses.
        """
        call = _Call(script, keys, arguments, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._schedule()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.shield(call.answer)
        except BaseException as error:
            call.is_wanted = False
            if undo is not None and call.is_sent:
                start(_undone(call, undo))
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(UNAVAILABLE) from error
            raise

    def _schedule(self) -> None:
        if self._free and self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            # Not at once: whatever else becomes ready in this turn of the loop shares the round trip.
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._is_scheduled = False
        self._waiting = [call for call in self._waiting if call.is_wanted]
        while self._free and self._waiting:
            batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
            self._free -= 1
            start(self._send(batch))

    async def _send(self, batch: Sequence[_Call]) -> None:
        try:
            for call in batch:
                call.is_sent = True
            async with asyncio.timeout(self._timeout_seconds):
                answers = await self._answers(batch)
        except (RedisError, OSError) as error:
            answers = [error] * len(batch)
        finally:
            self._free += 1
            self._schedule()
        for call, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                unavailable = StoreUnavailable(UNAVAILABLE)
                unavailable.__cause__ = answer
                call.answer.set_exception(unavailable)
                call.answer.exception()  # a caller that has left never asks: no warning about it
            else:
                call.answer.set_result(answer)

    async def _answers(self, batch: Sequence[_Call]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for call in batch:
            pipeline.evalsha(call.script.sha1, len(call.keys), *call.operands())
        answers = await pipeline.execute(raise_on_error=False)
        forgotten = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if forgotten:
            for place in forgotten:
                call = batch[place]
                pipeline.eval(call.script.text, len(call.keys), *call.operands())
            again = await pipeline.execute(raise_on_error=False)
            for place, answer in zip(forgotten, again, strict=True):
                answers[place] = answer
        return answers


async def _undone(call: _Call, undo: Callable[[], Awaitable[None]]) -> None:
    await asyncio.wait({call.answer})
    with suppress(StoreUnavailable):
        await undo()
