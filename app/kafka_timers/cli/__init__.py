"""
The program `kafka-timers`.

    program   all commands but those of the lake
    lake      `kafka-timers lake …`
"""
