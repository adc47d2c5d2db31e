"""Which environment variable sets what an option, or a line of a file, sets too."""

__all__ = ["env_name"]


def env_name(name: str) -> str:
    """Return the variable for a field of settings (`group`) or a property of Kafka's clients (`sasl.password`)."""
    return "KAFKA_TIMERS_" + name.replace(".", "_").upper()
