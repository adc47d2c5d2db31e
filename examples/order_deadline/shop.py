"""
A shop whose orders expire unless they are paid in time.

    python examples/order_deadline/shop.py
    curl -X POST 'localhost:8000/orders/7?seconds=30'
    curl -X POST localhost:8000/orders/7/pay
    curl localhost:8000/orders/7

Django in a single file, with a thread that receives the callbacks. In a larger project that thread is a process of its
own, such as a management command.
"""

import os
import sys
import threading
import traceback

import django
from confluent_kafka import Consumer
from django.conf import settings
from django.core.management import call_command
from django.http import HttpRequest, JsonResponse

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
PORT = os.environ.get("PORT", "8000")
TOPIC = "callbacks"

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", "shop.sqlite3")}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    MIDDLEWARE=[],
    ROOT_URLCONF=__name__,
)
django.setup()

from django.db import connection, models  # noqa: E402  # only once Django is set up
from django.urls import path  # noqa: E402

from kafka_timers import Callback, Outcome, TokenGuard  # noqa: E402
from kafka_timers.sync import TimerClient  # noqa: E402

# The client connects with the first call, so the shop starts while Kafka is away.
timers = TimerClient(KAFKA)


class Order(models.Model):
    """An order: placed, paid or expired."""

    number = models.CharField(max_length=40, primary_key=True)
    state = models.CharField(max_length=10)
    # Token of the deadline that counts. A callback with another token is of a deadline that was cancelled or replaced.
    token = models.CharField(max_length=40)

    class Meta:
        """The model belongs to no application, so it gives its label itself."""

        app_label = "shop"


def place(request: HttpRequest, number: str) -> JsonResponse:
    """Place an order, which expires after some seconds."""
    token = TokenGuard().new()
    # Store the token before you ask for the timer: a callback with an unknown token is ignored.
    Order.objects.update_or_create(number=number, defaults={"state": "placed", "token": token})
    seconds = float(request.GET.get("seconds", "30"))
    timer = timers.after(seconds, topic=TOPIC, key=number, timer_id=f"deadline-{number}", token=token)
    return JsonResponse({"number": number, "expires": timer.second})


def pay(request: HttpRequest, number: str) -> JsonResponse:
    """Pay an order, unless its deadline has passed."""
    if timers.cancel(f"deadline-{number}").outcome is not Outcome.CANCELLED:
        return JsonResponse({"error": "too late, or no such order"}, status=409)
    Order.objects.filter(number=number, state="placed").update(state="paid")
    return JsonResponse({"number": number, "state": "paid"})


def show(request: HttpRequest, number: str) -> JsonResponse:
    """Return the state of an order, or place the order with POST."""
    if request.method == "POST":
        return place(request, number)
    order = Order.objects.filter(number=number).first()
    if order is None:
        return JsonResponse({"error": "no such order"}, status=404)
    return JsonResponse({"number": number, "state": order.state})


def receive() -> None:
    """Expire orders whose deadline has come."""
    consumer = Consumer(
        {
            "bootstrap.servers": KAFKA,
            "group.id": "shop",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    while True:
        record = consumer.poll(1.0)
        if record is None or record.error():
            continue
        callback = Callback.of(record)
        if callback is not None and callback.key is not None:
            # Any writer to the topic chooses its keys. A key that is no text belongs to no order.
            number = callback.key.decode(errors="replace")
            # This is one statement, so it does no harm to read the callback twice.
            expired = Order.objects.filter(number=number, state="placed", token=callback.token)
            if expired.update(state="expired"):
                print("expired", number, flush=True)
        consumer.commit(record)


def receive_or_end() -> None:
    """Receive, and end the process if that fails: a shop without its receiver would let no order expire."""
    try:
        receive()
    except BaseException:
        traceback.print_exc()
        # sys.exit would end this thread alone. The supervisor of the process starts it again.
        os._exit(1)


urlpatterns = [path("orders/<number>", show), path("orders/<number>/pay", pay)]

if __name__ == "__main__":
    if Order._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Order)
    threading.Thread(target=receive_or_end, daemon=True).start()
    sys.argv[1:] = []
    call_command("runserver", f"127.0.0.1:{PORT}", use_reloader=False)
