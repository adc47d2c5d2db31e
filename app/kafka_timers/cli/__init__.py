"""
The program `kafka-timers`.

    program   the group of all commands, and those about processes, topics and the service as a whole
    lake      `kafka-timers lake …`
    asking    asks for timers and changes them
    pending   which timers wait
    proofs    proofs of what became of a timer
    rejected  what was refused, and sending it again
    options   options and types of values that commands share
    render    tables and lines for people
    running   logging, event loop and missing extras
"""
