"""
Kafka as all processes see it.

    connection    where Kafka is and how to log in
    oauth         tokens of OAuth
    cluster       connections to all brokers; who leads what
    requests      messages of Kafka's protocol that aiokafka has not
    transaction_requests    those about transactions, and the offsets in them
    messages      what they are made of
    codes         what brokers answer when they do not do what they were asked for
    producer      sends batches, each once, in transactions
    refusals      why a partition does not take what is sent to it
    coordinator   of transactions, as a producer talks to it
    offsets       of a consumer group, committed in transactions, and read
    asking        questions to coordinators, until they are answered
    batches       a batch that may be sent again
    bounds        where logs begin and end
    fetching      committed records of one topic, straight from the broker's batches
    odd_batches   what aiokafka's parser does not read
    placed        one record by its place
    seals         reads the end of `timer-sealed`
    topics        creates and checks the service's topics
    groups        what is told to the coordinator of a group
    consuming     aiokafka's consumer, always closed well
    producing     aiokafka's producer, always ended
    internals     private names of aiokafka and Faust, which no other module touches
"""
