"""
Kafka as all processes see it.

    connection    where Kafka is and how to log in
    oauth         tokens of OAuth
    topics        creates and checks the service's topics
    seals         reads the end of `timer-sealed`
    consuming     a consumer that is always closed well
    producing     a producer that is always ended
    fetching      committed records of one topic, straight from the broker's batches
    epoch         asks the broker whether a transactional producer has been shut out by a later one
    internals     private names of aiokafka and Faust, which no other module touches
"""
