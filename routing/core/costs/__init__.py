"""What a fleet used: instance-hours by role, egress, traffic, and what that costs. Pure."""
