"""
Is a replica fit for traffic? Decided purely, from what probes and requests observed.

Three judges, and a replica must please all of them:

- active: three failed probes in a row eject it, three good ones bring it back; a new replica needs one good probe;
- progress: requests run but no token has moved for 30 s, although `/health` answers (a hung engine still says 200);
- passive: three requests in a row that it failed eject it for 10 s, twice that the next time, up to 5 min; then the
  next request tries it again.

A client's mistake or departure is never held against a replica.
"""

from dataclasses import dataclass

from gateway.vocabulary import ProbeReport

WEDGED_AFTER_SECONDS = 30.0
PASSIVE_FAILURES = 3
PASSIVE_EJECTION_SECONDS = 10.0
PASSIVE_EJECTION_MAX_SECONDS = 300.0


@dataclass(slots=True)
class Health:
    """The judgement on one replica. All times are monotonic seconds and passed in."""

    failures_to_eject: int = 3
    successes_to_return: int = 3
    reason: str | None = "not probed yet"  #: why it gets no traffic; `None` while it is fit
    passive_until: float = 0.0
    _was_up: bool = False
    _failures: int = 0
    _successes: int = 0
    _tokens_total: float | None = None
    _moved_at: float = 0.0
    _call_failures: int = 0
    _ejections: int = 0

    @property
    def is_up(self) -> bool:
        """Tell whether the active probe and the progress watch are content."""
        return self.reason is None

    @property
    def was_up(self) -> bool:
        """Tell whether it ever was fit: what has not been is warming, what was is ejected."""
        return self._was_up

    def is_passively_ejected(self, now: float) -> bool:
        """Tell whether failed requests keep traffic away at *now*."""
        return now < self.passive_until

    def observe(self, report: ProbeReport, now: float) -> None:
        """Take in the result of one probe."""
        problem = report.reason or self._wedged(report, now)
        if problem is not None:
            self._successes = 0
            self._failures += 1
            # A wedge has been watched for 30 s already; a failed probe may be a hiccup.
            if self._failures >= self.failures_to_eject or report.reason is None or not self._was_up:
                self.reason = problem
            return
        self._failures = 0
        self._successes += 1
        if self.reason is not None and (not self._was_up or self._successes >= self.successes_to_return):
            self.reason = None
            self._was_up = True

    def progressed(self, now: float) -> None:
        """Note that a token of a running request has just arrived."""
        self._moved_at = now

    def call_succeeded(self) -> None:
        """Note that a request was answered."""
        self._call_failures = 0
        self._ejections = 0

    def call_failed(self, now: float) -> None:
        """Note that a request could not be delivered, was answered with a 5xx, or got no first token in time."""
        self._call_failures += 1
        if self._call_failures < PASSIVE_FAILURES or self.is_passively_ejected(now):
            return
        self._ejections += 1
        seconds = PASSIVE_EJECTION_SECONDS * 2 ** (self._ejections - 1)
        self.passive_until = now + min(seconds, PASSIVE_EJECTION_MAX_SECONDS)
        self._call_failures = PASSIVE_FAILURES - 1  # half open: when it returns, one failure is enough

    def _wedged(self, report: ProbeReport, now: float) -> str | None:
        moved = report.tokens_total != self._tokens_total
        idle = report.load is None or report.load.running == 0
        self._tokens_total = report.tokens_total
        if moved or idle:
            self._moved_at = max(self._moved_at, now)
        if now - self._moved_at < WEDGED_AFTER_SECONDS:
            return None
        return f"requests run, but no token has moved for {WEDGED_AFTER_SECONDS:.0f} s"
