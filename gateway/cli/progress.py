"""How long starting takes, shown while it takes: a spinner on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


@contextmanager
def step(console: Console, doing: str) -> Iterator[Callable[[str], None]]:
    """Show that we are *doing* something; yield what shows how far it is; end with a line that says how long it took."""
    begun = time.monotonic()
    shown = ""

    def detail(text: str) -> None:
        nonlocal shown
        if text != shown and text:
            shown = text
            if console.is_terminal:
                status.update(f"{escape(doing)}  [dim]{escape(text)}[/]")
            else:
                console.print(f"  {doing}: {text}", markup=False, highlight=False, soft_wrap=True)

    with console.status(escape(doing)) as status:
        if not console.is_terminal:
            console.print(f"… {doing}", markup=False, highlight=False)
        yield detail
    console.print(f"[green]✓[/] {escape(doing)} [dim]{time.monotonic() - begun:.1f} s[/]", highlight=False)
