"""The program `kafka-timers`, also `python -m kafka_timers`; says what to install when the command line cannot load."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from kafka_timers.cli.program import main as run
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("click", "rich"):
            raise
        sys.exit(f"Error: the command line needs {library}: pip install 'kafka-timers[cli]'")
    run()


if __name__ == "__main__":
    main()
