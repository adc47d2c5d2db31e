"""
The lake: everything that is not second-accurate firing, on Spark, in Delta tables.

    session     the Spark session: jars, configuration, clear errors
    schema      the tables: columns, types, units, and where each lies
    land        timer-request, timer-sealed and timer-rejected → tables, exactly once
    promote     far requests → timer-request, as copies, before they come due
    commands    the command line `kafka-timers lake …`

What a job computes is a function DataFrame → DataFrame that knows neither Kafka nor a session; around it lies a thin
shell that reads and writes.
"""
