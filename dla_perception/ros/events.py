"""Events of a subscription, as far as this ROS 2 release and middleware have them."""

from __future__ import annotations

import inspect
from typing import Any, Callable

from rclpy.qos import qos_policy_name_from_kind

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # ROS 2 Humble
    from rclpy.qos_event import SubscriptionEventCallbacks


def subscription_events(
    on_matched: Callable[[int], None], on_incompatible: Callable[[int, str], None]
) -> SubscriptionEventCallbacks:
    """Callbacks for ``create_subscription(event_callbacks=...)``.

    Args:
        on_matched: called with the number of publishers that are connected, whenever it changes;
            never on ROS 2 Humble, which does not tell.
        on_incompatible: called with the number of publishers met so far whose quality of service
            does not fit, and the policy that does not.
    """

    def matched(info: Any) -> None:
        on_matched(info.current_count)

    def incompatible(info: Any) -> None:
        policy = qos_policy_name_from_kind(info.last_policy_kind)
        on_incompatible(info.total_count, policy.lower().replace("rmw_qos_policy_", ""))

    known = inspect.signature(SubscriptionEventCallbacks).parameters
    callbacks = {"matched": matched, "incompatible_qos": incompatible}
    return SubscriptionEventCallbacks(
        **{name: callback for name, callback in callbacks.items() if name in known},
        use_default_callbacks=False,
    )
