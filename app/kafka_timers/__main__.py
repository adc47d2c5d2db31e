"""The program `kafka-timers`, also `python -m kafka_timers`; names the extra to install when it cannot load."""

import sys

# Commands that need more than the command line. Each has an extra of its own name.
_EXTRAS = ("console", "dev", "lake", "oscillator", "serve", "worker")


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from kafka_timers.cli.program import main as run

        run()
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("click", "rich"):
            raise
        extra = next((name for name in sys.argv[1:2] if name in _EXTRAS), "cli")
        sys.exit(f"Error: the command line needs {library}: pip install 'kafka-timers[{extra}]'")


if __name__ == "__main__":
    main()
