"""The program `kafka-timers`, also `python -m kafka_timers`; says what to install when the command line cannot load."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from kafka_timers import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"Error: the command line needs {error.name}: pip install 'kafka-timers[worker]'")
    cli.main()


if __name__ == "__main__":
    main()
