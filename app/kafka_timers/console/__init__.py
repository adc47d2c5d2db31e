"""
`kafka-timers console`: timers over HTTP, for services without a Kafka client and for people.

    settings   what can be set
    access     who may do what
    models     bodies of requests, with the units and bounds that the OpenAPI document tells
    answers    bodies of answers
    service    does what is asked: through the client, the workers and the topics
    sharing    asks what takes long once for all who wait, and lets nobody wait long
    routes     which address does what, and what an error is answered
    etf1       what the admin GUI of another scheduler asks
    pages      what lies in static/: the pages that a browser shows
    run        the process

FastAPI makes the OpenAPI document of the same models that check the bodies, so the two cannot differ; uvicorn serves
it.
"""
