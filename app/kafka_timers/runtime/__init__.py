"""
What the processes of the service have in common, below worker, doors, planner and oscillator.

    priority         lets sending go before reading and prebuilding
    tasks            ends tasks
    log_reader       reads a log for the feeds of its partitions, in whole fetches
    ticks            reads the ticks of the owned partitions
    shared_topic     shares the partitions of a topic among the members of a group
    targets          callback topics: whether they can be written to, and their limits
    rejecting        refused requests as records of `timer-rejected`
    filling          fills record batches for several topics
    outlet           the topics for requests and refused records, and the transactional ids of their writers
    metrics          names and units of all metrics of a worker
    gauges           gauges that show nothing before their value is known
    probes           /metrics, /livez and /readyz
    http_server      the HTTP server of these
    die_with_parent  ends a process with its parent
"""
