"""
`kafka-timers console`: timers over HTTP, for services without a Kafka client and for people.

    console_settings    the console's settings
    access     authentication and permissions of callers
    models     bodies of requests, with the units and bounds that the OpenAPI document states
    bodies     bodies of answers
    actions    carries requests out: through the client, the workers and the topics
    sharing    asks a slow question once for all its callers, and limits their wait
    routes     addresses
    dependencies       what routes need of a request
    schedule_routes    addresses of schedules, which the client carries out
    schedule_bodies    bodies of their requests and answers
    etf1_gui   answers for the admin GUI of another scheduler
    pages      the pages in static/ that a browser shows
    run        the process

FastAPI makes the OpenAPI document from the models that check the bodies, so the two cannot differ. uvicorn serves it.
"""
