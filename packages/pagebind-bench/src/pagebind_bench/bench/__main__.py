"""`python -m pagebind_bench.bench` is `pagebind bench`, where no command line is installed."""

from __future__ import annotations

import sys

from pagebind_bench.bench.command import app


def main() -> int:
    """Run the command; pagebind's own errors are one message and exit code 2."""
    from pagebind.errors import PagebindError

    try:
        app(prog_name="python -m pagebind_bench.bench")
    except PagebindError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
