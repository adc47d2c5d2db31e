"""
What operators ask of a running service: plain functions and dataclasses, for the command line and other front ends.

    status      reads how each partition and each door stands
    find        reads what became of the timers of one id
    pending     asks the workers which timers wait
    rejected    reads the refused requests
    callback_topics    reads which topics get callbacks next
    watch       reads a callback topic
    acls        lists what each process must be allowed to do on Kafka (pure)
    capacity    computes what a load needs (pure)
    documents   turns all of these into JSON documents (pure)
"""
