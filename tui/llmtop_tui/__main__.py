"""The program ``llmtop``: the core's command line with the terminal view in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtop.cli.app import main as run
from llmtop.errors import StartError

if TYPE_CHECKING:
    from llmtop.config.resolve import Configuration


class Terminal:
    """The view, for the command line. The screen is imported when it is shown: other commands never pay for it."""

    def run(self, configuration: Configuration) -> int:
        """Run a core in this process and show it."""
        from llmtop_tui.embed import run

        return run(configuration)

    def attach(self, url: str, key: str, *, readonly: bool, record: str) -> int:
        """Show a core that runs elsewhere."""
        from llmtop_tui.embed import attach

        return attach(url, key, readonly=readonly, record=record)

    def web(self, url: str, key: str, *, readonly: bool, host: str, port: int) -> int:
        """Serve views of a core that runs elsewhere to browsers of this machine."""
        try:
            from llmtop_tui.web.server import serve
        except ModuleNotFoundError as missing:
            if str(missing.name).startswith("llmtop"):
                raise
            raise StartError("the web view needs the extra: pip install 'llmtop-swap[web]'") from None
        return serve(url, key, readonly=readonly, host=host, port=port)

    def replay(self, path: str) -> int:
        """Show a recorded run."""
        from llmtop_tui.embed import replay

        return replay(path)


def main() -> int:
    """Run the program; the exit code is its answer."""
    return run(view=Terminal())


if __name__ == "__main__":
    raise SystemExit(main())
