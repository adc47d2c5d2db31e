"""
`kafka-timers console`: timers over HTTP, for services without a Kafka client and for people.

    settings   what can be set
    access     who may do what
    models     bodies of requests and answers, with the units and bounds that the OpenAPI document tells
    service    does what is asked: through the client, the workers and the topics
    routes     which address does what, and what an error is answered
    pages      what lies in static/: the pages that a browser shows
    run        the process

FastAPI makes the OpenAPI document of the same models that check the bodies, so the two cannot differ; uvicorn serves
it.
"""
