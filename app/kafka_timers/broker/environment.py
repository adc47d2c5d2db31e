"""The names of environment variables for command line options and for lines of the Kafka configuration file."""


def env_name(name: str) -> str:
    """Return the variable for a field of settings (`group`) or a property of Kafka's clients (`sasl.password`)."""
    return "KAFKA_TIMERS_" + name.replace(".", "_").upper()
