"""
Everything that talks to Kafka.

The file map in docs/design.md has a line for each module.

What asks brokers raises `aiokafka.errors.KafkaError` if none answers in time, or one refuses. What connects to a
`Kafka` raises `BrokerError` in its place, after some 10 s.
"""
