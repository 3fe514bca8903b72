"""What both nodes have in common: parameters from a YAML, autostart and diagnostics."""

from __future__ import annotations

import os
import threading
import traceback
from typing import Any, Callable, Generic, Mapping, Protocol, Sequence, TypeVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter

from dla_perception.errors import DlaPerceptionError
from dla_perception.monitoring.health import Finding
from dla_perception.package_share import share_path
from dla_perception.ros.diagnostics import diagnostics_message, status_message
from dla_perception.ros.parameters import (
    ParameterInfo,
    declare_parameters,
    parameter_values,
    read_defaults,
)
from dla_perception.ros.qos import LATCHED_QOS

LEAVE_S = 1.0
"""How long taking leave of DDS may last when a process has to end."""


class NodeParameters(Protocol):
    """What the checked parameters of every node have."""

    @property
    def diagnostics_period_s(self) -> float:
        """Seconds between two diagnostics messages."""

    @property
    def autostart(self) -> bool:
        """Whether the node configures and activates itself."""


Parameters = TypeVar("Parameters", bound=NodeParameters)


class ManagedNode(LifecycleNode, Generic[Parameters]):
    """A lifecycle node whose parameters are one checked object and which tells how it is.

    Attributes:
        current: the parameters as they are.
        steady_clock: for timers that must not wait for a simulated clock.
        exit_code: of the process that is to end; ``None`` while it is not.
    """

    def __init__(
        self,
        name: str,
        infos: Mapping[str, ParameterInfo],
        config: str,
        read: Callable[[Mapping[str, Any]], Parameters],
        **options: Any,
    ) -> None:
        """Declare the parameters and start to publish diagnostics.

        Args:
            name: of the node.
            infos: its parameters.
            config: the shared YAML with their defaults.
            read: makes the checked object from the values, or raises DlaPerceptionError.
            options: for :class:`rclpy.lifecycle.LifecycleNode`.
        """
        super().__init__(name, **options)
        self.exit_code: int | None = None
        self._infos = infos
        self._read = read
        declare_parameters(self, infos, read_defaults(share_path(config)))
        self.current = read(parameter_values(self, list(infos)))
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self.steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._diagnostics_timer = self.create_timer(
            self.current.diagnostics_period_s, self._publish_diagnostics, clock=self.steady_clock
        )
        if self.current.autostart:
            self._autostart_timer = self.create_timer(0.0, self._autostart, clock=self.steady_clock)

    # For subclasses ------------------------------------------------------------------------------

    def findings(self) -> Sequence[Finding]:
        """What there is to say about everything that can fail."""
        return ()

    def hardware_id(self) -> str:
        """What the node's findings are about."""
        return "none"

    def is_fixed(self) -> bool:
        """Whether only dynamic parameters may change now."""
        return False

    def use_parameters(self, parameters: Parameters) -> None:
        """Apply new parameters; raises DlaPerceptionError to refuse them."""

    def configure(self) -> None:
        """Take what is needed and offer the outputs; DlaPerceptionError refuses to."""

    def activate(self) -> None:
        """Take messages in; the lifecycle publishers are open."""

    def deactivate(self) -> None:
        """Take no more messages in."""

    def release(self) -> None:
        """Stop and free everything; called in any state, also more than once."""

    def refused(self, error: str) -> None:
        """A transition failed for a reason that the user can mend; it has been logged."""

    def publish_once(self, topic: str, message: Any) -> Any:
        """Say something that who subscribes later still gets; returns the publisher."""
        publisher = self.create_publisher(type(message), topic, LATCHED_QOS)
        publisher.publish(message)
        return publisher

    def status(self, finding: Finding) -> DiagnosticStatus:
        """A finding as a message, under this node's name."""
        return status_message(finding, self.get_fully_qualified_name(), self.hardware_id())

    def end_process(self, code: int) -> None:
        """End the process from any of its threads, with others that may hang for ever.

        Not at once: a process that is gone in the middle of an exchange in shared memory holds up
        those that it exchanged with, for seconds. The executor's thread takes leave first.
        """
        self.exit_code = code
        last_resort = threading.Timer(LEAVE_S, os._exit, [code])
        last_resort.daemon = True
        last_resort.start()
        self.context.try_shutdown()

    # Lifecycle -----------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Take what is needed and offer the outputs."""
        return self._transition("configure", self.configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the outputs and take messages in."""
        super().on_activate(state)
        return self._transition("activate", self.activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Take no more messages in and close the outputs."""
        result = self._transition("deactivate", self.deactivate)
        super().on_deactivate(state)
        return result

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free what configure took."""
        return self._transition("clean up", self.release)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything, from whichever state."""
        return self._transition("shut down", self.release)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After a fault in a transition: free everything, so that it can be tried again."""
        return self._transition("recover", self.release)

    def _transition(self, name: str, step: Callable[[], None]) -> TransitionCallbackReturn:
        """Do a step and tell what went wrong, which rclpy would keep to itself."""
        try:
            step()
        except DlaPerceptionError as error:
            self.get_logger().error(str(error))
            self.refused(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(f"cannot {name}: {traceback.format_exc()}")
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _autostart(self) -> None:
        self.destroy_timer(self._autostart_timer)
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    # Parameters and diagnostics ------------------------------------------------------------------

    def _on_set_parameters(self, changes: Sequence[Parameter]) -> SetParametersResult:
        """Check the changes together: all are made, or none is."""
        values = parameter_values(self, list(self._infos))
        values.update({change.name: change.value for change in changes if change.name in values})
        try:
            for change in changes:
                info = self._infos.get(change.name)
                if info is not None and not info.dynamic and self.is_fixed():
                    raise DlaPerceptionError(
                        f"{change.name}: cannot change while the node is configured: clean it up, "
                        "set it, and configure again"
                    )
            parameters = self._read(values)
            self.use_parameters(parameters)
        except DlaPerceptionError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self.current = parameters
        return SetParametersResult(successful=True)

    def _publish_diagnostics(self) -> None:
        statuses = [self.status(finding) for finding in self.findings()]
        self._diagnostics.publish(diagnostics_message(statuses, self.get_clock().now().to_msg()))
