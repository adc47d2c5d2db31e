"""
Everything that talks to Kafka.

    connection    address of Kafka, and login
    oauth         OAuth tokens
    cluster       connections to all brokers; leaders of partitions
    requests      messages of Kafka's protocol that aiokafka lacks
    transaction_requests    the same for transactions, and for the offsets committed in them
    messages      the building blocks of these messages
    codes         the error numbers that brokers answer
    producer      sends batches exactly once, in transactions
    refusals      why a partition refuses a batch
    coordinator   asks the transaction coordinator on behalf of a producer
    offsets       commits a consumer group's offsets in transactions, and reads them
    coordinator_calls    asks a coordinator again until it answers
    batches       a batch that may be sent again
    bounds        first and last offsets of logs
    fetching      reads committed records of one topic straight from the broker's batches
    odd_batches   reads the batches that aiokafka's parser cannot read
    reading       reads a topic for callers without a store: in pages, and as it grows
    placed        reads records by their place or key
    seals         reads the end of `timer-sealed`
    topics        creates and checks the service's topics
    groups        joins a consumer group; tells and removes its members
    internals     private names of aiokafka and Faust, which no other module touches
"""
