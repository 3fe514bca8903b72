"""Messages that have arrived and wait for their callback."""

from __future__ import annotations

from typing import Any

from rclpy.subscription import Subscription


def take_waiting(subscription: Subscription) -> list[Any]:
    """All messages of a subscription that wait, oldest first; their callback is not called.

    An executor serves the subscriptions that are ready in the order in which they were made, not
    in that of the arrivals. To be called in the executor's thread, which does the same to fetch a
    message and goes on where there is none.
    """
    messages: list[Any] = []
    with subscription.handle:
        while True:
            taken = subscription.handle.take_message(subscription.msg_type, False)
            if taken is None:
                return messages
            messages.append(taken[0])
