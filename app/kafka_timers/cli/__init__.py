"""
The program `kafka-timers`.

    program   all commands but those of the lake
    lake      `kafka-timers lake …`
    pending   which timers wait
    options   options and types of values that commands share
    render    tables and lines for people
    running   logging, event loop and missing extras
"""
