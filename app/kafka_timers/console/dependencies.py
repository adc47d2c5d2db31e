"""What routes need of a request: the service, and a caller who may act."""

from typing import Annotated

from fastapi import Depends, Request

from kafka_timers.console.access import Caller, Role
from kafka_timers.console.actions import Service
from kafka_timers.console.problems import ProblemError


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _operator(request: Request) -> Caller:
    caller: Caller = request.state.caller
    if caller.role < Role.OPERATE:
        raise ProblemError(403, f"{caller.name} may look, and change nothing")
    return caller


AskedService = Annotated[Service, Depends(_service)]
Operator = Annotated[Caller, Depends(_operator)]
