"""Webhooks: events of sandboxes, posted to URLs that the operator's settings name.

A *target* is a configured receiver. A *delivery* is one event for one target, with an ID that stays the same when it is
sent again. The *queue* has the deliveries that wait, in the database; a delivery that failed too often is *dead* until
an operator retries it. An *alert* is an event that the server raises itself, when a rule of the settings counts enough
other events."""
