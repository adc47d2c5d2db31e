"""
The program `kafka-timers`.

    program   the group of all commands, and the commands for processes, topics and the service as a whole
    lake      `kafka-timers lake …`
    lake_jobs `kafka-timers lake land` and `lake promote`, which run all the time
    lake_audit `kafka-timers lake audit` and `lake publish-chain`
    asking    commands that ask for timers and change them
    listing   commands that show waiting timers
    rejects   commands that show refused requests and send them again
    recurrence `kafka-timers schedule …`, for recurring timers
    options   shared options and the types of their values
    render    tables and lines for people
    lake_rows rows of the lake as a table or as CSV
    running   logging, event loop and missing extras
"""
