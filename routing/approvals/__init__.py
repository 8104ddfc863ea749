"""Approvals: what reaches far waits for a second person, and is done exactly once. Read `gate`."""
